"""Metrics of a runtime for Prometheus: runs, waits, models, tools, tokens, hooks, HTTP requests. Needs the extra `web`.

Built on the public API: a callback that hears events, and extensions that hear ends. Whatever users, models or clients
may invent (tool names, addresses, reasons) never becomes a label: the number of series is bounded by the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

import attrs
import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from goliath_actors import Agent, Extension, Runtime
from goliath_actors.events import (
    Confirm,
    Escalate,
    MemoryError,
    ModelFinished,
    RunFinished,
    RunQueued,
    RunStarted,
    TextDelta,
    ToolFinished,
)
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.values import Outcome

__all__ = ["CONTENT_TYPE", "HttpMetrics", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Upper bounds in seconds. A chat's times lie between a cached reply and a long chain of tools.
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Hooks are to be quick: their time is everybody's.
_QUICK: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
# Values of one label of one agent: names of tools that come and go (MCP), or reasons of extensions, are cut off here.
LABELS: Final = 64
OTHER: Final = "(other)"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Rows whose hooks are asked one after another, in the order of registration: between the first extension and the last
# lies the time of all others.
TIMED: Final = (
    "before_run",
    "before_plan",
    "before_request",
    "after_plan",
    "before_tool",
    "after_tool",
    "after_answer",
    "on_finish",
)


@attrs.define(eq=False)
class _Going:
    """A run that is not over. Times are on trio's clock."""

    conversation: tuple[str, str | None]
    queued: float
    started: float | None = None
    answered: bool = False
    # When a row was asked first, while it is being asked.
    asked: dict[str, float] = attrs.Factory(dict)


