"""One server for one SQLite file: two would run what the other has accepted, and read what the other is changing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from goliath_actors.abc import Store
from goliath_actors.errors import ConfigError
from goliath_actors.stores import SqliteStore

try:
    import fcntl
except ImportError:  # where there is none, nobody is refused
    fcntl = None  # type: ignore[assignment]

__all__ = ["alone_with"]

SUFFIX = "-serving"


@contextmanager
def alone_with(store: Store) -> Iterator[None]:
    """Hold a SQLite store's file for this process, for the length of the block. Other stores are nobody's.

    The lock is on a file beside it, which stays there. It ends with the process, however that ends; processes that
    this one has forked do not have it.

    Raises: `ConfigError` if another process serves the file.
    """
    if fcntl is None or not isinstance(store, SqliteStore):
        yield
        return
    path = store.path.resolve()
    try:
        file = os.open(path.with_name(path.name + SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # the store will say what is wrong with the place
        yield
        return
    try:
        try:
            # Not flock: that one lives on in a forked child, and would outlive a server that crashed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path} is served by another process already ({_who(file)}); end that one first, "
                "take another file, or let several servers share a PostgreSQL"
            ) from None
        except OSError:  # a file system without locks
            pass
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def _who(file: int) -> str:
    number = os.pread(file, 20, 0).decode("ascii", "replace").strip()
    return f"process {number}" if number.isdecimal() else "it does not say which"
