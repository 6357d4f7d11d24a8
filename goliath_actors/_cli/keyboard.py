"""Lines from standard input, and Ctrl-C, without ever standing in the way of the event loop.

The reading happens in a thread, since a terminal, a pipe and a file have no waiting in common; on leaving,
the thread lets go of the descriptor, so that the next key is for whoever reads next.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TextIO, TypeVar, final

import attrs
import trio

__all__ = ["FdLines", "FdReader", "line_reader", "listen_for_interrupts", "pump_lines", "without_keys"]

T = TypeVar("T")

CHUNK = 65536  # bytes
MAX_LINE = 1_000_000  # characters; a longer line is given in pieces, so that no input can take all memory
PATIENCE = 1.0  # seconds for a read that has begun; one that another process robbed of its input is given up then
STUCK = 3  # Ctrl-C this often without the loop hearing one: something blocks it, and the program ends hard

# What cursor and function keys send in a line-wise terminal: no part of an ask.
_KEYS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[A-Za-z]|.)?")


def without_keys(line: str) -> str:
    """Return a typed line without the codes of cursor and function keys and other control characters."""
    return "".join(character for character in _KEYS.sub("", line) if character.isprintable() or character == "\t")


@attrs.define(eq=False)
class _Reading:
    """One read in a thread, which can be told to let go of the descriptor instead."""

    _fd: int
    # Invariant: the thread holds the lock while it reads, and reads only while `_over` is false. So whoever set that
    # under the lock knows that nothing is taken from then on, even by a thread that begins only afterwards, when the
    # number may stand for something else (test_who_left_a_prompt_takes_no_key_from_the_next_reader).
    _lock: threading.Lock = attrs.Factory(threading.Lock)
    _over: bool = False
    # Closing it ends the waiting. An object and no number: each side may close it whenever it likes.
    _bell: socket.socket | None = None

    def read(self) -> bytes:
        """Return what there is, once there is any; nothing if it was told to let go. Blocks."""
        with self._lock:
            if self._over:
                return b""
            os.fstat(self._fd)  # a number that is closed is refused here: the bell would get it
            self._bell, rung = socket.socketpair()
        with self._bell, rung:
            _wait_for_either(self._fd, rung)
            with self._lock:
                return b"" if self._over else os.read(self._fd, CHUNK)

    def let_go(self) -> None:
        """End the waiting, and have nothing read any more."""
        # A read that has begun has its input before it and ends at once: the loop does not notice the wait. The bound
        # is for another process at the same terminal, which may have taken that input in between.
        mine = self._lock.acquire(timeout=PATIENCE)
        self._over = True
        if self._bell is not None:
            self._bell.close()
        if mine:
            self._lock.release()


def _wait_for_either(fd: int, rung: socket.socket) -> None:
    # Not epoll, which knows no files; and macOS has a poll that knows no terminals.
    kind = selectors.SelectSelector if sys.platform in ("darwin", "win32") else selectors.PollSelector
    with kind() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.register(rung, selectors.EVENT_READ)
        while not selector.select():
            pass


@final
@attrs.define(eq=False)
class FdReader:
    """Reads a descriptor in threads, and leaves it alone as soon as nobody waits for what is read.

    A thread that was left waiting in a read would take what is typed next from whoever reads then: the shell while
    this program is still ending, or the next chat of the same process.
    """

    _fd: int
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def read(self) -> bytes:
        """Return what there is, once there is any; nothing at the end of the input.

        Raises: `OSError` if the descriptor is none, or if its terminal went away.

        Cancellation: what was not read yet stays for the next reader; what is read in that very instant is lost. On
        Windows, which has no waiting for a console, the reading thread is abandoned, and takes the next line.
        """
        if sys.platform == "win32":
            return await _in_thread(partial(os.read, self._fd, CHUNK), self._limiter)
        reading = _Reading(self._fd)
        try:
            return await _in_thread(reading.read, self._limiter)
        finally:
            reading.let_go()


@final
@attrs.define(eq=False)
class FdLines:
    """Reads lines from a file descriptor by itself.

    Not through the buffered stream: a thread that waits in one holds its lock, and an interpreter that ends meanwhile
    aborts over that lock.
    """

    _reader: FdReader = attrs.field(converter=FdReader)
    _decoder: codecs.IncrementalDecoder = attrs.field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _text: str = attrs.field(default="", init=False)
    _over: bool = attrs.field(default=False, init=False)

    async def readline(self) -> str:
        """Return the next line with its newline, or an empty string at the end of the input.

        Raises: `OSError` as `FdReader.read` does.

        Cancellation: as that of `FdReader.read`; what was read before stays for the next call.
        """
        await trio.lowlevel.checkpoint()
        while True:
            line, newline, rest = self._text.partition("\n")
            if newline or len(line) >= MAX_LINE:
                self._text = rest if newline else ""
                return line + "\n"
            if self._over:
                self._text = ""
                return line
            data = await self._reader.read()
            self._over = not data
            self._text += self._decoder.decode(data, final=self._over)


def line_reader(stdin: TextIO) -> Callable[[], Awaitable[str]]:
    """Return a function that waits for the next line of `stdin`; it returns an empty string at the end.

    Cancellation: a descriptor is left to the next reader; where an object has none, the thread in its `readline` is
    abandoned, and what it reads after that is lost.
    """
    try:
        return FdLines(stdin.fileno()).readline
    except (OSError, ValueError):  # an object without a descriptor
        return partial(_in_thread, stdin.readline, trio.CapacityLimiter(1))


async def _in_thread(work: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


async def pump_lines(readline: Callable[[], Awaitable[str]], lines: trio.MemorySendChannel[str]) -> None:
    """Send every line that `readline` gives, without its newline; close the channel at the end of the input.

    Cancellation: as that of `readline`.
    """
    async with lines:
        while True:
            try:
                line = await readline()
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
