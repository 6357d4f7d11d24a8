"""The public API as a program uses it. Checked by mypy --strict and by pyright; never run.

A line with `# type: ignore[...]` has to be an error: mypy reports an ignore that is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal

import attrs
import msgspec
import trio

from goliath_actors import (
    Agent,
    Conductor,
    Conversation,
    Deny,
    EventStream,
    Extension,
    Memory,
    Message,
    Outcome,
    Respond,
    Retry,
    Run,
    RunAborted,
    RunResult,
    Runtime,
    SessionFallback,
    Skip,
    Stop,
    Tool,
    ToolContext,
    ToolFailure,
    approve_all,
    open_runtime,
    serve_runtime,
    tool,
)
from goliath_actors.abc import (
    Change,
    Entry,
    Model,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelText,
    Record,
    Store,
    TokenCounter,
)
from goliath_actors.errors import GoliathExtensionError, MailboxFull, RateLimited
from goliath_actors.events import Answer, Event, PlanMade, RunEvent, RunFinished, TextDelta, ToolFinished
from goliath_actors.hooks import (
    AfterAnswer,
    AfterPlan,
    AfterRecall,
    AfterResponse,
    AfterTool,
    AfterTools,
    AroundModel,
    AroundTool,
    Ask,
    BeforeFallback,
    BeforePlan,
    BeforeRemember,
    BeforeRequest,
    BeforeRun,
    BeforeTool,
    HookContext,
    ModelPatch,
    OnError,
    OnFinish,
    PlanPatch,
    RunPatch,
    StreamControl,
)
from goliath_actors.models import HttpFallback, OpenAIChat
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.tokens import EstimateCounter
from goliath_actors.tools import CheckedInput, Confirmed, ConfirmRequest, ToolDescriptor, ToolOutcome
from goliath_actors.values import (
    ConversationStatus,
    Diagnostic,
    DrainReport,
    FallbackAnswer,
    FallbackRequest,
    Page,
    Plan,
    RuntimeStatistics,
    Step,
    Stopped,
    Usage,
)


@attrs.frozen
class AppContext:
    user: str
    can_write: bool


@attrs.frozen
class OtherContext:
    pass


# --- tools ----------------------------------------------------------------------------------------------------------


@tool
def list_tasks() -> list[str]:
    """List the tasks."""
    return []


@tool(writes=True, requires=(list_tasks, "list_tasks"), timeout=5, output_mode="content")
async def create_task(
    ctx: ToolContext[AppContext],
    title: Annotated[str, msgspec.Meta(description="what is to be done")],
    urgency: Literal["low", "high"] = "low",
) -> str:
    """Add a task."""
    if not ctx.context.can_write:
        raise ToolFailure("this account is read-only", retryable=False)
    steps: tuple[Step, ...] = ctx.steps
    budget: int = ctx.result_budget
    return f"{ctx.context.user}: {title} {urgency} {len(steps)} {budget}"


@tool
def bare_context(ctx: ToolContext) -> str:
    """Say where it runs: a context may go without a type."""
    return ctx.run_id


made_by_hand = Tool(
    name="search",
    description="Search.",
    parameters={"type": "object", "properties": {"q": {"type": "string"}}},
    execute=lambda input, ctx: input["q"],
    to_model_output=lambda output: str(output),
)
descriptor: ToolDescriptor = create_task.descriptor
checked: CheckedInput = create_task.check({"title": "milk"})
context_by_hand = ToolContext(context=AppContext("ada", True), submit=lambda ask, **options: None)


# --- extensions -----------------------------------------------------------------------------------------------------


class OwnWords(Extension[AppContext]):
    """The parameters of a hook may have any names: the runtime gives them by position."""

    name = "own-words"

    async def before_tool(self, ctx: HookContext[AppContext], call: BeforeTool) -> Deny | None:
        if call.tool.writes and not ctx.context.can_write:
            return Deny("This account is read-only.")
        return None

    def around_tool(self, c: HookContext[AppContext], q: AroundTool, go: Callable[[], Awaitable[Any]]) -> Any:
        return go()

    def on_finish(self, c: HookContext[AppContext], over: OnFinish) -> None:
        pass


class WithoutTypes(Extension[AppContext]):
    """As in a quick sketch. `mypy --strict` wants types in every function; nothing else is wrong with it."""

    name = "without-types"

    async def before_tool(self, ctx, call):  # type: ignore[no-untyped-def]
        if call.tool.writes and not ctx.context.can_write:
            return Deny("This account is read-only.")


class SyncHooks(Extension[AppContext]):
    name = "sync"
    tools = (list_tasks,)
    instructions = "Be kind."

    def before_run(self, ctx: HookContext[AppContext], question: BeforeRun) -> RunPatch | Stop | Respond | None:
        ctx.state["user"] = ctx.context.user
        if question.entry == "run" and not question.ask:
            return Stop("nothing to do", "blank")
        if ctx.abort_requested:
            return Respond("closed", "closed", outcome="closed")
        return RunPatch(ask=question.ask.strip(), facts={**question.facts, "user": ctx.context.user})

    def after_recall(self, ctx: HookContext[AppContext], question: AfterRecall) -> Memory:
        return attrs.evolve(question.memory, summary="")

    def before_plan(self, ctx: HookContext[AppContext], question: BeforePlan) -> PlanPatch:
        return PlanPatch(tools=[tool.name for tool in question.tools if not tool.writes], context_text="Short.")

    def after_plan(self, ctx: HookContext[AppContext], question: AfterPlan) -> Plan | Retry | None:
        return Retry("look first") if question.plan.kind == "answer" else None

    def before_tool(
        self, ctx: HookContext[AppContext], question: BeforeTool
    ) -> dict[str, Any] | Deny | Ask | Stop | None:
        if question.tool.writes and not ctx.context.can_write:
            return Deny("This account is read-only.", whole_batch=True)
        if "title" in question.input:
            return {**question.input, "title": question.input["title"].strip()}
        return Ask("unusual")

    def after_tool(self, ctx: HookContext[AppContext], question: AfterTool) -> str | None:
        outcome: ToolOutcome = question.outcome
        return question.result.upper() if outcome.status == "executed" else None

    def after_tools(self, ctx: HookContext[AppContext], question: AfterTools) -> None:
        print([call.name for call in question.calls], question.results)

    def after_answer(self, ctx: HookContext[AppContext], question: AfterAnswer) -> str:
        return f"{question.text} ({question.handled_by})"

    def on_finish(self, ctx: HookContext[AppContext], question: OnFinish) -> None:
        outcome: Outcome = question.outcome
        notes: tuple[Diagnostic, ...] = question.diagnostics
        print(outcome.status, outcome.error, outcome.origin, outcome.abort, notes)


class AsyncHooks(Extension[AppContext]):
    name = "async"
    lenient = True

    async def before_run(self, ctx: HookContext[AppContext], question: BeforeRun) -> RunPatch:
        await trio.lowlevel.checkpoint()
        run: Run = ctx.submit("afterwards", conversation_id="log")
        return RunPatch(instructions=f"{question.instructions} {run.id}")

    async def before_request(self, ctx: HookContext[AppContext], question: BeforeRequest) -> Sequence[Message] | None:
        return [*question.messages, Message("user", "please")] if question.role == "answer" else None

    async def around_model(
        self,
        ctx: HookContext[AppContext],
        question: AroundModel,
        call_next: Callable[..., Awaitable[ModelResponse]],
    ) -> ModelResponse:
        response = await call_next(ModelPatch(settings={"temperature": 0.0}, timeout=10.0))
        return attrs.evolve(response, message=Message("assistant", response.message.text.strip()))

    async def transform_stream(
        self, ctx: HookContext[AppContext], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent]:
        async for event in events:
            if isinstance(event, ModelText) and "secret" in event.text:
                await control.abort("secret", replacement="no")
            yield event

    async def after_response(self, ctx: HookContext[AppContext], question: AfterResponse) -> None:
        usage: Usage | None = question.usage
        print(usage, question.error, question.message)

    async def around_tool(
        self, ctx: HookContext[AppContext], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        return await call_next()

    async def before_fallback(self, ctx: HookContext[AppContext], question: BeforeFallback) -> FallbackRequest | Stop:
        if not ctx.context.can_write:
            return Stop("not to the cloud", "cloud-disabled")
        return attrs.evolve(question.request, summary="")

    async def before_remember(self, ctx: HookContext[AppContext], question: BeforeRemember) -> Memory | Skip | None:
        return Skip() if "secret" in question.exchange.ask else None

    async def on_error(self, ctx: HookContext[AppContext], question: OnError) -> None:
        if isinstance(question.error, RunAborted):
            print(question.error.cause, question.error.reason, question.error.phase)

    @asynccontextmanager
    async def lifespan(self, agent: Agent[AppContext]) -> AsyncIterator[None]:
        yield


class AnyContext(Extension):
    """An extension that does not look at the context may go without its type."""

    name = "any"

    def on_finish(self, ctx: HookContext, question: OnFinish) -> None:
        print(ctx.context, question.outcome.status)


# --- what an application brings -------------------------------------------------------------------------------------


class EchoModel:
    """A model of one's own."""

    name = "echo"
    window = 8192
    retries = 1

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        async def events() -> AsyncIterator[ModelEvent]:
            yield ModelText(request.text)
            yield ModelDone("stop")

        yield events()

    def count_tokens(self, text: str) -> int:
        return len(text)


