"""Asking at a prompt: plainly, or with a line that can be edited where there is a terminal for it.

Uses editor, keyboard, screen. While a prompt stands, keys come one by one and are drawn here; while a run
goes on the terminal reads and echoes whole lines itself, so that typing then needs nothing of this program.
"""

from __future__ import annotations

import codecs
import math
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TextIO, final

import attrs
import trio

from .editor import LineEditor
from .keyboard import FdReader, line_reader, pump_lines
from .screen import Screen, cells

if sys.platform != "win32":
    import termios

__all__ = ["Console", "PlainPrompt", "Prompter", "open_prompter"]

_LEAST_ROOM = 16  # columns for what is typed; a prompt that leaves less gets a line of its own
_SHORT_PROMPT = "> "
# Seconds behind the change to single keys in which what is read may have been typed before it.
_TYPED_AHEAD = 0.5


class Prompter(Protocol):
    """How a session asks for a line. The line itself comes as every other line does."""

    def ask(self, prompt: str, style: str, *, remember: bool = True) -> None:
        """Show a prompt; the line typed there is kept in the history if `remember`."""
        ...

    def drop(self) -> None:
        """Take the prompt back, and forget what was typed there."""
        ...

    async def pump(self, lines: trio.MemorySendChannel[str]) -> None:
        """Send every line that is typed, until the input ends; then close the channel."""
        ...


@final
@attrs.define(eq=False)
class PlainPrompt:
    """A prompt whose line the terminal, or whatever stands in for one, lets the user type by itself."""

    screen: Screen
    readline: Callable[[], Awaitable[str]]

    def ask(self, prompt: str, style: str, *, remember: bool = True) -> None:
        """Show the prompt."""
        self.screen.end_line()
        self.screen.write(prompt, style)

    def drop(self) -> None:
        """Nothing was kept here."""

    async def pump(self, lines: trio.MemorySendChannel[str]) -> None:
        """Send lines as they come.

        Cancellation: what was not read yet stays for the next reader, where the input has a descriptor.
        """
        await pump_lines(self.readline, lines)


@final
@attrs.define(eq=False)
class Console:
    """A terminal in which the line at the prompt can be edited, and earlier ones be fetched back."""

    _fd: int
    _screen: Screen
    _editor: LineEditor = attrs.Factory(LineEditor)
    _decoder: codecs.IncrementalDecoder = attrs.field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    # Invariant: the terminal gives single keys exactly while a prompt stands.
    _prompt: str | None = None
    _style: str = ""
    _whole_lines: str = ""
    # On trio's clock, until when a NUL is a Ctrl-D; see `_take_keys`.
    _typed_ahead: float = -math.inf
    # Any: termios' own list of numbers and lists.
    _before: list[Any] = attrs.field(init=False)

    @contextmanager
    def held(self) -> Iterator[Console]:
        """Hold the terminal for the length of the block; afterwards it is as it was."""
        self._before = termios.tcgetattr(self._fd)
        try:
            with self._listening_for_return():
                yield self
        finally:
            self._cook()

    def ask(self, prompt: str, style: str, *, remember: bool = True) -> None:
        """Show the prompt, with what was typed already and not ended."""
        screen = self._screen
        screen.end_line()
        width = screen.width
        if width is not None and cells(prompt) + _LEAST_ROOM > width:
            screen.wrapped(prompt, style)
            prompt = _SHORT_PROMPT
        self._prompt, self._style, self._editor.remember = prompt, style, remember
        self._take_keys()
        self._draw()

    def drop(self) -> None:
        """Take the prompt back, and forget what was typed there."""
        self._editor.clear()
        self._leave_prompt()

    async def pump(self, lines: trio.MemorySendChannel[str]) -> None:
        """Send every line that is typed, until Ctrl-D; then close the channel.

        Cancellation: what was not read yet stays for the next reader.
        """
        reader = FdReader(self._fd)
        async with lines:
            while True:
                try:
                    data = await reader.read()
                except OSError:  # the terminal went away
                    return
                ended = self._take(self._typed(self._decoder.decode(data))) if data else (None,)
                for line in ended:
                    if line is None:
                        return
                    await lines.send(line)

    def _typed(self, text: str) -> str:
        """Return what was typed. The first that is read after a change to single keys may have been typed before."""
        ahead, self._typed_ahead = self._typed_ahead, -math.inf
        return text.replace("\0", "\x04") if trio.current_time() <= ahead else text

    def _take(self, text: str) -> tuple[str | None, ...]:
        """Return the lines that `text` ends, None for the end of the input."""
        if self._prompt is None:
            # The terminal gives whole lines, but for what was typed before Ctrl-D; that waits for its end.
            *whole, self._whole_lines = (self._whole_lines + text).split("\n")
            return tuple(whole)
        ended = self._editor.feed(self._whole_lines + text)
        self._whole_lines = ""
        if not ended:
            self._draw()
            return ()
        # The first line is the one at the prompt; others were pasted with it and stand there when it is their turn.
        self._draw(ended[0] or "")
        self._leave_prompt()
        return ended

    # --- the terminal -----------------------------------------------------------------------------------------------

    def _draw(self, ended: str | None = None) -> None:
        assert self._prompt is not None
        width = (self._screen.width or 80) - cells(self._prompt)
        # An ended line stays on the screen in full; a longer one than the terminal is wide is wrapped by it.
        text, column = self._editor.draw(width) if ended is None else (ended, 0)
        self._screen.draw_line(self._prompt, self._style, text, cells(self._prompt) + column, over=ended is not None)

    def _leave_prompt(self) -> None:
        if self._prompt is not None:
            self._prompt = None
            self._cook()

    def _take_keys(self) -> None:
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)
        # A Ctrl-D that came while the terminal read whole lines, and that nobody has taken yet, is a NUL from here on.
        self._typed_ahead = trio.current_time() + _TYPED_AHEAD

    def _cook(self) -> None:
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        except termios.error:  # the terminal went away: nothing to give back
            pass

    @contextmanager
    def _listening_for_return(self) -> Iterator[None]:
        """Set the terminal up again when the user comes back from the shell (Ctrl-Z, then `fg`)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        token = trio.lowlevel.current_trio_token()

        def on_signal(number: int, frame: FrameType | None) -> None:
            try:
                token.run_sync_soon(self._returned)
            except trio.RunFinishedError:  # it came with the end of the program
                pass

        before: Any = signal.signal(signal.SIGCONT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGCONT, before if before is not None else signal.SIG_DFL)

    def _returned(self) -> None:
        if self._prompt is not None:
            self._take_keys()
            self._draw()


@contextmanager
def open_prompter(
    stdin: TextIO, screen: Screen, environ: Mapping[str, str], *, interactive: bool
) -> Iterator[Prompter]:
    """Open the best way to ask on `stdin`: with editing if `interactive` and the terminal can do it, else plainly."""
    fd = _terminal_fd(stdin) if interactive and environ.get("TERM", "dumb") != "dumb" else None
    if fd is None:
        yield PlainPrompt(screen, line_reader(stdin))
        return
    with Console(fd, screen).held() as console:
        yield console


def _terminal_fd(stdin: TextIO) -> int | None:
    if sys.platform == "win32":
        return None
    try:
        fd = stdin.fileno()
        termios.tcgetattr(fd)
    except (OSError, ValueError, termios.error):
        return None
    return fd
