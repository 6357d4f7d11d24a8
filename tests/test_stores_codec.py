"""What is written down comes back, and what cannot be read is told from what is merely new or old."""

from __future__ import annotations

import copy
import pickle
from collections import UserDict
from datetime import date
from decimal import Decimal
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors.abc import UNSET, Change, Entry
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.stores._codec import (
    Unreadable,
    decode_entry,
    decode_mapping,
    decode_record,
    encode_change,
    encode_entry,
    reencode_visibility,
)
from goliath_actors.stores._packed import pack, unpack
from goliath_actors.values import Exchange, Memory, Message, Step, ToolCall

# Any text of Python, halves of surrogate pairs included, since users paste them and models emit them.
texts = st.text(st.characters(), max_size=20)
names = st.none() | texts
times = st.floats(0, 1e11)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(texts, json, max_size=3)
steps = st.builds(
    Step,
    st.integers(0, 99),
    st.sampled_from(["tool", "answer"]),
    texts,
    names,
    names,
    st.none() | mappings,
    st.sampled_from(["executed", "cached", "skipped", "failed", "unknown"]),
    st.sampled_from([None, "policy", "confirmation", "missing", "batch"]),
    names,
    st.none() | st.integers(0, 9),
    names,
    writes=st.booleans(),
    text=names,
)
exchanges = st.builds(Exchange, texts, texts, times, st.booleans(), st.lists(steps, max_size=2))
memories = st.builds(Memory, texts, st.lists(exchanges, max_size=3))
calls = st.builds(ToolCall, texts, texts, texts, st.none() | mappings)
messages = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), texts, st.lists(calls, max_size=2), names, names
)
entries = st.builds(
    Entry,
    texts.filter(bool),
    times,
    st.sampled_from(["user", "assistant", "tool", "summary"]),
    messages,
    st.booleans(),
    st.booleans(),
    mappings,
)


@given(memories, mappings, mappings)
def test_a_record_comes_back_as_it_was(memory: Memory, metadata: dict[str, Any], private: dict[str, Any]) -> None:
    encoded: Any = encode_change(Change(memory, metadata, private))
    record = decode_record(3, encoded.memory, encoded.metadata, encoded.private, 2, 7)
    assert (record.memory, record.metadata, record.private) == (memory, metadata, private)
    assert (record.version, record.failures, record.entries_count) == (3, 2, 7)


@given(memories)
def test_a_plain_memory_is_what_would_be_read_back(memory: Memory) -> None:
    encoded: Any = encode_change(Change(memory))
    read = decode_record(1, encoded.memory, None, None, 0, 0)
    assert decode_record(1, encoded.memory, None, None, 0, 0, encoded.plain_memory) == read


class Text(str):
    pass


def test_a_memory_of_texts_and_numbers_needs_no_reading() -> None:
    memory = Memory("s\u00e9", (Exchange("q", "a", 1.0), Exchange("q", "a", 2.0, best_effort=True)))
    assert encode_change(Change(memory)).plain_memory is memory


@pytest.mark.parametrize(
    "memory",
    [
        Memory(Text("s")),
        Memory("\ud83d\ude00"),
        Memory("", (Exchange(Text("q"), "a", 1.0),)),
        Memory("", (Exchange("q", Text("a"), 1.0),)),
        Memory("", (Exchange("q", "a", 1),)),
        Memory("", (Exchange("q", "a", 1.0), Exchange("q", "a", 2.0, steps=(Step(0, "tool", input={"a": []}),)))),
    ],
)
def test_a_memory_that_could_be_changed_or_comes_back_as_something_else_is_read(memory: Memory) -> None:
    assert encode_change(Change(memory)).plain_memory is None


@given(entries, st.tuples(st.booleans(), st.booleans()))
def test_an_entry_comes_back_as_it_was_with_any_visibility(entry: Entry, visible: tuple[bool, bool]) -> None:
    (encoded,) = encode_change(Change(append=[entry])).append
    assert decode_entry(entry.id, encoded.body) == entry
    shown = attrs.evolve(entry, transcript_visible=visible[0], context_visible=visible[1])
    assert decode_entry(entry.id, reencode_visibility(encoded.body, visible)) == shown


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_called_unreadable(body: bytes) -> None:
    try:
        entry = decode_entry("1", body)
    except Unreadable:
        return
    assert entry.id == "1"


def test_the_raw_output_of_a_step_is_not_written() -> None:
    step = Step(0, "tool", tool="list_tasks", result="3", output="SECRET")
    encoded: Any = encode_change(Change(Memory("s", (Exchange("q", "a", 1.0, steps=(step,)),))))
    assert encoded.memory == (
        b'{"summary":"s","recent":[{"ask":"q","answer":"a","at":1.0,'
        b'"steps":[{"index":0,"kind":"tool","tool":"list_tasks","result":"3"}]}]}'
    )