@attrs.define
class WordCounter:
    """A token counter of one's own."""

    name: str = "words"
    exact: bool = False

    def count(self, text: str) -> int:
        return len(text.split())


@attrs.frozen
class FrozenCounter:
    name: str = "frozen"
    exact: bool = True

    def count(self, text: str) -> int:
        return len(text)


class NoteStore:
    """A store of one's own, in front of another."""

    durable = False

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    async def load(self, key: str) -> Record:
        return await self._inner.load(key)

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        return await self._inner.commit(key, change, expect, token)

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        return await self._inner.entries(key, before, after, limit, anchor)

    async def forget(self, key: str) -> None:
        await self._inner.forget(key)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        return await self._inner.keys(prefix, after, limit)

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        return await self._inner.find(key, idempotency_key)

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        return await self._inner.acquire(key, owner, ttl)

    async def release(self, key: str, owner: str) -> None:
        await self._inner.release(key, owner)


models: list[Model] = [
    EchoModel(),
    ScriptedModel(["text", {"kind": "answer"}, ValueError("x"), tool_calls(("add", {"a": 1})), lambda request: "x"]),
    OpenAIChat("qwen3:4b", base_url="http://127.0.0.1:11434/v1", api_key="", retries=1, settings={"seed": 1}),
]
counters: list[TokenCounter] = [EstimateCounter(), WordCounter(), FrozenCounter()]
stores: list[Store] = [
    InMemoryStore(),
    SqliteStore("chat.db", synchronous="NORMAL", busy_timeout=1.0),
    NoteStore(InMemoryStore()),
    FailingStore(InMemoryStore(), {"commit": [OSError("full"), None]}),
]


