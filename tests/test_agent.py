"""Wrong configuration raises at once and says what is wrong and what to do."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import trio

from goliath_actors import Agent, Conductor, Extension, Stop, ToolFailure, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.errors import ConfigError
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(writes=True, requires=["look"])
async def add(title: str) -> str:
    """Add."""
    return title


class Kit:
    @tool
    async def count(self) -> str:
        """Count."""
        return "three"


class Named(Extension[Any]):
    def __init__(self, name: str = "named") -> None:
        self.name = name


MODEL = ScriptedModel([])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ScriptedModel}, "got the class ScriptedModel itself; make one"),
        ({"model": object()}, "needs a `name` and a `stream` method"),
        ({"name": " "}, "name=...* must be a string with text"),
        ({"name": "x" * 513}, "at most 512"),
        ({"instructions": 5}, "instructions=...* must be a string"),
        ({"tools": look}, "must be a list, not one Tool; put it in brackets"),
        ({"tools": [lambda: 1]}, "is no tool; decorate the function with @tool"),
        ({"tools": [Agent(name="b", model=ScriptedModel([]))]}, r"agent 'b' is no tool; make one of it with as_tool\("),
        ({"tools": [Kit.count]}, "count is a method of a class; add the tool of an object, as in `kit.count`"),
        ({"tools": [look, look]}, "two tools are named 'look'"),
        ({"tools": [add], "confirm": approve_all}, "requires 'look', which the agent does not have"),
        ({"tools": [look, add]}, "'add' must be confirmed.*confirm=approve_all"),
        ({"extensions": Named()}, "must be a list, not one Named"),
        ({"extensions": [Named(), Named()]}, "two extensions are named 'named'"),
        ({"examples": "one line"}, "must be a list, not one str"),
        ({"examples": [3]}, "takes strings or sequences of strings"),
        ({"facts": {"day": 1}}, "facts must map strings to strings; 'day' maps to int"),
        ({"facts": [1]}, "facts must be a mapping"),
        ({"confirm": True}, "confirm=...* must be callable, not bool; approve_all lets every call go ahead"),
        ({"confirm_timeout": 0}, "confirm_timeout=...* must be a positive number of seconds or None"),
        ({"fallback": "cloud"}, "fallback=...* must be callable"),
        ({"on_event": 3}, "on_event=...* must be callable"),
        ({"loop": Conductor}, r"got the class Conductor; pass Conductor\(\)"),
        ({"loop": object()}, "must be a Conductor or a ToolLoop"),
        (
            {"loop": ToolLoop(), "fallback": lambda request: "x"},
            "a fallback belongs to .*models.Fallbacks",
        ),
        ({"output": 3}, "output"),
        ({"token_counter": 3}, "token"),
    ],
)
def test_a_wrong_agent_is_refused_when_it_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Agent(**{"model": MODEL, **options})


def test_an_agent_is_frozen_and_says_what_it_is() -> None:
    agent: Agent[Any] = Agent(model=MODEL, tools=[look], extensions=[Named()], name="helper")
    assert repr(agent) == "<Agent 'helper' model='scripted' tools=[look] extensions=['named']>"
    with pytest.raises(AttributeError):
        agent.name = "other"  # type: ignore[misc]


def test_a_list_given_to_an_agent_may_be_changed_afterwards() -> None:
    tools = [look]
    agent: Agent[Any] = Agent(model=MODEL, tools=tools)
    tools.clear()
    assert list(agent.tool_table) == ["look"]


def test_examples_are_lines_and_parts_are_joined_by_arrows() -> None:
    agent: Agent[Any] = Agent(model=MODEL, examples=["as it is", ("milk?", "add milk")])
    assert agent.examples == ("as it is", "milk? -> add milk")


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (InMemoryStore, "got the class InMemoryStore itself"),
        ("chat.db", r"use SqliteStore\('chat.db'\)"),
        (Path("chat.db"), "use SqliteStore"),
        (object(), "has no method 'load'"),
    ],
)
async def test_a_wrong_store_is_refused_on_opening(store: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with open_runtime(Agent(model=MODEL), store=store):
            pass  # pragma: no cover


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_running": 0}, "max_running"),
        ({"mailbox_capacity": -1}, "mailbox_capacity"),
        ({"max_waiting": 1.5}, "max_waiting"),
        ({"finish_timeout": "1"}, "finish_timeout"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"store": "chat.db"}, "SqliteStore"),
    ],
)
def test_a_wrong_argument_of_a_runtime_is_refused_by_the_call_itself(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_runtime(Agent(model=MODEL), **options)
    with pytest.raises(ConfigError, match="at least one agent"):
        open_runtime()
    with pytest.raises(ConfigError, match="two agents are named"):
        open_runtime(Agent(model=MODEL), Agent(model=MODEL))


def test_what_a_tool_requires_is_a_name_or_a_tool() -> None:
    with pytest.raises(ConfigError, match=r"^requires=... takes tools and their names, not 3$"):
        tool(requires=[3])(look.execute)  # type: ignore[list-item]


async def test_names_that_are_nearly_right_are_answered_with_a_hint() -> None:
    async with open_runtime(Agent(model=MODEL, name="assistant", tools=[look])) as runtime:
        with pytest.raises(ConfigError, match="did you mean 'assistant'"):
            runtime.submit("hi", agent="asistant")
        with pytest.raises(ConfigError, match="did you mean 'look'"):
            await runtime.invoke_tool("lok", {})
        with pytest.raises(ConfigError, match="a number of seconds, 0 or more, not None"):
            await runtime.drain(None)  # type: ignore[arg-type]


def test_another_event_loop_is_told_about_trio() -> None:
    async def main() -> None:
        async with open_runtime(Agent(model=MODEL)):
            pass  # pragma: no cover

    with pytest.raises(ConfigError, match="runs on trio"):
        asyncio.run(main())


async def test_a_runtime_opened_without_async_says_what_to_write() -> None:
    with (
        pytest.raises(TypeError, match=r"^use 'async with open_runtime\(\.\.\.\)', not 'with'$"),
        open_runtime(Agent(model=ScriptedModel([]))),  # type: ignore[attr-defined]  # the mistake
    ):
        raise AssertionError("the block was entered")


async def test_the_smaller_window_of_loop_and_model_counts_and_a_result_says_why_the_device_gave_up() -> None:
    model = ScriptedModel(["Hello."], window=1000)
    async with open_runtime(Agent(model=model)) as runtime:
        result = await runtime.run("hi")
        assert [event.limit for event in result.trace if event.kind == "budget"] == [(1000 - 384 - 128)]
        assert (result.reason, result.error) == (None, None)
        model = ScriptedModel([])
    model = ScriptedModel([OSError("no route to the device")])
    async with open_runtime(Agent(model=model)) as runtime:
        result = await runtime.run("hi")
    assert (result.text, result.reason) == ("", "model-error")
    assert result.error is not None
    assert "no route to the device" in result.error


@pytest.mark.parametrize("name", ["confirm", "on_event"])
async def test_a_callback_that_cannot_take_what_it_is_given_is_refused_at_once(name: str) -> None:
    def takes_nothing() -> bool:
        return True

    options: dict[str, Any] = {name: takes_nothing}
    with pytest.raises(ConfigError, match=name):
        Agent(model=MODEL, **options)
    async with open_runtime(Agent(model=MODEL)) as runtime:
        with pytest.raises(ConfigError, match=name):
            runtime.submit("hi", **options)
        assert runtime.statistics().accepted == 0


def test_a_fallback_and_facts_that_cannot_be_called_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="fallback"):
        Agent(model=MODEL, fallback=lambda: "cloud")
    with pytest.raises(ConfigError, match="facts"):
        Agent(model=MODEL, facts=lambda one, two: {})


async def test_facts_are_taken_as_they_are_when_the_agent_is_made() -> None:
    facts = {"day": "Monday"}
    agent: Agent[Any] = Agent(model=MODEL, facts=facts)
    facts["day"] = "Tuesday"
    assert agent.facts == {"day": "Monday"}


async def test_a_stop_without_a_text_says_why_in_the_result() -> None:
    class Silent(Extension[Any]):
        name = "silent"

        def before_run(self, ctx: Any, question: Any) -> Any:
            return Stop("", "quiet-hours")

    async with open_runtime(Agent(model=MODEL, extensions=[Silent()])) as runtime:
        result = await runtime.run("hi")
    assert (result.status, result.text, result.reason) == ("stopped", "", "quiet-hours")


async def test_a_tools_own_nursery_does_not_hide_the_words_of_its_failure() -> None:
    @tool
    async def fetch() -> str:
        """Fetch."""

        async def child() -> None:
            await trio.lowlevel.checkpoint()
            raise ToolFailure("the disk is full")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        return "fetched"

    plan = [{"kind": "tool", "tool": "fetch", "brief": "get"}, {"kind": "answer", "brief": "say"}, "Sorry."]
    async with open_runtime(Agent(model=ScriptedModel(plan), tools=[fetch])) as runtime:
        result = await runtime.run("hi")
    assert (result.steps[0].status, result.steps[0].result) == ("failed", "the disk is full")


def test_help_for_tool_names_every_setting() -> None:
    assert {"writes", "requires", "output_mode", "timeout"} <= set(inspect.signature(tool).parameters)