def test_fields_of_later_versions_are_ignored_and_missing_ones_get_their_default() -> None:
    later = b'{"at":1,"role":"user","mood":"good","message":{"role":"user","colour":"red"}}'
    assert decode_entry("1", later) == Entry("1", 1.0, "user", Message("user"))
    memory = b'{"recent":[{"ask":"q","answer":"a","at":1.0,"tags":[],"steps":[{"index":1,"kind":"answer","cost":2}]}]}'
    record = decode_record(1, memory, None, None, 0, 0)
    assert record.memory == Memory("", (Exchange("q", "a", 1.0, steps=(Step(1, "answer"),)),))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"at":1.0,"role":"user"}',
        b'{"at":null,"role":"user","message":{"role":"user"}}',
        b'{"at":1.0,"role":"robot","message":{"role":"user"}}',
        b'{"at":1.0,"role":"user","message":{"role":"user","text":5}}',
        b'{"at":1.0,"role":"user","message":{"role":"user","text":"\xff"}}',
        b'{"at":1.0,"role":"user","message":{"role":"user"},"private":[]}',
    ],
)
def test_a_wrong_shape_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^entry: "):
        decode_entry("1", body)


class Opaque:
    pass


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"in": inner}
    return inner


@pytest.mark.parametrize("bad", [{"a": Opaque()}, {("a", 1): 1}, nested(100_000)])
def test_what_is_no_json_is_refused(bad: dict[Any, Any]) -> None:
    with pytest.raises(StoreError, match=r"^the metadata cannot be stored .*; keep only JSON data in it$"):
        encode_change(Change(metadata=bad))


@pytest.mark.parametrize(
    "bad",
    [{1, 2}, b"text", date(2026, 1, 1), Decimal("1.5"), UUID(int=1), Message("user"), [{"deep": (1, {"in": {1}})}]],
)
def test_what_would_come_back_as_something_else_is_refused(bad: object) -> None:
    with pytest.raises(
        StoreError, match=r"^the metadata cannot be stored \(\w+ is no JSON data\); keep only JSON data"
    ):
        encode_change(Change(metadata={"a": bad}))
    with pytest.raises(StoreError, match=r"^the private metadata cannot be stored"):
        encode_change(Change(private={"a": bad}))
    with pytest.raises(StoreError, match=r"^the entry 'e' cannot be stored"):
        encode_change(Change(append=[Entry("e", 1.0, "user", Message("user"), private={"a": bad})]))
    with pytest.raises(StoreError, match=r"^the entry 'e' cannot be stored"):
        pack(Entry("e", 1.0, "user", Message("user"), private={"a": bad}))


class Words(str):
    """What templates and libraries put in place of a text."""

    def __str__(self) -> str:
        return "another one"


@pytest.mark.parametrize("text", ["plain", "half of a pair \ud800"])
def test_subclasses_of_plain_types_and_mappings_of_any_kind_are_what_they_stand_for(text: str) -> None:
    words = Words(text)
    given = {"text": words, text: MappingProxyType({"list": [words]}), "number": HTTPStatus.OK, "user": UserDict(a=1)}
    read = {"text": text, text: {"list": [text]}, "number": 200, "user": {"a": 1}}
    call = ToolCall(words, words, words, MappingProxyType({"a": words}))
    entry = Entry("e", 1.0, "assistant", Message("assistant", words, (call,)), private=given)
    plain = Entry(
        "e", 1.0, "assistant", Message("assistant", text, (ToolCall(text, text, text, {"a": text}),)), private=read
    )
    assert decode_entry("e", encode_entry(entry).body) == plain
    assert unpack("e", pack(entry)) == plain
    metadata = encode_change(Change(metadata=given)).metadata
    assert isinstance(metadata, bytes)
    assert decode_mapping(metadata, "metadata") == read


@pytest.mark.parametrize("input", [[1], [["a", 1]], "text", 5])
def test_an_input_that_is_no_mapping_is_refused(input: Any) -> None:
    called = Message("assistant", "", (ToolCall("c", "look", "[1]", input),))
    with pytest.raises(StoreError, match="the input of a call cannot be stored: it is no mapping, but a"):
        encode_change(Change(append=[Entry("e", 1.0, "assistant", called)]))
    with pytest.raises(StoreError, match="the input of a call cannot be stored: it is no mapping, but a"):
        pack(Entry("e", 1.0, "assistant", called))
    with pytest.raises(StoreError, match="the input of a call cannot be stored: it is no mapping, but a"):
        encode_change(Change(Memory("", (Exchange("q", "a", 1.0, steps=(Step(0, "tool", input=input),)),))))


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(at: float) -> None:
    with pytest.raises(StoreError, match=r"its time is (nan|inf); use seconds since the epoch"):
        encode_change(Change(append=[Entry("1", at, "user", Message("user"))]))
    with pytest.raises(StoreError, match=r"its time is (nan|inf); use seconds since the epoch"):
        encode_change(Change(Memory("", (Exchange("q", "a", at),))))


def test_an_entry_needs_an_id() -> None:
    with pytest.raises(ConfigError, match="an entry needs an id"):
        encode_change(Change(append=[Entry("", 1.0, "user", Message("user"))]))


def test_a_change_that_was_copied_or_pickled_leaves_the_same_things_as_they_are() -> None:
    change = Change(failures=3)
    for again in (copy.copy(change), copy.deepcopy(change), pickle.loads(pickle.dumps(change))):
        assert again == change
        assert (again.memory, again.metadata, again.private) == (UNSET, UNSET, UNSET)