async def ask_the_user(request: ConfirmRequest) -> Confirmed:
    return Confirmed(request.tool.name != "delete" and "x" not in request.input, "because")


def yes(request: ConfirmRequest) -> bool:
    return True


async def cloud(request: FallbackRequest, ctx: Any) -> FallbackAnswer:
    return FallbackAnswer(f"{request.ask} {request.reason}")


async def current_facts() -> Mapping[str, str]:
    return {"day": "Monday"}


def on_event(event: Event) -> None:
    print(event.kind, event.run_id, event.seq, event.at)


class Weather(msgspec.Struct):
    city: str
    degrees: float


# --- agents ---------------------------------------------------------------------------------------------------------

plain = Agent(model=EchoModel())
typed: Agent[AppContext] = Agent(
    name="assistant",
    model=models[0],
    tools=[list_tasks, create_task, made_by_hand, bare_context],
    extensions=[SyncHooks(), AsyncHooks(), AnyContext(), Journal()],
    loop=Conductor(window=8192, max_steps=4, session_fallback=SessionFallback(after=2, probe_every=60)),
    instructions="Be exact.",
    facts=current_facts,
    examples=["weather -> read_weather", ("milk", "add_task")],
    confirm=ask_the_user,
    confirm_timeout=60,
    fallback=cloud,
    output=Weather,
    on_event=on_event,
    token_counter=WordCounter(),
)
inferred = Agent(model=models[0], extensions=[SyncHooks()], confirm=yes, fallback=HttpFallback("http://127.0.0.1:1"))
same: Agent[AppContext] = inferred
with_all = Agent(model=models[0], tools=[create_task], confirm=approve_all, token_counter="auto", facts={"a": "b"})


# --- runtime --------------------------------------------------------------------------------------------------------


def show(result: RunResult) -> tuple[str, str | None, float]:
    stopped: Stopped | None = result.stopped
    usage: Usage = result.usage
    steps: tuple[Step, ...] = result.steps
    print(stopped, usage + usage, [step.status for step in steps], result.diagnostics, result.responded)
    for event in check_events(result.trace):
        print(event.kind)
    return result.text, result.reason, usage.input_tokens


async def follow(run: Run) -> str:
    text = ""
    events: EventStream = run.events()
    already: Event | None = events.next_nowait()
    print(already)
    async for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, ToolFinished):
            print(event.tool, event.status, event.ms, event.input["title"])
        elif isinstance(event, PlanMade):
            print(event.plan_kind, event.tool)
    return text


def told(event: RunEvent) -> str:
    match event:
        case Answer(text=text):
            return text
        case RunFinished(status=status, usage=usage):
            return f"{status} {usage.output_tokens}"
        case _:
            return event.kind


