"""`Tracing`: spans for runs, model calls and tool calls, with OpenTelemetry's names for generative AI (extra `otel`).

A side door: built on the public hooks alone.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from goliath_actors.abc import ModelRequest, ModelResponse
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import (
    AfterResponse,
    AroundModel,
    AroundTool,
    BeforeFallback,
    BeforeRun,
    Extension,
    HookContext,
    OnFinish,
)
from goliath_actors.values import Message, Outcome, Usage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["Tracing", "trace_headers"]

# Names of the semantic conventions for generative AI, version 0.66b2, which are still incubating: copied as strings,
# since the package that has them moves them about. https://opentelemetry.io/docs/specs/semconv/gen-ai/
_SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}

# Any, below: the application's context, tools' outputs, and attributes of spans.


def trace_headers() -> dict[str, str]:
    """Return the headers (`traceparent` and others) that carry the current trace to another program.

    To be called where a request is made, inside a run that is traced: in a tool, or by an HTTP client's request hook.
    Returns nothing where nothing is traced.
    """
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


@final
class Tracing(Extension[Any]):
    """Makes a span of each run (`invoke_agent`), each attempt of a model call (`chat`) and each execution of a tool
    (`execute_tool`). Needs the extra `otel`; where no SDK is set up, the spans cost a few microseconds and go nowhere.

    A run's span is a child of what was current where the run was submitted; the spans of its calls are its children,
    and what tools and models do while they run finds theirs current. Register it first: then it surrounds what other
    extensions do, and sees the models that they choose.

    Spans that failed have `error.type`. Of a run that was aborted it is `RunAborted`, and `goliath.abort.cause` and
    `goliath.abort.phase` say more; of a call that was cut by that it is `cancelled`. What errors say is contents.

    Arguments:
      contents: also record prompts, replies, arguments and results, and what errors say. They may be anybody's secrets.
      provider: what `gen_ai.provider.name` says, such as "openai": a text, or a mapping from names of models. None
        leaves it out.
      tracer_provider: whose tracer to use; None takes the program's own, as it is when a span is made.
      name: the extension's name.

    Raises: `ConfigError`, also if the library is missing.
    """

    def __init__(
        self,
        *,
        contents: bool = False,
        provider: str | Mapping[str, str] | None = None,
        tracer_provider: TracerProvider | None = None,
        name: str = "tracing",
    ) -> None:
        if importlib.util.find_spec("opentelemetry") is None:
            raise ConfigError("Tracing needs the library opentelemetry-api: pip install '/path/to/clone[otel]'")
        from opentelemetry import trace

        if not isinstance(contents, bool):
            raise ConfigError(f"Tracing(contents=...) must be True or False, not {contents!r}")
        if provider is not None and not isinstance(provider, str | Mapping):
            raise ConfigError(f"Tracing(provider=...) must be a text or a mapping, not {provider!r}")
        from ._version import __version__

        self.name = name
        self._contents = contents
        self._provider = provider
        self._tracer = trace.get_tracer("goliath_actors", __version__, tracer_provider)

    # --- runs -------------------------------------------------------------------------------------------------------

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
        """A run began. A text that is handed in to it goes on under the same span."""
        if "run" in ctx.state:
            return
        from opentelemetry import context, trace

        span = ctx.state["run"] = self._start_run(ctx, None)
        # Never detached: the run's task has a copy of its submitter's context to itself, and it ends with the run.
        context.attach(trace.set_span_in_context(span))
        if self._contents and span.is_recording():
            span.set_attribute("gen_ai.input.messages", _json([_said("user", question.ask)]))

    def before_fallback(self, ctx: HookContext[Any], question: BeforeFallback) -> None:
        """The run is handed over; the application's own callable makes its own spans."""
        span = ctx.state.get("run")
        if span is not None:
            span.add_event("goliath.fallback", {"goliath.fallback.reason": question.request.reason})

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """The run is over, any way."""
        outcome = question.outcome
        span = ctx.state.pop("run", None)
        if span is None:  # it ended before it was ours: while it waited, or at the hand of an earlier extension
            queued = outcome.trace[0].at if outcome.trace else None
            span = self._start_run(ctx, queued)
        if span.is_recording():
            self._describe_end(span, outcome)
        span.end()

    def _start_run(self, ctx: HookContext[Any], at: float | None) -> Span:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": ctx.agent_name,
            "goliath.run.id": ctx.run_id,
            **_conversation(ctx),
        }
        start = None if at is None else int(at * 1_000_000_000)
        return self._tracer.start_span(f"invoke_agent {ctx.agent_name}", attributes=attributes, start_time=start)

    def _describe_end(self, span: Span, outcome: Outcome) -> None:
        span.set_attribute("goliath.run.status", outcome.status)
        span.set_attributes(_usage(outcome.usage))
        result = outcome.result
        if result is not None:
            span.set_attribute("goliath.run.handled_by", result.handled_by)
            reason = result.reason or (None if result.stopped is None else result.stopped.reason)
            if reason:
                span.set_attribute("goliath.run.reason", reason)
            if self._contents:
                span.set_attribute("gen_ai.output.messages", _json([_said("assistant", result.text)]))
        if outcome.abort is not None:
            span.set_attribute("goliath.abort.cause", outcome.abort.cause)
            span.set_attribute("goliath.abort.phase", outcome.abort.phase or "")
        if outcome.origin is not None:
            span.set_attribute("goliath.run.origin", outcome.origin)
        if outcome.error is not None:
            self._failed(span, outcome.error)

    # --- model calls ------------------------------------------------------------------------------------------------

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """One attempt of a model call."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(f"chat {question.model}".rstrip(), kind=SpanKind.CLIENT)
        recording = span.is_recording()
        if recording:
            span.set_attributes(self._request(ctx, question))
            ctx.state["chat"] = span
        response: ModelResponse = await self._inside(span, call_next)
        if recording:
            span.set_attribute("gen_ai.response.finish_reasons", [response.finish_reason])
            if self._contents:
                said = {**_message(response.message), "finish_reason": response.finish_reason}
                span.set_attribute("gen_ai.output.messages", _json([said]))
        span.end()
        return response

    def after_response(self, ctx: HookContext[Any], question: AfterResponse) -> None:
        """Which model it was in the end, since extensions further in may choose another, and what it used."""
        span = ctx.state.get("chat")
        if span is None:
            return
        if question.model:
            span.set_attribute("gen_ai.response.model", question.model)
        if question.usage is not None:
            span.set_attributes(_usage(question.usage))

    def _request(self, ctx: HookContext[Any], question: AroundModel) -> dict[str, Any]:
        request = question.request
        found: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": ctx.agent_name,
            "goliath.run.id": ctx.run_id,
            "goliath.model.role": request.role,
            "goliath.model.attempt": question.attempt,
            **_conversation(ctx),
        }
        provider = self._provider if isinstance(self._provider, str) else (self._provider or {}).get(question.model)
        if provider:
            found["gen_ai.provider.name"] = provider
        if question.model:
            found["gen_ai.request.model"] = question.model
        if request.max_output_tokens is not None:
            found["gen_ai.request.max_tokens"] = request.max_output_tokens
        for ours, theirs in _SETTINGS.items():
            value = request.settings.get(ours)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[theirs] = value
        if self._contents:
            found |= _prompt(request)
        return found

    # --- tool calls -------------------------------------------------------------------------------------------------

    async def around_tool(
        self, ctx: HookContext[Any], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        """One execution of a tool. Calls that are denied, declined or answered from the log are not executed."""
        span = self._tracer.start_span(f"execute_tool {question.tool.name}")
        recording = span.is_recording()
        if recording:
            span.set_attributes(
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": question.tool.name,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": question.call_id,
                    "goliath.run.id": ctx.run_id,
                    "goliath.tool.writes": question.tool.writes,
                    **_conversation(ctx),
                }
            )
            if self._contents:
                span.set_attribute("gen_ai.tool.call.arguments", _json(question.input))
        output = await self._inside(span, call_next)
        if recording and self._contents:
            span.set_attribute("gen_ai.tool.call.result", output if isinstance(output, str) else _json(output))
        span.end()
        return output

    # --- both -------------------------------------------------------------------------------------------------------

    async def _inside(self, span: Span, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Go on with `span` as the current one; it is ended here unless that comes to a result."""
        from opentelemetry import context, trace

        token = context.attach(trace.set_span_in_context(span))
        done = False
        try:
            output = await call_next()
            done = True
            return output
        except Exception as error:
            self._failed(span, error)
            span.end()
            done = True
            raise
        finally:
            context.detach(token)
            if not done:  # no exception is caught that is none of ours: what passes is a cancellation
                span.set_attribute("error.type", "cancelled")
                span.end()

    def _failed(self, span: Span, error: BaseException) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", type(error).__qualname__)
        if self._contents:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        else:
            span.set_status(Status(StatusCode.ERROR))


def _conversation(ctx: HookContext[Any]) -> dict[str, str]:
    return {} if ctx.conversation_id is None else {"gen_ai.conversation.id": ctx.conversation_id}


def _usage(usage: Usage) -> dict[str, int | bool]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        **({"goliath.usage.estimated": True} if usage.estimated else {}),
        **({"gen_ai.usage.cache_read.input_tokens": usage.cached_tokens} if usage.cached_tokens else {}),
        **({"gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else {}),
    }


# --- contents ---------------------------------------------------------------------------------------------------------


def _prompt(request: ModelRequest) -> dict[str, str]:
    system = [_text(message.text) for message in request.messages if message.role == "system"]
    rest = [_message(message) for message in request.messages if message.role != "system"]
    found = {"gen_ai.input.messages": _json(rest)}
    if system:
        found["gen_ai.system_instructions"] = _json(system)
    return found


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = [_text(message.text)] if message.text else []
    for call in message.tool_calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    return {"role": message.role, "parts": parts}


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [_text(text)]}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def _json(value: Sequence[Any] | Mapping[str, Any] | Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
