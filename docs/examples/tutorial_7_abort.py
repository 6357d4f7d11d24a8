"""Step 7: end a run early. The observers hear it whatever happens."""

import trio
import trio.lowlevel

from goliath_actors import Agent, Extension, RunAborted, open_runtime, tool
from goliath_actors.hooks import HookContext, OnError, OnFinish
from goliath_actors.testing import Gate, ScriptedModel

gate = Gate()  # a barrier: who comes to it says so and waits


@tool
async def search() -> str:
    """Search for a long time."""
    await gate.pass_through()
    return "nothing"


class Watch(Extension[None]):
    name = "watch"

    async def on_error(self, ctx: HookContext[None], question: OnError) -> None:
        await trio.lowlevel.checkpoint()  # observers are shielded: they may await, also after a cancellation
        print("on_error:", question.origin, "|", question.error)

    async def on_finish(self, ctx: HookContext[None], question: OnFinish) -> None:
        await trio.lowlevel.checkpoint()
        print("on_finish:", question.outcome.status)


model = ScriptedModel([{"kind": "tool", "tool": "search", "brief": "search"}, "Hello again."])
agent = Agent(name="assistant", model=model, tools=[search], extensions=[Watch()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        run = runtime.submit("Search everything.", conversation_id="ada")
        await gate.wait_reached()
        print("status:", runtime.conversation("ada").status().phase)
        run.abort("Ada changed her mind")
        try:
            await run.wait()
        except RunAborted as aborted:
            print("aborted:", aborted.cause, "|", aborted.reason)
        print(runtime.statistics().aborted, runtime.statistics().running)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   status: tool:search
#   on_error: abort | the run was aborted (requested) in tool:search: Ada changed her mind
#   on_finish: aborted
#   aborted: requested | Ada changed her mind
#   1 0
