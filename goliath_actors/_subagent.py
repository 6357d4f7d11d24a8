"""An agent as a tool of another one: what it is asked, how its run ended, and the words for that (T14).

Used by `Agent.as_tool`. The agent is known by its name alone here; the runtime knows what to do with it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, final

import attrs

from ._frozen import thaw
from ._json import snapshot
from ._text import clip
from ._tool_words import Delegating
from .errors import AgentFailed, ConfigError, ReentrantRun
from .tools import Tool, ToolContext
from .values import Outcome, SubAgentOutcome, Waiting

__all__ = ["Delegate", "Named", "agent_tool"]

ID_CHARS = 512  # R1
REASON_CHARS = 160

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "ask": {"type": "string", "minLength": 1, "description": "What it is to do, with all it must know."}
    },
    "required": ["ask"],
    "additionalProperties": False,
}

# Any, below: JSON data, the application's context, and what it answers to a question.
ConversationId: TypeAlias = "str | Callable[..., Any] | None"


class Named(Protocol):
    """An agent, as far as this room knows it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


@final
@attrs.frozen(eq=False)
class Delegate:
    """What the tool executes: one run of the agent, as a child of the run that calls it."""

    agent: Named
    conversation_id: ConversationId = None

    async def __call__(self, input: dict[str, Any], ctx: ToolContext[Any]) -> SubAgentOutcome:
        """Ask the agent, or, where the call had waited for a person, take its run up with the answer.

        Raises: `AgentFailed` if the run failed or was aborted; what refuses an ask.

        Cancellation: aborts the child and waits for its observers.
        """
        runtime = ctx._delegating
        if runtime is None:
            raise ConfigError(f"the agent {self.agent.name!r} can be asked only inside a runtime")
        if ctx._answers:
            return await self._take_up(ctx, runtime)
        conversation_id = await self._named(input, ctx)
        return await self._ask(ctx, runtime, conversation_id, input["ask"], None)

    async def _named(self, input: dict[str, Any], ctx: ToolContext[Any]) -> str:
        """Return the id of the conversation: a new one for each call, unless the application says another."""
        if self.conversation_id is None:
            own = f"{ctx.run_id}.{ctx.call_id}"
            parent = "" if ctx.conversation_id is None else f"{ctx.conversation_id}/"
            whole = parent + own
            if len(whole) <= ID_CHARS:
                return whole
            # Beyond what an id may have, it only has to stay one of its own: a run's id is unique.
            digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
            return f"{ctx.run_id}.{digest}"
        answer: Any = self.conversation_id
        if callable(answer):
            answer = answer(ctx, input)
            if inspect.isawaitable(answer):
                answer = await answer
        if not isinstance(answer, str):
            raise ConfigError(f"as_tool(conversation_id=...) must give a string, not {type(answer).__name__}")
        return answer

    async def _ask(
        self,
        ctx: ToolContext[Any],
        runtime: Delegating,
        conversation_id: str,
        ask: str,
        answers: Mapping[str, Any] | None,
    ) -> SubAgentOutcome:
        while True:
            try:
                run_id, outcome = await runtime.delegate(self.agent, conversation_id, ask, ctx.context, answers)
            except ReentrantRun as error:
                text = f"The agent {self.agent.name!r} cannot be asked here: it waits for this run itself."
                raise AgentFailed(text) from error
            found = self._found(conversation_id, run_id, outcome)
            if found.status in ("error", "aborted"):
                raise AgentFailed(_words(found), found) from found.error
            if found.status != "waiting" or ctx._suspend is None:  # a planned run cannot wait: it is told so
                return found
            answers = await self._answers(ctx, _payload(found))

    def _found(self, conversation_id: str, run_id: str, outcome: Outcome) -> SubAgentOutcome:
        result = outcome.result
        status: Literal["completed", "stopped", "error", "aborted", "waiting"] = outcome.status
        if result is not None and result.waiting:
            status = "waiting"
        writes = any(step.writes and step.status in ("executed", "unknown") for step in outcome.steps)
        if result is None:
            reason = outcome.abort.cause if outcome.abort is not None else type(outcome.error).__name__
            return SubAgentOutcome(
                self.agent.name, conversation_id, run_id, status, reason=reason, error=outcome.error,
                usage=outcome.usage, wrote=writes,
            )  # fmt: skip
        reason = result.stopped.reason if result.stopped is not None else (result.reason or "")
        return SubAgentOutcome(
            self.agent.name, conversation_id, run_id, status, result.text, result.output, reason, None,
            result.waiting, result.usage, writes,
        )  # fmt: skip

    # --- waiting (T8) -----------------------------------------------------------------------------------------------

    async def _answers(self, ctx: ToolContext[Any], payload: dict[str, Any]) -> Mapping[str, Any]:
        """Let the calling run wait for what its child waits for, until the answers are some that it can be given."""
        while True:
            answer = await ctx.suspend(payload)
            known = [call["call_id"] for call in payload["waiting"]]
            if isinstance(answer, Mapping) and answer and all(name in known for name in answer):
                return {str(name): value for name, value in answer.items()}
            if len(known) == 1 and not isinstance(answer, Mapping):
                return {known[0]: answer}
            problem = f"the answer must be a mapping of {', '.join(map(repr, known))} to answers"
            payload = {**payload, "problem": problem}

    async def _take_up(self, ctx: ToolContext[Any], runtime: Delegating) -> SubAgentOutcome:
        """Go on in an episode that has answers; earlier episodes have seen to those before the last one."""
        asked = thaw(ctx._asked) if isinstance(ctx._asked, Mapping) else {}
        conversation_id, waiting = asked.get("conversation_id"), asked.get("waiting")
        if not isinstance(conversation_id, str) or not isinstance(waiting, list):
            raise ConfigError(f"what the agent {self.agent.name!r} waits for cannot be read any more")
        for _ in ctx._answers[:-1]:
            await ctx.suspend(asked)
        return await self._ask(ctx, runtime, conversation_id, "", await self._answers(ctx, asked))


