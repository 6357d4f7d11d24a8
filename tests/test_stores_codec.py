"""What is written down comes back, and what cannot be read is told from what is merely new or old."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors.abc import UNSET, Change, Entry
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.stores._codec import Unreadable, decode_entry, decode_record, encode_change, reencode_visibility
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
