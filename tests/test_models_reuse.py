"""Connections in whole runs: every model call of a conversation goes over the one that the first call opened."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
import trio

from goliath_actors import Agent, Conductor, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelEvent, ModelRequest
from goliath_actors.models import AnthropicMessages, Fallbacks, Limited, OpenAIChat
from goliath_actors.models._incoming import Incoming
from goliath_actors.models._pool import PoolStatistics
from goliath_actors.values import Message

from ._provider_server import Script, chunked, events, provider, text_reply


@tool
def clock() -> str:
    """Tell the time."""
    return "noon"


CALL = {"index": 0, "id": "c1", "function": {"name": "clock", "arguments": "{}"}}
TOOL_CALL = events(
    {"choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
)


def said(text: str) -> bytes:
    return chunked(text_reply(text))


@pytest.mark.parametrize("last", [True, False], ids=["in one packet", "its end in a later packet"])
async def test_a_native_turn_goes_over_one_connection(last: bool) -> None:
    def sent(body: bytes) -> Any:
        whole = chunked(body)
        return [whole] if last else [whole[:-5], whole[-5:]]

    async with provider(
        Script(sent(TOOL_CALL)), Script(sent(text_reply("It is noon."))), Script(sent(text_reply("Yes.")))
    ) as server:
        async with aclosing(OpenAIChat("m", base_url=server.url)) as model:
            agent = Agent(name="a", model=model, tools=[clock], loop=ToolLoop())
            async with open_runtime(agent) as runtime:
                assert (await runtime.run("what time is it?")).text == "It is noon."
                assert (await runtime.run("sure?")).text == "Yes."
                assert model._endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=2)


async def test_a_planned_run_goes_over_one_connection() -> None:
    replies = [said('{"kind": "answer", "brief": "hello", "tool": ""}'), said("Hello."), said("They said hello.")]
    async with provider(*[Script([reply]) for reply in replies]) as server:
        async with aclosing(OpenAIChat("m", base_url=server.url)) as model:
            async with open_runtime(Agent(name="a", model=model, tools=[clock], loop=Conductor())) as runtime:
                assert (await runtime.run("hello")).text == "Hello."
                statistics = model._endpoint.pool.statistics()
    assert (statistics.opened, statistics.idle) == (1, 1)


async def test_wrapped_models_keep_their_connections() -> None:
    async with provider(Script([said("one")]), Script([said("two")])) as server:
        inner = OpenAIChat("m", base_url=server.url)
        async with aclosing(inner):
            model = Limited(Fallbacks([inner]), in_flight=1)
            async with open_runtime(Agent(name="a", model=model, loop=ToolLoop())) as runtime:
                assert [(await runtime.run("hello")).text for _ in range(2)] == ["one", "two"]
                assert inner._endpoint.pool.statistics().opened == 1


async def test_a_run_over_the_messages_interface_keeps_its_connection() -> None:
    def reply(text: str) -> bytes:
        return chunked(
            events(
                {"type": "message_start", "message": {"usage": {"input_tokens": 1, "output_tokens": 0}}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
                {"type": "message_stop"},
                done=False,
            )
        )

    async with provider(Script([reply("one")]), Script([reply("two")])) as server:
        async with aclosing(AnthropicMessages("m", base_url=server.url, api_key="k")) as model:
            async with open_runtime(Agent(name="a", model=model, loop=ToolLoop())) as runtime:
                assert [(await runtime.run("hello")).text for _ in range(2)] == ["one", "two"]
                assert model._endpoint.pool.statistics().opened == 1


class Steps(trio.abc.Instrument):
    """Counts how often a task is continued."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task = task
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self._task


async def test_a_call_over_a_kept_connection_passes_through_the_scheduler_once() -> None:
    async with provider(Script([said("Hello.")])) as server:
        async with aclosing(OpenAIChat("m", base_url=server.url)) as model:
            counts: list[int] = []
            for _ in range(4):
                steps = Steps(trio.lowlevel.current_task())
                trio.lowlevel.add_instrument(steps)
                async with model.stream(ModelRequest("answer", (Message("user", "hi"),))) as stream:
                    events: list[ModelEvent] = [event async for event in stream]
                    assert isinstance(stream, Incoming)
                    await stream.aclose()  # as the loops do
                trio.lowlevel.remove_instrument(steps)
                assert len(events) == 2
                counts.append(steps.count)
    assert counts[1:] == [1, 1, 1]  # the wait for the reply; neither sending nor reading it makes one
