"""The reader of HTTP/1.1 responses, held against h11 for any response, however it was cut; and its bounds."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goliath_actors.models._response import MAX_HEAD, Malformed, Responses


@attrs.frozen
class Read:
    """What became of a response. `end`: `over`, `more` if it goes on, `error`."""

    status: int | None
    fields: list[tuple[bytes, bytes]]
    body: bytes
    end: str
    reusable: bool = False


def request(method: bytes = b"POST", *fields: tuple[str, str]) -> h11.Request:
    return h11.Request(method=method, target="/", headers=[("host", "a"), ("content-length", "0"), *fields])


def ours(chunks: Sequence[bytes], method: bytes = b"POST") -> Read:
    responses = Responses()
    responses.begin(request(method))
    head, body = None, b""
    try:
        for chunk in chunks:
            responses.receive(chunk)
            head = head or responses.head()
            if head is not None:
                while piece := responses.body():
                    body += piece
            elif not chunk:
                raise Malformed("ended in the head")
    except Malformed:
        return _read(head, body, "error")
    return _read(head, body, "over" if responses.over else "more", responses.reusable)


def _read(head: object, body: bytes, end: str, reusable: bool = False) -> Read:
    status, fields = head if isinstance(head, tuple) else (None, [])
    return Read(status, fields, body, end, reusable)


def theirs(chunks: Sequence[bytes], method: bytes = b"POST") -> Read:
    wire = h11.Connection(h11.CLIENT)
    wire.send(request(method))
    wire.send(h11.EndOfMessage())
    head: object = None
    body, end = b"", "more"
    try:
        for chunk in chunks:
            wire.receive_data(chunk)
            while end == "more" and (event := wire.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    head = (event.status_code, list(event.headers))
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    end = "over"
    except h11.RemoteProtocolError:
        return _read(head, body, "error")
    done = wire.our_state is h11.DONE and wire.their_state is h11.DONE and wire.trailing_data == (b"", False)
    return _read(head, body, end, done)


USUAL = [b"content-length: 5", b"transfer-encoding: chunked", b"x: y"]
STATUS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No", b"HTTP/1.1 304 Not Modified"),
        *(b"HTTP/1.1 500 \xff", b"HTTP/1.1 99 no", b"HTTP/1.1 042 no", b"HTTP/2 200", b"http/1.1 200 OK"),
        *(b"", b" ", b"\x16"),
    ]
)
FIELD = st.sampled_from(
    [
        *(b"content-length: 5", b"Content-Length: 5", b"content-length: 5, 5", b"content-length: 6"),
        *(b"content-length: -1", b"content-length: 0", b"content-length: 5,", b"content-length: "),
        *(b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked", b"transfer-encoding: gzip"),
        *(b"connection: close", b"Connection: keep-alive, Close", b"connection: closed", b"x: ", b"x:y", b"x:  y z\t "),
        *(b" folded", b"\tfolded", b"no colon", b"bad name: 1", b"x : y", b": y", b"x: a\x00", b"x: \xe9", b"x: a\rb"),
    ]
)
INFORMING = [b"100 Continue\r\n\r\n", b"103 Hints\r\nx: y\r\n\r\n", b"101 Switch\r\nupgrade: x\r\n\r\n"]
CHUNK_HEAD = [b"%x", b"%x", b"%x", b"%X", b"%04x", b"%x ", b"%x;name=value", b"%x\t", b" %x", b"0x%x", b"+%x"]
END_OF_LINE = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    usual = draw(st.booleans())
    status = b"HTTP/1.1 200 OK" if usual else draw(STATUS)
    fields = draw(st.lists(st.sampled_from(USUAL) if usual else FIELD, max_size=4))
    return b"".join(line + draw(END_OF_LINE) for line in [status, *fields, b""])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(st.binary(max_size=12))
    body = b""
    for data in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4)):
        footer = draw(st.sampled_from([b"\r\n"] * 6 + [b"\n", b"\rx"]))
        body += draw(st.sampled_from(CHUNK_HEAD)) % len(data) + b"\r\n" + data + footer
    end = [b"0\r\n\r\n", b"0\r\n\r\n", b"00;x\r\nx: y\r\n\r\n", b"0\r\nno trailer\r\n\r\n", b"0\r\n\r\nmore", b""]
    return body + draw(st.sampled_from(end))


@st.composite
def responses(draw: st.DrawFn) -> list[bytes]:
    informs = b"HTTP/1.1 " + draw(st.sampled_from(INFORMING)) if draw(st.integers(0, 3)) == 0 else b""
    whole = informs + draw(heads()) + draw(bodies())
    places = sorted(draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=5)))
    chunks = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    return [chunk for chunk in chunks if chunk] + ([b""] if draw(st.booleans()) else [])


@settings(max_examples=600)
@given(responses(), st.sampled_from([b"POST", b"GET", b"HEAD"]))
@example([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nnonsense\r\n"], b"POST")
@example([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r", b"\n0\r\n\r", b"\n"], b"POST")
def test_any_response_reads_as_h11_reads_it(chunks: list[bytes], method: bytes) -> None:
    assert ours(chunks, method) == theirs(chunks, method)


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6), st.data())
def test_a_body_in_chunks_is_the_same_however_it_was_cut(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    whole += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    places = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1))))
    cut = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    assert ours(cut) == Read(200, [(b"transfer-encoding", b"chunked")], b"".join(pieces), "over", reusable=True)


@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\r\nx: ",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
    ],
    ids=["head", "line of a chunk", "trailers"],
)
def test_what_never_ends_is_given_up(beginning: bytes) -> None:
    assert ours([beginning, b"a" * 1000]).end == "more"
    assert ours([beginning, *[b"a" * 1000] * (MAX_HEAD // 1000 + 1)]).end == "error"


def test_a_second_request_reads_its_own_response() -> None:
    connection = Responses()
    for body in (b"one", b"three"):
        assert not connection.over or connection.reusable
        connection.begin(request())
        connection.receive(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        assert connection.head() == (200, [(b"content-length", b"%d" % len(body))])
        assert connection.body() == body
        assert (connection.body(), connection.over, connection.reusable) == (b"", True, True)


@pytest.mark.parametrize(
    ("keep", "head"),
    [
        (False, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"),
        (True, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"),
        (True, b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n"),
    ],
)
def test_a_connection_that_either_side_ends_is_not_used_again(keep: bool, head: bytes) -> None:
    connection = Responses()
    connection.begin(request(b"POST", *(() if keep else (("connection", "close"),))))
    connection.receive(head + b"ok")
    assert connection.head() is not None
    assert (connection.body(), connection.over, connection.reusable) == (b"ok", True, False)
