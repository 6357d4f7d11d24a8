"""Texts that must fit: estimates, clipping at grapheme boundaries, tool results in few words."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import _text
from goliath_actors._frozen import freeze
from goliath_actors._text import clip, clip_tokens, estimate, fit_content, grapheme_boundary, summarise

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
# Pieces of every kind that grapheme clusters are made of: marks, joiners, flags, jamo, conjuncts, prepended signs.
PIECES = st.sampled_from(
    [*"ab 1.", "\r", "\n", "\u0301", "\u200d", "👩", "👦🏽", FAMILY, "🇩", "🇪", "한", "\u1100", "\u1161", "\u11a8", "क",
     "\u094d", "ष", "\u093f", "\u0600", "中", "é", "\u2028", "\ufe0f", "กำ", "\u0d4e"]
)  # fmt: skip
CLUSTERED = st.lists(PIECES, max_size=30).map("".join)
TEXTS = CLUSTERED | st.text(max_size=60)


def boundaries(text: str) -> set[int]:
    return {0} | {found.end() for found in regex.finditer(r"\X", text)}


# --- estimate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("a" * 400, 115),
        ("a" * 30_000, 8625),
        ("中" * 2_000, 6000),
        ("…", 3),
        ("ab中", 4),
        ("\ud83d", 3),
    ],
)
def test_estimate_is_the_documented_sum(text: str, tokens: int) -> None:
    assert estimate(text) == tokens


@given(st.text(max_size=80))
def test_estimate_counts_ascii_and_the_bytes_of_the_rest(text: str) -> None:
    ascii_count = sum(character < "\x80" for character in text)
    rest = sum(len(character.encode()) for character in text if character >= "\x80")
    assert estimate(text) == math.ceil(round(ascii_count / 4 * 1.15, 6)) + rest


@given(TEXTS, TEXTS)
def test_estimate_never_falls_as_a_text_grows(one: str, other: str) -> None:
    assert estimate(one) <= estimate(one + other) <= estimate(one) + estimate(other)


# --- grapheme boundaries --------------------------------------------------------------------------------------------


@given(TEXTS, st.integers(-2, 70))
def test_grapheme_boundary_is_the_last_one_not_after_the_position(text: str, position: int) -> None:
    expected = max((known for known in boundaries(text) if known <= position), default=0)
    assert grapheme_boundary(text, position) == expected


@pytest.mark.parametrize(
    "text",
    ["🇩🇪" * 250_000, "a" + "\u0301" * 500_000, "한" * 500_000, FAMILY * 70_000, "\u1100" * 500_000, "क्" * 250_000,
     "\n" * 500_000, "\u0600 " * 250_000, "中" * 500_000, "x" * 500_000],
    ids=range(10),
)  # fmt: skip
def test_half_a_million_characters_of_any_script_are_cut_with_few_looks_at_each(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    certain, cluster = _text._patterns()
    monkeypatch.setattr(_text, "_patterns", lambda: (Searched(certain, work), Clustered(cluster, work)))

    def counted(piece: str) -> int:
        work.characters += len(piece)
        return estimate(piece)

    assert len(clip(text, 400_001)) <= 400_001
    assert len(clip(text, 600)) <= 600
    assert estimate(clip_tokens(text, 512, counted)) <= 512
    assert estimate(fit_content(text, 800, counted)) <= 800
    assert work.characters <= 10 * len(text)


@attrs.define
class Work:
    """Characters that were looked at."""

    characters: int = 0


@attrs.frozen
class Searched:
    """A pattern that is searched backwards, which looks at all behind what it finds."""

    pattern: Any
    work: Work

    def search(self, text: str, start: int, end: int) -> Any:
        found = self.pattern.search(text, start, end)
        self.work.characters += end - (start if found is None else found.start())
        return found


@attrs.frozen
class Clustered:
    """The pattern of a cluster, which counts the flags before each flag anew."""

    pattern: Any
    work: Work

    def finditer(self, text: str) -> Any:
        flags = sum(character in _text._FLAG_PARTS for character in text)
        self.work.characters += len(text) + flags**2
        # Not asked for what it would take minutes for: the work is over the bound by then.
        return self.pattern.finditer(text[:1000] if flags > 1000 else text)

    def match(self, text: str) -> Any:
        self.work.characters += len(text)
        return self.pattern.match(text)


@given(
    st.text("🇩🇪🇫", max_size=9),
    st.sampled_from(["", "a", "\u0600", "\u0600\u0600", "\u200d", "\u0301"]),
    st.integers(0, 12),
)
def test_flags_are_cut_between_pairs_whatever_stands_before_them(flags: str, before: str, position: int) -> None:
    for text in (before + flags, "x" + before + flags + "\u0301", flags + before + flags):
        expected = max(known for known in boundaries(text) if known <= position)
        assert grapheme_boundary(text, position) == expected


# --- clip -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "clipped"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("abcd", 1, "…"),
        ("abcd", 0, ""),
        ("abcd", -1, ""),
        ("", 0, ""),
        ("ab  cdef", 5, "ab…"),
        ("e\u0301e\u0301e\u0301", 4, "e\u0301…"),
        (FAMILY + "abc", 5, "…"),
        ("a🇩🇪🇫🇷b", 4, "a🇩🇪…"),
        ("a\r\nb c", 3, "a…"),
        ("한국어", 2, "한…"),
    ],
)
def test_clip_keeps_whole_clusters_and_no_space_before_the_ellipsis(text: str, limit: int, clipped: str) -> None:
    assert clip(text, limit) == clipped


def test_clip_takes_an_ellipsis_of_any_length() -> None:
    assert clip("abcdef", 5, "...") == "ab..."
    assert clip("abcdef", 2, "...") == ""
    assert clip("abcdef", 2, "") == "ab"


@given(TEXTS, st.integers(0, 70), st.sampled_from(["…", "", "..."]))
def test_clip_is_bounded_and_cuts_at_a_boundary(text: str, limit: int, ellipsis: str) -> None:
    clipped = clip(text, limit, ellipsis)
    assert len(clipped) <= limit
    if len(text) <= limit:
        assert clipped == text
    elif clipped:
        head = clipped.removesuffix(ellipsis)
        assert text.startswith(head)
        assert len(head) in boundaries(text)


# --- clip_tokens ----------------------------------------------------------------------------------------------------


def bumpy(text: str) -> int:
    """A tokenizer that needs fewer tokens for some longer texts: pairs of letters merge only from an even start."""
    return len(text) - text.count("ab") + 3 * (len(text) % 3)


@pytest.mark.parametrize("limit", [0, 1, 4, 128, 512])
@pytest.mark.parametrize("text", ["hello world " * 3_000, "你好世界👨\u200d👩\u200d👧 mixed " * 1_000])
def test_clip_tokens_obeys_its_limit(text: str, limit: int) -> None:
    clipped = clip_tokens(text, limit)
    assert estimate(clipped) <= limit
    assert clipped == "" if limit < 3 else clipped.endswith("…")


@given(TEXTS, st.integers(0, 60))
def test_clip_tokens_keeps_the_longest_beginning_that_fits(text: str, limit: int) -> None:
    clipped = clip_tokens(text, limit)
    if estimate(text) <= limit:
        assert clipped == text
        return
    fitting = [text[:cut] + "…" for cut in sorted(boundaries(text)) if estimate(text[:cut] + "…") <= limit]
    assert clipped == (fitting[-1] if fitting else "")


@given(TEXTS | st.text("ab", max_size=60), st.integers(0, 60), st.sampled_from([bumpy, len]))
def test_clip_tokens_obeys_any_counter(text: str, limit: int, count: Callable[[str], int]) -> None:
    clipped = clip_tokens(text, limit, count)
    assert clipped == text or count(clipped) <= limit
    assert count(clipped) <= limit or clipped == ""
    assert text.startswith(clipped.removesuffix("…")) or clipped == text
    assert clipped == text or len(clipped.removesuffix("…")) in boundaries(text)


def test_a_counter_that_counts_far_fewer_tokens_than_the_estimate_gets_its_room() -> None:
    def pages(text: str) -> int:
        return -(-len(text) // 1_000)

    text = "word " * 10_000
    assert len(clip_tokens(text, 20, pages)) == 20_000
    fitted = fit_content(text, 20, pages)
    assert pages(fitted) == 20
    assert fitted.endswith(text[-4_000:])


def test_a_counter_for_which_parts_and_whole_differ_is_obeyed() -> None:
    def odd(text: str) -> int:  # what is put together costs more than its parts, and shorter may cost more
        return len(text) * 2 if "truncated" in text else len(text) + 7 * (len(text) % 2)

    text = "abcd " * 200
    for limit in range(120):
        for cut in (clip_tokens(text, limit, odd), fit_content(text, limit, odd)):
            assert cut == "" or odd(cut) <= limit


def test_clip_tokens_never_counts_the_whole_of_a_huge_text() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return estimate(text)

    assert len(clip_tokens("word " * 1_000_000, 512, count)) == 1_771
    assert max(counted) <= 4 * 512 + 1
    assert len(counted) < 20


# --- fit_content ----------------------------------------------------------------------------------------------------


def test_fit_content_keeps_beginning_and_end_around_a_line_with_both_sizes() -> None:
    text = "".join(f"line {number:06d}\n" for number in range(170_000))
    fitted = fit_content(text, 512)
    head, marker, tail = fitted.partition("\n[truncated: ")
    assert marker
    sizes, _, end = tail.partition(" characters shown]\n")
    assert sizes == f"{len(head) + len(end)} of {len(text)}"
    assert text.startswith(head)
    assert text.endswith(end)
    assert len(head) > len(end) > 0
    assert 500 < estimate(fitted) <= 512


def test_fit_content_leaves_alone_what_fits() -> None:
    text = "short\n" * 10
    assert fit_content(text, estimate(text)) == text
    assert fit_content("", 0) == ""
    assert fit_content("", 5) == ""


@given(st.lists(PIECES, min_size=20, max_size=200).map("".join) | st.text("ab \n", min_size=100), st.integers(-1, 120))
def test_fit_content_is_bounded_for_any_counter_and_cuts_at_boundaries(text: str, limit: int) -> None:
    for count in (estimate, len, bumpy):
        fitted = fit_content(text, limit, count)
        assert fitted == "" or count(fitted) <= limit
        head, marker, rest = fitted.partition("\n[truncated: ")
        if marker:
            tail = rest.partition(" characters shown]\n")[2]
            assert len(head) in boundaries(text)
            assert len(text) - len(tail) in boundaries(text)


def test_fit_content_works_with_one_cluster_longer_than_the_room() -> None:
    fitted = fit_content("a" + "\u0301" * 5_000, 100)
    assert fitted == "\n[truncated: 0 of 5001 characters shown]\n"


# --- summarise ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Task:
    title: str
    done: bool = False


@pytest.mark.parametrize(
    ("output", "summary"),
    [
        (None, "done"),
        ("", "(no output)"),
        (" \n ", "(no output)"),
        ("plain", "plain"),
        ([], "none"),
        ((), "none"),
        ({}, "none"),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
        (math.nan, "NaN"),
        (b"\xff\x00", "<2 bytes>"),
        ([{"a": 1, "b": "x", "c": [1], "d": {"e": 1}, "f": None}, {"a": 2}], "1. a: 1, b: x\n2. a: 2"),
        ([{"only": [1]}], '1. {"only":[1]}'),
        (["one", 2, None, ["x"]], '1. one\n2. 2\n3. null\n4. ["x"]'),
        ({"a": 1, "b": {"c": [1, 2]}, "d": None}, 'a: 1\nb: {"c":[1,2]}\nd: null'),
        ({"long": "x" * 100}, "long: " + "x" * 79 + "…"),
        ({"lines": "a\n  b\tc"}, "lines: a b c"),
        ({"blank": "  "}, "blank: (blank)"),
        (Task("milk"), "title: milk\ndone: false"),
        ([Task("milk")], "1. title: milk, done: false"),
        (freeze({"a": [1]}), "a: [1]"),
    ],
)
def test_summarise_puts_any_output_into_few_words(output: Any, summary: str) -> None:
    assert summarise(output) == summary


def test_summarise_shows_seven_items_whole_and_of_more_the_first_five_and_the_last_two() -> None:
    words = [f"w{number}" for number in range(1, 13)]
    assert summarise(words[:7]) == "1. w1\n2. w2\n3. w3\n4. w4\n5. w5\n6. w6\n7. w7"
    assert summarise(words[:8]) == "1. w1\n2. w2\n3. w3\n4. w4\n5. w5\n1 omitted\n7. w7\n8. w8"
    assert summarise(words) == "1. w1\n2. w2\n3. w3\n4. w4\n5. w5\n5 omitted\n11. w11\n12. w12"


def test_summarise_keeps_lines_that_speak_of_errors_with_their_numbers() -> None:
    lines = [f"step {number}" for number in range(1, 21)]
    lines[9] = "step 10 FAILED"
    lines[11] = "step 12 timed out"
    lines[13] = "no terrors here"
    assert summarise(lines) == (
        "1. step 1\n2. step 2\n3. step 3\n4. step 4\n5. step 5\n11 omitted\n10. step 10 FAILED\n12. step 12 timed out\n"
        "19. step 19\n20. step 20"
    )


def test_summarise_clips_to_its_limit() -> None:
    assert summarise("x" * 30_000) == "x" * 599 + "…"
    assert summarise("x" * 5_000, 100) == "x" * 99 + "…"
    assert len(summarise({f"key {number}": "y" * 70 for number in range(100)})) <= 600


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=20,
    ),
    st.integers(0, 700),
)
def test_summarise_is_bounded_and_never_raises(output: Any, limit: int) -> None:
    summary = summarise(output, limit)
    assert len(summary) <= limit
    assert summary.strip() or limit == 0


def test_summarise_of_something_huge_looks_at_its_beginning() -> None:
    class Huge(Sequence[int]):
        asked = 0

        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, place: Any) -> Any:
            self.asked += 1
            return place

    huge = Huge()
    assert summarise(huge).startswith("1. 0\n2. 1\n")
    assert huge.asked <= 50_001  # as many values as a snapshot has


def test_summarise_of_long_texts_looks_at_their_beginnings() -> None:
    texts, looked_at = [{"text": "error " * 10_000}] * 50, 0

    def profile(frame: types.FrameType, event: str, function: Any) -> None:
        nonlocal looked_at
        if event == "c_call" and function.__name__ != "isascii" and isinstance(function.__self__, str):
            looked_at += len(function.__self__)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        summary = summarise(texts)
    finally:
        sys.setprofile(before)
    assert summary.startswith("1. text: error error")
    assert 0 < looked_at <= 50 * 2_000
