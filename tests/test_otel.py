"""Spans of runs, model calls and tool calls, as an exporter gets them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, Extension, Run, RunAborted, Stop, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError, ModelUnavailable
from goliath_actors.hooks import BeforeRun, HookContext, ModelPatch
from goliath_actors.logs import Logs
from goliath_actors.models import OpenAIChat
from goliath_actors.otel import Tracing, trace_headers
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

from ._provider_server import Script, chunked, provider, text_reply

SECRET = "the secret word"


class Spans:
    """A provider of tracers, and what came out."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    yield found
    found.provider.shutdown()


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    same = span.context.trace_id == parent.context.trace_id
    return same and span.parent is not None and span.parent.span_id == parent.context.span_id


@tool
async def look(word: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {word}"


@tool
async def lose() -> str:
    """Lose."""
    raise ToolFailure(SECRET)


def agent_of(spans: Spans, *replies: Any, more: Any = (), **options: Any) -> Agent[Any]:
    tracing = options.pop("tracing", None) or Tracing(tracer_provider=spans.provider, provider="openai")
    options = {"tools": [look, lose], "loop": ToolLoop(), "name": "helper", **options}
    return Agent(model=ScriptedModel(list(replies), name="m1"), extensions=[tracing, *more], **options)


async def test_a_run_and_its_calls_are_spans_with_the_agreed_names(spans: Spans, autojump_clock: MockClock) -> None:
    agent = agent_of(spans, tool_calls(("look", {"word": SECRET})), "done")
    async with open_runtime(agent) as runtime:
        result = await runtime.run(SECRET, conversation_id="c1")
    assert spans.names() == ["chat m1", "execute_tool look", "chat m1", "invoke_agent helper"]
    first, looked, _, run = spans.all()
    assert all(is_child(span, run) for span in spans.all()[:-1])
    assert run.parent is None
    common = {"gen_ai.conversation.id": "c1", "goliath.run.id": result.run_id}
    assert said(looked) == {
        **common,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": result.steps[0].call_id,
        "goliath.tool.writes": False,
    }
    chat = said(first)
    assert first.kind is SpanKind.CLIENT
    assert chat.pop("gen_ai.usage.input_tokens") > 0
    assert chat.pop("gen_ai.usage.output_tokens") > 0
    assert chat.pop("goliath.usage.estimated") is True
    assert chat == {
        **common,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "helper",
        "gen_ai.request.model": "m1",
        "gen_ai.response.model": "m1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "goliath.model.role": "step",
        "goliath.model.attempt": 0,
    }
    assert said(run) == {
        **common,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.usage.input_tokens": result.usage.input_tokens,
        "gen_ai.usage.output_tokens": result.usage.output_tokens,
        "goliath.usage.estimated": True,
        "goliath.run.status": "completed",
        "goliath.run.handled_by": "device",
    }
    assert {span.status.status_code for span in spans.all()} == {StatusCode.UNSET}


async def test_contents_are_left_out_unless_asked_for(spans: Spans, autojump_clock: MockClock) -> None:
    replies = (tool_calls(("look", {"word": SECRET}), ("lose", {})), SECRET)
    async with open_runtime(agent_of(spans, *replies)) as runtime:
        await runtime.run(SECRET)
    assert [span.name for span in spans.all() if SECRET in span.to_json()] == []
    spans.exporter.clear()
    full = Tracing(tracer_provider=spans.provider, contents=True)
    async with open_runtime(agent_of(spans, *replies, tracing=full)) as runtime:
        await runtime.run(SECRET)
    assert [span.name for span in spans.all() if SECRET not in span.to_json()] == []
    assert said(spans.one("execute_tool look"))["gen_ai.tool.call.arguments"] == f'{{"word": "{SECRET}"}}'
    assert said(spans.one("execute_tool look"))["gen_ai.tool.call.result"] == f"saw {SECRET}"
    assert '"tool_call_response"' in said(spans.all()[-2])["gen_ai.input.messages"]


async def test_a_run_is_a_child_of_what_was_current_where_it_was_submitted(
    spans: Spans, autojump_clock: MockClock
) -> None:
    agent = agent_of(spans, *["one"] * 10)
    async with open_runtime(agent) as runtime:

        async def ask(number: int) -> None:
            with spans.tracer.start_as_current_span(f"request {number}"):
                await runtime.run("hi", conversation_id=f"c{number}")

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
    for number in range(10):
        request = spans.one(f"request {number}")
        (run,) = [span for span in spans.all() if said(span).get("gen_ai.conversation.id") == f"c{number}"][-1:]
        assert run.name == "invoke_agent helper"
        assert is_child(run, request)
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert context.get_current() == {}


async def test_what_a_tool_does_is_a_child_of_its_own_span_also_beside_others(
    spans: Spans, autojump_clock: MockClock
) -> None:
    @tool
    async def work(name: str) -> str:
        """Work."""
        with spans.tracer.start_as_current_span(f"work {name}"):
            await trio.sleep(1)
        return trace_headers()["traceparent"]

    calls = tool_calls(*(("work", {"name": name}) for name in "abc"))
    agent = agent_of(spans, calls, "done", tools=[work])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    executed = [span for span in spans.all() if span.name == "execute_tool work"]
    by_call = {said(span)["gen_ai.tool.call.id"]: span for span in executed}
    for name, step in zip("abc", result.steps, strict=False):
        own = by_call[step.call_id]
        assert own.context is not None
        assert is_child(spans.one(f"work {name}"), own)
        assert f"-{own.context.span_id:016x}-" in (step.result or "")


async def test_a_provider_over_http_gets_the_trace_of_its_own_call(spans: Spans) -> None:
    tracing = Tracing(tracer_provider=spans.provider)
    async with provider(Script([chunked(text_reply("hi"))])) as server:
        model = OpenAIChat("m2", base_url=server.url, api_key="", headers=trace_headers)
        async with open_runtime(Agent(model=model, extensions=[tracing], loop=ToolLoop())) as runtime:
            await runtime.run("hi")
        chat = spans.one("chat m2").context
        assert chat is not None
        assert f"-{chat.trace_id:032x}-{chat.span_id:016x}-" in server.seen[0].headers["traceparent"]


async def test_an_agent_that_is_asked_by_a_tool_hangs_below_that_tool(spans: Spans, autojump_clock: MockClock) -> None:
    inner = agent_of(spans, "inner answer", name="inner")
    outer = agent_of(spans, tool_calls(("inner", {"ask": "you?"})), "done", tools=[inner.as_tool()], name="outer")
    async with open_runtime(outer) as runtime:
        await runtime.run("go")
    assert is_child(spans.one("invoke_agent inner"), spans.one("execute_tool inner"))


async def test_an_aborted_run_and_what_it_cut_are_marked(spans: Spans, autojump_clock: MockClock) -> None:
    gate = Gate()
    agent = agent_of(spans, gate.then("never"))
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        queued = runtime.submit("and then?")
        await gate.wait_reached()
        queued.abort()
        run.abort("enough")
        for one in (run, queued):
            with pytest.raises(RunAborted):
                await one.wait()
    chat, first, second = spans.all()
    assert said(chat)["error.type"] == "cancelled"
    for span, ident, phase in ((first, run.id, "step"), (second, queued.id, "queued")):
        assert span.status.status_code is StatusCode.ERROR
        attributes = said(span)
        assert attributes["goliath.run.id"] == ident
        assert attributes["goliath.run.status"] == "aborted"
        assert attributes["error.type"] == "RunAborted"
        assert (attributes["goliath.abort.cause"], attributes["goliath.abort.phase"]) == ("requested", phase)


class Ended(SpanProcessor):
    """Counts spans that were started and ended, by name."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started[span.name] += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended[span.name] += 1


class Cut(trio.abc.Instrument):
    """Aborts a run before a certain step of any task."""

    def __init__(self, run: Run, at: int) -> None:
        self.run, self.left = run, at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.run.abort()


@pytest.mark.parametrize("loop", [ToolLoop(), Conductor()], ids=["native", "planned"])
async def test_wherever_a_run_is_cut_every_span_ends_and_every_run_has_one(
    autojump_clock: MockClock, loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    native = [tool_calls(("look", {"word": "x"})), "done"]
    planned = [
        {"kind": "tool", "tool": "look", "brief": "look"},
        {"word": "x"},
        {"kind": "answer", "brief": "say"},
        "done",
        "noted",
    ]
    replies = native if isinstance(loop, ToolLoop) else planned
    caplog.set_level("INFO", "goliath_actors.logs")
    aborted, at, cut = 0, 0, True
    while cut:
        at += 1
        ended = Ended()
        provider = TracerProvider()
        provider.add_span_processor(ended)
        caplog.clear()
        tracing = Tracing(tracer_provider=provider)
        logs = Logs(contents=True)
        agent = Agent(
            model=ScriptedModel(replies, name="m"), extensions=[tracing, logs], tools=[look], loop=loop, name="a"
        )
        async with open_runtime(agent) as runtime:
            run = runtime.submit("go")
            instrument = Cut(run, at)
            trio.lowlevel.add_instrument(instrument)
            while run.state != "done":
                await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(instrument)
        cut = instrument.left <= 0
        assert run.outcome is not None
        aborted += run.outcome.status == "aborted"
        assert run.outcome.result is None or run.outcome.result.diagnostics == ()
        assert ended.started == ended.ended, f"cut before step {at}"
        assert ended.ended["invoke_agent a"] == 1
        assert [record.levelname for record in caplog.records if record.message.startswith(f"run {run.id}: ab")] == (
            ["INFO"] if run.outcome.status == "aborted" else []
        )
    assert aborted > 10


async def test_a_deadline_is_told_as_its_cause(spans: Spans, autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_runtime(agent_of(spans, gate.then("never"))) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("go", timeout=5)
    assert said(spans.one("invoke_agent helper"))["goliath.abort.cause"] == "deadline"


async def test_failures_of_models_and_tools_are_told_by_their_types(spans: Spans, autojump_clock: MockClock) -> None:
    agent = agent_of(spans, tool_calls(("lose", {})), ModelUnavailable(SECRET))
    async with open_runtime(agent) as runtime:
        with pytest.raises(ModelUnavailable):
            await runtime.run("go")
    assert said(spans.one("execute_tool lose"))["error.type"] == "ToolFailure"
    run = spans.one("invoke_agent helper")
    assert said(spans.all()[-2])["error.type"] == said(run)["error.type"] == "ModelUnavailable"
    assert said(run)["goliath.run.origin"] == "model"
    assert [span.name for span in spans.all() if SECRET in span.to_json()] == []


async def test_a_run_that_an_earlier_extension_stopped_has_a_span_too(spans: Spans, autojump_clock: MockClock) -> None:
    class Closed(Extension[Any]):
        name = "closed"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop:
            return Stop("We are closed.", "closed")

    tracing = Tracing(tracer_provider=spans.provider)
    agent = Agent(model=ScriptedModel([]), extensions=[Closed(), tracing], loop=ToolLoop())
    async with open_runtime(agent) as runtime:
        await runtime.run("hi")
    (run,) = spans.all()
    assert (said(run)["goliath.run.status"], said(run)["goliath.run.reason"]) == ("stopped", "closed")


async def test_a_model_that_another_extension_chose_is_the_responding_one(
    spans: Spans, autojump_clock: MockClock
) -> None:
    other = ScriptedModel(["hi"], name="m2")

    class Route(Extension[Any]):
        name = "route"

        async def around_model(self, ctx: Any, question: Any, call_next: Any) -> Any:
            return await call_next(ModelPatch(model=other))

    async with open_runtime(agent_of(spans, more=[Route()])) as runtime:
        await runtime.run("hi")
    chat = said(spans.one("chat m1"))
    assert (chat["gen_ai.request.model"], chat["gen_ai.response.model"]) == ("m1", "m2")


async def test_a_steered_run_stays_one_span_and_a_tool_called_alone_has_one(
    spans: Spans, autojump_clock: MockClock
) -> None:
    gate = Gate()

    @tool
    async def dig() -> str:
        """Dig."""
        await gate.pass_through()
        return "a hole"

    agent = agent_of(spans, tool_calls(("dig", {})), "done", tools=[dig])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go", conversation_id="c")
        await gate.wait_reached()
        runtime.conversation("c").steer("faster")
        gate.open()
        await run.wait()
        assert spans.names().count("invoke_agent helper") == 1
        spans.exporter.clear()
        await runtime.invoke_tool("dig", {})
    assert spans.names() == ["execute_tool dig"]


async def test_without_an_sdk_nothing_is_recorded_and_everything_works(autojump_clock: MockClock) -> None:
    agent = Agent(model=ScriptedModel(["hi"]), extensions=[Tracing(contents=True)], loop=ToolLoop())
    async with open_runtime(agent) as runtime:
        assert (await runtime.run("hi")).diagnostics == ()
    assert trace_headers() == {}


def test_wrong_settings_are_refused_and_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="contents"):
        Tracing(contents="yes")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ConfigError, match="provider"):
        Tracing(provider=3)  # type: ignore[arg-type]  # the mistake under test
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"/path/to/clone\[otel\]"):
        Tracing()


def test_importing_the_extension_does_not_load_the_library() -> None:
    code = "import sys, goliath_actors.otel; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
