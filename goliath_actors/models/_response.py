"""The responses on one connection in HTTP/1.1, as RFC 9112 has them: bytes in; heads, and what bodies hold, out.

Uses nothing of ours; used by _connection. Nothing here waits. Why not h11, which wrote the head of the request: it
makes an event of each chunk and sends it through a state machine, and servers put every word of a reply into a chunk of
its own. Here all that has come is taken in one go. `tests/test_models_response.py` holds this against h11, for any
response and however it was cut.
"""

from __future__ import annotations

import re
from typing import NamedTuple, final

__all__ = ["MAX_HEAD", "Malformed", "ResponseHead", "Responses"]

MAX_HEAD = 100 * 1024
"""Bytes of a head, of a line between chunks, and of what stands behind the last one."""

# Section 4: servers leave the reason out, and the space in front of it.
_STATUS = re.compile(rb"HTTP/([0-9]\.[0-9]) ([0-9]{3})(?: (?:[ \t]|[^\x00\s])*)?")
# Section 5: a name, a colon without space in front of it, a value without the space around it.
_FIELD = re.compile(rb"([-!#$%&'*+.^_`|~0-9a-zA-Z]+):[ \t]*((?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?)[ \t]*")
# Section 7.1: extensions are skipped. Some servers pad the number with spaces.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;.*)?[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,20}")
_WITHOUT_BODY = frozenset({204, 304})

# How what follows is told apart from what is behind it, and where in it we are.
_OVER, _LENGTH_KNOWN, _UNTIL_CLOSED, _CHUNK_HEAD, _CHUNK_DATA, _CHUNK_END, _TRAILERS = range(7)


class Malformed(ValueError):
    """What came is no HTTP, or ended too soon."""


class ResponseHead(NamedTuple):
    """Status and header fields of a response, as they came; names keep their case."""

    status: int
    fields: list[tuple[bytes, bytes]]


@final
class Responses:
    """The responses to the requests of one connection. Call `begin` before each request."""

    __slots__ = ("_closed", "_data", "_failure", "_keep", "_left", "_method", "_where", "over")

    def __init__(self) -> None:
        # Invariant: bytes that came and were not made anything of; bounded by MAX_HEAD and what one read brings.
        self._data = b""
        self._closed = False
        self._failure: Malformed | None = None
        self._method = b""
        self._keep = False
        self._where = _OVER
        self._left = 0  # bytes to come of the chunk, or of the body if its length is known
        self.over = False
        """True once the body was returned to its end."""

    def begin(self, method: bytes, keep: bool) -> None:
        """Expect the response to a request with this method; `keep` is False if it asked for the connection's end."""
        self._method, self._keep, self.over = method, keep, False

    def receive(self, data: bytes) -> None:
        """Take what came; nothing means that no more will come."""
        if not data:
            self._closed = True
        self._data = self._data + data if self._data else data

    @property
    def reusable(self) -> bool:
        """True if the connection can carry another request. Bytes behind the response are an answer that nobody has
        asked for: they must not become the next one's."""
        return self.over and self._keep and not (self._data or self._closed)

    def head(self) -> ResponseHead | None:
        """Return the head of the response once it is whole; those that only inform are skipped.

        Raises: `Malformed`.
        """
        while (lines := self._lines()) is not None:
            if not lines:
                raise Malformed("no response line received")
            match = _STATUS.fullmatch(lines[0])
            if match is None:
                raise Malformed(f"illegal status line: {lines[0]!r}")
            head = ResponseHead(int(match[2]), _fields(lines[1:]))
            framing = _framing(head.fields)
            if head.status < 100:
                raise Malformed(f"illegal status: {head.status}")
            if head.status == 101:
                raise Malformed("the server changes the protocol, which nobody asked for")
            if head.status >= 200:
                self._keep = self._keep and match[1] >= b"1.1" and not _closes(head.fields)
                self._expect(head.status, framing)
                return head
        if self._data and self._data[0] < 0x21:
            raise Malformed("illegal response line")  # TLS, for one, begins like that
        return None

    def _expect(self, status: int, framing: int | None) -> None:
        """Section 6.3: where the body ends. `framing` is its length, -1 for chunks, None if neither was said."""
        if status in _WITHOUT_BODY or self._method == b"HEAD":
            framing = 0
        if framing is None:
            self._where, self._keep = _UNTIL_CLOSED, False
        elif framing < 0:
            self._where = _CHUNK_HEAD
        else:
            self._where, self._left = _LENGTH_KNOWN, framing

    def body(self) -> bytes:
        """Return what has come of the body and was not returned yet; empty if nothing has.

        Raises: `Malformed`, once all in front of what is no HTTP was returned.
        """
        if self._failure is not None:
            raise self._failure
        if self.over:
            return b""
        parts: list[bytes] = []
        try:
            if self._where == _LENGTH_KNOWN:
                self._known(parts)
            elif self._where == _UNTIL_CLOSED:
                parts.append(self._data)
                self._data = b""
                self.over = self._closed
            else:
                self._chunks(parts)
            if self._closed and not self.over:
                raise Malformed("peer closed connection without sending complete message body")
        except Malformed as error:
            self._failure = error
            if not any(parts):
                raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _known(self, parts: list[bytes]) -> None:
        data = self._data
        parts.append(data if len(data) <= self._left else data[: self._left])
        self._data = data[self._left :]
        self._left -= len(parts[0])
        self.over = not self._left

    def _chunks(self, parts: list[bytes]) -> None:
        data, at, where, left = self._data, 0, self._where, self._left
        try:
            while True:
                if where == _CHUNK_HEAD:
                    end = data.find(b"\r\n", at)
                    if end < 0:
                        _check_size(len(data) - at)
                        break
                    match = _CHUNK.fullmatch(data, at, end)
                    if match is None:
                        raise Malformed(f"illegal chunk header: {data[at : end + 2]!r}")
                    at, left = end + 2, int(match[1], 16)
                    where = _CHUNK_DATA if left else _TRAILERS
                elif where == _CHUNK_DATA:
                    piece = data[at : at + left]
                    if not piece:
                        break
                    parts.append(piece)
                    at += len(piece)
                    left -= len(piece)
                    where = _CHUNK_DATA if left else _CHUNK_END
                elif where == _CHUNK_END:
                    end_of_line = data[at : at + 2]
                    if not b"\r\n".startswith(end_of_line):
                        raise Malformed(f"malformed chunk footer: {end_of_line!r}")
                    if len(end_of_line) < 2:
                        break
                    at, where = at + 2, _CHUNK_HEAD
                else:
                    break
        finally:
            self._data, self._where, self._left = data[at:], where, left
        if where == _TRAILERS and (lines := self._lines()) is not None:
            _framing(_fields(lines))
            self.over = True

    def _lines(self) -> list[bytes] | None:
        """Take the lines up to the first blank one; None as long as there is none. Lines may end in LF alone.

        Why it searches from the beginning each time: what is searched is bounded, and mostly came in one piece.
        """
        data = self._data
        if data[:2] == b"\r\n" or data[:1] == b"\n":
            self._data = data[1:] if data[:1] == b"\n" else data[2:]
            return []
        ends = [(end, size) for end, size in ((data.find(b"\n\r\n"), 3), (data.find(b"\n\n"), 2)) if end >= 0]
        if not ends:
            _check_size(len(data))
            return None
        end, size = min(ends)
        self._data = data[end + size :]
        return [line[:-1] if line[-1:] == b"\r" else line for line in data[:end].split(b"\n")]


