"""What both stores decide alike: which positions make a page, who may commit, who gets a lease.

Pure functions over numbers and values; the stores bring the state and keep it.
"""

from __future__ import annotations

import math

import attrs

from goliath_actors.errors import ConfigError, StoreConflict, StoreError

__all__ = [
    "Bounds",
    "Lease",
    "check_lease",
    "check_limit",
    "check_turn",
    "duplicate_id",
    "page_bounds",
    "take_lease",
    "unknown_id",
]


@attrs.frozen
class Bounds:
    """The positions of a page, `first` to `last` inclusive (`last` smaller than `first`: an empty page)."""

    first: int
    last: int
    anchor: int
    next: int | None


def page_bounds(count: int, before: int | None, after: int | None, limit: int, anchor: int | None) -> Bounds:
    """Return which of the positions 1 to `count` make the page that was asked for.

    With both `before` and `after` the page goes forwards from `after` and stops short of `before`. An anchor behind
    the end (something was dropped since) moves back to the end, so that what is appended there later stays unseen.
    """
    end = count if anchor is None else max(0, min(anchor, count))
    stop = end if before is None else min(end, before - 1)
    if after is not None:
        first = max(after, 0) + 1
        last = min(first + limit - 1, stop)
        more = first <= last < stop
        return Bounds(first, last, end, last if more else None)
    first = max(1, stop - limit + 1)
    return Bounds(first, stop, end, first if 1 < first <= stop else None)


def check_turn(key: str, version: int, expect: int | None, newest: int, token: int | None) -> None:
    """Raise `StoreConflict` if a change made against version `expect`, under lease `token`, comes too late.

    `version` and `newest` are the record's version and its newest token, 0 where there is none.
    """
    if expect is not None and expect != version:
        raise StoreConflict(
            f"{key!r} has version {version}, the change was made against {expect}; load it again and decide anew"
        )
    if token is not None and token < newest:
        raise StoreConflict(f"the lease on {key!r} was lost: token {newest} is newer than {token}; stop writing to it")


# Seconds. A sum of two times is rounded, so what is left of a lease may seem to be longer than all of it.
_ROUNDING = 1.0


@attrs.frozen
class Lease:
    """Who holds a conversation (None: nobody) until when, by which token.

    Times are seconds on the store's own clock. `ttl` is kept to know a clock that began anew: no lease lasts longer.
    """

    # Invariant: a key's token never shrinks, also after `release` and `forget`; else a late writer could come back.
    owner: str | None
    token: int
    expires: float
    ttl: float


def take_lease(lease: Lease | None, owner: str, ttl: float, asked: float, now: float) -> Lease | None:
    """Return the lease that `owner` has from the time on at which it `asked`, or None if somebody else holds it.

    An owner whose time ran out keeps its token if nobody took the lease meanwhile.

    Arguments: `now` must not be earlier than the time at which the holder asked, who may have come in between while
    this one waited for the store: then its lease would seem to be longer than any can be, as after a clock began anew.
    """
    expires = asked + ttl
    if lease is None:
        return Lease(owner, 1, expires, ttl)
    if lease.owner == owner:
        return Lease(owner, lease.token, expires, ttl)
    if lease.owner is not None and 0 < lease.expires - now <= lease.ttl + _ROUNDING:
        return None
    return Lease(owner, lease.token + 1, expires, ttl)


def check_limit(limit: int) -> None:
    """Raise `ConfigError` unless a page of `limit` makes sense."""
    if limit < 1:
        raise ConfigError(f"a page needs a limit of at least 1, not {limit}")


def check_lease(owner: str, ttl: float) -> None:
    """Raise `ConfigError` unless `owner` can hold a lease for `ttl` seconds."""
    if not owner:
        raise ConfigError("a lease needs an owner; pass a name that no other process uses")
    if not (math.isfinite(ttl) and ttl > 0):
        raise ConfigError(f"a lease needs a time of more than 0 seconds, not {ttl}")


def duplicate_id(key: str, id: str) -> StoreError:
    """Return the error for an appended entry whose id is taken."""
    return StoreError(f"{key!r} already has an entry {id!r}; ids are unique in a conversation (nothing was changed)")


def unknown_id(key: str, id: str) -> StoreError:
    """Return the error for an id that a change names and the conversation does not have."""
    return StoreError(f"{key!r} has no entry {id!r}; load its entries again (nothing was changed)")
