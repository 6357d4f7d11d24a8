"""After a restart: what an earlier process had accepted and not finished.

What had not begun is asked again, as a new run that the old one is `followed_by`; what had begun is closed on record,
since doing it again could do its effects again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, final

import attrs
import trio

from goliath_actors import Agent
from goliath_actors.errors import MailboxFull

from ._hosted import Asking, Visitor
from ._hosting import Hosting
from ._ledger import Ledger, Recorder

__all__ = ["Recovery"]

log = logging.getLogger("goliath_actors.server")

PAGE = 200  # keys at once, while looking through a store
AGAIN = 60.0  # seconds until a store that several processes share is looked through again
PATIENCE = 0.5  # seconds until what there was no room for is tried again


@final
@attrs.define(eq=False)
class Recovery:
    """Looks at each conversation of the store once: when it is asked for, or when its turn comes."""

    hosting: Hosting
    _going: dict[str, trio.Event] = attrs.Factory(dict)
    # What was seen to before all was looked through; from then on what is still to be seen to, since it could not be
    # read: neither grows with the conversations that come after.
    _seen: set[str] = attrs.Factory(set)
    _left: set[str] = attrs.Factory(set)
    _done: bool = False

    async def touch(self, key: str) -> None:
        """See to what an earlier process left of a conversation, unless that was done before.

        Cancellation: it is done the next time.
        """
        while key in self._going:
            await self._going[key].wait()
        if key not in self._left if self._done else key in self._seen:
            await trio.lowlevel.checkpoint()
            return
        done = self._going[key] = trio.Event()
        try:
            seen = await self._look(key)
            self._left.discard(key)
            if seen and not self._done:
                self._seen.add(key)
        finally:
            del self._going[key]
            done.set()

    async def look_through(self) -> None:
        """See to every conversation of the store; of one that several processes share, again and again.

        Cancellation: the rest is seen to when it is asked for.
        """
        while True:
            try:
                await self._look_once()
            except Exception as error:  # noqa: BLE001  # a store's own; what is left is seen to when it is asked for
                log.error("the store could not be looked through: %s", type(error).__name__)
            else:
                if not self.hosting.ledger.shared:
                    # Nothing new can come to be left: whoever else wrote here has ended.
                    self._done = True
                    self._seen.clear()
                    return
            await trio.sleep(AGAIN)

    async def _look_once(self) -> None:
        after: str | None = None
        while True:
            keys = await self.hosting.ledger.keys(after, PAGE)
            for key in keys:
                await self._look_at(key)
            if len(keys) < PAGE:
                return
            after = keys[-1]

    async def _look_at(self, key: str) -> None:
        while True:
            try:
                await self.touch(key)
                return
            except MailboxFull:  # more was left than may wait now: there will be room
                await trio.sleep(PATIENCE)
            except Exception as error:  # noqa: BLE001  # one record that cannot be read keeps no other from its turn
                log.error("a conversation could not be recovered: %s", type(error).__name__)
                self._left.add(key)
                return

    async def _look(self, key: str) -> bool:
        """See to one conversation; False if it is to be looked at again."""
        ledger = self.hosting.ledger
        opened: Mapping[str, Any] = (await ledger.read(key)).private.get("open", {})
        left: dict[str, Mapping[str, Any]] = {}
        living: dict[str, bool] = {}
        for run_id, row in opened.items():
            owner = str(row["owner"])
            if not ledger.knows(run_id) and owner not in living:
                living[owner] = ledger.shared and await ledger.lives(owner)
            if not ledger.knows(run_id) and not living[owner]:
                left[run_id] = row
        closed = [run_id for run_id, row in left.items() if not self._can_run(row)]
        await ledger.close(key, closed)
        for run_id, row in sorted(left.items(), key=lambda item: float(item[1]["at"])):
            if run_id not in closed:
                await self._run_again(key, run_id, row)
        return not ledger.shared

    def _can_run(self, row: Mapping[str, Any]) -> bool:
        agent = self._agent(row)
        # Without the recorder nobody would have put on record that the run began.
        recorded = agent is not None and any(isinstance(one, Recorder) for one in agent.extensions)
        return recorded and row["kind"] in ("run", "steer") and not row["begun"]

    def _agent(self, row: Mapping[str, Any]) -> Agent[Any] | None:
        return next((agent for agent in self.hosting.runtime.agents if agent.name == row["agent"]), None)

    async def _run_again(self, key: str, run_id: str, row: Mapping[str, Any]) -> None:
        agent = self._agent(row)
        assert agent is not None
        principal, _, conversation_id = key.removeprefix(Ledger.prefix(agent.name, "")[:-1]).partition("/")
        asking = Asking(
            Visitor(principal), agent, conversation_id, row["ask"], timeout=row["timeout"], instead_of=run_id
        )
        await self.hosting.start(asking)
