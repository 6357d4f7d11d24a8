"""How a policy keeps a run from asking a model, for both loops: it answers in the model's place and then stops the run.

No hook in front of a model call may stop a run, and an error there would be the extension's. So the model's place is
taken by a reply that leads the loop to its next gate, which stops.
"""

from __future__ import annotations

from typing import Any

from goliath_actors.abc import ModelResponse
from goliath_actors.hooks import AfterAnswer, AfterPlan, BeforeFallback, Extension, HookContext, Stop
from goliath_actors.values import Message, ToolCall

__all__ = ["Refusing"]

_STOP = "refused"


class Refusing(Extension[Any]):
    """Base of policies that may refuse a model call."""

    def _refuse_call(self, ctx: HookContext[Any], role: str, stop: Stop) -> ModelResponse:
        """Return a reply in the model's place. In any role but those that only tidy up, the run then stops."""
        if role in ("scribe", "compact"):
            # The answer is out already, or the history is fine as it is: blank leaves everything as it was.
            return ModelResponse(Message("assistant", ""), finish_reason="refused")
        ctx.state[_STOP] = stop
        if role == "plan":
            text = '{"kind": "answer", "brief": ""}'
        elif role == "arguments":
            text = '{"missing": "more calls of the model are not allowed now"}'
        elif role == "step":
            # A call and no text: there is nothing in it that others could show, or ask to have corrected.
            return ModelResponse(
                Message("assistant", "", [ToolCall("refused", "refused", "{}")]), finish_reason="refused"
            )
        else:
            text = stop.text
        return ModelResponse(Message("assistant", text), finish_reason="refused")

    def _refused(self, ctx: HookContext[Any]) -> Stop | None:
        stop: Stop | None = ctx.state.get(_STOP)
        return stop

    def after_plan(self, ctx: HookContext[Any], question: AfterPlan) -> Stop | None:
        """Stop a run whose model call was refused."""
        return self._refused(ctx)

    def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> Stop | None:
        """Stop a run whose model call was refused."""
        return self._refused(ctx)

    def before_fallback(self, ctx: HookContext[Any], question: BeforeFallback) -> Stop | None:
        """Stop a run whose model call was refused: what the device may not ask goes to nobody else either."""
        return self._refused(ctx)
