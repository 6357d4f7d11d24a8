"""The tools with which a model looks at files and changes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Final, TypeAlias

import attrs
import msgspec

from goliath_actors._text import clip_tokens, estimate, grapheme_boundary
from goliath_actors.abc import TokenCounter
from goliath_actors.errors import ConfigError, StoreConflict, ToolFailure
from goliath_actors.tools import Tool, ToolContext, tool

from ._contract import MAX_LIST, File, FileEntry, Files, ReadOnlyFiles, WritableFiles
from ._pages import CANDIDATE, digest, excerpt, fit_text, make_cursor, read_cursor, shrink
from ._paths import Glob, beneath, file_path, normalise

__all__ = ["Backend", "file_tools"]

Backend: TypeAlias = Files | Callable[[str | None], Files | Awaitable[Files]]

LIST_PAGE: Final = 64  # paths
MATCHES: Final = 10
FILES_SCANNED: Final = 128
CHARS_SCANNED: Final = 65_536
SLACK: Final = 16  # tokens for the last line of a page
_NOWHERE: Final = "0" * 12  # the place in front of every file
_WALKED: Final = 1024  # files that one page of glob looks at

Lines = Annotated[int, msgspec.Meta(ge=1, le=200, description="how many lines")]
Line = Annotated[int, msgspec.Meta(ge=1, description="first line, counted from 1")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Literal = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="text to find, taken literally")]
Cursor = Annotated[str, msgspec.Meta(max_length=4096, description="from the last line of the page before")]
Revision = Annotated[str, msgspec.Meta(max_length=100, description="as read_file gave it")]


def file_tools(
    backend: Backend, *, root: str = "/", read_only: bool = True, counter: TokenCounter | None = None
) -> list[Tool]:
    """Return tools for files: `glob`, `grep` and `read_file`, and to change them `write_file`, `edit_file`,
    `delete_file`.

    Arguments:
      backend: a place for files, or a function that is called with the conversation id (None for the default
        conversation) at each use of a tool and returns one, or an awaitable of one; it should return the same place
        for the same id.
      root: a path; the tools see and touch nothing that is not below it. Relative paths count from there.
      read_only: False for the three tools that write; each use of them is confirmed as any write.
      counter: counts what a result takes of its budget; give it the one that the agent has. None estimates.

    Raises: ConfigError for a root that is no path, and for a backend that is none or, with `read_only=False`, cannot be
    written to.
    """
    is_place = isinstance(backend, Files)
    if not is_place and not callable(backend):
        raise ConfigError(f"file_tools needs a place for files or a function that returns one, not {backend!r}")
    if is_place and not read_only and not isinstance(backend, WritableFiles):
        raise ConfigError(f"{backend!r} cannot be written to; leave read_only as it is")
    desk = _Desk(backend, normalise(root), estimate if counter is None else counter.count)
    return [*_reading(desk), *([] if read_only else _writing(desk))]


@contextmanager
def _told() -> Iterator[None]:
    """Tell the model of what it did wrong; what is wrong with the place itself passes as it is."""
    try:
        yield
    except (ConfigError, StoreConflict, ReadOnlyFiles) as error:
        raise ToolFailure(str(error)) from error


@attrs.frozen(eq=False)
class _Desk:
    """What the tools of one `file_tools` share."""

    backend: Backend
    root: str
    count: Callable[[str], int]

    async def place(self, ctx: ToolContext[Any]) -> Files:
        if isinstance(self.backend, Files):
            return self.backend
        made = self.backend(ctx.conversation_id)
        place = await made if inspect.isawaitable(made) else made
        if not isinstance(place, Files):
            raise TypeError(f"the function given to file_tools returned {type(place).__name__}, no place for files")
        return place

    async def writable(self, ctx: ToolContext[Any]) -> WritableFiles:
        place = await self.place(ctx)
        if not isinstance(place, WritableFiles):
            raise ToolFailure("these files are read-only")
        return place

    def path(self, given: str) -> str:
        """Return a path that is below the root, or raise ConfigError."""
        path = file_path(given if given.startswith("/") else f"{self.root}/{given}")
        if not beneath(path, self.root):
            raise ConfigError(f"{path} is outside of {self.root}")
        return path

    async def file(self, place: Files, path: str) -> File:
        found = await place.read(path)
        if found is None:
            raise ToolFailure(f"there is no file {path}")
        return found

    async def walk(self, place: Files, behind: str | None) -> AsyncGenerator[FileEntry, None]:
        """All files below the root in order, from behind the one whose digest is `behind`."""
        after: str | None = None
        waiting = behind is not None
        while True:
            page = await place.list(self.root, after, MAX_LIST)
            for entry in page.entries:
                if waiting:
                    waiting = digest(entry.path) != behind
                    continue
                yield entry
            if page.next is None:
                break
            after = page.next
        if waiting:
            raise ToolFailure("the file where the cursor stood is gone; leave the cursor out to start anew")


def _more(cursor: str) -> str:
    return f"[more: cursor {cursor}]"


# --- reading --------------------------------------------------------------------------------------------------------


def _reading(desk: _Desk) -> list[Tool]:
    @tool(output_mode="content")
    async def glob(ctx: ToolContext[Any], pattern: Pattern = "**", cursor: Cursor = "") -> str:
        """List the paths of files. `*` and `?` match within a name, `**` any folders."""
        with _told():
            return await _glob(desk, await desk.place(ctx), pattern, cursor, ctx.result_budget)

    @tool(output_mode="content")
    async def grep(
        ctx: ToolContext[Any], text: Literal, files: Pattern = "**", ignore_case: bool = False, cursor: Cursor = ""
    ) -> str:
        """Find lines that contain a text, in files whose paths match a pattern."""
        with _told():
            return await _Search(desk, text, files, ignore_case, ctx.result_budget).page(await desk.place(ctx), cursor)

    @tool(output_mode="content")
    async def read_file(
        ctx: ToolContext[Any], path: str, line: Line = 1, lines: Lines = 25, cursor: Cursor = ""
    ) -> str:
        """Read some lines of a file. With a cursor, go on where the page before ended."""
        with _told():
            file = await desk.file(await desk.place(ctx), desk.path(path))
            return _read(file, line, lines, cursor, ctx.result_budget, desk.count)

    return [glob, grep, read_file]


async def _glob(desk: _Desk, place: Files, pattern: str, cursor: str, budget: int) -> str:
    matcher = Glob(pattern, desk.root)
    query = digest("glob", desk.root, pattern)
    behind = read_cursor(cursor, query)[1] if cursor else None
    room = budget - SLACK
    shown: list[str] = []
    last, walked = behind, 0
    async with aclosing(desk.walk(place, behind)) as files:
        async for entry in files:
            if walked == _WALKED or len(shown) == LIST_PAGE:
                return _listing(shown, make_cursor(0, last or _NOWHERE, query))
            if matcher.matches(entry.path):
                if desk.count("\n".join([*shown, entry.path])) > room:
                    if shown:
                        return _listing(shown, make_cursor(0, last or _NOWHERE, query))
                    shown.append(clip_tokens(entry.path, room, desk.count))
                else:
                    shown.append(entry.path)
            last = digest(entry.path)
            walked += 1
    return _listing(shown, None)


def _listing(shown: list[str], cursor: str | None) -> str:
    last = ("[no more files]" if shown else "[no files]") if cursor is None else _more(cursor)
    return "\n".join([*shown, last])


def _read(file: File, line: int, lines: int, cursor: str, budget: int, count: Callable[[str], int]) -> str:
    text = file.text
    query = digest("read", file.path, file.revision)
    start = read_cursor(cursor, query)[0] if cursor else _line_start(text, line)
    total = text.count("\n") + (1 if text and not text.endswith("\n") else 0)
    if start < 0 or (start >= len(text) and text):
        return f"[revision {file.revision}, end of file: it has {total} lines]"
    if grapheme_boundary(text, start) != start:
        raise ToolFailure("the cursor stands within a character; leave it out to start anew")
    first = text.count("\n", 0, start) + 1
    stop = start
    for _ in range(lines):
        stop = text.find("\n", stop) + 1 or len(text)
        if stop == len(text):
            break

    def page(end: int) -> str:
        body = text[start:end]
        last = first + body.count("\n") - (1 if body.endswith("\n") else 0)
        head = f"[revision {file.revision}, lines {first}-{max(first, last)} of {total}]\n"
        if end >= len(text):
            return f"{head}{body}\n[end of file]"
        return f"{head}{body}\n{_more(make_cursor(end, digest(file.path), query))}"

    end = fit_text(text, start, min(stop, start + CANDIDATE), page, budget, count)
    if end == start and text:
        raise ToolFailure(f"not one character of line {first} fits into a result of {budget} tokens; read another line")
    return page(end)


def _line_start(text: str, line: int) -> int:
    """Return where a line begins, -1 if there is none of this number."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
        if not start:
            return -1
    return start


