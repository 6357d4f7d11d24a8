"""Whose fault it was: the origin of what ends a run, the phase it was in, and what a failure that changes nothing is
recorded as."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from goliath_actors import Agent, Conductor, Extension, RunAborted, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelRequest, ModelText
from goliath_actors.errors import ConfigError, ToolInputError
from goliath_actors.events import Event, ToolFinished
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.tools import Tool

from .native import history, native
from .planned import ANSWER, end, planned, run, told, use

# --- a call in both loops ---------------------------------------------------------------------------------------------


def calling(loop: str, name: str, arguments: dict[str, Any], **options: Any) -> Agent[Any]:
    """An agent whose model calls one tool and then answers "done"."""
    if loop == "native":
        return native([tool_calls((name, arguments)), "done"], **options)
    return planned([use(name), arguments, ANSWER, "done"], **options)


LOOPS = pytest.mark.parametrize("loop", ["planned", "native"])


def look(
    resolve: Callable[..., Any] | None = None,
    words: Callable[[Any], str] | None = None,
    body: Callable[[str], Any] | None = None,
) -> Tool:
    @tool(resolve_input=resolve, to_model_output=words)
    async def look(name: str) -> str:
        """Look for a thing."""
        await trio.lowlevel.checkpoint()
        return body(name) if body is not None else f"saw {name}"

    return look


# --- what ends the program (R12) --------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def now(*args: Any) -> Any:
        raise error

    return now


class Around(Extension[Any]):
    """Raises around a model or a tool, once that has come to its end."""

    name = "around"

    def __init__(self, row: str, error: BaseException) -> None:
        self.row = row
        self.error = error

    async def around_model(self, ctx: Any, question: Any, call_next: Any) -> None:
        await call_next()
        if self.row == "around_model":
            raise self.error

    async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> None:
        await call_next()
        if self.row == "around_tool":
            raise self.error


class Through(Extension[Any]):
    """Raises in a transform: at once, behind the first event, or as it is closed; or passes all on."""

    name = "through"

    def __init__(self, place: str, error: BaseException) -> None:
        self.place = place
        self.error = error

    def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
        if self.place == "transform called":
            raise self.error
        return self._passing(events)

    async def _passing(self, events: Any) -> Any:
        try:
            async for event in events:
                yield event
                if self.place == "transform":
                    raise self.error
        finally:
            if self.place == "transform closed":
                raise self.error


class InModel(ScriptedModel):
    """A model that is interrupted, at once or in the middle of its reply."""

    error: BaseException = KeyboardInterrupt()
    late = False

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        if not self.late:
            raise self.error
        yield self._broken_off()

    async def _broken_off(self) -> AsyncIterator[Any]:
        yield ModelText("so far ")
        raise self.error


def ending(place: str, error: BaseException, loop: str) -> tuple[Agent[Any], Callable[[Event], None] | None]:
    journal = Journal()
    if place == "resolve_input":
        return calling(loop, "look", {"name": "x"}, tools=[look(raising(error))], extensions=[journal]), None
    if place == "to_model_output":
        return calling(loop, "look", {"name": "x"}, tools=[look(None, raising(error))], extensions=[journal]), None
    if place == "tool":
        return calling(loop, "look", {"name": "x"}, tools=[look(body=raising(error))], extensions=[journal]), None
    if place == "confirm":
        asking = attrs.evolve(look(), confirm=True)
        return calling(loop, "look", {"name": "x"}, tools=[asking], confirm=raising(error), extensions=[journal]), None
    if place == "model":
        agent = calling(loop, "look", {"name": "x"}, tools=[look()], extensions=[journal])
        model = InModel([])
        model.error = error
        return attrs.evolve(agent, model=model), None
    if place == "model behind a transform":
        model = InModel([])
        model.error, model.late = error, True
        agent = native([]) if loop == "native" else planned([])
        agent = attrs.evolve(agent, extensions=(Through("nowhere", error), journal), model=model)
        return agent, None
    if place.startswith("transform"):
        through = Through(place, error)
        return calling(loop, "look", {"name": "x"}, tools=[look()], extensions=[through, journal]), None
    if place == "on_event":

        def on_event(event: Event) -> None:
            if event.kind == "text-delta":
                raise error

        return calling(loop, "look", {"name": "x"}, tools=[look()], extensions=[journal]), on_event
    return calling(loop, "look", {"name": "x"}, tools=[look()], extensions=[Around(place, error), journal]), None


@LOOPS
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    ("place", "origin"),
    [
        ("resolve_input", "tool"),
        ("to_model_output", "formatter"),
        ("tool", "tool"),
        ("confirm", "confirm"),
        ("model", "model"),
        ("on_event", "event"),
        ("around_model", "extension"),
        ("around_tool", "extension"),
        ("transform called", "extension"),
        ("transform", "extension"),
        ("transform closed", "extension"),
        ("model behind a transform", "model"),
    ],
)
async def test_what_ends_the_program_has_the_origin_of_its_place(
    loop: str, kind: type[BaseException], place: str, origin: str
) -> None:
    error = kind()
    agent, on_event = ending(place, error, loop)
    journal = agent.extensions[-1]
    assert isinstance(journal, Journal)
    with pytest.raises(kind):
        async with open_runtime(agent) as runtime:
            runtime.submit("hi", on_event=on_event)
            await trio.sleep_forever()
    assert journal.heard("on_error") == [("hi", origin)]
    assert journal.heard("on_finish") == [("hi", "error")]


@LOOPS
async def test_an_abort_while_a_tool_resolves_its_input_names_the_tool(loop: str) -> None:
    gate = Gate()

    async def resolve(input: dict[str, Any], ctx: Any) -> Any:
        await gate.pass_through()
        return input

    agent = calling(loop, "look", {"name": "x"}, tools=[look(resolve)])
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hi")
        await gate.wait_reached()
        assert runtime.conversation().status().phase == "tool:look"
        envelope.abort()
        with pytest.raises(RunAborted) as caught:
            await envelope.wait()
    assert caught.value.phase == "tool:look"


# --- a resolver that fails ------------------------------------------------------------------------------------------


def grouped(error: Exception) -> Callable[..., Any]:
    async def resolve(input: dict[str, Any], ctx: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise ExceptionGroup("a nursery's", [ExceptionGroup("another's", [error])])

    return resolve


@pytest.mark.parametrize("wrap", [raising, grouped])
async def test_a_resolvers_error_is_told_to_the_planned_loop_and_kept_as_it_is(
    wrap: Callable[[Exception], Callable[..., Any]],
) -> None:
    error = LookupError("no such thing here")
    agent = planned([use("look"), {"name": "x"}, "sorry"], tools=[look(wrap(error))])
    result = await run(agent)
    assert (result.reason, result.error) == ("tool-args-invalid", "no such thing here")
    (known,) = result.diagnostics
    assert (known.extension, known.phase, known.error) == ("look", "resolve_input", error)
    assert known.about.endswith(".1")


@pytest.mark.parametrize("wrap", [raising, grouped])
async def test_a_resolvers_error_reaches_a_native_model_as_a_type_and_an_id(
    wrap: Callable[[Exception], Callable[..., Any]],
) -> None:
    # T5: an exception may hold anything; only what a tool declares is told word for word.
    error = LookupError("password=hunter2")
    seen: list[Any] = []

    class After(Extension[Any]):
        name = "after"

        def after_tool(self, ctx: Any, question: Any) -> None:
            seen.append(question.outcome.error)

    store = InMemoryStore()
    agent = calling("native", "look", {"name": "x"}, tools=[look(wrap(error))], extensions=[After()])
    result = await run(agent, store=store)
    entry = next(entry for entry in await history(store, agent) if entry.role == "tool")
    assert entry.message.text.startswith("Not executed: look failed with an internal error (LookupError, error id run-")
    assert "hunter2" not in entry.message.text
    assert seen == [error]
    assert [(known.extension, known.phase, known.error) for known in result.diagnostics] == [
        ("look", "resolve_input", error)
    ]
    assert [event.error for event in told(result, ToolFinished)] == ["LookupError: password=hunter2"]


@pytest.mark.parametrize("wrap", [raising, grouped])
async def test_a_failure_that_a_resolver_declares_is_told_word_for_word(
    wrap: Callable[[Exception], Callable[..., Any]],
) -> None:
    error = ToolFailure("Gone")
    result = await run(calling("native", "look", {"name": "x"}, tools=[look(wrap(error))]))
    assert (result.steps[0].status, result.steps[0].result) == ("failed", "Not executed: Gone")
    result = await run(planned([use("look"), {"name": "x"}, "sorry"], tools=[look(wrap(error))]))
    assert (result.reason, result.error, result.diagnostics) == ("tool-args-invalid", "Gone", ())


@pytest.mark.parametrize("wrap", [raising, grouped])
async def test_an_invoked_tools_resolver_keeps_its_error_as_the_cause(
    wrap: Callable[[Exception], Callable[..., Any]],
) -> None:
    error = LookupError("no such thing here")
    async with open_runtime(planned([], tools=[look(wrap(error))])) as runtime:
        with pytest.raises(ToolInputError) as caught:
            await runtime.invoke_tool("look", {"name": "x"})
    assert (caught.value.problems, caught.value.__cause__) == (("no such thing here",), error)


async def test_what_a_resolver_gives_is_checked_and_every_problem_is_said_once() -> None:
    agent = planned([], tools=[look(lambda input, ctx: {"name": 7})])
    async with open_runtime(agent) as runtime:
        with pytest.raises(ToolInputError) as caught:
            await runtime.invoke_tool("look", {"name": "x"})
    assert str(caught.value).count("not valid") == 1


# --- what changes nothing -------------------------------------------------------------------------------------------


@LOOPS
async def test_a_formatters_failure_is_a_diagnostic_that_names_it_and_the_call(loop: str) -> None:
    error = LookupError("no words")
    result = await run(calling(loop, "look", {"name": "x"}, tools=[look(None, raising(error))]))
    (known,) = result.diagnostics
    assert (known.extension, known.phase, known.error) == ("look", "to_model_output", error)
    assert known.about == result.steps[0].call_id


@LOOPS
async def test_an_event_callbacks_late_failure_is_a_diagnostic_that_names_the_event(loop: str) -> None:
    error = LookupError("late")

    def on_event(event: Event) -> None:
        if event.kind == "run-finished":
            raise ExceptionGroup("its nursery's", [error])

    result = await run(calling(loop, "look", {"name": "x"}, tools=[look()]), on_event=on_event)
    (known,) = result.diagnostics
    assert (known.extension, known.phase, known.error, known.about) == ("on_event", "on_event", error, "run-finished")


@LOOPS
async def test_an_event_callbacks_group_of_one_fails_the_run_as_that_one(loop: str) -> None:
    error = LookupError("early")

    def on_event(event: Event) -> None:
        if event.kind == "model-started":
            raise ExceptionGroup("its nursery's", [error])

    outcome = await end(calling(loop, "look", {"name": "x"}, tools=[look()]), on_event=on_event)
    assert outcome.error is error
    assert outcome.origin == "event"


@LOOPS
async def test_what_a_tool_raised_is_a_diagnostic_with_its_traceback_and_a_failure_that_it_told_is_none(
    loop: str,
) -> None:
    def broken(name: str) -> Any:
        raise LookupError(f"no {name}")

    result = await run(calling(loop, "look", {"name": "x"}, tools=[look(body=broken)]))
    (noted,) = result.diagnostics
    assert (noted.extension, noted.phase, str(noted.error)) == ("look", "tool", "no x")
    assert traceback.extract_tb(noted.error.__traceback__)[-1].name == "broken"
    (finished,) = told(result, ToolFinished)
    assert noted.about == finished.call_id

    said = await run(calling(loop, "look", {"name": "x"}, tools=[look(body=raising(ToolFailure("no x")))]))
    assert said.diagnostics == ()


@pytest.mark.parametrize("loop", [Conductor(window=lambda: 10), ToolLoop(window=lambda: 10)])
async def test_a_window_that_turns_out_too_small_is_the_configurations_fault(loop: Any) -> None:
    async with open_runtime(Agent(model=ScriptedModel([]), loop=loop)) as runtime:
        asked = runtime.submit("hi")
        with pytest.raises(ConfigError, match=r"^a window of 10 tokens"):
            await asked.wait()
    assert asked.outcome is not None
    assert asked.outcome.origin == "config"
