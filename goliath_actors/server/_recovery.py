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
from goliath_actors.errors import GoliathError

from ._hosting import Asking, Hosting, Visitor
from ._ledger import Ledger, Recorder

__all__ = ["Recovery"]

log = logging.getLogger("goliath_actors.server")

PAGE = 200  # keys at once, while looking through a store


@final
@attrs.define(eq=False)
class Recovery:
    """Looks at each conversation of the store once: when it is asked for, or when its turn comes."""

    hosting: Hosting
    _seen: set[str] = attrs.Factory(set)
    _going: dict[str, trio.Event] = attrs.Factory(dict)
    _done: bool = False

    async def touch(self, key: str) -> None:
        """See to what an earlier process left of a conversation, unless that was done before.

        Cancellation: it is done the next time.
        """
        while key in self._going:
            await self._going[key].wait()
        if self._done or key in self._seen:
            await trio.lowlevel.checkpoint()
            return
        done = self._going[key] = trio.Event()
        try:
            await self._look(key)
            self._seen.add(key)
        finally:
            del self._going[key]
            done.set()

    async def look_through(self) -> None:
        """See to every conversation of the store.

        Cancellation: the rest is seen to when it is asked for.
        """
        after: str | None = None
        while True:
            keys = await self.hosting.ledger.keys(after, PAGE)
            for key in keys:
                try:
                    await self.touch(key)
                except GoliathError as error:  # one record that cannot be read keeps no other from being seen to
                    log.error("a conversation could not be recovered: %s", type(error).__name__)
            if len(keys) < PAGE:
                break
            after = keys[-1]
        self._done = True
        self._seen.clear()

    async def _look(self, key: str) -> None:
        ledger = self.hosting.ledger
        opened: Mapping[str, Any] = (await ledger.read(key)).private.get("open", {})
        left = {run_id: row for run_id, row in opened.items() if not ledger.knows(run_id)}
        closed = [run_id for run_id, row in left.items() if not self._can_run(row)]
        await ledger.close(key, closed)
        for run_id, row in sorted(left.items(), key=lambda item: float(item[1]["at"])):
            if run_id not in closed:
                await self._run_again(key, run_id, row)

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
