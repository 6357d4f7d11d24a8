"""Agents with a `ToolLoop` and a scripted model, and what their histories must look like, for tests of the loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from goliath_actors import Agent, ToolLoop, approve_all
from goliath_actors.abc import Entry, ModelRequest, Store
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Message


def native(script: ScriptedModel | Sequence[Any], **options: Any) -> Agent[Any]:
    """An agent under a ToolLoop; every write is approved unless a test says otherwise."""
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(list(script))
    options.setdefault("confirm", approve_all)
    options.setdefault("loop", ToolLoop())
    options.setdefault("instructions", "Be brief.")
    return Agent(model=model, **options)


async def history(store: Store, agent: Agent[Any], conversation_id: str | None = None) -> list[Entry]:
    """Every entry of a conversation, oldest first."""
    key = agent.name if conversation_id is None else f"{agent.name}/{conversation_id}"
    found: list[Entry] = []
    after = 0
    while True:
        page = await store.entries(key, after=after, limit=100)
        found.extend(page.entries)
        if page.next is None:
            return found
        after = page.next


def said(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Role and text of each entry."""
    return [(entry.role, entry.message.text) for entry in entries]


def check_closed(entries: Sequence[Entry]) -> None:
    """Every stored call has exactly one stored result, in call order, before the next user or assistant message, and
    no two calls share an id."""
    waiting: list[str] = []
    seen: set[str] = set()
    for entry in entries:
        if entry.role == "tool":
            assert waiting, f"a result of {entry.message.tool_call_id} without a call"
            assert entry.message.tool_call_id == waiting.pop(0)
            assert entry.message.text.strip()
            continue
        assert waiting == [], f"no result of {waiting} before {entry.role}"
        for call in entry.message.tool_calls:
            assert call.id not in seen, f"two calls are {call.id}"
            seen.add(call.id)
            waiting.append(call.id)
        assert entry.message.text.strip() or entry.message.tool_calls, "a blank message is stored"
    assert waiting == [], f"no result of {waiting}"


def check_valid(messages: Sequence[Message]) -> None:
    """What is sent is what the strictest provider takes: roles in turn, every call answered, nothing blank."""
    last = ""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id == waiting.pop(0)
            assert message.text.strip()
            last = "tool"
            continue
        assert waiting == [], f"no result of {waiting} before {message.role}"
        if message.role in ("user", "assistant"):
            assert message.role != last, f"two messages of {last}"
        assert message.text.strip() or message.tool_calls
        for call in message.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)
            assert call.name
            assert call.id
        waiting = [call.id for call in message.tool_calls]
        assert len(set(waiting)) == len(waiting)
        last = message.role
    assert waiting == []


def check_requests(requests: Sequence[ModelRequest]) -> None:
    """As `check_valid`, for everything that a model was sent; and nobody is left to speak but the model."""
    for request in requests:
        check_valid(request.messages)
        assert request.messages[-1].role in ("user", "tool")
