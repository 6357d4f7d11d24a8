"""Cutting a reply's bytes into frames: server-sent events, lines of JSON, or one whole body.

Uses nothing of ours; used by _reply. Written after the event stream section of the WHATWG HTML
standard. No parser here knows what a frame means, and none waits: bytes in, finished frames out, however the network
has cut them. Lines are found in bytes and decoded whole, so a character split over two chunks stays one character,
and U+2028 or U+0085 inside a line does not end it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, final

import attrs

__all__ = ["MAX_BODY", "MAX_EVENT", "Frame", "FrameTooLarge", "Framer", "JsonLines", "ServerSentEvents", "WholeBody"]

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event or line. Tool arguments of 300 KiB in one line are real; a line that never ends must not fill
the memory."""

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a reply that comes as one body."""


class FrameTooLarge(ValueError):
    """The other side has sent more than `limit` bytes without ending what it began."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(limit)

    def __str__(self) -> str:
        return f"more than {self.limit} bytes without an end"


class Frame(NamedTuple):
    """One message of a reply. `event` is the event's name, empty where there is none; `cut` marks one that the end of
    the stream has ended, so that it may be incomplete."""

    data: str
    event: str = ""
    cut: bool = False


class Framer(Protocol):
    """Bytes in, frames out. What comes of them does not depend on how they were cut: what was complete before too much
    came is given out, and the next call raises."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that `chunk` completes. Raises `FrameTooLarge`."""
        ...

    def close(self) -> list[Frame]:
        """Return what the end of the stream completes. Raises `FrameTooLarge`."""
        ...


@attrs.define(eq=False)
class _Lines:
    """Splits bytes into lines that end with LF, CRLF or CR. Also what a chunk leaves unfinished is bounded."""

    limit: int
    held: int = 0  # bytes that the reader holds besides the unfinished line
    _tail: bytearray = attrs.field(factory=bytearray, init=False)
    _after_cr: bool = attrs.field(default=False, init=False)

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            # The CR has already ended its line; an LF right behind it belongs to it, also in a chunk of its own.
            self._after_cr = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if not chunk:
            return []
        # bytes.splitlines knows exactly these three line ends; str.splitlines knows others.
        lines = chunk.splitlines(keepends=True)
        last = lines[-1]
        if last[-1:] in b"\r\n":
            self._after_cr = last[-1:] == b"\r"
            last = b""
        else:
            lines.pop()
        if lines and self._tail:
            lines[0] = bytes(self._tail) + lines[0]
            self._tail.clear()
        self._tail += last
        return [line.rstrip(b"\r\n") for line in lines]

    @property
    def fresh(self) -> bool:
        """True where a line begins, and none was cut off in front of it."""
        return not self._tail and not self._after_cr

    def fits(self, line: bytes | None = None) -> bool:
        """Say whether a line, or the unfinished one, is within the limit together with what is held."""
        return len(self._tail if line is None else line) + self.held <= self.limit

    def close(self) -> bytes:
        tail = bytes(self._tail)
        self._tail.clear()
        return tail


@final
class ServerSentEvents:
    """Reads `text/event-stream`. `limit` bounds the bytes of one event, finished or not.

    Two departures from the standard, both because servers do it: the end of the stream also ends an event, and bytes
    that are not UTF-8 become U+FFFD. Names and comments without data give no frame; `id` and `retry` are ignored.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._lines = _Lines(limit)
        self._data: list[str] = []
        self._event = ""
        self._first = True
        self._too_large = False

    def feed(self, chunk: bytes) -> list[Frame]:
        self._check()
        if chunk[-2:] == b"\n\n" and not self._data and not self._event and self._lines.fresh:
            frames = self._whole(chunk)
            if frames is not None:
                self._first = False
                return frames
        frames = []
        for line in self._lines.feed(chunk):
            if not self._lines.fits(line):
                self._too_large = True
                break
            if line:
                self._field(line)
            elif self._data:
                frames.append(self._frame())
            else:
                self._event = ""
        self._too_large = self._too_large or not self._lines.fits()
        if not frames:
            self._check()
        return frames

    def _whole(self, chunk: bytes) -> list[Frame] | None:
        """Return the frames of a chunk of whole events, each one line of data, perhaps behind its name: what most are.
        None for any other."""
        # Decoded at once: no character ends a line or an event but those of one byte.
        if len(chunk) > self._lines.limit or b"\r" in chunk:
            return None
        frames = []
        for event in chunk[:-2].decode("utf-8", "replace").split("\n\n"):
            name, data = "", event
            if event[:7] == "event: ":
                name, _, data = event[7:].partition("\n")
            if data[:6] != "data: " or "\n" in data:
                return None
            frames.append(Frame(data[6:], name))
        return frames

    def close(self) -> list[Frame]:
        self._check()
        tail = self._lines.close()
        if tail:
            self._field(tail)
        return [self._frame(cut=True)] if self._data else []

    def _check(self) -> None:
        if self._too_large:
            raise FrameTooLarge(self._lines.limit)

    def _field(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            self._lines.held += len(value) + 1
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")

    def _frame(self, cut: bool = False) -> Frame:
        frame = Frame("\n".join(self._data), self._event, cut)
        self._data, self._event = [], ""
        self._lines.held = 0
        return frame


@final
class JsonLines:
    """Reads one frame a line (`application/x-ndjson`); blank lines are skipped."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._lines = _Lines(limit)
        self._too_large = False

    def feed(self, chunk: bytes) -> list[Frame]:
        self._check()
        frames: list[Frame] = []
        for line in self._lines.feed(chunk):
            if not self._lines.fits(line):
                self._too_large = True
                break
            if line.strip():
                frames.append(Frame(line.decode("utf-8", "replace")))
        self._too_large = self._too_large or not self._lines.fits()
        if not frames:
            self._check()
        return frames

    def close(self) -> list[Frame]:
        self._check()
        tail = self._lines.close()
        return [Frame(tail.decode("utf-8", "replace"), cut=True)] if tail.strip() else []

    def _check(self) -> None:
        if self._too_large:
            raise FrameTooLarge(self._lines.limit)


@final
class WholeBody:
    """Gives the whole body as one frame, at its end; nothing for a blank one."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size > self._limit:
            raise FrameTooLarge(self._limit)
        return []

    def close(self) -> list[Frame]:
        text = b"".join(self._parts).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        return [Frame(text)] if text.strip() else []
