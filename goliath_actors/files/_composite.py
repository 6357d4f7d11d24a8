"""Several places for files as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

import attrs

from goliath_actors.errors import ConfigError

from ._contract import (
    DEFAULT_LIST,
    MAX_LIST,
    File,
    FileEntry,
    FilePage,
    Files,
    ReadOnlyFiles,
    WritableFiles,
    check_limit,
)
from ._paths import beneath, file_path, normalise

__all__ = ["CompositeFiles"]


def _mounts(mounts: Mapping[str, Files]) -> dict[str, Files]:
    found = {}
    for given, files in mounts.items():
        path = normalise(given)
        if path == "/" or path in found:
            raise ConfigError(f"{given!r} cannot be mounted: it is the root, or mounted already")
        found[path] = files
    # Longest first: of nested mounts the innermost holds a path.
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


@final
@attrs.define(eq=False)
class CompositeFiles:
    """One tree made of `default` and of places that are mounted at paths.

    A mount sees its own paths: with `{"/docs": manual}`, `/docs/a` is `/a` of `manual`. What `default` has at or below
    a mount is hidden. A place without methods to write is read-only.

    Raises: ConfigError for a mount at the root, twice at one path, or at what is no path; by `write` and `delete`,
    ReadOnlyFiles where the place cannot be written, and what the place raises.

    Cancellation: as for the place that is asked.
    """

    default: Files
    mounts: Mapping[str, Files] = attrs.field(factory=dict, converter=_mounts)

    def _owner(self, path: str) -> str:
        """Return where the place that holds a path is mounted; empty for the default."""
        return next((mount for mount in self.mounts if beneath(path, mount)), "")

    def _route(self, path: str) -> tuple[Files, str, str]:
        path = file_path(path)
        mount = self._owner(path)
        if path == mount:
            raise ConfigError(f"{path} is where other files are mounted, and no file")
        return (self.mounts[mount] if mount else self.default), mount, path[len(mount) :]

    def _writable(self, path: str) -> tuple[WritableFiles, str, str]:
        place, mount, local = self._route(path)
        if not isinstance(place, WritableFiles):
            raise ReadOnlyFiles(f"{path} is read-only")
        return place, mount, local

    async def list(self, under: str = "/", after: str | None = None, limit: int = DEFAULT_LIST) -> FilePage:
        """Return a page of the files at or below a path, of all places in one order; see `Files.list`."""
        check_limit(limit)
        base = normalise(under)
        found: list[FileEntry] = []
        for mount, place, local in self._covering(base):
            found += await self._visible(mount, place, local, after, limit + 1)
        found.sort(key=lambda entry: entry.path)
        if len(found) <= limit:
            return FilePage(tuple(found))
        return FilePage(tuple(found[:limit]), found[limit - 1].path)

    def _covering(self, base: str) -> Iterator[tuple[str, Files, str]]:
        for mount, place in [*self.mounts.items(), ("", self.default)]:
            if beneath(base, mount or "/"):
                yield mount, place, base[len(mount) :] or "/"
            elif beneath(mount, base):
                yield mount, place, "/"

    async def _visible(
        self, mount: str, place: Files, local: str, after: str | None, wanted: int
    ) -> tuple[FileEntry, ...]:
        """Return up to `wanted` files of one place from behind `after`, without those that a mount hides."""
        behind: str | None = None
        if after is not None and after >= mount + "/":
            if not after.startswith(mount + "/"):
                if mount:
                    return ()
            else:
                behind = after[len(mount) :]
        found: list[FileEntry] = []
        while True:
            page = await place.list(local, behind, min(wanted, MAX_LIST))
            for entry in page.entries:
                path = mount + entry.path
                if self._owner(path) == mount:
                    found.append(attrs.evolve(entry, path=path))
            if page.next is None or len(found) >= wanted:
                return tuple(found)
            behind = page.next

    async def read(self, path: str) -> File | None:
        """Return a file, or None if there is none."""
        place, mount, local = self._route(path)
        return _renamed(await place.read(local), mount)

    async def write(self, path: str, text: str, expect: str | None = None) -> File:
        """Write to the place that holds the path; see `WritableFiles.write`."""
        place, mount, local = self._writable(path)
        written = await place.write(local, text, expect)
        return attrs.evolve(written, path=mount + written.path)

    async def delete(self, path: str, expect: str) -> None:
        """Delete from the place that holds the path; see `WritableFiles.delete`."""
        place, _, local = self._writable(path)
        await place.delete(local, expect)


def _renamed(file: File | None, mount: str) -> File | None:
    return None if file is None else attrs.evolve(file, path=mount + file.path)
