"""From types to JSON schemas, and from a model's JSON to typed values, with every problem named."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, TypedDict

import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._schema import InputProblems, OutputSchema, Parameter, Parameters, RawSchema, schema_of
from goliath_actors._schema._readers import reader_of
from goliath_actors.errors import ConfigError

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Place:
    """Somewhere."""

    name: str
    floor: int = 3


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Node(msgspec.Struct, forbid_unknown_fields=True):
    value: int
    children: list[Node] = []


class Options(TypedDict, total=False):
    depth: int
    title: str


class Book(pydantic.BaseModel):
    title: str
    year: Annotated[int, pydantic.Field(ge=1900, description="when it came out")] = 2000


class Tree(pydantic.BaseModel):
    left: Tree | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    barks: bool


PLACE = {
    "description": "Somewhere.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "floor": {"type": "integer", "default": 3}},
    "required": ["name"],
}
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
    },
    "required": ["value"],
    "additionalProperties": False,
}
BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "year": {"type": "integer", "minimum": 1900, "description": "when it came out", "default": 2000},
    },
    "required": ["title"],
}


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (UserId, {"type": "integer"}),
        (Any, {}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Colour, {"enum": ["blue", "red"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, msgspec.Meta(ge=1, description="x")], {"type": "integer", "minimum": 1, "description": "x"}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (list[datetime.datetime], {"type": "array", "items": {"type": "string", "format": "date-time"}}),
        (datetime.date, {"type": "string", "format": "date"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (Place, PLACE),
        (list[Place], {"type": "array", "items": PLACE}),
        (Size, {
            "type": "object",
            "properties": {"width": {"type": "integer"}, "height": {"type": "integer", "default": 1}},
            "required": ["width"],
        }),
        (Options, {"type": "object", "properties": {"depth": {"type": "integer"}, "title": {"type": "string"}},
                   "required": []}),
        (Node, {**NODE, "$defs": {"Node": NODE}}),
        (list[Node], {"type": "array", "items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": NODE}}),
        (Book, BOOK),
        (Book | int, {"anyOf": [BOOK, {"type": "integer"}]}),
        (Tree, {
            "type": "object",
            "properties": {"left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None}},
            "$defs": {"Tree": {
                "type": "object",
                "properties": {"left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None}},
            }},
        }),
    ],
)  # fmt: skip
def test_schema_of_a_type_has_no_titles_and_no_references_but_recursive_ones(annotation: Any, schema: Any) -> None:
    made = schema_of(annotation)
    assert made == schema
    jsonschema.Draft202012Validator.check_schema(made)


def test_a_discriminator_without_definitions_is_left_out() -> None:
    assert set(schema_of(Cat | Dog)) == {"anyOf"}


def test_definitions_that_multiply_are_not_written_out_without_end() -> None:
    kind: Any = Place
    for position in range(24):  # each level uses the one below twice: 2**24 places if written out
        kind = msgspec.defstruct(f"Level{position}", [("one", kind), ("other", kind)])
    made = schema_of(kind)
    assert len(json.dumps(made)) < 200_000
    jsonschema.Draft202012Validator.check_schema(made)


@pytest.mark.parametrize("annotation", [complex, object, type, 3, "Missing", Node | Place, list[complex]])
def test_a_type_that_json_cannot_express_is_a_config_error(annotation: Any) -> None:
    with pytest.raises(ConfigError, match="has no JSON schema"):
        schema_of(annotation)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "raw", "data", "value"),
    [
        (int, "3", 3, 3),
        (int, 3.0, 3, 3),
        (bool, "true", True, True),
        (float, 3, 3.0, 3.0),
        (str, "3", "3", "3"),
        (Any, {"a": ["1"]}, {"a": ["1"]}, {"a": ["1"]}),
        (Colour, "red", "red", Colour.RED),
        (decimal.Decimal, "1.50", "1.50", decimal.Decimal("1.50")),
        (datetime.date, "2026-01-02", "2026-01-02", datetime.date(2026, 1, 2)),
        (dict[int, str], {"1": "a"}, {"1": "a"}, {1: "a"}),
        (set[str], ["b", "a", "b"], ["a", "b"], {"a", "b"}),
        (tuple[int, str], ["1", "a"], [1, "a"], (1, "a")),
        (list[tuple[int, int]], [["1", 2]], [[1, 2]], [(1, 2)]),
        (Place, {"name": "attic"}, {"name": "attic"}, Place("attic", 3)),
        (Place, {"floor": "4", "name": "attic"}, {"floor": 4, "name": "attic"}, Place("attic", 4)),
        (Place, {"name": "attic", "colour": "red"}, {"name": "attic"}, Place("attic")),
        (list[Place], [{"name": "a"}, {"name": "b", "floor": 1}], [{"name": "a"}, {"name": "b", "floor": 1}],
         [Place("a"), Place("b", 1)]),
        (Options, {"depth": "2"}, {"depth": 2}, {"depth": 2}),
        (Cat | Dog, {"type": "Dog", "barks": True}, {"type": "Dog", "barks": True}, Dog(True)),
        (Book, {"title": "x", "year": "1999"}, {"title": "x", "year": 1999}, Book(title="x", year=1999)),
        (Book, {"title": "x"}, {"title": "x"}, Book(title="x")),
        (list[Book] | None, None, None, None),
    ],
)  # fmt: skip
def test_data_is_coerced_without_defaults_and_values_are_typed(
    annotation: Any, raw: Any, data: Any, value: Any
) -> None:
    checked = reader_of(annotation).read(raw, "it")
    assert (checked.data, checked.value) == (data, value)
    assert json.loads(json.dumps(checked.data)) == data
    # Reading what is shown gives the same again: what was confirmed is what is executed.
    assert reader_of(annotation).read(checked.data, "it").data == data


@pytest.mark.parametrize(
    ("annotation", "raw", "problems"),
    [
        (int, True, ("it: expected int, got bool",)),
        (int, "x", ("it: expected int, got str",)),
        (str, 5, ("it: expected str, got int",)),
        (str, None, ("it: expected str, got null",)),
        (float, "nan", ("it: nan is not a JSON number",)),
        (Annotated[int, msgspec.Meta(le=14)], 15, ("it: expected int <= 14",)),
        (Colour, "green", ("it: invalid enum value 'green'; allowed are 'blue', 'red'",)),
        (Literal["a"], "b", ("it: invalid enum value 'b'; allowed are 'a'",)),
        (list[int], "[1]", ("it: expected array, got str",)),
        (list[int], ["a", 1, None], ("it[0]: expected int, got str", "it[2]: expected int, got null")),
        (tuple[int, ...], [1, "a"], ("it[1]: expected int, got str",)),
        (tuple[int, int], [1, "a"], ("it[1]: expected int, got str",)),
        (Annotated[list[int], msgspec.Meta(min_length=2)], [1], ("it: expected array of length >= 2",)),
        (dict[str, int], {"a": "x", "b": "y"}, ("it.a: expected int, got str", "it.b: expected int, got str")),
        (Place, {"floor": "x"}, ("it.name: required, but missing", "it.floor: expected int, got str")),
        (Place | None, {"floor": 1}, ("it.name: required, but missing",)),
        (Annotated[Place, "where"], {"floor": 1}, ("it.name: required, but missing",)),
        (list[Place], [{"name": 1}, {}], ("it[0].name: expected str, got int", "it[1].name: required, but missing")),
        (Node, {"value": 1, "children": [{"value": "x"}, {"value": 2, "size": 3}]},
         ("it.children[0].value: expected int, got str", "it.children[1]: there is no field size")),
        (Node, {"value": 1, "size": 3}, ("it: there is no field size",)),
        (Size, [], ("it: expected object, got array",)),
        (Cat | Dog, {"type": "Cow"}, ("it.type: invalid value 'Cow'",)),
        (Book, {"year": 1000}, ("it.title: Field required", "it.year: Input should be greater than or equal to 1900")),
        (list[Book], [{"title": "x", "year": 1}], ("it[0].year: Input should be greater than or equal to 1900",)),
    ],
)  # fmt: skip
def test_every_problem_is_named_with_its_place(annotation: Any, raw: Any, problems: tuple[str, ...]) -> None:
    with pytest.raises(InputProblems) as caught:
        reader_of(annotation).read(raw, "it")
    assert caught.value.problems == problems
    assert str(caught.value) == "; ".join(problems)


def test_at_most_twenty_problems_are_told_and_each_is_short() -> None:
    with pytest.raises(InputProblems) as caught:
        reader_of(list[int]).read(["x"] * 1_000, "it")
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 980 more problems"
    with pytest.raises(InputProblems) as caught:
        reader_of(Colour).read("x" * 10_000, "it")
    assert len(caught.value.problems[0]) == 300


@attrs.frozen
class Shelf:
    book: Book
    rows: int


def test_a_pydantic_model_inside_an_attrs_class_is_read_too() -> None:
    reader = reader_of(Shelf)
    assert reader.schema["properties"]["book"] == BOOK
    checked = reader.read({"book": {"title": "x"}, "rows": "2"}, "")
    assert checked.value == Shelf(Book(title="x"), 2)
    assert checked.data == {"book": {"title": "x"}, "rows": 2}
    with pytest.raises(InputProblems) as caught:
        reader.read({"book": {"year": 1}, "rows": "z"}, "")
    assert caught.value.problems == (
        "book.title: Field required",
        "book.year: Input should be greater than or equal to 1900",
        "rows: expected int, got str",
    )


class Duck:
    """Speaks like a pydantic model and is none."""

    def __init__(self, sound: str) -> None:
        self.sound = sound

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"title": "Duck", "type": "string"}

    @classmethod
    def model_validate(cls, raw: Any) -> Duck:
        if raw != "quack":
            raise ValueError("no duck says that")
        return cls(raw)

    def model_dump(self, **options: Any) -> str:
        return self.sound


def test_a_model_is_recognised_by_what_it_offers() -> None:
    reader = reader_of(list[Duck])
    assert reader.schema == {"type": "array", "items": {"type": "string"}}
    checked = reader.read(["quack"], "ducks")
    assert (checked.data, checked.value[0].sound) == (["quack"], "quack")
    with pytest.raises(InputProblems) as caught:
        reader.read(["moo"], "ducks")
    assert caught.value.problems == ("ducks[0]: no duck says that",)


class Counting(pydantic.BaseModel):
    runs: int

    @pydantic.field_validator("runs")
    @classmethod
    def add_one(cls, value: int) -> int:
        return value + 1


@attrs.define
class CountingAttrs:
    runs: int

    def __attrs_post_init__(self) -> None:
        self.runs += 1


@attrs.frozen
class CountingConverter:
    runs: int = attrs.field(converter=lambda value: value + 1)


@dataclasses.dataclass
class CountingData:
    runs: int

    def __post_init__(self) -> None:
        self.runs += 1


class CountingStruct(msgspec.Struct):
    runs: int

    def __post_init__(self) -> None:
        self.runs += 1


@pytest.mark.parametrize("kind", [Counting, CountingStruct, CountingAttrs, CountingConverter, CountingData])
def test_transforms_run_exactly_once_and_are_shown(kind: Any) -> None:
    checked = reader_of(kind).read({"runs": 1}, "")
    assert (checked.value.runs, checked.data) == (2, {"runs": 2})
    assert OutputSchema.of(kind).parse('{"runs": 1}').runs == 2


def strip(text: str) -> str:
    return text.strip()


@attrs.frozen
class Person:
    """Somebody."""

    name: str = attrs.field(converter=strip)
    _age: int = attrs.field(default=0)
    friends: tuple[Person, ...] = attrs.field(default=(), converter=tuple)
    born: datetime.datetime | None = None
    tags: list[str] = attrs.field(factory=list)
    odd: Any = attrs.field(default=strip)
    made: int = attrs.field(init=False, default=1)

    @_age.validator
    def _check_age(self, attribute: Any, age: int) -> None:
        if age > 150:
            raise ValueError("nobody is that old")


@attrs.frozen
class Team:
    lead: Person | None
    members: dict[str, list[Person]]
    pair: tuple[Person, Person] | None = None
    more: Sequence[Person] = ()


def test_an_attrs_class_with_converters_is_called_once_for_each_object() -> None:
    person = {
        "description": "Somebody.",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "_age": {"type": "integer", "default": 0},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/Person"}, "default": []},
            "born": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None},
            "tags": {"type": "array", "items": {"type": "string"}},
            "odd": {},
        },
        "required": ["name"],
    }
    assert schema_of(Person) == {**person, "$defs": {"Person": person}}
    reader = reader_of(Person)
    checked = reader.read({"name": " Ann ", "_age": "7", "friends": [{"name": " Bob"}]}, "who")
    assert checked.value == Person("Ann", 7, (Person("Bob"),))
    assert checked.data == {"name": "Ann", "_age": "7", "friends": [{"name": "Bob"}]}
    assert reader.read(checked.data, "who").value == checked.value
    with pytest.raises(InputProblems) as caught:
        reader.read({"_age": "x", "friends": [{"name": 1}, {"name": "a", "friends": [{}]}, 3]}, "who")
    assert caught.value.problems == (
        "who.name: required, but missing",
        "who._age: expected int, got str",
        "who.friends[0].name: expected str, got int",
        "who.friends[1].friends[0].name: required, but missing",
        "who.friends[2]: expected object, got int",
    )
    with pytest.raises(InputProblems) as caught:
        reader.read({"name": "a", "_age": 200}, "who")
    assert caught.value.problems == ("who: nobody is that old",)


def test_classes_that_convert_are_found_inside_others() -> None:
    ann = {"name": " Ann"}
    team = {"lead": ann, "members": {"x": [ann]}, "pair": [ann, ann], "more": [ann]}
    value = reader_of(Team).read(team, "").value
    assert value == Team(Person("Ann"), {"x": [Person("Ann")]}, (Person("Ann"), Person("Ann")), [Person("Ann")])
    assert reader_of(Annotated[Person | None, "who"]).read(ann, "").value == Person("Ann")
    assert reader_of(Team).read({"lead": None, "members": {}}, "").value == Team(None, {})
    with pytest.raises(InputProblems) as caught:
        reader_of(Team).read({"lead": {}, "members": {"x": [None, {}]}}, "")
    assert caught.value.problems == (
        "lead.name: required, but missing",
        "members.x[0]: expected object, got null",
        "members.x[1].name: required, but missing",
    )


@attrs.frozen
class Tagged:
    words: list[str] = attrs.field(converter=frozenset)
    count: int = 0


class Shouting:
    def __init__(self, text: str) -> None:
        self.text = text.upper()


@attrs.frozen
class Loud:
    text: str = attrs.field(converter=Shouting)
    count: int = 0
    many: list[str] = attrs.field(default=(), converter=lambda texts: [Shouting(text) for text in texts])


def test_what_a_converter_made_is_shown_as_given_where_json_cannot_say_it() -> None:
    checked = reader_of(Loud).read({"text": "hey", "count": "2", "many": ["a"]}, "")
    assert (checked.value.text.text, checked.value.many[0].text) == ("HEY", "A")
    assert checked.data == {"text": "hey", "count": 2, "many": ["a"]}


def test_what_a_converter_made_is_shown_where_json_can_say_it() -> None:
    checked = reader_of(Tagged).read({"words": ["b", "a", "b"], "count": "2"}, "")
    assert checked.value == Tagged(frozenset("ab"), 2)
    assert checked.data == {"words": ["a", "b"], "count": 2}


class Unsure(pydantic.BaseModel):
    share: float

    @pydantic.field_validator("share")
    @classmethod
    def look_up(cls, value: float) -> float:
        if value == 0:
            raise LookupError("nothing at zero")
        return value


def test_whatever_a_pydantic_model_does_is_a_problem() -> None:
    for raw, problem in [("nan", "it: nan is not a JSON number"), (0, "it: LookupError: nothing at zero")]:
        with pytest.raises(InputProblems) as caught:
            reader_of(Unsure).read({"share": raw}, "it")
        assert caught.value.problems == (problem,)
    with pytest.raises(ConfigError, match="has no JSON schema"):
        schema_of(Annotated[Callable[[], int], pydantic.Field(description="x")])


class Grumpy(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        raise LookupError("nobody of that name")


def test_whatever_a_class_raises_while_it_is_made_is_a_problem() -> None:
    with pytest.raises(InputProblems) as caught:
        reader_of(Grumpy).read({"name": "x"}, "who")
    assert caught.value.problems == ("who: LookupError: nobody of that name",)


# --- parameters -----------------------------------------------------------------------------------------------------


def test_parameters_are_one_closed_object() -> None:
    parameters = Parameters(
        [
            Parameter("title", str, description="what\n  to do"),
            Parameter("place", Place, None),
            Parameter("size", Annotated[int, "in metres"], 2, description="unused"),
            Parameter("kind", Annotated[str, msgspec.Meta(description="which")], "a", description="unused"),
            Parameter("made", datetime.date, datetime.date(2026, 1, 2)),
            Parameter("odd", Any, object()),
            Parameter("endless", float, float("inf")),
        ],
        "make()",
    )
    assert parameters.schema == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "what to do"},
            "place": PLACE,
            "size": {"type": "integer", "description": "in metres", "default": 2},
            "kind": {"type": "string", "description": "which", "default": "a"},
            "made": {"type": "string", "format": "date", "default": "2026-01-02"},
            "odd": {},
            "endless": {"type": "number"},
        },
        "additionalProperties": False,
        "required": ["title"],
    }


class Namesake:
    class Node(pydantic.BaseModel):
        text: str
        following: Namesake.Node | None = None


def test_definitions_of_the_same_name_do_not_get_in_each_others_way() -> None:
    kinds = {"a": Node, "b": Namesake.Node, "c": list[Node], "d": list[Namesake.Node]}
    parameters = Parameters([Parameter(name, kind) for name, kind in kinds.items()], "f()")
    schema = json.loads(json.dumps(parameters.schema))
    assert list(schema["$defs"]) == ["Node", "Node_"]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    node, chain = {"value": 1, "children": [{"value": 2}]}, {"text": "x", "following": {"text": "y"}}
    good = {"a": node, "b": chain, "c": [node], "d": [chain]}
    assert list(validator.iter_errors(good)) == []
    bad = {"a": {"value": 1, "children": [chain]}, "b": {"text": "x", "following": node}, "c": [chain], "d": [node]}
    wrong = {error.absolute_path[0] for error in validator.iter_errors(bad)}
    assert wrong == {"a", "b", "c", "d"}


def test_check_shows_what_was_given_and_types_it_for_the_call() -> None:
    parameters = Parameters(
        [Parameter("n", int), Parameter("place", Place, None), Parameter("tags", list[str], [])], "f"
    )
    checked = parameters.check({"place": {"name": "attic"}, "n": "3"})
    assert checked.data == {"place": {"name": "attic"}, "n": 3}
    assert list(checked.data) == ["place", "n"]
    assert checked.value == {"place": Place("attic"), "n": 3}


def test_check_names_missing_unknown_and_unfit_arguments_at_once() -> None:
    parameters = Parameters([Parameter("room", str), Parameter("level", int), Parameter("note", str, "")], "f")
    with pytest.raises(InputProblems) as caught:
        parameters.check({"level": "x", "why": "test", "note": None})
    assert caught.value.problems == (
        "level: expected int, got str",
        "why: no such argument; there are room, level, note",
        "note: expected str, got null",
        "room: required, but missing",
    )
    with pytest.raises(InputProblems) as caught:
        Parameters([], "f").check({"x": 1})
    assert caught.value.problems == ("x: no argument is taken",)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (None, "arguments must be a JSON object, not NoneType"),
        ([5], "arguments must be a JSON object, not list"),
        ("{}", "arguments must be a JSON object, not str"),
        ({1: 2}, "the names of arguments must be strings"),
        ({"x": float("nan")}, "nan is not a JSON number"),
        ({"x": object()}, "not JSON data: Encoding objects of type object is unsupported"),
        ({"x": "\ud83d"}, "a string holds half of a surrogate pair, which is not text"),
    ],
)
def test_input_that_is_no_json_object_is_a_problem(raw: Any, problem: str) -> None:
    for check in (Parameters([Parameter("x", Any)], "f").check, RawSchema({}, "f").check):
        with pytest.raises(InputProblems) as caught:
            check(raw)
        assert caught.value.problems == (problem,)


def test_a_container_inside_itself_is_a_problem_and_no_crash() -> None:
    raw: dict[str, Any] = {}
    raw["x"] = raw
    with pytest.raises(InputProblems, match="nested deeper than 64 levels"):
        Parameters([Parameter("x", Any)], "f").check(raw)


def test_dates_and_the_like_from_a_hook_become_what_json_writes() -> None:
    checked = Parameters([Parameter("day", str), Parameter("when", datetime.date)], "f").check(
        {"day": datetime.date(2026, 1, 2), "when": datetime.date(2026, 1, 3)}
    )
    assert checked.data == {"day": "2026-01-02", "when": "2026-01-03"}
    assert checked.value == {"day": "2026-01-02", "when": datetime.date(2026, 1, 3)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"n": JSON, "names": st.lists(JSON, max_size=3), "place": JSON, "any": JSON, "x": JSON}
    )
)
def test_checking_what_was_checked_changes_nothing(raw: dict[str, Any]) -> None:
    kinds = {"n": int | str | None, "names": set[str], "place": Place | None, "any": Any}
    parameters = Parameters([Parameter(name, kind, None) for name, kind in kinds.items()], "f")
    try:
        checked = parameters.check(raw)
    except InputProblems:
        return
    again = parameters.check(json.loads(json.dumps(checked.data)))
    assert (again.data, again.value) == (checked.data, checked.value)


# --- schemas from elsewhere -----------------------------------------------------------------------------------------

LEVEL = {
    "type": "object",
    "properties": {
        "room": {"type": "string"},
        "level": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["room", "level"],
    "additionalProperties": False,
}  # fmt: skip


def test_a_raw_schema_names_every_problem_with_its_place() -> None:
    with pytest.raises(InputProblems) as caught:
        RawSchema(LEVEL, "f").check({"level": "3", "why": 1, "tags": ["a", 1]})
    assert caught.value.problems == (
        "room: required, but missing",
        "Additional properties are not allowed ('why' was unexpected)",
        "level: '3' is not of type 'number'",
        "tags[1]: 1 is not of type 'string'",
    )


def test_a_raw_schema_gives_back_a_copy_as_it_is() -> None:
    raw = {"room": "attic", "level": 3, "tags": ["a"]}
    checked = RawSchema(LEVEL, "f").check(raw)
    raw["tags"].append("b")
    assert checked.data == {"room": "attic", "level": 3, "tags": ["a"]}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "objekt"}, "is no JSON schema"),
        ({"properties": {"x": {"minimum": "1"}}}, "is no JSON schema"),
        ({"properties": {"x": {"$ref": "#/$defs/X"}}}, "'#/\\$defs/X' leads to nothing"),
        ({"properties": {"x": {"$ref": "https://example.com/x.json"}}}, "leads to nothing inside"),
        ({"properties": {"x": {"type": "string", "pattern": "("}}}, "is not a 'regex'"),
        ({"patternProperties": {"(": {}}}, "is not a 'regex'"),
        ({"properties": {"x": {"default": float("nan")}}}, "nan is not a JSON number"),
    ],
)
def test_a_schema_that_could_never_be_checked_is_a_config_error(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RawSchema(schema, "the tool 'x'")


def test_references_inside_a_schema_work_and_names_of_properties_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"$ref": "#/$defs/a~1b"},
            "pattern": {"type": "string"},
            "list": {"$ref": "#/$defs/list"},
        },
        "$defs": {"a/b": {"type": "integer"}, "list": {"type": "array", "items": {"$ref": "#/$defs/list"}}},
    }
    check = RawSchema(schema, "f").check
    assert check({"$ref": 1, "pattern": "(", "list": [[], [[]]]}).data["$ref"] == 1
    with pytest.raises(InputProblems, match="is not of type 'integer'"):
        check({"$ref": "x"})


def test_a_schema_that_sends_its_checker_astray_is_a_problem_and_no_crash() -> None:
    with pytest.raises(InputProblems, match="cannot be checked: RecursionError"):
        RawSchema({"$ref": "#"}, "f").check({})
    with pytest.raises(InputProblems, match="cannot be checked"):
        RawSchema({"$ref": "#nowhere"}, "f").check({})


# --- structured answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text", "value"),
    [
        (Place, '{"name": "attic"}', Place("attic")),
        (Size, '```json\n{"width": 2}\n```', Size(2)),
        (Node, '{"value": 1, "children": [{"value": 2}]}', Node(1, [Node(2)])),
        (Options, '{"depth": 1}', {"depth": 1}),
        (Book, '{"title": "x"}', Book(title="x")),
        (Literal["yes", "no"], '"yes"', "yes"),
        (list[int], "[1, 2]", [1, 2]),
        (Colour, '"red"', Colour.RED),
        (LEVEL, '{"room": "attic", "level": 3}', {"room": "attic", "level": 3}),
        ({"enum": [1, 2]}, "2", 2),
    ],
)
def test_output_is_parsed_into_what_was_asked_for(spec: Any, text: str, value: Any) -> None:
    output = OutputSchema.of(spec)
    assert output.parse(text) == value
    jsonschema.Draft202012Validator(json.loads(json.dumps(output.schema))).validate(json.loads(text.strip("`json\n")))


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        (Place, "the attic", "not valid JSON"),
        (Place, '{"floor": "x"}', "^name: required, but missing; floor: expected int, got str$"),
        (Place, "[]", "^expected object, got array$"),
        (Colour, '"green"', "^invalid enum value 'green'; allowed are 'blue', 'red'$"),
        (LEVEL, '{"level": 3}', "^room: required, but missing$"),
        (Book, "{}", "^title: Field required$"),
        (Any, '{"x": NaN}', "NaN is not a JSON value"),
    ],
)
def test_output_that_does_not_fit_is_a_value_error_with_its_problems(spec: Any, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        OutputSchema.of(spec).parse(text)


@pytest.mark.parametrize("spec", [None, "Place", 3, [Place], complex, {"type": "objekt"}])
def test_an_output_that_is_neither_type_nor_schema_is_a_config_error(spec: Any) -> None:
    with pytest.raises(ConfigError, match="output"):
        OutputSchema.of(spec)


def test_an_output_schema_is_named_for_the_provider() -> None:
    assert OutputSchema.of(Place).name == "Place"
    assert OutputSchema.of(list[int]).name == "list"
    assert OutputSchema.of({"title": "Größe 2!", "type": "integer"}).name == "Gr__e_2_"
    assert OutputSchema.of({"type": "integer"}).name == "answer"
    output = OutputSchema.of(Place)
    assert OutputSchema.of(output) is output
