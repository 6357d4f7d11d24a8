"""What can be wrong with something that a store keeps, on its way from whoever met it to whoever sets it aside."""

from __future__ import annotations

import attrs

__all__ = ["BadEntry", "BadRecord", "Untold"]


@attrs.define(eq=False)
class BadRecord(Exception):
    """A record cannot be read. `version` is the one that was met, where setting it aside asks for it."""

    reason: str
    version: int = 0


@attrs.define(eq=False)
class BadEntry(Exception):
    """An entry cannot be read. `record` and `body` say what was met, where setting it aside asks for it."""

    position: int
    reason: str
    record: int = 0
    body: bytes = b""


@attrs.define(eq=False)
class Untold(Exception):
    """Something was set aside earlier, as the row `place` of the quarantine, and perhaps nobody heard of it: whoever
    did so may have died first."""

    place: int
    reason: str
