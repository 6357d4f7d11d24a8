"""The conversations in memory: found by agent and id, forgotten after they have been idle for long enough (R15).

Idle actors form a list through their own fields, longest idle first: joining and leaving it costs the same
whatever their number, and an idle conversation costs two pointers for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final
from urllib.parse import quote

import trio

from ._agent import Agent, is_same
from ._conversation import Actor, Entry
from ._subagent import Delegate
from ._threads import ToolThreads
from .errors import ConfigError

__all__ = ["Directory", "check_subagents", "with_subagents"]

FORGET_BATCH = 1000  # conversations a tick, about a millisecond: many may have fallen idle in the same moment


def with_subagents(agents: Sequence[Agent[Any]]) -> tuple[Agent[Any], ...]:
    """Return the agents, and behind them those that are tools of theirs, and of those, each once (T14).

    Raises: `ConfigError` if two different agents have one name.
    """
    found: dict[str, Agent[Any]] = {}
    pending = deque(agents)
    while pending:
        agent = pending.popleft()
        if agent.name in found:
            if not is_same(found[agent.name], agent):
                raise ConfigError(f"two agents are named {agent.name!r}; give each a name=...")
            continue
        found[agent.name] = agent
        for tool in agent.tool_table.values():
            if isinstance(tool.execute, Delegate) and isinstance(tool.execute.agent, Agent):
                pending.append(tool.execute.agent)
    return tuple(found.values())


def check_subagents(agents: Sequence[Agent[Any]]) -> None:
    """Refuse agents that are tools only since a lifespan was entered: nobody has entered theirs (T14).

    Raises: `ConfigError` if `agents` do not have all of them.
    """
    late = [repr(agent.name) for agent in with_subagents(agents) if not any(is_same(agent, known) for known in agents)]
    if late:
        raise ConfigError(
            f"{', '.join(late)} came as a tool with an extension's lifespan, too late to be in the runtime; give it to "
            "open_runtime beside the agents that ask it"
        )


@final
class Directory:
    """Every conversation in memory."""

    def __init__(
        self,
        agents: tuple[Agent[Any], ...],
        idle_timeout: float,
        forgotten: Callable[[str], object] = lambda key: None,
    ) -> None:
        threads = ToolThreads()
        # Half a surrogate pair is no text for a file, but it is a name; escaped it is both.
        prefixes = (quote(agent.name, safe="", errors="surrogatepass") for agent in agents)
        self.entries = {
            agent.name: Entry(agent, prefix, threads) for agent, prefix in zip(agents, prefixes, strict=True)
        }
        self.idle_timeout = idle_timeout
        # Called with the key of a conversation that is in memory no more.
        self._forgotten = forgotten
        # Invariant: the list holds exactly the actors without a head; `idle_since` never falls along it.
        self._first: Actor | None = None
        self._last: Actor | None = None
        self._added = trio.Event()

    def __len__(self) -> int:
        return sum(len(entry.actors) for entry in self.entries.values())

    def __iter__(self) -> Iterator[Actor]:
        for entry in self.entries.values():
            yield from entry.actors.values()

    def make(self, entry: Entry, conversation_id: str | None) -> Actor:
        """Return the conversation, made on first use."""
        actor = entry.actors.get(conversation_id)
        if actor is None:
            actor = entry.actors[conversation_id] = Actor(entry, conversation_id)
            self.idle(actor)
        return actor

    def knows(self, actor: Actor) -> bool:
        """Say whether the actor is one of this directory's, and not forgotten."""
        known = actor.entry.actors.get(actor.conversation_id)
        return known is actor and self.entries.get(actor.entry.agent.name) is actor.entry

    def idle(self, actor: Actor) -> None:
        """The actor has nothing to do from now on."""
        actor.rest()
        actor.idle_since = trio.current_time()
        actor.before, actor.after = self._last, None
        if self._last is None:
            self._first = actor
            self._added.set()
        else:
            self._last.after = actor
        self._last = actor

    def busy(self, actor: Actor) -> None:
        """The idle actor got something to do."""
        if actor.before is None:
            self._first = actor.after
        else:
            actor.before.after = actor.after
        if actor.after is None:
            self._last = actor.before
        else:
            actor.after.before = actor.before
        actor.before = actor.after = None

    def forget_idle(self, at_most: float = math.inf) -> None:
        """Forget the conversations whose time has run out."""
        if self._first is None or self.idle_timeout == math.inf:
            return
        # The same sum as in `sweep`: rounded in another way, the sweeper would wake up too early for ever.
        now, left = trio.current_time(), at_most
        while self._first is not None and self._first.idle_since + self.idle_timeout <= now and left > 0:
            actor = self._first
            self.busy(actor)
            del actor.entry.actors[actor.conversation_id]
            self._forgotten(actor.entry.key(actor.conversation_id))
            left -= 1

    async def sweep(self) -> None:
        """Forget idle conversations as their time runs out, for ever.

        Cancellation: ends it; nothing is left behind.
        """
        if self.idle_timeout == math.inf:
            await trio.sleep_forever()
        while True:
            if self._first is not None:
                await trio.sleep_until(self._first.idle_since + self.idle_timeout)
                self.forget_idle(FORGET_BATCH)
            else:
                self._added = trio.Event()
                await self._added.wait()
