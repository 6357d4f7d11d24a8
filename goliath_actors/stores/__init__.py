"""Where conversations live between runs.

Floor 2, side door. `InMemoryStore` is the default; `SqliteStore` keeps conversations in one file. A store of your own
implements `goliath_actors.abc.Store` and is checked by `goliath_actors.testing.store_conformance`.
"""

from .memory import InMemoryStore
from .sqlite import SqliteStore

__all__ = ["InMemoryStore", "SqliteStore"]
