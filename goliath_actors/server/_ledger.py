"""What was accepted, on record before anybody is told so: asks, their run ids and idempotency keys, and their ends.

One record of the runtime's store for each conversation, beside the conversation's own. Its key begins with a colon,
which no agent's key does, since agents' names are escaped.

A run is on record as `open` from before its client is told of it until its end. `begun` is put there before the run
does anything: what a restart finds open and not begun can be run, what had begun can not (its effects would be
repeated).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, final
from urllib.parse import quote

import attrs
import trio

from goliath_actors import Extension, Message, Run
from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import StoreConflict, StoreError
from goliath_actors.hooks import BeforeRun, HookContext

__all__ = ["Acceptance", "Ledger", "Listed", "Recorder", "clip_title"]

log = logging.getLogger("goliath_actors.server")

# Any, in this room: JSON data.

PREFIX: Final = ":server/"
KEEP_ENDED: Final = 16  # ends of runs on record for a conversation
KEEP_ASK: Final = 2_000  # characters of the ask of a run that gave no answer
RETRIES: Final = 20  # of a commit that another one overtook
ALIVE: Final = ":server-alive/"
LIFE: Final = 15.0  # seconds after which a process that says nothing counts as dead
RELEASE: Final = 2.0  # seconds for saying that this one ends
TITLE: Final = 80  # characters


def clip_title(ask: str) -> str:
    """Return a conversation's title: the first line of its first ask, cut at 80 characters."""
    line = next((row.strip() for row in ask.splitlines() if row.strip()), "")
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


@attrs.define(eq=False)
class Acceptance:
    """One accepted run, until it is over. `body` is what an equal ask has equal."""

    key: str
    run: Run
    agent: str
    ask: str
    kind: str
    timeout: float | None = None
    idempotency_key: str | None = None
    body: str = ""
    # The earlier run that this one is done in the place of, after a restart.
    instead_of: str | None = None
    begun: bool = False
    # Its conversation was forgotten behind it: it is on record no more.
    gone: bool = False
    error: Exception | None = None
    recorded: trio.Event = attrs.Factory(trio.Event)


@attrs.frozen
class Listed:
    """A conversation in a list."""

    key: str
    title: str
    created_at: float
    last_at: float


