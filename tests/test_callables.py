"""How an application's own callables are called: with a context or without, and what becomes of one that is async where
nothing may wait."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import trio

from goliath_actors import Agent, Conductor, Extension, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError, GoliathExtensionError
from goliath_actors.events import ToolFinished
from goliath_actors.testing import ScriptedModel, tool_calls

from .native import native
from .planned import ANSWER, GIVE_UP, end, planned, run, told, use

# --- one rule for the context -----------------------------------------------------------------------------------------


class Noting:
    """Makes a callable in each of the ways in which it may be written, which note the context that they got."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer
        self.got: list[Any] = []

    def way(self, name: str, *given: str) -> Callable[..., Any]:
        """Return a function of `given` that takes the context so."""
        ends = {
            "left out": "",
            "by position": "ctx",
            "by any name": "context",
            "by its name alone": "*, ctx",
            "with a default": "ctx=None",
            "behind a default": "*, ctx, more=1",
        }
        parameters = ", ".join([*given, *([ends[name]] if ends[name] else [])])
        context = "context" if name == "by any name" else "None" if name == "left out" else "ctx"
        scope: dict[str, Any] = {"note": self}
        exec(f"async def way({parameters}): return await note({context}, {', '.join(given)})", scope)
        made: Callable[..., Any] = scope["way"]
        return made

    async def __call__(self, ctx: Any, *given: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.got.append(None if ctx is None else ctx.context)
        return self.answer(*given)


WAYS = pytest.mark.parametrize(
    "way", ["left out", "by position", "by any name", "by its name alone", "with a default", "behind a default"]
)


@WAYS
@pytest.mark.parametrize("what", ["facts", "fallback", "resolve_input", "on_output"])
async def test_a_context_may_be_taken_in_any_of_the_ways_or_left_out(what: str, way: str) -> None:
    if what == "facts":
        noting = Noting(lambda: {"day": "Monday"})
        agent = planned(["done"], facts=noting.way(way))
    elif what == "fallback":
        noting = Noting(lambda request: "cloud")
        agent = planned([GIVE_UP], tools=[plain], fallback=noting.way(way, "request"))
    elif what == "resolve_input":
        noting = Noting(lambda input: input)

        @tool(resolve_input=noting.way(way, "input"))
        async def resolved(name: str) -> str:
            """Resolved."""
            return name

        agent = planned([use("resolved"), {"name": "x"}, ANSWER, "done"], tools=[resolved])
    else:
        noting = Noting(lambda output: None)

        @tool(on_output=noting.way(way, "output"))
        async def observed(name: str) -> str:
            """Observed."""
            return name

        agent = planned([use("observed"), {"name": "x"}, ANSWER, "done"], tools=[observed])
    result = await run(agent, context="mine")
    assert noting.got == [None if way == "left out" else "mine"]
    assert result.diagnostics == ()


@tool
async def plain(name: str) -> str:
    """Plain."""
    return name


@pytest.mark.parametrize(
    "make",
    [
        lambda: Agent(model=ScriptedModel([]), confirm=lambda *, ctx: True),
        lambda: Agent(model=ScriptedModel([]), on_event=lambda *, ctx: None),
        lambda: Agent(model=ScriptedModel([]), facts=lambda *, context: {}),
        lambda: Agent(model=ScriptedModel([]), fallback=lambda request, *, context: ""),
        lambda: Conductor(window=lambda ctx: 4096),
        lambda: ToolLoop(window=lambda ctx: 4096),
        lambda: tool(resolve_input=lambda *, context: {})(plain.execute),
        lambda: tool(to_model_output=lambda output, ctx: "")(plain.execute),
        lambda: tool(on_output=lambda one, two, three: None)(plain.execute),
    ],
)
def test_a_callable_that_cannot_be_called_in_any_way_is_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="is called with"):
        make()


def test_what_does_not_tell_what_it_takes_is_left_alone() -> None:
    def anything(*args: Any) -> Any:
        return {}

    Agent(model=ScriptedModel([]), facts=anything, confirm=anything, on_event=anything)
    tool(resolve_input=anything, to_model_output=anything, on_output=anything)(plain.execute)


# --- async where nothing may wait -------------------------------------------------------------------------------------


async def later(*given: Any) -> str:
    """As a lambda gives that calls an async function: nothing says so before it is called."""
    await trio.lowlevel.checkpoint()
    raise AssertionError("nobody awaits this")


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Any:
    yield
    gc.collect()  # a coroutine that nobody awaited warns now, and warnings are errors


@pytest.mark.parametrize("loop", ["planned", "native"])
async def test_a_transform_without_a_yield_is_the_extensions_error(loop: str) -> None:
    class Forgot(Extension[Any]):
        name = "forgot"

        async def transform_stream(self, ctx: Any, events: Any, control: Any) -> None:  # type: ignore[override]
            """It was to filter, and has no yield: calling it gives a coroutine."""

    agent = (planned if loop == "planned" else native)(["done"], extensions=[Forgot()])
    outcome = await end(agent)
    assert isinstance(outcome.error, GoliathExtensionError)
    assert (outcome.error.extension, outcome.error.phase, outcome.origin) == ("forgot", "transform_stream", "extension")
    assert "it has no yield" in str(outcome.error)


async def test_an_event_callback_that_gives_a_coroutine_fails_the_run_and_says_what_to_do() -> None:
    outcome = await end(planned(["done"]), on_event=lambda event: later(event))
    assert outcome.origin == "event"
    assert "iterate over run.events()" in str(outcome.error)


@pytest.mark.parametrize("loop", ["planned", "native"])
async def test_a_formatter_that_gives_a_coroutine_is_a_diagnostic(loop: str) -> None:
    @tool(to_model_output=lambda output: later(output))
    async def look(name: str) -> str:
        """Look."""
        return name

    if loop == "planned":
        agent = planned([use("look"), {"name": "x"}, ANSWER, "done"], tools=[look])
    else:
        agent = native([tool_calls(("look", {"name": "x"})), "done"], tools=[look])
    result = await run(agent)
    assert [known.phase for known in result.diagnostics] == ["to_model_output"]
    assert [event.status for event in told(result, ToolFinished)] == ["executed"]


async def test_a_counter_that_gives_a_coroutine_is_a_provider_failure() -> None:
    result = await run(planned(["done"], token_counter=lambda text: later(text)))  # type: ignore[arg-type]
    assert result.reason == "model-error"


async def test_an_async_snapshot_is_a_diagnostic() -> None:
    class Late(Extension[Any]):
        name = "late"

        async def snapshot(self) -> Any:  # type: ignore[override]
            """Async by mistake."""
            raise AssertionError("nobody awaits this")

    started = trio.Event()
    release = trio.Event()

    async def wait(request: Any) -> str:
        started.set()
        await release.wait()
        return "done"

    async with open_runtime(planned([wait], extensions=[Late()])) as runtime:
        envelope = runtime.submit("hi")
        await started.wait()
        envelope.events()
        release.set()
        result = await envelope.wait()
    assert [(known.extension, known.phase) for known in result.diagnostics] == [("late", "snapshot")]
