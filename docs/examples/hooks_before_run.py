"""`before_run`: application context becomes a fact, and closing time becomes a fixed answer."""

import attrs
import trio

from goliath_actors import Agent, Extension, Stop, open_runtime
from goliath_actors.hooks import BeforeRun, HookContext, RunPatch
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Caller:
    timezone: str
    open_now: bool = True


class TimezoneFact(Extension[Caller]):
    """Says where the caller is. Without this, nothing of the context ever reaches a prompt."""

    name = "timezone"

    def before_run(self, ctx: HookContext[Caller], question: BeforeRun) -> RunPatch:
        return RunPatch(ask=question.ask.strip(), facts={"timezone": ctx.context.timezone})


class ClosingTime(Extension[Caller]):
    """Ends the run before it costs anything."""

    name = "closing-time"

    def before_run(self, ctx: HookContext[Caller], question: BeforeRun) -> Stop | None:
        if not ctx.context.open_now:
            return Stop("We are closed. Please come back at nine.", "closed")
        return None


model = ScriptedModel(["It is nine in the morning in New York."])
agent = Agent(model=model, extensions=[TimezoneFact(), ClosingTime()], facts={"shop": "Corner Books"})


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("  What time is it? ", context=Caller("America/New_York"))
        print(result.status, "|", result.text)
        stopped = await runtime.run("And now?", context=Caller("America/New_York", open_now=False))
        print(stopped.status, "|", stopped.text)
        print(stopped.stopped)
    print([line for line in model.requests[0].text.splitlines() if line.startswith("- ")])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   completed | It is nine in the morning in New York.
#   stopped | We are closed. Please come back at nine.
#   Stopped(extension='closing-time', phase='before_run', reason='closed')
#   ['- shop: Corner Books', '- timezone: America/New_York']
