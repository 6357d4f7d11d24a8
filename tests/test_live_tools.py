"""Extensions whose tools are known only inside their lifespan: `tools` as a property (H11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock

from goliath_actors import Agent, Extension, Tool, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.errors import ConfigError, GoliathExtensionError
from goliath_actors.testing import Gate, ScriptedModel, tool_calls


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(writes=True)
async def change() -> str:
    """Change."""
    return "changed"


class Late(Extension[Any]):
    name = "late"

    def __init__(self, *tools: Tool) -> None:
        self.known: tuple[Tool, ...] = ()
        self._later = tools

    @property
    def tools(self) -> Sequence[Tool]:  # type: ignore[override]  # read anew for each run
        return self.known

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        self.known = self._later
        yield
        self.known = ()


def agent_of(*replies: Any, late: Late, **options: Any) -> Agent[Any]:
    return Agent(model=ScriptedModel(list(replies)), extensions=[late], loop=ToolLoop(), **options)


async def test_a_run_has_the_tools_that_a_lifespan_brought(autojump_clock: MockClock) -> None:
    agent = agent_of(tool_calls(("look", {})), "done", late=Late(look))
    assert dict(agent.tool_table) == {}
    async with open_runtime(agent) as runtime:
        assert list(agent.tool_table) == ["look"]
        assert (await runtime.run("go")).steps[0].result == "seen"
        assert (await runtime.invoke_tool("look", {})).output == "seen"
    assert dict(agent.tool_table) == {}


async def test_a_run_keeps_the_tools_that_it_began_with(autojump_clock: MockClock) -> None:
    gate, late = Gate(), Late(look)
    agent = agent_of(gate.then(tool_calls(("look", {}))), "done", "again", late=late)
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        late.known = ()
        gate.open()
        assert (await run.wait()).steps[0].status == "executed"
        await runtime.run("and now?")
    first, second, third = agent.model.requests  # type: ignore[attr-defined]  # a ScriptedModel's
    assert [len(request.tools) for request in (first, second, third)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("late", "options", "words"),
    [
        (lambda: Late(change), {}, "'change' must be confirmed"),
        (lambda: Late(look), {"tools": [look]}, "two tools are named 'look'"),
        (lambda: Late(Tool(name="x", description="x", execute=dict, requires=["look"])), {}, "requires 'look'"),
    ],
    ids=["unconfirmed", "taken", "requires"],
)
async def test_wrong_tools_of_a_lifespan_keep_the_runtime_from_opening_and_it_is_left(
    autojump_clock: MockClock, late: Any, options: dict[str, Any], words: str
) -> None:
    extension = late()
    with pytest.raises(ConfigError, match=words):
        async with open_runtime(agent_of(late=extension, **options)):
            raise AssertionError("opened")
    assert extension.known == ()


async def test_an_agent_that_a_lifespan_brings_as_a_tool_must_have_been_given(autojump_clock: MockClock) -> None:
    librarian = Agent(name="librarian", model=ScriptedModel(["Borges."]), loop=ToolLoop())
    late = Late(librarian.as_tool())
    with pytest.raises(ConfigError, match="'librarian' came as a tool with an extension's lifespan"):
        async with open_runtime(agent_of(late=late)):
            raise AssertionError("opened")
    assert late.known == ()
    agent = agent_of(tool_calls(("librarian", {"ask": "Who?"})), "done", late=late)
    async with open_runtime(agent, librarian) as runtime:
        assert (await runtime.run("go", agent=agent)).steps[0].result == "Borges."


async def test_an_agents_own_tool_may_require_one_that_comes_later(autojump_clock: MockClock) -> None:
    own = Tool(name="own", description="x", execute=lambda input: "own", requires=["look"])
    async with open_runtime(agent_of(late=Late(look), tools=[own])) as runtime:
        assert (await runtime.invoke_tool("own", {})).output == "own"


async def test_a_name_that_is_taken_later_stays_with_the_first_and_a_late_write_finds_nobody_to_ask(
    autojump_clock: MockClock,
) -> None:
    late = Late()
    agent = agent_of(late=late, tools=[look])
    async with open_runtime(agent) as runtime:
        late.known = (Tool(name="look", description="x", execute=lambda input: "other"), change)
        assert list(agent.tool_table) == ["look", "change"]
        assert (await runtime.invoke_tool("look", {})).output == "seen"
        refused = await runtime.invoke_tool("change", {})
        assert (refused.status, refused.reason) == ("skipped", "confirmation")
        assert (await runtime.invoke_tool("change", {}, confirm=approve_all)).output == "changed"


async def test_a_property_that_raises_is_its_extensions_error(autojump_clock: MockClock) -> None:
    class Broken(Late):
        name = "broken"
        works = True

        @property
        def tools(self) -> Sequence[Tool]:  # type: ignore[override]  # as above
            if not self.works:
                raise OSError("the list is lost")
            return (look,)

    broken = Broken()
    async with open_runtime(agent_of("never", late=broken)) as runtime:
        broken.works = False
        run = runtime.submit("go")
        with pytest.raises(GoliathExtensionError, match="'broken' in tools: the list is lost"):
            await run.wait()
        assert run.outcome is not None
        assert run.outcome.origin == "extension"
        broken.works = True
    broken.works = False
    with pytest.raises(GoliathExtensionError):
        agent_of(late=broken)


async def test_tools_that_are_no_property_stay_what_they_were_beside_ones_that_are(autojump_clock: MockClock) -> None:
    class Plain(Extension[Any]):
        name = "plain"

        def __init__(self) -> None:
            self.tools = [look]

    plain = Plain()
    agent = Agent(model=ScriptedModel([]), extensions=[plain, Late()], loop=ToolLoop())
    plain.tools = []
    assert list(agent.tool_table) == ["look"]