@final
@attrs.define(eq=False)
class Ledger:
    """The records of one store. Everything here is a checkpoint."""

    store: Store
    # This process, as others see it that share the store.
    owner: str = attrs.Factory(lambda: os.urandom(8).hex())
    _renewed: float = -math.inf
    _accepted: dict[str, Acceptance] = attrs.Factory(dict)
    _locks: weakref.WeakValueDictionary[str, trio.Lock] = attrs.Factory(weakref.WeakValueDictionary)

    @staticmethod
    def key(agent: str, principal: str, conversation_id: str) -> str:
        """Return the key of a conversation's record here."""
        return f"{Ledger.prefix(agent, principal)}{conversation_id}"

    @staticmethod
    def prefix(agent: str, principal: str) -> str:
        """Return what the keys of an agent's conversations with a principal begin with."""
        return f"{PREFIX}{quote(agent, safe='', errors='surrogatepass')}/{principal}/"

    def expect(self, acceptance: Acceptance) -> None:
        """From now on the run, whose task has not begun yet, waits for its record before it does anything."""
        self._accepted[acceptance.run.id] = acceptance

    async def accept(self, acceptance: Acceptance) -> None:
        """Put a run on record. What fails is its `error`.

        Cancellation: the run may be on record, and stays held.
        """

        def change(record: Record) -> Change | None:
            if acceptance.gone:
                return None
            opened = dict(record.private.get("open", {}))
            if acceptance.instead_of is not None and acceptance.instead_of not in opened:
                raise StoreConflict(f"{acceptance.instead_of} was taken up by another process")
            acceptance.begun = acceptance.run.state != "queued"
            now = time.time()
            opened[acceptance.run.id] = {
                "agent": acceptance.agent,
                "ask": acceptance.ask,
                "kind": acceptance.kind,
                "timeout": acceptance.timeout,
                "at": now,
                "begun": acceptance.begun,
                "owner": self.owner,
            }
            private = {**record.private, "open": opened}
            if acceptance.instead_of is not None:
                opened.pop(acceptance.instead_of, None)
                private["ended"] = _ended(record, _restarted(acceptance.instead_of, acceptance.run.id, {}))
            metadata = dict(record.metadata)
            metadata.setdefault("title", clip_title(acceptance.ask))
            metadata.setdefault("created_at", now)
            metadata["last_at"] = now
            append: tuple[Entry, ...] = ()
            if acceptance.idempotency_key is not None:
                noted = {
                    "idempotency_key": acceptance.idempotency_key,
                    "run_id": acceptance.run.id,
                    "body": acceptance.body,
                }
                # The same id for the same key: of two processes that are asked at once, one is refused.
                id = hashlib.sha256(acceptance.idempotency_key.encode(errors="surrogatepass")).hexdigest()
                append = (Entry(f"ask-{id}", now, "user", Message("user"), False, False, noted),)
            return Change(private=private, metadata=metadata, append=append)

        try:
            await self._show_life()
            await self._update(acceptance.key, change)
        except Exception as error:  # noqa: BLE001  # a store is an application's: whatever it raises refuses the ask
            acceptance.error = error
        acceptance.recorded.set()

    async def begin(self, run_id: str) -> None:
        """Put on record that a run begins; waits until it is on record at all.

        Raises: what the store raised.
        """
        acceptance = self._accepted.get(run_id)
        if acceptance is None:  # asked by the application itself, or by another run
            return
        await acceptance.recorded.wait()
        if acceptance.error is not None:
            raise acceptance.error
        if acceptance.begun:
            return

        def change(record: Record) -> Change:
            opened = dict(record.private.get("open", {}))
            if run_id not in opened:  # this process seemed dead for a while
                raise StoreConflict("another process has taken the ask over")
            opened[run_id] = {**opened[run_id], "begun": True}
            return Change(private={**record.private, "open": opened})

        await self._update(acceptance.key, change)
        acceptance.begun = True

    async def end(self, acceptance: Acceptance, outcome: Mapping[str, Any]) -> None:
        """Put a run's end on record, unless its conversation was forgotten meanwhile.

        Raises: what the store raised.
        """
        run_id = acceptance.run.id

        def change(record: Record) -> Change | None:
            if acceptance.gone and run_id not in record.private.get("open", {}):
                return None
            opened = {name: row for name, row in record.private.get("open", {}).items() if name != run_id}
            result = outcome["result"]
            silent = result is None or not (result["text"].strip() or result["waiting"])
            asked = _asked(record, run_id) if silent else {}
            ended = _ended(record, {"run_id": run_id, **outcome, **asked})
            metadata = {**record.metadata, "last_at": time.time()}
            return Change(private={**record.private, "open": opened, "ended": ended}, metadata=metadata)

        await self._update(acceptance.key, change)

    def drop(self, acceptance: Acceptance) -> None:
        """Do no more for a run. If it is open on record, a restart will find it."""
        self._accepted.pop(acceptance.run.id, None)

    async def close(self, key: str, run_ids: Iterable[str]) -> None:
        """Put on record that open runs of an earlier process are over, and not run again."""
        closed = list(run_ids)

        def change(record: Record) -> Change:
            opened = {name: row for name, row in record.private.get("open", {}).items() if name not in closed}
            private = {**record.private, "open": opened}
            for run_id in closed:
                private["ended"] = _ended(
                    attrs.evolve(record, private=private),
                    _restarted(run_id, None, _asked(record, run_id)),
                )
            return Change(private=private)

        if closed:
            await self._update(key, change)

    async def read(self, key: str) -> Record:
        """Return a conversation's record here; of version 0 if nothing was ever asked."""
        return await self.store.load(key)

    async def find(self, key: str, idempotency_key: str) -> tuple[str, str] | None:
        """Return the run id and the body of the ask that had this key, or None."""
        entry = await self.store.find(key, idempotency_key)
        return None if entry is None else (str(entry.private["run_id"]), str(entry.private["body"]))

    async def forget(self, key: str, conversation: Callable[[], Awaitable[None]]) -> None:
        """Delete a conversation by `conversation`, which refuses or accepts that at once, and then its record here.

        What is accepted meanwhile comes behind it and is put on record afterwards: it must not be deleted along.

        Raises: what `conversation` and the store raised; then the record stays.

        Cancellation: the record stays.
        """
        async with self._lock(key):
            before = [acceptance for acceptance in self._accepted.values() if acceptance.key == key]
            for acceptance in before:
                acceptance.gone = True
            forgotten = False
            try:
                await conversation()
                await self.store.forget(key)
                forgotten = True
            finally:
                for acceptance in before:
                    acceptance.gone = forgotten

    async def listed(self, prefix: str, after: str | None, limit: int) -> list[Listed]:
        """Return conversations whose keys begin with `prefix`, in the order of their ids, from behind `after`."""
        rows: list[Listed] = []
        for key in await self.store.keys(prefix, after, limit):
            try:
                record = await self.store.load(key)
            except StoreError:  # one that cannot be read does not hide the others
                continue
            data = record.metadata
            created = float(data.get("created_at", 0.0))
            rows.append(Listed(key, str(data.get("title", "")), created, float(data.get("last_at", created))))
        return rows

    async def keys(self, after: str | None, limit: int) -> list[str]:
        """Return keys of this ledger, in order, from behind `after`."""
        return list(await self.store.keys(PREFIX, after, limit))

    def knows(self, run_id: str) -> bool:
        """Say whether a run is one of this process that is not over."""
        return run_id in self._accepted

    # --- several processes ------------------------------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether other processes may have open runs in the store: it says so by its method `hold`."""
        return hasattr(self.store, "hold")

    async def live(self) -> None:
        """Show that this process lives, for ever.

        Cancellation: says that it ends, so that another one takes over at once what had not begun.
        """
        try:
            while True:
                try:
                    await self._show_life()
                except Exception as error:  # noqa: BLE001  # a store's own; others take what had not begun over
                    log.warning("the store does not take that this server lives: %s", type(error).__name__)
                await trio.sleep(LIFE / 5)
        finally:
            with trio.move_on_after(RELEASE, shield=True):
                try:
                    await self.store.release(ALIVE + self.owner, self.owner)
                except Exception:  # noqa: BLE001  # then it runs out
                    pass

    async def _show_life(self) -> None:
        if self.shared and self._renewed + LIFE / 4 < trio.current_time():
            await self.store.acquire(ALIVE + self.owner, self.owner, LIFE)
            self._renewed = trio.current_time()

    async def lives(self, owner: str) -> bool:
        """Say whether another process lives. Where a store has one process, every other one is an earlier one."""
        if not self.shared or owner == self.owner:
            return owner == self.owner
        if await self.store.acquire(ALIVE + owner, self.owner, 1.0) is None:
            return True
        await self.store.release(ALIVE + owner, self.owner)
        return False

    def _lock(self, key: str) -> trio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = trio.Lock()
        return lock

    async def _update(self, key: str, change: Callable[[Record], Change | None]) -> Record:
        # In this process one at a time; another process may still come between, hence the version and the retries.
        async with self._lock(key):
            for attempt in range(RETRIES):
                record = await self.store.load(key)
                changed = change(record)  # what it refuses is refused for good
                if changed is None:
                    return record
                try:
                    return await self.store.commit(key, changed, expect=record.version)
                except StoreConflict:
                    if attempt == RETRIES - 1:
                        raise
                await trio.sleep(random.uniform(0, 0.005 * (attempt + 1)))
        raise AssertionError("unreachable")


def _ended(record: Record, row: Mapping[str, Any]) -> list[Any]:
    kept = [other for other in record.private.get("ended", ()) if other["run_id"] != row["run_id"]]
    return [*kept, dict(row)][-KEEP_ENDED:]


def _asked(record: Record, run_id: str) -> dict[str, Any]:
    """Return what an open run was asked, and when, for the record of its end: a history may never hear of it."""
    row = record.private.get("open", {}).get(run_id)
    if row is None or row["kind"] not in ("run", "steer"):
        return {}
    return {"ask": row["ask"][:KEEP_ASK], "at": row["at"]}


def _restarted(run_id: str, followed_by: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    words = "the server was restarted before it began" if followed_by else "the server ended while it was going on"
    return {
        "run_id": run_id,
        "status": "aborted",
        "result": None,
        "error": {"type": "RunAborted", "detail": f"the run was aborted (shutdown): {words}"},
        "abort": {"cause": "shutdown", "reason": "restart", "phase": None},
        "followed_by": followed_by,
        "seq": 0,
        **asked,
    }


class Recorder(Extension[Any]):
    """Holds a run until it is on record that it begins. First among an agent's extensions."""

    name = "server-recorder"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
        """Wait for the record."""
        await self._ledger.begin(ctx.run_id)