@final
class Metrics:
    """What one process has done since it began. One object a runtime.

        metrics = Metrics()
        async with open_runtime(*[metrics.watch(agent) for agent in agents]) as runtime:
            metrics.collect(runtime)
            ...
            body = metrics.text()  # for GET /metrics, as CONTENT_TYPE

    Arguments:
      registry: where the metrics are registered; the default is one of their own, so that nothing of the process (and
        no second runtime) is mixed in.
      hooks: whether the time of hooks is measured, too. That asks two more hooks in each row of each step: most of what
        metrics cost.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, hooks: bool = True) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._times_hooks = hooks
        self._going: dict[str, _Going] = {}
        self._busy: dict[tuple[str, str | None], int] = {}
        self._runtime: Runtime | None = None
        self._seen: dict[tuple[str, str], set[str]] = {}
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._runs = counter("goliath_runs", "Runs that are over", ["agent", "status", "reason"])
        self._wait = histogram(
            "goliath_run_wait_seconds", "From acceptance to the turn of a run", ["agent"], buckets=_SECONDS
        )
        self._run = histogram(
            "goliath_run_seconds", "From the turn of a run to its end", ["agent", "status"], buckets=_SECONDS
        )
        self._first = histogram(
            "goliath_first_delta_seconds", "From acceptance to the first text of an answer", ["agent"], buckets=_SECONDS
        )
        self._model = histogram(
            "goliath_model_call_seconds", "Attempts of model calls", ["agent", "role", "ended"], buckets=_SECONDS
        )
        self._tool = histogram(
            "goliath_tool_seconds", "Execution of tools alone", ["agent", "tool", "status"], buckets=_SECONDS
        )
        self._hooks = histogram(
            "goliath_hook_seconds", "All hooks of a row, each time it is asked", ["agent", "hook"], buckets=_QUICK
        )
        self._tokens = counter("goliath_tokens", "Tokens of runs that are over", ["agent", "kind"])
        self._confirms = counter("goliath_confirmations", "Calls that were decided on", ["agent", "approved"])
        self._escalations = counter("goliath_escalations", "The loop gave up on its model", ["agent", "reason"])
        self._unsaved = counter("goliath_memory_errors", "Memory that could not be saved", ["agent"])
        self.registry.register(_Gauges(self))

    def watch(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the agent, watched: its callback is called as before, after ours, and its extensions have ours around
        them. Agents that are its tools are watched on their own: give them too, each watched."""
        inner = agent.extensions
        extensions: Sequence[Extension[Any]] = (_Ends(self, agent.name), *inner)
        if self._times_hooks and inner:
            extensions = (_First(self, agent.name), *inner, _Last(self, agent.name))
        hear, then = partial(self._hear, agent.name), agent.on_event
        return agent.replace(extensions=extensions, on_event=hear if then is None else _both(hear, then))

    def collect(self, runtime: Runtime) -> None:
        """Show the gauges of this runtime from now on."""
        self._runtime = runtime

    def text(self) -> bytes:
        """Return everything in Prometheus' text format, as `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def http(self) -> HttpMetrics:
        """Return what counts HTTP requests, for `HttpMetrics.wrap`. Call it once."""
        return HttpMetrics(self.registry)

    # --- what is heard ----------------------------------------------------------------------------------------------

    def _hear(self, agent: str, event: Any) -> None:
        # Most events are deltas: they are looked at first.
        if isinstance(event, TextDelta):
            going = self._going.get(event.run_id)
            if going is not None and not going.answered:
                going.answered = True
                self._first.labels(agent).observe(trio.current_time() - going.queued)
        elif isinstance(event, ModelFinished):
            ended = "ok" if event.error is None else "error"
            self._model.labels(agent, event.role, ended).observe(event.seconds)
        elif isinstance(event, ToolFinished):
            tool = self._bounded(agent, "tool", event.tool)
            self._tool.labels(agent, tool, event.status).observe(event.ms / 1000)
        elif isinstance(event, RunQueued):
            conversation = agent, event.conversation_id
            self._going[event.run_id] = _Going(conversation, trio.current_time())
            self._busy[conversation] = self._busy.get(conversation, 0) + 1
        elif isinstance(event, RunStarted):
            going = self._going.get(event.run_id)
            if going is not None:
                going.started = trio.current_time()
                self._wait.labels(agent).observe(going.started - going.queued)
        elif isinstance(event, RunFinished):
            self._over(agent, event)
        elif isinstance(event, Confirm):
            self._confirms.labels(agent, "yes" if event.approved else "no").inc()
        elif isinstance(event, Escalate):
            self._escalations.labels(agent, self._bounded(agent, "escalation", event.reason)).inc()
        elif isinstance(event, MemoryError):
            self._unsaved.labels(agent).inc()

    def _over(self, agent: str, event: RunFinished) -> None:
        going = self._going.pop(event.run_id, None)
        if going is None:
            return
        left = self._busy.pop(going.conversation) - 1
        if left:
            self._busy[going.conversation] = left
        if going.started is not None:
            self._run.labels(agent, event.status).observe(trio.current_time() - going.started)
        usage = event.usage
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self._tokens.labels(agent, kind).inc(tokens)

    def _ended(self, agent: str, outcome: Outcome) -> None:
        reason = self._bounded(agent, "reason", _reason(outcome))
        self._runs.labels(agent, outcome.status, reason).inc()

    def _asked(self, run_id: str, hook: str) -> None:
        going = self._going.get(run_id)
        if going is not None:
            going.asked[hook] = trio.current_time()

    def _answered(self, agent: str, run_id: str, hook: str) -> None:
        going = self._going.get(run_id)
        began = None if going is None else going.asked.pop(hook, None)
        if began is not None:
            self._hooks.labels(agent, hook).observe(trio.current_time() - began)

    def _bounded(self, agent: str, label: str, value: str) -> str:
        seen = self._seen.setdefault((agent, label), set())
        if value not in seen:
            if len(seen) >= LABELS:
                return OTHER
            seen.add(value)
        return value


def _reason(outcome: Outcome) -> str:
    """Return why a run ended so, in a word that no user chose; empty where there is nothing to say."""
    if outcome.abort is not None and outcome.status == "aborted":
        return outcome.abort.cause
    if outcome.status == "error":
        return outcome.origin or ""
    result = outcome.result
    if result is None:
        return ""
    if result.stopped is not None:
        return result.stopped.extension
    if result.waiting:
        return "waiting"
    if result.responded is not None:
        return result.responded.extension
    return result.reason or ""


def _both(first: Callable[[Any], object], then: Callable[[Any], object]) -> Callable[[Any], None]:
    def hear(event: Any) -> None:
        first(event)
        then(event)

    return hear


class _Ends(Extension[Any]):
    """Hears ends, before all others."""

    name = "goliath-metrics"

    def __init__(self, metrics: Metrics, agent: str) -> None:
        self._metrics = metrics
        self._agent = agent

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """Count the end."""
        self._metrics._asked(ctx.run_id, "on_finish")
        self._metrics._ended(self._agent, question.outcome)


class _First(_Ends):
    """Asked before all others."""


class _Last(Extension[Any]):
    """Asked after all others."""

    name = "goliath-metrics-last"

    def __init__(self, metrics: Metrics, agent: str) -> None:
        self._metrics = metrics
        self._agent = agent


def _opens(row: str) -> Any:
    def hook(self: _First, ctx: HookContext[Any], question: Any) -> None:
        self._metrics._asked(ctx.run_id, row)

    hook.__name__, hook.__doc__ = row, "Note when the row is asked."
    return hook


def _closes(row: str) -> Any:
    def hook(self: _Last, ctx: HookContext[Any], question: Any) -> None:
        self._metrics._answered(self._agent, ctx.run_id, row)

    hook.__name__, hook.__doc__ = row, "Note when the row was asked."
    return hook


for _row in TIMED:
    if _row != "on_finish":
        setattr(_First, _row, _opens(_row))
    setattr(_Last, _row, _closes(_row))


class _Gauges:
    """What is read off when somebody looks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield what there is now. Called by the registry."""
        runtime = self._metrics._runtime
        if runtime is None:
            return
        counts, busy = runtime.statistics(), len(self._metrics._busy)
        yield GaugeMetricFamily("goliath_runs_running", "Runs that have their turn", value=counts.running)
        yield GaugeMetricFamily("goliath_runs_waiting", "Accepted runs that wait for their turn", value=counts.waiting)
        conversations = GaugeMetricFamily("goliath_conversations", "Conversations in memory", labels=["state"])
        conversations.add_metric(["live"], busy)
        conversations.add_metric(["idle"], max(0, counts.conversations - busy))
        yield conversations


@final
class HttpMetrics:
    """Counts HTTP requests of an ASGI application. Made by `Metrics.http`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "goliath_http_requests", "Requests that were answered", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "goliath_http_request_seconds",
            "From a request to the end of its response, streams included",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._open = 0
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield what there is now. Called by the registry."""
        yield GaugeMetricFamily("goliath_http_requests_open", "Requests that are being answered", value=self._open)

    def wrap(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """Return the ASGI application `app`, counted. Fits `Starlette.add_middleware`."""

        async def counted(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status, began = "none", trio.current_time()  # no response at all: the client has left, or the app failed

            async def answer(message: Mapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            self._open += 1
            try:
                await app(scope, receive, answer)
            finally:
                self._open -= 1
                route = _route(scope)
                method = scope["method"] if scope["method"] in _METHODS else OTHER
                self._requests.labels(method, route, status).inc()
                self._seconds.labels(route).observe(trio.current_time() - began)

        return counted


def _route(scope: Mapping[str, Any]) -> str:
    """Return the address with names of parameters in place of what a client wrote; `(none)` where nothing is."""
    if "endpoint" not in scope:
        return "(none)"
    root: str = scope.get("root_path", "")
    parameters = {str(value): name for name, value in scope.get("path_params", {}).items()}
    if "path" in parameters.values():  # of a mounted folder: whatever lies below it
        return f"{root}/{{path}}"
    path: str = scope["path"].removeprefix(root)
    for value, name in parameters.items():
        if "/" in value:  # one that may have slashes is the address's last
            path = f"{path.removesuffix(value)}{{{name}}}"
    parts = path.split("/")
    return root + "/".join(f"{{{parameters[part]}}}" if part in parameters else part for part in parts)
