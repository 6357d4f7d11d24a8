"""One server for one SQLite file: two would run what the other has accepted, and read what the other is changing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

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
    this one has forked do not have it. A second server of this process is not refused: the lock ends with the last.

    Raises: `ConfigError` if another process serves the file.
    """
    if fcntl is None or not isinstance(store, SqliteStore):
        yield
        return
    path = store.path.resolve()
    holder = os.getpid(), path
    with _guard:
        held = _held.get(holder)
        if held is None:
            file = _locked(path)
            if file is not None:
                held = _held[holder] = _Held(file)
        if held is not None:
            held.servers += 1
    try:
        yield
    finally:
        if held is not None:
            with _guard:
                held.servers -= 1
                if not held.servers:
                    del _held[holder]
                    os.close(held.file)


@attrs.define(eq=False)
class _Held:
    """A lock, and how many servers of this process are under it."""

    file: int
    servers: int = 0


# A process loses its lock on a file as soon as it closes that anywhere, so a second server of one process, behind or
# beside the first, must not open it again. A child that was forked has another number and none of the locks.
_held: dict[tuple[int, Path], _Held] = {}
_guard = threading.Lock()


def _locked(path: Path) -> int | None:
    """Return the file whose lock says who serves `path`; None if there can be none."""
    assert fcntl is not None
    try:
        file = os.open(path.with_name(path.name + SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # the store will say what is wrong with the place
        return None
    try:
        # Not flock: that one lives on in a forked child, and would outlive a server that crashed.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = _who(file)
        os.close(file)
        raise ConfigError(
            f"{path} is served by another process already ({who}); end that one first, "
            "take another file, or let several servers share a PostgreSQL"
        ) from None
    except OSError:  # a file system without locks
        pass
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def _who(file: int) -> str:
    number = os.pread(file, 20, 0).decode("ascii", "replace").strip()
    return f"process {number}" if number.isdecimal() else "it does not say which"
