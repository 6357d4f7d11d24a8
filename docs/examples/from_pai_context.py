"""From PAI: a moving window over the history, another step after a draft, and metadata beside a rewrite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from goliath_actors import Agent, Extension, Message, ToolLoop, open_runtime
from goliath_actors.hooks import (
    AfterRewrite,
    AfterStep,
    BeforeRewrite,
    HookContext,
    MetadataPatch,
    NextStep,
    ResolveContext,
)
from goliath_actors.testing import ScriptedModel


class Recent(Extension[Any]):
    name = "recent"

    async def resolve_context(
        self, ctx: HookContext[Any], question: ResolveContext, call_next: Callable[..., Awaitable[tuple[Message, ...]]]
    ) -> tuple[Message, ...]:
        return (await call_next())[-3:]  # what extensions behind this one make of it, or all there is


class Verify(Extension[Any]):
    name = "verify"

    def after_step(self, ctx: HookContext[Any], question: AfterStep) -> NextStep | None:
        return NextStep() if question.step.text.startswith("Draft") else None


class Reconcile(Extension[Any]):
    name = "reconcile"

    def before_rewrite(self, ctx: HookContext[Any], question: BeforeRewrite) -> MetadataPatch:
        return MetadataPatch(metadata={"rewritten": question.kind}, private={"cursor": None})

    def after_rewrite(self, ctx: HookContext[Any], question: AfterRewrite) -> None:
        print("rewritten:", question.kind)


model = ScriptedModel(["One.", "Two.", "Draft: three.", "Three, checked.", "Three, once more."])
agent = Agent(model=model, extensions=[Recent(), Verify(), Reconcile()], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        for ask in ("first", "second", "third"):
            print((await talk.run(ask)).text)
        print([message.text for message in model.requests[2].messages if message.role != "system"])
        print((await talk.rewrite("regenerate")).text)
        print([entry.message.text for entry in (await talk.history()).entries][-2:])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   One.
#   Two.
#   Three, checked.
#   ['second', 'Two.', 'third']
#   rewritten: regenerate
#   Three, once more.
#   ['third', 'Three, once more.']