@attrs.define(eq=False)
class _Search:
    """One page of `grep`."""

    desk: _Desk
    text: str
    files: str
    ignore_case: bool
    budget: int
    shown: list[str] = attrs.field(factory=list, init=False)
    chars: int = attrs.field(default=CHARS_SCANNED, init=False)

    @property
    def query(self) -> str:
        return digest("grep", self.desk.root, self.text, self.files, str(self.ignore_case))

    async def page(self, place: Files, cursor: str) -> str:
        desk = self.desk
        matcher = Glob(self.files, desk.root)
        pattern = re.compile(re.escape(self.text), re.IGNORECASE if self.ignore_case else 0)
        offset, mark = read_cursor(cursor, self.query) if cursor else (0, "")
        # In the middle of a file the mark names the file and its revision, at its beginning the file before.
        resumed = await self._resumed(place, matcher, mark) if offset else None
        behind = digest(resumed.path) if resumed is not None else (None if mark in ("", _NOWHERE) else mark)
        if resumed is not None and (left := self._scan(resumed, pattern, offset)) is not None:
            return self._end(left, mark)
        scanned = 0
        async with aclosing(desk.walk(place, behind)) as entries:
            async for entry in entries:
                if scanned == FILES_SCANNED or self.chars <= 0:
                    return self._end(0, behind or _NOWHERE)
                scanned += 1
                if matcher.matches(entry.path) and (file := await place.read(entry.path)) is not None:
                    left = self._scan(file, pattern, 0)
                    if left is not None:
                        return self._end(left, digest(file.path, file.revision) if left else behind or _NOWHERE)
                behind = digest(entry.path)
        return self._end(None, "")

    async def _resumed(self, place: Files, matcher: Glob, mark: str) -> File:
        async with aclosing(self.desk.walk(place, None)) as entries:
            async for entry in entries:
                if digest(entry.path, entry.revision) == mark and matcher.matches(entry.path):
                    file = await place.read(entry.path)
                    if file is not None and file.revision == entry.revision:
                        return file
        raise ToolFailure("the file where the cursor stood has changed; leave the cursor out to start anew")

    def _scan(self, file: File, pattern: re.Pattern[str], offset: int) -> int | None:
        """Search one file from `offset`; return where to go on on the next page, None if the file is done."""
        text = file.text
        while offset < len(text):
            if self.chars <= 0 or len(self.shown) == MATCHES:
                return offset
            window = min(len(text), offset + self.chars)
            # A match may begin in the window and end behind it.
            match = pattern.search(text, offset, window + len(self.text) - 1)
            if match is None:
                self.chars -= window - offset
                offset = window
                continue
            _, line_end, words = excerpt(text, match.start(), len(match[0]))
            if not self._show(file.path, text.count("\n", 0, match.start()) + 1, words):
                return offset
            self.chars -= line_end + 1 - offset
            offset = line_end + 1
        return None

    def _show(self, path: str, line: int, words: str) -> bool:
        count, room = self.desk.count, self.budget - SLACK
        if not self.shown:
            self.shown.append(shrink(path, line, words, room, count))
            return True
        whole = f"{path}:{line}: {words}"
        if count("\n".join([*self.shown, whole])) > room:
            return False
        self.shown.append(whole)
        return True

    def _end(self, offset: int | None, mark: str) -> str:
        if offset is None:
            last = "[no more matches]" if self.shown else "[no matches]"
        else:
            last = _more(make_cursor(offset, mark, self.query))
            if not self.shown:
                last = f"[no matches yet]\n{last}"
        return "\n".join([*self.shown, last])


