"""Virtual files for conversations: places to keep them, and tools with which a model reads and changes them.

Nothing here touches the file system of the machine, except for the
one database file of `SqliteFiles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._composite import CompositeFiles
from ._contract import File, FileEntry, FilePage, Files, ReadOnlyFiles, WritableFiles
from ._memory import MemoryFiles, StaticFiles
from ._paths import normalise
from ._tools import file_tools

if TYPE_CHECKING:
    from ._sqlite import SqliteFiles

__all__ = [
    "CompositeFiles",
    "File",
    "FileEntry",
    "FilePage",
    "Files",
    "MemoryFiles",
    "ReadOnlyFiles",
    "SqliteFiles",
    "StaticFiles",
    "WritableFiles",
    "file_tools",
    "normalise",
]


def __getattr__(name: str) -> object:
    # Late, since a Python can be built without SQLite.
    if name == "SqliteFiles":
        from ._sqlite import SqliteFiles

        return SqliteFiles
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