def _check_size(size: int) -> None:
    if size > MAX_HEAD:
        raise Malformed(f"more than {MAX_HEAD} bytes without an end")


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if any(line[:1] in (b" ", b"\t") for line in lines):
        lines = _unfolded(lines)
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise Malformed(f"illegal header line: {line!r}")
        fields.append((match[1], match[2]))
    return fields


def _unfolded(lines: list[bytes]) -> list[bytes]:
    """Section 5.2: a line that begins with white space goes on with the one before."""
    whole: list[bytearray] = []
    for line in lines:
        if line[:1] not in (b" ", b"\t"):
            whole.append(bytearray(line))
        elif whole:
            whole[-1] += b" " + line.lstrip(b" \t")
        else:
            raise Malformed("continuation line at start of headers")
    return [bytes(line) for line in whole]


def _framing(fields: list[tuple[bytes, bytes]]) -> int | None:
    """Return the length that fields give to a body, -1 if it comes in chunks, None if they say neither.

    Raises: `Malformed` where they contradict themselves, since somebody else may read them in another way.
    """
    length: bytes | None = None
    chunked = False
    for name, value in fields:
        if len(name) == 14 and name.lower() == b"content-length":
            lengths = {each.strip() for each in value.split(b",")} | ({length} if length is not None else set())
            if len(lengths) != 1:
                raise Malformed("conflicting Content-Length headers")
            [length] = lengths
            if not _LENGTH.fullmatch(length):
                raise Malformed("bad Content-Length")
        elif len(name) == 17 and name.lower() == b"transfer-encoding":
            if chunked or value.lower() != b"chunked":
                raise Malformed("only Transfer-Encoding: chunked is supported, once")
            chunked = True
    return -1 if chunked else None if length is None else int(length)


def _closes(fields: list[tuple[bytes, bytes]]) -> bool:
    return any(
        len(name) == 10
        and name.lower() == b"connection"
        and b"close" in [word.strip() for word in value.lower().split(b",")]
        for name, value in fields
    )
