"""Frames out of bytes, however they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors.models._sse import Frame, Framer, FrameTooLarge, JsonLines, ServerSentEvents, WholeBody

from ._provider_server import cut

# Everything that is special to the format, and what looks like a line end and is none.
texts = st.text(st.sampled_from("a: 你🌍\u2028\u2029\x85\x0b\x0c\ufeffdate\t"), max_size=12)
names = st.text(st.sampled_from("ab c你"), min_size=1, max_size=5).map(str.strip)
sizes = st.lists(st.integers(0, 9), max_size=40)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


def parse(framer: Framer, chunks: Sequence[bytes]) -> list[Frame]:
    frames: list[Frame] = []
    for chunk in chunks:
        frames.extend(framer.feed(chunk))
    return [*frames, *framer.close()]


@given(st.lists(st.tuples(names, st.lists(texts, min_size=1, max_size=3))), line_ends, sizes, st.booleans())
def test_any_cutting_of_any_events_gives_these_events(
    wanted: list[tuple[str, list[str]]], end: str, chunk_sizes: list[int], mark: bool
) -> None:
    written = "\ufeff" if mark else ""
    for name, data in wanted:
        fields = [f"event: {name}" if name else "event", ": a comment", *(f"data: {line}" for line in data), ""]
        written += "".join(field + end for field in fields)
    frames = parse(ServerSentEvents(), cut(written.encode(), chunk_sizes))
    assert frames == [Frame("\n".join(data), name) for name, data in wanted]


@given(st.binary(max_size=200) | st.text("data:event \r\n", max_size=80).map(str.encode), sizes)
def test_any_bytes_mean_the_same_in_any_cutting(data: bytes, chunk_sizes: list[int]) -> None:
    assert parse(ServerSentEvents(), cut(data, chunk_sizes)) == parse(ServerSentEvents(), [data])
    assert parse(JsonLines(), cut(data, chunk_sizes)) == parse(JsonLines(), [data])
    assert parse(WholeBody(), cut(data, chunk_sizes)) == parse(WholeBody(), [data])


def test_an_event_is_out_as_soon_as_its_blank_line_is_in_also_with_carriage_returns() -> None:
    framer = ServerSentEvents()
    assert framer.feed(b"data: 1\r\r") == [Frame("1")]
    assert framer.feed(b"\ndata: 2\r\n\r") == [Frame("2")]
    assert framer.feed(b"\ndata: 3\n\n") == [Frame("3")]


def test_a_field_without_colon_and_one_without_space_are_data_too() -> None:
    assert parse(ServerSentEvents(), [b"data\ndata:x\ndata:  y\n\n"]) == [Frame("\nx\n y")]


def test_a_name_without_data_gives_no_event_and_does_not_stick_to_the_next() -> None:
    assert parse(ServerSentEvents(), [b"event: ping\n\ndata: x\n\n"]) == [Frame("x")]


def test_the_end_of_the_stream_ends_an_event_and_marks_it() -> None:
    assert parse(ServerSentEvents(), [b"event: e\ndata: [DONE]"]) == [Frame("[DONE]", "e", cut=True)]
    assert parse(JsonLines(), [b"{}\n{"]) == [Frame("{}"), Frame("{", cut=True)]


def test_bytes_that_are_no_text_become_replacement_marks() -> None:
    assert parse(ServerSentEvents(), [b"data: caf\xe9\n\n"]) == [Frame("caf�")]


@pytest.mark.parametrize("framer", [ServerSentEvents(100), JsonLines(100), WholeBody(100)])
def test_what_does_not_end_is_given_up_at_its_limit(framer: Framer) -> None:
    with pytest.raises(FrameTooLarge, match="more than 100 bytes"):
        for _ in range(102):
            framer.feed(b"x")


def test_many_lines_of_one_event_are_bounded_together() -> None:
    framer = ServerSentEvents(100)
    for _ in range(3):  # one after the other they are not
        assert framer.feed(b"data: " + b"x" * 80 + b"\n\n") == [Frame("x" * 80)]
    with pytest.raises(FrameTooLarge):
        for _ in range(12):
            framer.feed(b"data: 12345678\n")


def test_blank_lines_are_no_json_lines_and_a_blank_body_is_no_body() -> None:
    assert parse(JsonLines(), [b"\n 1 \n\r\n\n2\r\n"]) == [Frame(" 1 "), Frame("2")]
    assert parse(WholeBody(), [b" \n"]) == []
