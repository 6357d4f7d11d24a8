"""What a place for files has to do, and what it hands out."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import attrs

from goliath_actors.errors import ConfigError, StoreConflict, StoreError

__all__ = [
    "File",
    "FileEntry",
    "FilePage",
    "Files",
    "ReadOnlyFiles",
    "WritableFiles",
    "check_limit",
    "check_text",
    "encode",
    "refuse_stale",
]

MAX_BYTES: Final = 1024 * 1024
MAX_LIST: Final = 256
DEFAULT_LIST: Final = 64


@attrs.frozen
class File:
    """A file as it was read. `revision` names this text of it, and is never used again for another text."""

    path: str
    text: str
    revision: str


@attrs.frozen
class FileEntry:
    """A file in a listing. `size` is in bytes of UTF-8."""

    path: str
    revision: str
    size: int


@attrs.frozen
class FilePage:
    """A page of a listing. `next` is what to pass as `after` for the next page, None if there is none."""

    entries: tuple[FileEntry, ...]
    next: str | None = None


class ReadOnlyFiles(StoreError):
    """The files of this place cannot be changed; nothing was."""


@runtime_checkable
class Files(Protocol):
    """A place for files that can be read. There are no directories, only paths; every method is a checkpoint.

    Each method raises `ConfigError` for a path that is none (see `normalise`), and `StoreError` if the place fails.
    """

    async def list(self, under: str = "/", after: str | None = None, limit: int = DEFAULT_LIST) -> FilePage:
        """Return the files at or below the path `under`, in the order of Python's strings, from behind `after`.

        Arguments: `/notes` covers `/notes` and `/notes/a`, never `/notes2`; `after` need not exist; `limit` is 1 to
        256 files.
        """
        ...

    async def read(self, path: str) -> File | None:
        """Return a file, or None if there is none."""
        ...


@runtime_checkable
class WritableFiles(Files, Protocol):
    """A place for files that can be changed, each change being made against a revision."""

    async def write(self, path: str, text: str, expect: str | None = None) -> File:
        """Put `text` there and return the file with its new revision.

        Arguments: `expect`, the revision that is replaced; None creates a file and never replaces one.

        Raises: StoreConflict if the file is there for None, or has another revision, or is gone; ReadOnlyFiles;
        ConfigError for a text of more than 1 MiB. Whatever is raised, nothing was changed.

        Cancellation: the file is either written or not; read it to know.
        """
        ...

    async def delete(self, path: str, expect: str) -> None:
        """Delete one file that has the revision `expect`; never what lies below its path.

        Raises: StoreConflict if it has another revision or is gone; ReadOnlyFiles.

        Cancellation: as for `write`.
        """
        ...


def encode(text: str) -> bytes:
    """Return `text` as bytes of UTF-8, half surrogate pairs included (users paste them)."""
    return text.encode("utf-8", "surrogatepass")


def check_text(path: str, text: str) -> bytes:
    """Return the bytes of a file's text, or raise ConfigError if it is no text or too long."""
    if not isinstance(text, str):
        raise ConfigError(f"the text of {path!r} must be a string, not {type(text).__name__}")
    data = encode(text)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} would have {len(data)} bytes and a file may have {MAX_BYTES}; use several files")
    return data


def check_limit(limit: int) -> None:
    """Raise ConfigError if `limit` cannot be the size of a page of a listing."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIST:
        raise ConfigError(f"a listing's limit is 1 to {MAX_LIST} files, not {limit!r}")


def refuse_stale(path: str, current: str | None, expect: str | None) -> None:
    """Raise StoreConflict unless the revision that is there is the one that was expected. None: no file."""
    if current == expect:
        return
    if expect is None:
        raise StoreConflict(f"{path} exists already; read it and pass its revision to replace it")
    if current is None:
        raise StoreConflict(f"{path} does not exist (any more)")
    raise StoreConflict(f"{path} has changed since revision {expect}; read it again")