# --- writing --------------------------------------------------------------------------------------------------------


def _writing(desk: _Desk) -> list[Tool]:
    @tool(writes=True)
    async def write_file(ctx: ToolContext[Any], path: str, text: str, revision: Revision = "") -> str:
        """Write a whole file. Without a revision it must be a new file, with one it replaces that revision."""
        with _told():
            file = await (await desk.writable(ctx)).write(desk.path(path), text, revision or None)
        return f"{file.path} is written, revision {file.revision}"

    @tool(writes=True)
    async def edit_file(ctx: ToolContext[Any], path: str, old: str, new: str, revision: Revision) -> str:
        """Replace a text that occurs exactly once in a file."""
        with _told():
            place = await desk.writable(ctx)
            file = await desk.file(place, desk.path(path))
            if file.revision != revision:
                raise ToolFailure(f"{file.path} has changed since revision {revision}; read it again")
            at = file.text.find(old) if old else -1
            if at < 0:
                raise ToolFailure(f"{file.path} does not contain the old text; read it and copy the text exactly")
            if file.text.find(old, at + 1) >= 0:
                raise ToolFailure(f"the old text occurs more than once in {file.path}; give more of what is around it")
            changed = file.text[:at] + new + file.text[at + len(old) :]
            file = await place.write(file.path, changed, revision)
        return f"{file.path} is changed, revision {file.revision}"

    @tool(writes=True)
    async def delete_file(ctx: ToolContext[Any], path: str, revision: Revision) -> str:
        """Delete one file."""
        with _told():
            where = desk.path(path)
            await (await desk.writable(ctx)).delete(where, revision)
        return f"{where} is deleted"

    return [write_file, edit_file, delete_file]