def agent_tool(
    agent: Named,
    *,
    name: str | None,
    description: str | None,
    conversation_id: ConversationId,
    writes: bool,
    confirm: bool | None,
    sequential: bool,
    timeout: float | None,
    output_mode: Literal["summary", "content"],
) -> Tool:
    """Make the tool.

    Raises: `ConfigError`.
    """
    named = isinstance(conversation_id, str) and conversation_id.strip() and len(conversation_id) <= ID_CHARS
    if not (named or conversation_id is None or callable(conversation_id)):
        raise ConfigError(
            "as_tool(conversation_id=...) must be a string with text in it, a callable (ctx, input) that gives "
            f"one, or None for a new conversation each call, not {conversation_id!r}"
        )
    return Tool(
        name=re.sub(r"\s+", "_", agent.name.strip()) if name is None else name,
        description=f"Ask the agent {agent.name!r} and get its answer." if description is None else description,
        parameters=SCHEMA,
        execute=Delegate(agent, conversation_id),
        to_model_output=_words,
        writes=writes,
        confirm=confirm,
        sequential=sequential,
        timeout=timeout,
        output_mode=output_mode,
    )


# --- words ----------------------------------------------------------------------------------------------------------


def _payload(found: SubAgentOutcome) -> dict[str, Any]:
    return {
        "agent": found.agent,
        "conversation_id": found.conversation_id,
        "run_id": found.run_id,
        "text": found.text,
        "waiting": [_asked(call) for call in found.waiting],
    }


def _asked(call: Waiting) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "input": thaw(call.input),
        "kind": call.kind,
        "payload": snapshot(call.payload),
    }


def _words(found: SubAgentOutcome) -> str:
    """Say how the child's run ended. Its errors stay with the server: the model is told their types (T5)."""
    who, text = f"The agent {found.agent!r}", found.text.strip()
    reason = clip(found.reason.strip(), REASON_CHARS)
    if found.status == "completed" and not reason:
        return found.text if text else f"{who} had nothing to say."
    said = f" It said: {text}" if text else ""
    if found.status == "completed":
        return f"{who} could not finish ({reason}).{said}"
    if found.status == "stopped":
        return f"{who} was stopped{f' ({reason})' if reason else ''}.{said}"
    if found.status == "waiting":
        calls = ", ".join(f"{call.kind} for {call.tool}" for call in found.waiting)
        return f"{who} waits for a person ({calls}), and this run cannot wait with it.{said}"
    effect = " It had changed something before: look before asking it again." if found.wrote else ""
    if found.status == "aborted":
        return f"{who} was ended before it answered ({reason}).{effect}"
    return f"{who} failed ({reason}, run {found.run_id}).{effect}"
