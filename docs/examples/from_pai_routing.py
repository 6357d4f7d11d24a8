"""From PAI: another model for one step, and another one for one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from goliath_actors import Agent, Extension, ToolLoop, open_runtime
from goliath_actors.abc import ModelResponse
from goliath_actors.errors import ModelUnavailable
from goliath_actors.hooks import AroundModel, BeforePlan, HookContext, ModelPatch, PlanPatch
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Account:
    plan: str


small = ScriptedModel(["A short one.", ModelUnavailable("connection refused")], name="small")
large = ScriptedModel(["A very good draft."], name="large")
spare = ScriptedModel(["From the spare one."], name="spare")


class LargeDrafts(Extension[Account]):
    name = "large-drafts"

    def before_plan(self, ctx: HookContext[Account], question: BeforePlan) -> PlanPatch | None:
        if ctx.context.plan == "enterprise" and "draft" in question.ask:
            return PlanPatch(
                model=large,
                # With a model, a patch begins afresh: nothing of the old one's settings is carried over.
                settings={"temperature": 0.2, "max_tokens": 8_000},
                provider_options={"reasoning_effort": "medium"},
            )
        return None  # the next step starts from the agent's own model again


class Spare(Extension[Account]):
    """Tries another model where the first one fails before any text is out."""

    name = "spare"

    async def around_model(
        self, ctx: HookContext[Account], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        try:
            return await call_next(ModelPatch(timeout=10))
        except ModelUnavailable:
            return await call_next(ModelPatch(model=spare))


agent = Agent(model=small, extensions=[LargeDrafts(), Spare()], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for plan in ("free", "enterprise"):
            print(plan, "|", (await runtime.run("Write a draft.", context=Account(plan))).text)
        print("free |", (await runtime.run("And now?", context=Account("free"))).text)
    request = large.requests[0]
    print(dict(request.settings), dict(request.provider_options))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   free | A short one.
#   enterprise | A very good draft.
#   free | From the spare one.
#   {'temperature': 0.2, 'max_tokens': 8000} {'reasoning_effort': 'medium'}
