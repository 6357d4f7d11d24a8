"""The pieces of one run, as the loops and rooms get them: never the whole agent, never anything above.

`execute_run` makes a `Work`; a loop drives it to an `Ending`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import trio

from ._envelope import Envelope
from ._frozen import FrozenDict
from ._history import Histories, History
from ._journal import RunJournal
from ._panel import Panel
from ._schema import OutputSchema
from ._standing import Standing
from ._threads import ConversationThreads
from ._tool_words import Delegating
from .abc import Model, Record, Store, TokenCounter
from .hooks import AfterRewrite, Respond
from .tools import Tool
from .values import Message, Responded, Waiting

__all__ = ["CallbackContext", "Corner", "Ending", "Health", "Loop", "Route", "Unpatched", "Work"]


_NOTHING: Mapping[str, Any] = FrozenDict()


@attrs.define(eq=False)
class Health:
    """What a conversation remembers in memory alone, for `idle_timeout`: when the device was last probed (C7)."""

    probed_at: float | None = None


class Corner(Protocol):
    """What a conversation has for its runs beside its record: made on first need, so that most runs need none."""

    @property
    def health(self) -> Health:
        """The small counters that live in memory alone."""
        ...

    @property
    def threads(self) -> ConversationThreads:
        """Its share of the worker threads."""
        ...


@attrs.define(eq=False)
class Work:
    """One run's pieces. Rooms change what is theirs to change: `record` after a commit, `journal` as they go."""

    # What was accepted. What it says for itself alone is read off it.
    run: Envelope
    journal: RunJournal
    panel: Panel
    ask: str
    instructions: str
    facts: Mapping[str, str]
    examples: Sequence[str]
    model: Model
    tools: Mapping[str, Tool]
    # All the agent's tools, also those that `before_run` took away.
    all_tools: Mapping[str, Tool]
    counter: TokenCounter
    window: int
    store: Store
    key: str
    corner: Corner
    # What the requests of the agent's runs have in common.
    standing: Standing
    # Any: an application's own callables, whose results are checked where they are used.
    confirm: Callable[..., Any] | None = None
    confirm_timeout: float | None = None
    fallback: Callable[..., Any] | None = None
    output: OutputSchema | None = None
    settings: Mapping[str, Any] = _NOTHING
    provider_options: Mapping[str, Any] = _NOTHING
    messages: tuple[Message, ...] = ()
    entry: Literal["run", "resume", "steer"] = "run"
    record: Record = Record()  # frozen, so it can be shared
    # Where histories are held between runs, and this run's, as long as it is known to be what the store has.
    histories: Histories | None = None
    history: History | None = None
    # Set once what the run did is in the record, or an extension did not want it there: nothing is kept twice.
    kept: bool = False
    # Set when `before_run` is asked first.
    unpatched: Unpatched | None = None

    @property
    def known(self) -> frozenset[str]:
        """Names of all the agent's tools, also those that `before_run` took away: a filter may name them (H9)."""
        return self.standing.names(self.all_tools)

    @property
    def scope(self) -> trio.CancelScope:
        """The run's own."""
        return self.run.scope

    @property
    def submit(self) -> Callable[..., Any]:
        """Submits another ask, as tools of the run may."""
        return self.run.ties.submit

    @property
    def delegating(self) -> Delegating:
        """How agents that are tools of this one are run (T14)."""
        return self.run.ties.delegating

    @property
    def later(self) -> Callable[[str, Panel, AfterRewrite], None]:
        """Tells of a rewrite that was committed, beside the run: the record's key, the extensions, the question."""
        return self.run.ties.later

    @property
    def context(self) -> Any:
        """The application's own object."""
        return self.run.context

    @property
    def finish_timeout(self) -> float | None:
        """Seconds for each observer, and for what is saved at an end."""
        return self.run.options.finish_timeout

    @property
    def answers(self) -> Mapping[str, Any]:
        """Of an episode that resumes: what waiting calls are answered, by call id."""
        return self.run.options.answers or _NOTHING

    @property
    def rewrite(self) -> Literal["regenerate"] | None:
        """What is done to the history before the first step; the ask is then the last one, which is stored already."""
        return self.run.options.rewrite

    @property
    def steers(self) -> Sequence[Envelope]:
        """Runs that become texts of this one, if it takes them (native tool loop): the first one first."""
        return self.run.steers

    @property
    def health(self) -> Health:
        """What the conversation remembers in memory alone."""
        return self.corner.health

    @property
    def threads(self) -> ConversationThreads:
        """The conversation's share of the worker threads."""
        return self.corner.threads

    @property
    def extended(self) -> bool:
        """True if the agent has extensions: an oversized prompt is then an error, not an escalation (C4)."""
        return bool(self.panel.roster.extensions)


@attrs.frozen(eq=False)
class Route:
    """Which model is asked, and how."""

    model: Model
    settings: Mapping[str, Any]
    provider_options: Mapping[str, Any]

    @classmethod
    def of(cls, work: Work) -> Route:
        """The run's own route."""
        return cls(work.model, work.settings, work.provider_options)

    def patched(self, patch: Any) -> Route:
        """Apply the model, settings and options of a run, plan or model patch (T10): with a model nothing is
        inherited; without one, settings merge by field and options by key."""
        fresh = patch.model is not None
        return Route(
            patch.model if fresh else self.model,
            {**({} if fresh else self.settings), **(patch.settings or {})},
            {**({} if fresh else self.provider_options), **(patch.provider_options or {})},
        )


@attrs.frozen
class Unpatched:
    """A run as it was before `before_run` changed anything."""

    instructions: str
    facts: Mapping[str, str]
    model: Model
    settings: Mapping[str, Any]
    provider_options: Mapping[str, Any]
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, work: Work) -> Unpatched:
        """Remember how a run is now."""
        return cls(work.instructions, work.facts, work.model, work.settings, work.provider_options, work.messages)

    def restore(self, work: Work) -> None:
        """Make a run what it was."""
        work.instructions, work.facts, work.model = self.instructions, self.facts, self.model
        work.settings, work.provider_options, work.messages = self.settings, self.provider_options, self.messages


@attrs.frozen
class CallbackContext:
    """What `facts` and `fallback` get if they take a context."""

    run_id: str
    conversation_id: str | None
    # Any: the application's own object.
    context: Any

    @classmethod
    def of(cls, work: Work) -> CallbackContext:
        """Return what a callback of this run gets."""
        return cls(work.journal.run_id, work.journal.conversation_id, work.context)


@attrs.define
class Ending:
    """How a loop ended: the pieces of a `RunResult` that the loop knows."""

    text: str
    output: Any = None
    reason: str | None = None
    best_effort: bool = False
    responded: Responded | None = None
    waiting: tuple[Waiting, ...] = ()


class Loop(Protocol):
    """How a run gets from ask to answer.

    Optional attribute: `recalls`; False if the loop has no use for the conversation's record, which is then not loaded.
    """

    @property
    def window(self) -> Any:
        """Tokens of input and output together, or a callable that says so once a run."""
        ...

    async def drive(self, work: Work, responded: tuple[Respond, Responded] | None = None) -> Ending:
        """Take the run from its ask to its end: recall, steps, answer, remembering.

        Arguments: `responded`, what a `before_run` hook answered in the model's place.

        Raises: `RunStopped` when a `Stop` was honoured; application errors as they are; `GoliathExtensionError`,
        `GoliathBudgetError`.

        Cancellation: every started tool and model call is recorded as finished, nothing of the run goes on.
        """
        ...
