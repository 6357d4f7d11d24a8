"""Files in memory: some that can be changed, and some that cannot."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import final

import attrs
import trio

from ._contract import DEFAULT_LIST, File, FileEntry, FilePage, check_limit, check_text, encode, refuse_stale
from ._paths import beneath, file_path, normalise

__all__ = ["MemoryFiles", "StaticFiles"]


def _page(files: Mapping[str, File], paths: list[str], under: str, after: str | None, limit: int) -> FilePage:
    check_limit(limit)
    base = normalise(under)
    start = 0 if after is None else bisect_right(paths, after)
    found: list[FileEntry] = []
    for path in paths[start:]:
        if not beneath(path, base):
            continue
        if len(found) == limit:
            return FilePage(tuple(found), found[-1].path)
        found.append(FileEntry(path, files[path].revision, len(encode(files[path].text))))
    return FilePage(tuple(found))


@final
@attrs.define(eq=False, repr=False)
class MemoryFiles:
    """Files that live as long as this object.

    Cancellation: every method is a checkpoint before it does anything; `Cancelled` means that nothing was changed.
    """

    _files: dict[str, File] = attrs.field(factory=dict, init=False)
    # Invariant: as large as the largest revision ever given out, so that none is given out again after a delete.
    _last: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<MemoryFiles of {len(self._files)} files>"

    async def list(self, under: str = "/", after: str | None = None, limit: int = DEFAULT_LIST) -> FilePage:
        """Return a page of the files at or below a path; see `Files.list`."""
        await trio.lowlevel.checkpoint()
        return _page(self._files, sorted(self._files), under, after, limit)

    async def read(self, path: str) -> File | None:
        """Return a file, or None if there is none."""
        await trio.lowlevel.checkpoint()
        return self._files.get(file_path(path))

    async def write(self, path: str, text: str, expect: str | None = None) -> File:
        """Create a file, or replace the revision `expect`; see `WritableFiles.write`."""
        await trio.lowlevel.checkpoint()
        path = file_path(path)
        check_text(path, text)
        refuse_stale(path, self._revision(path), expect)
        self._last += 1
        self._files[path] = File(path, text, str(self._last))
        return self._files[path]

    async def delete(self, path: str, expect: str) -> None:
        """Delete one file of the revision `expect`; see `WritableFiles.delete`."""
        await trio.lowlevel.checkpoint()
        path = file_path(path)
        refuse_stale(path, self._revision(path), expect)
        self._files.pop(path, None)

    def _revision(self, path: str) -> str | None:
        held = self._files.get(path)
        return None if held is None else held.revision


def _snapshot(files: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, File]:
    kept = {}
    for given, text in dict(files).items():
        path = file_path(given)
        # By content: the same in every process that has the same files.
        kept[path] = File(path, text, hashlib.sha256(check_text(path, text)).hexdigest()[:12])
    return dict(sorted(kept.items()))


@final
@attrs.define(eq=False, repr=False)
class StaticFiles:
    """Files that never change: a snapshot of a mapping from path to text, without methods to write.

    Raises: ConfigError for what is no path, and for a text of more than 1 MiB.

    Cancellation: every method is a checkpoint.
    """

    # An alias, since pyright does not know that attrs drops the underscore.
    _files: dict[str, File] = attrs.field(converter=_snapshot, alias="files")

    def __repr__(self) -> str:
        return f"<StaticFiles of {len(self._files)} files>"

    async def list(self, under: str = "/", after: str | None = None, limit: int = DEFAULT_LIST) -> FilePage:
        """Return a page of the files at or below a path; see `Files.list`."""
        await trio.lowlevel.checkpoint()
        return _page(self._files, list_of(self._files), under, after, limit)

    async def read(self, path: str) -> File | None:
        """Return a file, or None if there is none."""
        await trio.lowlevel.checkpoint()
        return self._files.get(file_path(path))


def list_of(files: Mapping[str, File]) -> list[str]:
    """Return the paths. Out here, since within the class `list` is a method."""
    return list(files)
