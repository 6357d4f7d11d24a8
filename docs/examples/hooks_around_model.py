"""`around_model`, `before_request` and `after_response`: the three ways to stand beside a model call."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from goliath_actors import Agent, Extension, Message, open_runtime
from goliath_actors.abc import ModelResponse
from goliath_actors.hooks import AfterResponse, AroundModel, BeforeRequest, HookContext, ModelPatch
from goliath_actors.testing import ScriptedModel


class BigWords(Extension[None]):
    """Answers come from a larger model; planning stays with the small one."""

    name = "big-words"

    def __init__(self, larger: ScriptedModel) -> None:
        self._larger = larger

    async def around_model(
        self, ctx: HookContext[None], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        if question.request.role == "answer":
            return await call_next(ModelPatch(model=self._larger, settings={"temperature": 0.2}, timeout=30))
        return await call_next()


class NoNumbers(Extension[None]):
    """Changes what is sent, for this request only."""

    name = "no-numbers"

    def before_request(self, ctx: HookContext[None], question: BeforeRequest) -> tuple[Message, ...]:
        return tuple(attrs.evolve(m, text=m.text.replace("4711", "(a number)")) for m in question.messages)


class Bill(Extension[None]):
    name = "bill"

    def after_response(self, ctx: HookContext[None], question: AfterResponse) -> None:
        assert question.usage is not None
        print("bill:", question.role, question.usage.output_tokens)


small = ScriptedModel([])
large = ScriptedModel(["Your number is safe with me."], name="large")
agent = Agent(model=small, extensions=[BigWords(large), NoNumbers(), Bill()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        print((await runtime.run("My number is 4711.")).text)
    request = large.requests[0]
    print("4711" in request.text, dict(request.settings), len(small.requests))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   bill: answer 9
#   Your number is safe with me.
#   False {'temperature': 0.2} 0
