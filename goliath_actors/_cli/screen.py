"""What the command line writes: plain lines, coloured and cut to the width where a terminal shows them.

Knows nothing of agents and runs.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import TextIO, final

import attrs

__all__ = ["Screen", "cells", "fit", "one_line", "plain"]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_CLEAR_LINE = "\r\x1b[K"
_LEAST_WIDTH = 20  # columns; a narrower terminal gets lines that it wraps itself

# Text from a model, a tool or a server must not command the terminal (escape sequences), and what a person confirms
# must read as it is executed: C0 and C1 controls but newline and tab, and marks that reverse the reading order.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(text: str) -> str:
    """Return `text` with every character that could steer a terminal made visible: ESC as U+241B, others as U+FFFD."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n"))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def one_line(text: str) -> str:
    """Return `text` on one line, runs of white space as one space, nothing in it that steers a terminal."""
    return " ".join(plain(text).split())


def cells(text: str) -> int:
    """Return how many columns a terminal needs for `text`: 2 for wide characters, 0 for combining ones."""
    return sum(_cell(character) for character in text)


def _cell(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("F", "W") else 1


def fit(text: str, width: int | None) -> str:
    """Return `text` cut to `width` columns, an ellipsis at the cut; None cuts nothing."""
    if width is None or (len(text) * 2 <= width) or cells(text) <= width:
        return text
    used, kept = 1, []
    for character in text:
        used += _cell(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


@final
@attrs.define(eq=False)
class Screen:
    """One output stream. Everything written to it goes through here, so that it knows where the line stands.

    `colour` and `width` (columns; None: no terminal, nothing is cut) are decided by `on`.
    """

    stream: TextIO
    colour: bool = False
    terminal: bool = False
    _columns: int | None = None
    # Invariant: _open is true exactly while the last thing written did not end its line.
    _open: bool = attrs.field(default=False, init=False)
    _transient: bool = attrs.field(default=False, init=False)
    # Running text: the column that the line has reached, and what is held back since its word may go to the next line.
    _column: int = attrs.field(default=0, init=False)
    _gap: str = attrs.field(default="", init=False)
    _word: str = attrs.field(default="", init=False)

    @classmethod
    def on(cls, stream: TextIO, environ: Mapping[str, str]) -> Screen:
        """Return a screen on `stream`: a terminal has colours (unless NO_COLOR is set or TERM is dumb) and a width."""
        terminal = _is_terminal(stream)
        colour = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        columns = environ.get("COLUMNS", "")
        return cls(stream, colour, terminal, int(columns) if columns.isdecimal() and int(columns) else None)

    @property
    def width(self) -> int | None:
        """Columns of the terminal as it is now, None if there is none or it is too narrow to cut anything."""
        if not self.terminal:
            return None
        columns = self._columns
        if columns is None:
            try:
                columns = os.get_terminal_size(self.stream.fileno()).columns
            except (OSError, ValueError):
                columns = 80
        return columns if columns >= _LEAST_WIDTH else None

    def style(self, text: str, *names: str) -> str:
        """Return `text` in the named styles, or as it is where there are no colours."""
        if not self.colour or not names or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"

    def write(self, text: str, *styles: str) -> None:
        """Write a piece of a line, at once. The text is made safe; the styles are not part of it."""
        self._put(self.style(plain(text), *styles), open_line=not text.endswith("\n") if text else self._open)

    def line(self, text: str = "", *styles: str) -> None:
        """Write a line of its own: an open one is ended first."""
        self.end_line()
        self._put(self.style(plain(text), *styles) + "\n", open_line=False)

    def spans(self, *pieces: tuple[str, str], cut: bool = False) -> None:
        """Write one line made of pieces (text, style; an empty style for none); with `cut`, cut to the width."""
        self.end_line()
        left = self.width if cut else None
        shown: list[str] = []
        for text, style in pieces:
            text = fit(plain(text) if left is None else plain(text).replace("\n", " "), left)
            shown.append(self.style(text, style) if style else text)
            if left is not None:
                left -= cells(text)
                if left <= 0 or text.endswith("…"):
                    break
        self._put("".join(shown) + "\n", open_line=False)

    def wrapped(self, text: str, *styles: str, indent: str = "", first: str | None = None) -> None:
        """Write a paragraph, wrapped at spaces to the width, each line behind `indent`, the first behind `first`."""
        lead = indent if first is None else first
        if self.width is None:
            self.line(lead + one_line(text), *styles)
            return
        for row in textwrap.wrap(one_line(text), self.width - 1, initial_indent=lead, subsequent_indent=indent):
            self.line(row, *styles)

    def flow(self, text: str, indent: str = "") -> None:
        """Write a piece of running text, broken between words at the width; a word is held back until it is whole.

        Lines begin behind `indent`. Wide characters may be broken between, as is usual where they are written.
        """
        width = self.width
        if width is None:
            text = plain(text)
            self._put((indent if indent and not self._open else "") + text, open_line=not text.endswith("\n"))
            return
        for character in plain(text):
            if character == "\n":
                self._flush_word(width, indent)
                self._put("\n", open_line=False)
                self._column, self._gap = 0, ""
            elif character.isspace():
                self._flush_word(width, indent)
                self._gap += character
            else:
                self._word += character
                if _cell(character) == 2 or len(self._word) >= width:
                    self._flush_word(width, indent)

    def _flush_word(self, width: int, indent: str) -> None:
        if not self._word:
            return
        size = cells(self._gap + self._word)
        if self._column > len(indent) and self._column + size >= width:
            self._put("\n", open_line=False)
            self._column, self._gap, size = 0, "", cells(self._word)
        if self._column == 0:
            self._gap = indent + self._gap
            size += len(indent)
        self._put(self._gap + self._word, open_line=True)
        self._column += size
        self._gap = self._word = ""

    def draw_line(self, prompt: str, style: str, text: str, column: int, *, over: bool) -> None:
        """Draw the line at a prompt anew, the cursor at `column`; if it is `over`, end it instead."""
        line = "\r" + self.style(plain(prompt), style) + plain(text) + "\x1b[K"
        if over:
            self._put(line + "\n", open_line=False)
        else:
            self._put(line + "\r" + (f"\x1b[{column}C" if column else ""), open_line=True)

    def end_line(self) -> None:
        """End an open line, if there is one."""
        if self._word:
            self._flush_word(self.width or 80, "")
        self._column, self._gap = 0, ""
        self.clear_status()
        if self._open:
            self._put("\n", open_line=False)

    def status(self, text: str) -> None:
        """Show a line that the next output wipes out; on a terminal alone, and only between lines."""
        if not self.colour or self._open or self._word:
            return
        self.clear_status()
        indent = text[: len(text) - len(text.lstrip(" "))]
        self._put(self.style(fit(indent + one_line(text), (self.width or 81) - 1), "dim"), open_line=False)
        self._transient = True

    def clear_status(self) -> None:
        """Wipe out the line that `status` shows, if there is one."""
        if self._transient:
            self._transient = False
            self._put(_CLEAR_LINE, open_line=False)

    def typed(self) -> None:
        """A person ended the line by a key: the terminal's cursor stands at the start of the next."""
        self._open = self._transient = False
        self._column = 0

    def word(self, text: str, instead: str) -> str:
        """Return `text` if the stream can carry it, else `instead`."""
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return instead
        return text

    @property
    def _encoding(self) -> str:
        return getattr(self.stream, "encoding", None) or "utf-8"

    def _put(self, text: str, *, open_line: bool) -> None:
        if self._transient:
            self._transient = False
            text = _CLEAR_LINE + text
        encoding = self._encoding
        # A stream that cannot carry a character gets a question mark: no output may end the program.
        self.stream.write(text.encode(encoding, "replace").decode(encoding))
        self.stream.flush()
        self._open = open_line


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
