"""The responses on one connection in HTTP/1.1: bytes in; heads, and what bodies hold, out.

Uses nothing of ours; used by _connection. Nothing here waits. h11 reads it all but for ordinary chunks: it makes an
event of each and sends it through a state machine, and servers put every word of a reply into a chunk of its own. Here
those are taken in one go, in front of h11; what is no ordinary chunk (one with extensions or trailers, nonsense) is
h11's again. `tests/test_models_response.py` holds this against h11 alone, for any response and however it was cut.
"""

from __future__ import annotations

import re
from typing import NamedTuple, final

import h11

__all__ = ["MAX_HEAD", "Malformed", "ResponseHead", "Responses"]

MAX_HEAD = 100 * 1024
"""Bytes of a head, of a line between chunks, and of what stands behind the last one."""

# Where a head ends, as h11 has it (RFC 9112, section 2.2: lines may end in LF alone).
_BLANK_LINE = re.compile(rb"\n\r?\n")
# Section 7.1: an ordinary chunk, which is neither empty nor extended. Larger ones than this are h11's to refuse.
_CHUNK = re.compile(rb"0{0,8}([1-9A-Fa-f][0-9A-Fa-f]{0,7})\r\n")
_LAST_CHUNK = b"0\r\n\r\n"
_CUT_LINE = re.compile(rb"[0-9A-Fa-f]{0,16}\r?")
_NO_BODY = frozenset({204, 304})  # section 6.3


class Malformed(ValueError):
    """What came is no HTTP, or ended too soon."""


class ResponseHead(NamedTuple):
    """Status and header fields of a response; names are in lower case."""

    status: int
    fields: list[tuple[bytes, bytes]]


@final
class Responses:
    """The responses to the requests of one connection. Call `begin` before each request."""

    __slots__ = ("_chunks", "_closed", "_data", "_failure", "_keeps", "_left", "_method", "_request", "_wire", "over")

    def __init__(self) -> None:
        # Invariant: bytes that came and that neither h11 nor a caller has: at most MAX_HEAD and what one read brings.
        self._data = b""
        self._closed = False
        self._failure: Malformed | None = None
        self._request: h11.Request | None = None
        # Made once something comes, of the request that it answers: most of the time nothing has.
        self._wire: h11.Connection | None = None
        self._method = b""
        # Invariant: if True, h11 stands in front of a chunk, and `_left` bytes are to come of the one before (with its
        # end of line).
        self._chunks = False
        self._left = 0
        # True if nobody said anything of the connection's end: then an ordinary last chunk tells all that h11 would.
        self._keeps = False
        self.over = False
        """True once the body was returned to its end."""

    def begin(self, request: h11.Request) -> None:
        """Expect the response to a request, which may say that it has no body: what is written is not looked at."""
        self._request, self._wire = request, None
        self._method, self._chunks, self._left, self.over = request.method, False, 0, False
        self._keeps = not any(name == b"connection" for name, _ in request.headers)

    def receive(self, data: bytes) -> None:
        """Take what came; nothing means that no more will come."""
        if not data:
            self._closed = True
        self._data = self._data + data if self._data else data

    @property
    def reusable(self) -> bool:
        """True if the connection can carry another request. Bytes behind the response are an answer that nobody has
        asked for: they must not become the next one's."""
        wire = self._wire
        return (
            self.over
            and not (self._data or self._closed)
            and (
                self._chunks
                or (wire is not None and wire.our_state is wire.their_state is h11.DONE and not wire.trailing_data[0])
            )
        )

    def head(self) -> ResponseHead | None:
        """Return the head of the response once it is whole; those that only inform are skipped.

        Raises: `Malformed`.
        """
        try:
            while True:
                end = _BLANK_LINE.search(self._data)
                if end is None and not (self._closed or len(self._data) > MAX_HEAD or self._data[:1] < b"!"):
                    return None
                # Not more than the head: what is behind it may be chunks.
                place = len(self._data) if end is None else end.end()
                wire = self._give(self._data[:place])
                self._data = self._data[place:]
                event = wire.next_event()
                if isinstance(event, h11.Response):
                    break
                if end is None:
                    return None
        except h11.RemoteProtocolError as error:
            raise Malformed(str(error)) from error
        fields = list(event.headers)
        empty = event.status_code in _NO_BODY or self._method == b"HEAD"
        self._chunks = not empty and any(name == b"transfer-encoding" for name, _ in fields)
        said = any(name == b"connection" for name, _ in fields)
        self._keeps = self._keeps and event.http_version == b"1.1" and not said
        return ResponseHead(event.status_code, fields)

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
            if not self._chunks or self._cut(parts):
                self._read(parts)
        except (Malformed, h11.RemoteProtocolError) as error:
            self._failure = Malformed(str(error))
            if not parts:
                raise self._failure from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _cut(self, parts: list[bytes]) -> bool:
        """Take ordinary chunks.

        Returns: True if what follows is h11's.
        """
        data, at, left = self._data, 0, self._left
        try:
            while True:
                if left > 2:
                    piece = data[at : at + left - 2]
                    if piece:
                        parts.append(piece)
                    at += len(piece)
                    left -= len(piece)
                if left > 2:
                    break
                if left:
                    line = data[at : at + left]
                    if not b"\r\n"[2 - left :].startswith(line):
                        raise Malformed(f"malformed chunk footer: {line!r}")
                    at += len(line)
                    left -= len(line)
                    if left:
                        break
                match = _CHUNK.match(data, at)
                if match is None and self._keeps and data.startswith(_LAST_CHUNK, at):
                    at += len(_LAST_CHUNK)
                    self.over = True
                    return False
                if match is None:
                    # A line that may go on is waited for; whatever else it is, h11 knows.
                    self._chunks = not self._closed and _CUT_LINE.fullmatch(data, at) is not None
                    return not self._chunks
                at = match.end()
                left = int(match[1], 16) + 2
        finally:
            self._data, self._left = data[at:], left
        if self._closed:
            raise Malformed("peer closed connection without sending complete message body (incomplete chunked read)")
        return False

    def _read(self, parts: list[bytes]) -> None:
        """Let h11 read on."""
        wire = self._give(self._data)
        self._data = b""
        if self._closed:
            wire.receive_data(b"")
        while True:
            event = wire.next_event()
            if isinstance(event, h11.Data):
                if event.data:
                    parts.append(bytes(event.data))
            else:
                self.over = isinstance(event, h11.EndOfMessage)
                return

    def _give(self, data: bytes) -> h11.Connection:
        wire = self._wire
        if wire is None:
            assert self._request is not None
            wire = self._wire = h11.Connection(h11.CLIENT, MAX_HEAD)
            wire.send(self._request)
            wire.send(h11.EndOfMessage())
        if data:  # to h11, nothing means that no more will come
            wire.receive_data(data)
        return wire
