"""The door for clients that speak OpenAI's dialect: an agent is a model, and a request is an ask.

With a conversation's id (header `X-Conversation-Id`, or `metadata.conversation_id`) the ask is the last user's message:
what was said before is the server's own to know. Without one the request is a conversation of its own, made of all its
messages and forgotten when it is answered.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, Final, final

import attrs
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from goliath_actors import Agent, Run, RunResult
from goliath_actors.errors import RunAborted
from goliath_actors.events import Answer, Event, Retraction, TextDelta

from ._bodies import check_conversation_id, header_text, idempotency_key, read_json
from ._hosted import Asking, Hosted, Visitor
from ._hosting import Hosting
from ._problems import Problem, run_problem
from ._recovery import Recovery
from ._streams import PING, StreamResponse, while_connected
from ._wire import dumps

__all__ = ["Completions", "respond_error"]

# Any, in this room: JSON data.

MAX_MESSAGES: Final = 10_000
DONE: Final = b"data: [DONE]\n\n"

# The official clients ask again by themselves after some errors, and a run that failed may have had effects.
NO_RETRY: Final = {"x-should-retry": "false"}


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. Its content is a text, or parts of which only texts are taken."""

    role: Annotated[str, msgspec.Meta(min_length=1)]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream is to have beside its texts."""

    include_usage: bool | None = None


class ChatBody(msgspec.Struct, frozen=True):
    """A chat completion. Sampling is the agent's own, so its parameters are not looked at."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