async def use(context: AppContext) -> None:
    async with open_runtime(
        typed, plain, store=SqliteStore("chat.db"), max_running=100, mailbox_capacity=8, finish_timeout=5
    ) as runtime:
        result: RunResult = await runtime.run(
            "hi", conversation_id="u1", agent="assistant", context=context, timeout=30
        )
        show(result)
        run: Run = runtime.submit("and?", conversation_id="u1", agent=plain, when_busy="replace", on_event=on_event)
        async with runtime.stream("milk", conversation_id="u2", agent=typed, confirm=yes, output=Weather) as streamed:
            await follow(streamed)
            weather: Weather = (await streamed.wait()).output
        run.abort("enough")
        state: Literal["queued", "running", "finishing", "done"] = run.state
        outcome: Outcome | None = run.outcome
        try:
            await run.wait()
        except RunAborted as aborted:
            print(aborted.cause, aborted.reason)
        except RateLimited as limited:
            print(limited.retry_after, limited.status)
        except GoliathExtensionError as failed:
            print(failed.extension, failed.phase)
        conversation: Conversation = runtime.conversation("u1", agent="assistant")
        await conversation.run("hi", context=context, timeout=1.0, when_busy="refuse")
        status: ConversationStatus = conversation.status()
        memory: Memory = await conversation.memory()
        page: Page = await conversation.history(limit=10)
        conversation.abort("enough", queued=True)
        await conversation.forget()
        called: ToolOutcome = await runtime.invoke_tool("create_task", {"title": "milk"}, agent="assistant")
        report: DrainReport = await runtime.drain(5.0)
        counts: RuntimeStatistics = runtime.statistics()
        print(state, outcome, status, memory, page, called, report, counts, weather)


async def embed() -> None:
    async with trio.open_nursery() as nursery:
        runtime: Runtime = await nursery.start(serve_runtime, plain)
        other: Runtime = await nursery.start(partial(serve_runtime, plain, max_running=2, store=InMemoryStore()))
        try:
            runtime.submit("hi")
        except MailboxFull as full:
            print(full.scope, full.waiting, full.capacity)
        await runtime.drain(1)
        await other.drain(1)


async def hold(gate: Gate) -> None:
    ScriptedModel([gate.then("late")], chunk=4, usage=Usage(1, 2))
    await gate.wait_reached()
    gate.open()


# --- hooks by hand, as in a test of an extension --------------------------------------------------------------------

before_tool = BeforeTool(call_id="c1", tool=descriptor, input={"title": "milk"}, brief="", steps=())
before_run = BeforeRun(ask="hi", instructions="", facts={"day": "Monday"}, entry="run")
after_tool = AfterTool(
    call_id="c1", tool=descriptor, input={}, result="done", outcome=ToolOutcome("executed", output=1), steps=()
)
given: dict[str, Any] = before_tool.input
facts: dict[str, str] = before_run.facts
happened: ToolOutcome = after_tool.outcome


# --- what has to be an error ----------------------------------------------------------------------------------------


async def wrong(runtime: Runtime, result: RunResult, run: Run) -> None:
    Agent(modle=EchoModel())  # type: ignore[call-arg]
    Agent(model="qwen3:4b")  # type: ignore[arg-type]
    Agent(model=EchoModel(), extensions=[SyncHooks], confirm=yes)  # type: ignore[list-item]
    Stop("a stop must say why")  # type: ignore[call-arg]
    Deny()  # type: ignore[call-arg]
    result.text = "changed"  # type: ignore[misc]
    await runtime.run("hi", when_busy="never")  # type: ignore[arg-type]
    await runtime.run(7)  # type: ignore[arg-type]
    await runtime.conversation("u1").run("hi", conversation_id="u2")  # type: ignore[call-arg]
    runtime.run("a run that nobody waits for")  # type: ignore[unused-coroutine]
    for event in run.events():  # type: ignore[attr-defined]
        print(event)
    ToolOutcome("done")  # type: ignore[arg-type]
    mixed: Agent[OtherContext] = Agent(model=EchoModel(), extensions=[SyncHooks()])  # type: ignore[list-item]
    print(mixed)


class WrongAnswer(Extension[AppContext]):
    name = "wrong-answer"

    def after_answer(self, ctx: HookContext[AppContext], question: AfterAnswer) -> Deny:  # type: ignore[override]
        return Deny("an answer cannot be denied, only stopped")

    def before_tool(self, ctx: HookContext[AppContext], question: BeforeTool) -> None:
        print(ctx.context.nickname)  # type: ignore[attr-defined]
        print(question.arguments)  # type: ignore[attr-defined]


class WrongQuestion(Extension[AppContext]):
    name = "wrong-question"

    def on_finish(self, ctx: HookContext[AppContext], question: OnError) -> None:  # type: ignore[override]
        print(question.error)
