"""Strict JSON: canonical forms, snapshots of anything, and what a model wrote."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import gc
import json
import math
import pathlib
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._frozen import freeze
from goliath_actors._json import (
    MAX_DEPTH,
    Parsed,
    _reading,
    canonical,
    dumps,
    json_problem,
    parse_arguments,
    parse_reply,
    snapshot,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)


def same(one: Any, other: Any) -> bool:
    """Say whether two values are the same JSON data: the reference that `canonical` is held to."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


# --- canonical ------------------------------------------------------------------------------------------------------


@given(VALUES, VALUES)
def test_canonical_forms_are_equal_exactly_for_the_same_data(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) is same(one, other)


@given(VALUES)
def test_canonical_form_survives_json_and_freezing(value: Any) -> None:
    assert canonical(json.loads(json.dumps(value))) == canonical(value)
    assert canonical(freeze(value)) == canonical(value)


@given(OBJECTS)
def test_canonical_form_does_not_depend_on_key_order(value: dict[str, Any]) -> None:
    assert canonical(dict(reversed(list(value.items())))) == canonical(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        (2**70, float(2**70)),
        ({"a": 1, "b": [1.0]}, {"b": [1], "a": 1}),
        ((1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (math.nan, math.nan),
    ],
)
def test_these_are_the_same_data(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (None, "null"),
        (2**53 + 1, float(2**53)),
        ([], {}),
        ([[1], 2], [1, [2]]),
        (math.nan, "nan"),
        (math.inf, -math.inf),
        ("é", "e\u0301"),
        ({"a": [1, 2]}, {"a": [2, 1]}),
    ],
)
def test_these_are_different_data(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


def test_canonical_form_of_data_that_is_too_deep_equals_nothing_but_itself() -> None:
    def nest() -> list[Any]:
        value: list[Any] = []
        for _ in range(5_000):
            value = [value]
        return value

    one, other = nest(), nest()
    assert canonical(one) == canonical(one)
    assert canonical(one) != canonical(other)
    cycle: list[Any] = []
    cycle.append(cycle)
    assert canonical(cycle) == canonical(cycle)


def test_canonical_form_of_a_number_of_any_length_is_written() -> None:
    assert canonical(10**6_000) != canonical(10**6_000 + 1)


# --- snapshot -------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@attrs.frozen
class AttrsPoint:
    x: int
    y: Any = None


@dataclasses.dataclass
class DataPoint:
    x: int


class StructPoint(msgspec.Struct):
    x: int


class ModelPoint(pydantic.BaseModel):
    x: int
    when: datetime.date


class TuplePoint(NamedTuple):
    x: int


class Plain:
    pass


class Spoken:
    def __str__(self) -> str:
        return "spoken"


class Hostile:
    """Raises whatever is done to it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__


class HostileMapping(collections.UserDict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("items")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (1.5, 1.5),
        ("text", "text"),
        ([1, (2, 3)], [1, [2, 3]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        (freeze({"a": [1]}), {"a": [1]}),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        ({2: "a", "2": "b"}, {"2": "a", "2'": "b"}),
        ({Colour.RED: 1}, {"red": 1}),
        ({datetime.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (collections.deque([1]), [1]),
        ({"a": 1}.keys(), ["a"]),
        (range(3), [0, 1, 2]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), "2026-01-02T03:04:00+00:00"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(days=1), "1 day, 0:00:00"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (b"plain", "plain"),
        (b"\xff\x00", "<2 bytes>"),
        (bytearray(b"ok"), "ok"),
        (memoryview(b"abc"), "<3 bytes>"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (2**64, "18446744073709551616"),
        (2**64 - 1, 2**64 - 1),
        (AttrsPoint(1, AttrsPoint(2)), {"x": 1, "y": {"x": 2, "y": None}}),
        (DataPoint(1), {"x": 1}),
        (StructPoint(1), {"x": 1}),
        (ModelPoint(x=1, when=datetime.date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}),
        (TuplePoint(1), {"x": 1}),
        (ValueError("bad"), "ValueError: bad"),
        (Plain(), "<Plain>"),
        (Spoken(), "spoken"),
        (HostileMapping(), "<HostileMapping>"),
        ({"a": int}, {"a": "<class 'int'>"}),
        ("half \ud83d pair", "half ? pair"),
    ],
)
def test_snapshot_is_plain_data_of_anything(value: Any, expected: Any) -> None:
    taken = snapshot(value)
    assert taken == expected
    assert json.loads(dumps(taken)) == expected


def test_snapshot_of_an_object_that_raises_at_every_touch_is_its_type() -> None:
    hostile = Hostile()
    assert snapshot({"a": [hostile, 1]}) == {"a": ["<Hostile>", 1]}


def test_snapshot_says_how_long_an_integer_is_that_cannot_be_written() -> None:
    assert snapshot(10**6_000) == "<integer of 19932 bits>"


def test_snapshot_shares_nothing_with_its_original() -> None:
    original = {"a": [1]}
    taken = snapshot(original)
    original["a"].append(2)
    assert taken == {"a": [1]}


def test_snapshot_marks_cycles_and_shows_a_value_that_appears_twice() -> None:
    shared = [1]
    value: dict[str, Any] = {"one": shared, "two": shared}
    value["self"] = value
    assert snapshot(value) == {"one": [1], "two": [1], "self": "<cycle>"}


def test_snapshot_of_something_huge_is_bounded_and_says_what_is_left_out() -> None:
    taken = snapshot(range(10**9))
    assert len(taken) < 60_000
    assert taken[-1] == f"<{10**9 - (len(taken) - 1)} more>"
    wide_mapping = snapshot({str(number): number for number in range(100_000)})
    assert len(wide_mapping) < 60_000
    assert wide_mapping["…"] == f"<{100_000 - (len(wide_mapping) - 1)} more>"
    text = snapshot(["x" * 3_000_000, "y" * 3_000_000])
    assert len(text[0]) == 3_000_000
    assert text[1] == "y" * 1_000_000 + "…"
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert "nested too deeply" in dumps(snapshot(deep))
    wide: list[Any] = [1]
    for _ in range(30):
        wide = [wide, wide]  # 2**30 paths, no cycle
    assert len(dumps(snapshot(wide))) < 2_000_000


@given(VALUES)
def test_snapshot_of_plain_data_is_that_data(value: Any) -> None:
    taken = snapshot(value)
    assert same(json.loads(dumps(taken)), taken)
    if all(abs(number) < 2**63 for number in numbers(value)):
        assert same(taken, value)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int) else []


# --- parse_reply ----------------------------------------------------------------------------------------------------


@given(VALUES)
def test_a_reply_that_is_json_is_read_as_json_does(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), f"\n {json.dumps(value)}\t"):
        assert same(parse_reply(text), json.loads(text))
        assert same(parse_reply(f"```json\n{text}\n```"), json.loads(text)) or "```" in text


@given(st.text(max_size=60) | st.text("{}[]\"\\'`,:tru null1.e-", max_size=60))
def test_parse_reply_gives_a_value_or_a_value_error(text: str) -> None:
    try:
        value = parse_reply(text)
    except ValueError:
        return
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        (' ```json {"a": 1}``` \n', {"a": 1}),
        ('<think>maybe {"tool": "x"}</think>{"tool": "note_list", "args": {}}', {"tool": "note_list", "args": {}}),
        ('<think>\nwell\n</think>\n\n```json\n{"a": 1}\n```', {"a": 1}),
        ('"```"', "```"),
        ("3", 3),
    ],
)
def test_wrapping_around_the_whole_reply_is_taken_off(text: str, expected: Any) -> None:
    assert parse_reply(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ('To list notes you would send\n```json\n{"tool": "delete"}\n```\nbut I will not.', "not valid JSON"),
        ('{"a": 1} {"a": 2}', "more text follows"),
        ('```json\n{"a": 1}\n``` and ```json\n{"a": 2}\n```', "not valid JSON"),
        ('<think>{"a": 1}', "not valid JSON"),
        ('```json\n{"a": \n```', "not valid JSON"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a": -Infinity}', "-Infinity is not a JSON value"),
        ('{"a": 1e999}', "the number 1e999 is out of range"),
        (r'{"a": "\ud83d"}', "half of a surrogate pair"),
        ('{"a": "line\nbreak"}', "Invalid control character"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1,}', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 70 + "]" * 70, f"nested deeper than {MAX_DEPTH} levels"),
        ("1" * 5_000, "Exceeds the limit"),
    ],
)
def test_what_is_no_json_as_a_whole_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_reply(text)
    assert len(str(caught.value)) < 500


# --- parse_arguments ------------------------------------------------------------------------------------------------


def arguments(text: str | None, no_parameters: bool = False, confirms: bool = False) -> Parsed:
    return parse_arguments(text, no_parameters=no_parameters, confirms=confirms)


@pytest.mark.parametrize("text", [None, "", " \n ", "null", " null "])
def test_no_arguments_are_an_empty_object_only_for_a_tool_that_can_run_with_none(text: str | None) -> None:
    assert arguments(text, no_parameters=True) == Parsed({})
    assert arguments(text, no_parameters=True, confirms=True) == Parsed({})
    with pytest.raises(ValueError, match="no arguments were given"):
        arguments(text)


@given(OBJECTS)
def test_an_object_is_read_as_json_does_without_repairs(value: dict[str, Any]) -> None:
    for confirms in (True, False):
        parsed = arguments(json.dumps(value), confirms=confirms)
        assert same(parsed.value, value)
        assert parsed.repairs == ()


LIGHT = [
    ('```json\n{"a": 1}\n```', {"a": 1}, ("code-fence",)),
    ('\n ```\n{"a": 1}\n``` \n', {"a": 1}, ("code-fence",)),
    ("{'a': 'it', 'b': 3}", {"a": "it", "b": 3}, ("single-quotes",)),
    (r"{'a': 'it\'s \"late\" \n'}", {"a": 'it\'s "late" \n'}, ("single-quotes",)),
    ("""{'a': 'say "x"', "b": "it's"}""", {"a": 'say "x"', "b": "it's"}, ("single-quotes",)),
    ('{"a": [1, 2, ], }', {"a": [1, 2]}, ("trailing-comma",)),
    ("{'a': 1,}", {"a": 1}, ("single-quotes", "trailing-comma")),
    ("```\n{'a': 1,}\n```", {"a": 1}, ("code-fence", "single-quotes", "trailing-comma")),
    ('"{\\"a\\": 1}"', {"a": 1}, ("string-encoded",)),
    ('{"a": 1}{"a": 1.0}', {"a": 1}, ("repeated-object",)),
    ('{"a": 1}\n{"a": 1}\n{"a": 1}\n', {"a": 1}, ("repeated-object",)),
    ('{"a": 1, "a": 2}', {"a": 2}, ("duplicate-keys",)),
    ('{"a": {"b": 1, "b": 2}}', {"a": {"b": 2}}, ("duplicate-keys",)),
    ("{'a': 1, 'a': 2}", {"a": 2}, ("single-quotes", "duplicate-keys")),
]


@pytest.mark.parametrize(("text", "value", "repairs"), LIGHT)
def test_light_repairs_are_made_and_recorded(text: str, value: Any, repairs: tuple[str, ...]) -> None:
    assert arguments(text) == Parsed(value, repairs)


@pytest.mark.parametrize("text", [text for text, _, _ in LIGHT])
def test_nothing_is_repaired_for_a_call_that_is_confirmed(text: str) -> None:
    with pytest.raises(ValueError):
        arguments(text, confirms=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1}{"a": 2}', "2 different argument objects"),
        ('{}{"a": 1}', "2 different argument objects"),
        ("[1]", "must be a JSON object, not a list"),
        ('"attic"', "must be a JSON object, not a string"),
        ("7", "must be a JSON object, not a number"),
        ("true", "must be a JSON object, not true"),
        ("```\nnull\n```", "must be a JSON object, not null"),
        ("{oops", "not valid JSON"),
        ('{"a": 1', "not valid JSON"),
        ('{"room":"attic","lev', "not valid JSON"),
        ("{'text': 'it's late'}", "not valid JSON"),
        ("{'text': 'it's late}", "not valid JSON"),
        ("{,}", "not valid JSON"),
        ('{"a": [,]}', "not valid JSON"),
        ('{"a": 1,,}', "not valid JSON"),
        ('{"a":,}', "not valid JSON"),
        ('{"a": True}', "not valid JSON"),
        ('{"a": 1, /* x */ "b": 2}', "not valid JSON"),
        ('\ufeff{"a": 1}', "not valid JSON"),
        ('{"a": 1} Done!', "more text follows"),
        ('Sure: {"a": 1}', "not valid JSON"),
        ('{"a": NaN}', "NaN is not"),
        ("{'a': -Infinity}", "-Infinity is not"),
        ('"\\"{}\\""', "must be a JSON object, not a string"),
        (r'{"a": "\ud83d"}', "half of a surrogate pair"),
    ],
)
@pytest.mark.parametrize("no_parameters", [True, False])
def test_nothing_is_guessed_or_completed(text: str, says: str, no_parameters: bool) -> None:
    with pytest.raises(ValueError, match=says):
        arguments(text, no_parameters=no_parameters)


def test_a_complaint_quotes_at_most_300_characters() -> None:
    with pytest.raises(ValueError) as caught:
        arguments('{"text": "' + "x" * 100_000)
    assert str(caught.value) == (
        'not valid JSON: Unterminated string starting at at character 9: {"text": "' + "x" * 289 + "…"
    )


@given(OBJECTS, st.sampled_from(["fence", "string", "twice"]))
def test_repairs_read_the_same_object(value: dict[str, Any], how: str) -> None:
    text = json.dumps(value)
    wrapped = {"fence": f"```json\n{text}\n```", "string": json.dumps(text), "twice": text + text}[how]
    if how == "fence" and "```" in text:
        return
    assert same(arguments(wrapped).value, value)


@given(OBJECTS)
def test_python_quoting_is_read_as_python_does_or_refused(value: dict[str, Any]) -> None:
    text = repr(value)
    try:
        parsed = arguments(text)
    except ValueError:
        return
    assert same(parsed.value, value)


@given(st.text("{}[]\"'\\,: \n1at`", max_size=40), st.booleans(), st.booleans())
def test_parse_arguments_gives_an_object_or_a_value_error(text: str, no_parameters: bool, confirms: bool) -> None:
    try:
        parsed = parse_arguments(text, no_parameters=no_parameters, confirms=confirms)
    except ValueError:
        return
    assert isinstance(parsed.value, dict)
    assert not (confirms and parsed.repairs)
    # Nothing is made out of broken text: an empty object only from one that was written, or from no text at all.
    assert parsed.value or "{" in text or (no_parameters and text.strip() == "")


@pytest.mark.parametrize(
    "text", ['{"' + '\\"' * 20_000, "'" * 30_001, "{'a':" * 10_000, '"' + "\\" * 30_001, "`" * 30_000]
)
def test_hostile_text_is_refused_in_linear_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned = Scanned(_reading._TOKEN)
    monkeypatch.setattr(_reading, "_TOKEN", scanned)

    def refuse() -> None:
        with pytest.raises(ValueError):
            arguments(text)
        with pytest.raises(ValueError):
            parse_reply(text)

    assert lines_of(refuse) + scanned.characters <= 20 * len(text)


class Scanned:
    """A pattern of tokens, and how many characters it looked at: those of a token, and of a string that never ends
    all that follow, since only behind the last of them that is known."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.characters = 0

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        for token in self._pattern.finditer(text):
            self.characters += (len(text) if token.lastgroup == "open_quote" else token.end()) - token.start()
            yield token


def lines_of(work: Callable[[], None]) -> int:
    """Return how many lines of Python `work` takes, those of its loops each time."""
    taken = 0

    def trace(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken


def test_a_string_that_never_ends_is_found_to_do_so_once() -> None:
    """What the bound above is made of: a possessive token is not tried again from inside, and the first is the last."""
    text = '{"' + '\\"' * 1000
    assert _reading._TOKEN.match(text, 1) is not None
    assert [token.lastgroup for token in _reading._TOKEN.finditer(text)][:2] == ["other", "open_quote"]
    scanned = Scanned(_reading._TOKEN)
    assert sum(1 for _ in scanned.finditer(text)) > 1000
    assert scanned.characters > 100 * len(text)  # who goes on behind it takes quadratic time


# --- json_problem ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, "x", None]}, None),
        ({"a": math.nan}, "nan is not a JSON number"),
        ([[-math.inf]], "-inf is not a JSON number"),
        ({"\ud83d": 1}, "a string holds half of a surrogate pair, which is not text"),
    ],
)
def test_json_problem_names_what_cannot_be_json(value: Any, problem: str | None) -> None:
    assert json_problem(value) == problem


def test_json_problem_is_safe_on_cycles_and_on_what_multiplies() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert json_problem(cycle) == "nested deeper than 64 levels"
    branching: list[Any] = []
    branching.extend([branching] * 10)
    assert json_problem(branching) == "more than 1000000 values"


@pytest.mark.parametrize("text", ["```json\n{}\n```", "{'a': 1,}", "prose", '{"a": 1} {"a": 1}'])
def test_reading_what_is_not_strict_leaves_nothing_to_the_garbage_collector(text: str) -> None:
    def read() -> None:
        with contextlib.suppress(ValueError):
            parse_reply(text)
        with contextlib.suppress(ValueError):
            parse_arguments(text, no_parameters=False, confirms=False)

    read()
    gc.collect()
    gc.disable()
    try:
        read()
        assert gc.collect() == 0
    finally:
        gc.enable()
