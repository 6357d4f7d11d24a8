"""`on_finish`: once for every accepted run, however it ended. The place for clean-up and for counting."""

from collections import Counter

import trio
import trio.lowlevel

from goliath_actors import Agent, Extension, RunAborted, open_runtime
from goliath_actors.hooks import BeforeRun, HookContext, OnFinish
from goliath_actors.testing import ScriptedModel

ended: Counter[str] = Counter()


class Metrics(Extension[None]):
    name = "metrics"

    def before_run(self, ctx: HookContext[None], question: BeforeRun) -> None:
        ctx.state["began"] = trio.current_time()

    async def on_finish(self, ctx: HookContext[None], question: OnFinish) -> None:
        await trio.lowlevel.checkpoint()  # a real one would send this somewhere; it is shielded, so it may
        outcome = question.outcome
        ended[outcome.status] += 1
        # A run that was aborted while it waited never came to `before_run`.
        took = "never began" if "began" not in ctx.state else "began"
        print(f"{ctx.ask} {outcome.status} ({took}), {outcome.usage.output_tokens} tokens out")


agent = Agent(model=ScriptedModel(["Good morning."]), extensions=[Metrics()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        first = runtime.submit("one")
        second = runtime.submit("two")
        second.abort("not needed")
        await first.wait()
        try:
            await second.wait()
        except RunAborted:
            pass
    statistics = runtime.statistics()
    print(statistics.accepted, dict(ended))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   one completed (began), 4 tokens out
#   two aborted (never began), 0 tokens out
#   2 {'completed': 1, 'aborted': 1}