@final
@attrs.define(eq=False)
class Completions:
    """The endpoints of the dialect."""

    hosting: Hosting
    recovery: Recovery

    async def get_models(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/models`: the agents."""
        await trio.lowlevel.checkpoint()
        return _respond({"object": "list", "data": [_model(agent) for agent in self.hosting.runtime.agents]})

    async def get_model(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/models/{model}`: one of them."""
        await trio.lowlevel.checkpoint()
        return _respond(_model(self._agent(request.path_params["model"])))

    async def post_completion(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/chat/completions`: ask."""
        config = self.hosting.config
        body = await read_json(request, ChatBody, config.max_body, config.body_timeout)
        agent = self._agent(body.model)
        _check(body)
        named = header_text(request, "x-conversation-id") or (body.metadata or {}).get("conversation_id")
        fresh = named is None
        conversation_id = f"chatcmpl-{secrets.token_hex(12)}" if named is None else check_conversation_id(named)
        asking = Asking(
            visitor,
            agent,
            conversation_id,
            _whole(body.messages) if fresh else _last(body.messages),
            idempotency_key=None if fresh else idempotency_key(request),
            asks_client=False,
        )
        await self.recovery.touch(asking.key)
        hosted, again = await self.hosting.start(asking)
        if isinstance(hosted, str):
            raise Problem("conflict", "the run of this Idempotency-Key ended too long ago to be told again")
        if fresh:
            self.hosting.nursery.start_soon(self._forget, hosted)
        # A header is told in UTF-8, as it is read; Starlette would write Latin-1, and fail at most alphabets.
        named_back = conversation_id.encode("utf-8", "replace").decode("latin-1")
        headers = {"x-run-id": hosted.id, "x-conversation-id": named_back}
        left: Callable[[], None] = (lambda: None) if again else hosted.leave
        if body.stream:
            usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return StreamResponse(lambda: self._chunks(hosted, agent, usage), headers, left)
        complete = False
        try:
            complete = await while_connected(request, hosted.over.wait)
        finally:
            if not complete:
                left()
        result = _result(hosted.run)
        if result is None:
            status, error = self._failed(hosted)
            return _respond({"error": error}, status, {**headers, **NO_RETRY})
        message = {"role": "assistant", "content": result.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        shape = _shape(hosted, agent, "chat.completion", [choice])
        return _respond({**shape, "usage": _usage(hosted.run)}, 200, headers)

    # --- the run in the dialect -------------------------------------------------------------------------------------

    async def _chunks(self, hosted: Hosted, agent: Agent[Any], with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it comes.

        Cancellation: the run is untouched.
        """

        def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            return _data(_shape(hosted, agent, "chat.completion.chunk", [choice]))

        yield chunk({"role": "assistant", "content": ""})
        shown = _Shown()
        feed = self.hosting.feed(hosted)
        while (events := await feed.take()) is not None:
            text = "".join([shown.more(event) for event in events])
            if text:
                yield chunk({"content": text})
            elif not events:
                yield PING
        if _result(hosted.run) is None:
            _, error = self._failed(hosted)
            yield _data({"error": error})
            return
        yield chunk({}, "content_filter" if shown.withdrawn else "stop")
        if with_usage:
            yield _data({**_shape(hosted, agent, "chat.completion.chunk", []), "usage": _usage(hosted.run)})
        yield DONE

    def _failed(self, hosted: Hosted) -> tuple[int, dict[str, Any]]:
        outcome = hosted.run.outcome
        error = None if outcome is None else outcome.error
        told = run_problem(error, self.hosting.config.shows_errors)
        aborted = isinstance(error, RunAborted)
        status = 503 if aborted else 500
        return status, {
            "message": told["detail"],
            "type": "server_error",
            "param": None,
            "code": "run_aborted" if aborted else "run_failed",
        }

    async def _forget(self, hosted: Hosted) -> None:
        """Forget a conversation that was one request."""
        await hosted.kept.wait()
        if hosted.run.outcome is not None and not self.hosting.draining:
            asking = hosted.asking
            try:
                conversation = self.hosting.runtime.conversation(asking.inner_id, asking.agent)
                await self.hosting.forget(conversation, asking.key)
            except Exception as error:  # noqa: BLE001  # a store's; what is left is a conversation more in the list
                self.hosting.note(f"{asking.conversation_id} could not be forgotten", error)

    def _agent(self, name: str) -> Agent[Any]:
        for agent in self.hosting.runtime.agents:
            if agent.name == name:
                return agent
        raise Problem("not-found", f"there is no model {name!r}; GET /v1/models lists them", field="model")


@attrs.define(eq=False)
class _Shown:
    """The text that a client of this dialect has before it: nothing can be taken back there."""

    text: str = ""
    withdrawn: bool = False

    def more(self, event: Event) -> str:
        """Return what an event adds: a text that takes another's place follows it, behind a blank line."""
        if isinstance(event, TextDelta):
            self.text += event.text
            return event.text
        if not isinstance(event, Answer | Retraction):
            return ""
        if event.text.startswith(self.text):
            added, self.text = event.text[len(self.text) :], event.text
            return added
        self.withdrawn = True
        self.text = event.text
        return f"\n\n{event.text}" if event.text else ""


def _result(run: Run) -> RunResult | None:
    return None if run.outcome is None else run.outcome.result


def _shape(hosted: Hosted, agent: Agent[Any], kind: str, choices: list[Any]) -> dict[str, Any]:
    created = int(hosted.started_at)
    return {"id": f"chatcmpl-{hosted.id}", "object": kind, "created": created, "model": agent.name, "choices": choices}


def _usage(run: Run) -> dict[str, Any]:
    assert run.outcome is not None
    usage = run.outcome.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _model(agent: Agent[Any]) -> dict[str, Any]:
    return {"id": agent.name, "object": "model", "created": 0, "owned_by": "goliath_actors"}


def _check(body: ChatBody) -> None:
    """Refuse what would be answered in another way than it is meant."""
    if body.n not in (None, 1):
        raise Problem("invalid", "there is one answer to an ask", field="n")
    if body.tools:
        raise Problem("invalid", "an agent has its own tools; leave them out", field="tools")
    if body.response_format is not None and body.response_format.get("type", "text") != "text":
        raise Problem("invalid", "an agent has its own form of answers; leave it out", field="response_format")


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts: list[str] = []
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Problem("invalid", "only parts of type text are understood", field=f"messages[{index}].content")
        texts.append(part["text"])
    return "".join(texts)


def _last(messages: list[ChatMessage]) -> str:
    """Return the last user's message."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            return _checked(_text(messages[index], index))
    raise Problem("invalid", "there is no message of the role user", field="messages")


_NAMES: Final = {"system": "Instructions", "developer": "Instructions", "user": "User", "assistant": "Assistant"}


def _whole(messages: list[ChatMessage]) -> str:
    """Return all messages as one ask; a single one as it is."""
    last = _last(messages)
    told = [(_NAMES.get(one.role, "Tool"), _text(one, index)) for index, one in enumerate(messages)]
    if len(told) == 1:
        return last
    position = max(index for index, one in enumerate(messages) if one.role == "user")
    before = [f"{name}: {text}" for index, (name, text) in enumerate(told) if index != position and text]
    if not before:
        return last
    return _checked("Before this:\n\n" + "\n\n".join(before) + f"\n\nNow the user says:\n\n{last}")


def _checked(text: str) -> str:
    if not text.strip():
        raise Problem("invalid", "the user's message is blank", field="messages")
    return text


def _data(data: Any) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"


def _respond(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(data), status, headers, "application/json")


_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def respond_error(problem: Problem, instance: str) -> Response:
    """Return a problem in the dialect."""
    known = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {"message": problem.detail, "type": known, "param": problem.field, "code": problem.kind.replace("-", "_")}
    return _respond({"error": error}, problem.status, problem.headers)
