"""A line that is typed: keys in, lines and what to draw out.

Pure: knows no terminal. Used by console.
"""

from __future__ import annotations

import re
from typing import final

import attrs

from .screen import cells

__all__ = ["LineEditor"]

MOST_LINES = 500  # kept in the history
_LEFT_OUT = "…"

# One key: an escape sequence of a cursor or function key, an Alt key, or a character. An escape that is not whole yet
# waits for the rest of it.
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|\x1b[^\[O\x1b]|\x1b(?=\x1b)|[^\x1b]", re.DOTALL)

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[7~": "home",
    "\x1b[4~": "end",
    "\x1b[8~": "end",
    "\x1b[3~": "delete",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x7f": "back",
    "\x08": "back",
    "\x01": "home",
    "\x05": "end",
    "\x02": "left",
    "\x06": "right",
    "\x10": "up",
    "\x0e": "down",
    "\x0b": "cut-right",
    "\x15": "cut-left",
    "\x17": "cut-word",
    "\x04": "ctrl-d",
    "\r": "enter",
    "\n": "enter",
    "\x1b[1;5C": "word-right",
    "\x1b[1;5D": "word-left",
    "\x1bf": "word-right",
    "\x1bb": "word-left",
}


@final
@attrs.define(eq=False)
class LineEditor:
    """One line being typed, and those typed before it, reached with the up and down keys."""

    text: str = ""
    # Invariant: 0 <= cursor <= len(text).
    cursor: int = 0
    history: list[str] = attrs.field(factory=list)
    # False while what is typed answers a question: a "y" is nothing to fetch back.
    remember: bool = True
    # Where up and down stand: len(history) is the line being typed, kept in _draft meanwhile.
    _place: int = 0
    _draft: str = ""
    _rest: str = ""

    def feed(self, keys: str) -> tuple[str | None, ...]:
        """Take keys as they come from a terminal.

        Returns: every line that was ended by the enter key, in order; None for Ctrl-D on an empty line, which ends the
        input. Keys behind an ended line begin the next.
        """
        ended: list[str | None] = []
        data = self._rest + keys
        place = 0
        while (key := _KEY.match(data, place)) is not None:
            place = key.end()
            name = _NAMES.get(key[0])
            if name == "enter":
                ended.append(self._end())
            elif name == "ctrl-d" and not self.text:
                ended.append(None)
            elif name is not None:
                self._move(name)
            elif key[0].isprintable() or key[0] == "\t":
                self._insert(" " if key[0] == "\t" else key[0])
        self._rest = data[place:]
        if len(self._rest) > 20:  # no key is that long
            self._rest = ""
        return tuple(ended)

    def clear(self) -> None:
        """Forget the line being typed."""
        self.text, self.cursor, self._draft, self._rest = "", 0, "", ""
        self._place = len(self.history)

    def draw(self, width: int) -> tuple[str, int]:
        """Return what to show of the line in `width` columns, and the column at which the cursor stands in it.

        A line that is too long is shown around the cursor, an ellipsis at each end that is cut.
        """
        if cells(self.text) < width:
            return self.text, cells(self.text[: self.cursor])
        start = self.cursor
        while start > 0 and cells(self.text[start - 1 : self.cursor]) < max(width - 3, 1) * 3 // 4:
            start -= 1
        lead = _LEFT_OUT if start else ""
        room = width - 2 - len(lead)
        end = start
        while end < len(self.text) and cells(self.text[start : end + 1]) <= room:
            end += 1
        tail = _LEFT_OUT if end < len(self.text) else ""
        return lead + self.text[start:end] + tail, len(lead) + cells(self.text[start : self.cursor])

    def _insert(self, character: str) -> None:
        self.text = self.text[: self.cursor] + character + self.text[self.cursor :]
        self.cursor += 1

    def _end(self) -> str:
        line = self.text
        if self.remember and line.strip() and (not self.history or self.history[-1] != line):
            self.history.append(line)
            del self.history[:-MOST_LINES]
        self.clear()
        return line

    def _move(self, name: str) -> None:
        text, cursor = self.text, self.cursor
        if name in ("up", "down"):
            self._recall(self._place + (1 if name == "down" else -1))
        elif name == "back" and cursor:
            self.text, self.cursor = text[: cursor - 1] + text[cursor:], cursor - 1
        elif name in ("delete", "ctrl-d"):
            self.text = text[:cursor] + text[cursor + 1 :]
        elif name == "cut-left":
            self.text, self.cursor = text[cursor:], 0
        elif name == "cut-right":
            self.text = text[:cursor]
        elif name == "cut-word":
            start = self._word_left()
            self.text, self.cursor = text[:start] + text[cursor:], start
        else:
            self.cursor = {
                "left": max(cursor - 1, 0),
                "right": min(cursor + 1, len(text)),
                "home": 0,
                "end": len(text),
                "word-left": self._word_left(),
                "word-right": self._word_right(),
            }.get(name, cursor)

    def _word_left(self) -> int:
        head = self.text[: self.cursor].rstrip()
        return len(head) - len(re.split(r"\s", head)[-1])

    def _word_right(self) -> int:
        tail = re.match(r"\s*\S*", self.text[self.cursor :])
        assert tail is not None  # the pattern matches nothing, too
        return self.cursor + tail.end()

    def _recall(self, place: int) -> None:
        if not 0 <= place <= len(self.history):
            return
        if self._place == len(self.history):
            self._draft = self.text
        self._place = place
        self.text = self._draft if place == len(self.history) else self.history[place]
        self.cursor = len(self.text)
