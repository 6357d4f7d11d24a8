"""Lines from standard input, and Ctrl-C, without ever standing in the way of the event loop.

The reading happens in a thread, since a terminal, a pipe and a file have no waiting in common; on leaving,
a thread that still waits for a key is abandoned.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO, final

import attrs
import trio

__all__ = ["FdLines", "line_reader", "listen_for_interrupts", "pump_lines", "without_keys"]

CHUNK = 65536  # bytes
MAX_LINE = 1_000_000  # characters; a longer line is given in pieces, so that no input can take all memory
STUCK = 3  # Ctrl-C this often without the loop hearing one: something blocks it, and the program ends hard

# What cursor and function keys send in a line-wise terminal: no part of an ask.
_KEYS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[A-Za-z]|.)?")


def without_keys(line: str) -> str:
    """Return a typed line without the codes of cursor and function keys and other control characters."""
    return "".join(character for character in _KEYS.sub("", line) if character.isprintable() or character == "\t")


@final
@attrs.define(eq=False)
class FdLines:
    """Reads lines from a file descriptor by itself.

    Not through the buffered stream: a thread that waits in one holds its lock, and an interpreter that ends meanwhile
    aborts over that lock.
    """

    _fd: int
    _decoder: codecs.IncrementalDecoder = attrs.field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _text: str = attrs.field(default="", init=False)
    _over: bool = attrs.field(default=False, init=False)

    def readline(self) -> str:
        """Return the next line with its newline, or an empty string at the end of the input. Blocks."""
        while True:
            line, newline, rest = self._text.partition("\n")
            if newline or len(line) >= MAX_LINE:
                self._text = rest if newline else ""
                return line + "\n"
            if self._over:
                self._text = ""
                return line
            data = os.read(self._fd, CHUNK)
            self._over = not data
            self._text += self._decoder.decode(data, final=self._over)


def line_reader(stdin: TextIO) -> Callable[[], str]:
    """Return a blocking function that gives the next line of `stdin`, an empty string at its end."""
    try:
        return FdLines(stdin.fileno()).readline
    except (OSError, ValueError):  # an object without a descriptor
        return stdin.readline


async def pump_lines(readline: Callable[[], str], lines: trio.MemorySendChannel[str]) -> None:
    """Send every line that `readline` gives, without its newline; close the channel at the end of the input.

    Cancellation: the thread is abandoned; what it reads after that is lost.
    """
    limiter = trio.CapacityLimiter(1)
    async with lines:
        while True:
            try:
                line = await trio.to_thread.run_sync(readline, abandon_on_cancel=True, limiter=limiter)
            except (OSError, ValueError):  # a terminal that went away, a stream that was closed: the end of the input
                return
            if not line:
                return
            try:
                await lines.send(line.rstrip("\r\n"))
            except trio.BrokenResourceError:
                return


@contextmanager
def listen_for_interrupts(heard: Callable[[], None], ended: Callable[[int], None]) -> Iterator[None]:
    """Call `heard` in the event loop for every Ctrl-C while the block lasts, and `ended` with the number of a signal
    that asks the process to end (SIGTERM, SIGHUP), so that it ends in order.

    Outside the main thread, where Python has no signals, nothing is changed. A loop that somebody's code blocks cannot
    hear: the third Ctrl-C that nobody took ends the process with exit code 130.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    token = trio.lowlevel.current_trio_token()
    waiting = 0

    def deliver() -> None:
        nonlocal waiting
        waiting = 0
        heard()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        waiting += 1
        if waiting >= STUCK:
            os.write(2, b"\ngoliath-actors: ended, since blocked code did not let go\n")
            os._exit(130)
        if waiting == STUCK - 1:
            os.write(2, b"\ngoliath-actors: some code blocks the program; Ctrl-C again ends it\n")
        try:
            token.run_sync_soon(deliver)
        except trio.RunFinishedError:
            raise KeyboardInterrupt from None

    def on_end(number: int, frame: FrameType | None) -> None:
        try:
            token.run_sync_soon(ended, number)
        except trio.RunFinishedError:  # it came with the end of the program
            pass

    # Any: Python's own type for handlers holds handlers that were not set from Python, too.
    before: dict[signal.Signals, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, on_signal)}
    try:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None:
                before[number] = signal.signal(number, on_end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
