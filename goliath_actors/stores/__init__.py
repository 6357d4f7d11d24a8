"""Where conversations live between runs.

`InMemoryStore` is the default; `SqliteStore` keeps conversations in one file; `PostgresStore` (extra `postgres`) in a
database that many processes share, and `LeasedStore` around it keeps their runs apart. A store of your own implements
`goliath_actors.abc.Store` and is checked by `goliath_actors.testing.store_conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .leased import LeasedStore
from .memory import InMemoryStore

if TYPE_CHECKING:
    from .postgres import PostgresStore
    from .sqlite import SqliteStore

__all__ = ["InMemoryStore", "LeasedStore", "PostgresStore", "SqliteStore"]


def __getattr__(name: str) -> object:
    # Late, since a Python can be built without SQLite, and who keeps conversations in memory need not pay for it.
    if name == "SqliteStore":
        from .sqlite import SqliteStore

        return SqliteStore
    if name == "PostgresStore":
        from .postgres import PostgresStore

        return PostgresStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
