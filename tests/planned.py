"""Agents with a `Conductor` and a scripted model, for tests of the planned loop through the public doors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from goliath_actors import Agent, Conductor, RunResult, approve_all, open_runtime
from goliath_actors.abc import Change, ModelRequest, Store
from goliath_actors.events import Budget, Escalate, Event
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel, check_events
from goliath_actors.values import Exchange, Memory, Outcome

E = TypeVar("E", bound=Event)

ANSWER: dict[str, Any] = {"kind": "answer", "brief": "reply"}
GIVE_UP: dict[str, Any] = {"kind": "escalate", "brief": "beyond me"}


def use(tool: str, brief: str = "do it", **rest: Any) -> dict[str, Any]:
    """A plan that uses a tool."""
    return {"kind": "tool", "tool": tool, "brief": brief, **rest}


def planned(script: ScriptedModel | Sequence[Any], **options: Any) -> Agent[Any]:
    """An agent under a Conductor; every write is approved unless a test says otherwise."""
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(list(script))
    options.setdefault("confirm", approve_all)
    options.setdefault("loop", Conductor())
    return Agent(model=model, **options)


def requests(agent: Agent[Any]) -> list[ModelRequest]:
    """What the scripted model was asked."""
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return model.requests


def roles(agent: Agent[Any]) -> list[str]:
    """The roles that the scripted model was asked in."""
    return [request.role for request in requests(agent)]


def prompt(agent: Agent[Any], call: int) -> str:
    """All prompt text of one call, counted from 0."""
    return requests(agent)[call].text


def system(request: ModelRequest) -> str:
    """The system text of a request."""
    return "\n".join(message.text for message in request.messages if message.role == "system")


async def run(agent: Agent[Any], ask: str = "hello", *, store: Store | None = None, **options: Any) -> RunResult:
    """Run one ask in a runtime of its own, hold its trace against the grammar, and return the result."""
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run(ask, **options)
    check_events(result.trace)
    return result


async def end(agent: Agent[Any], ask: str = "hello", *, store: Store | None = None, **options: Any) -> Outcome:
    """Run one ask to whatever end it comes to."""
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit(ask, **options)
        await envelope.wait_ended()
    assert envelope.outcome is not None
    check_events(envelope.outcome.trace)
    return envelope.outcome


def told(result: RunResult | Outcome, kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    return [event for event in result.trace if isinstance(event, kind)]


def kinds(result: RunResult | Outcome) -> list[str]:
    """The names of what was told, without what every run tells and without model calls."""
    hidden = {"run-queued", "run-started", "run-finished", "model-started", "model-finished"}
    return [event.kind for event in result.trace if event.kind not in hidden]


def reasons(result: RunResult | Outcome) -> list[str]:
    """The escalation reasons, in order."""
    return [event.reason for event in told(result, Escalate)]


def labels(result: RunResult | Outcome) -> list[str]:
    """The labels of the budgets, in order."""
    return [event.label for event in told(result, Budget)]


async def memory_of(store: Store, agent: Agent[Any], conversation_id: str | None = None) -> Memory:
    """What a store remembers of a conversation."""
    key = agent.name if conversation_id is None else f"{agent.name}/{conversation_id}"
    return (await store.load(key)).memory


async def stored(
    *exchanges: Exchange | tuple[str, str], summary: str = "", key: str = "agent", failures: int = 0
) -> InMemoryStore:
    """A store in which a conversation already has a memory."""
    store = InMemoryStore()
    recent = [item if isinstance(item, Exchange) else Exchange(item[0], item[1], 1.0) for item in exchanges]
    await store.commit(key, Change(memory=Memory(summary, recent), failures=failures))
    return store
