"""`on_error`: hear that a run failed or was aborted, and whose fault it was. It changes nothing for the caller."""

import trio

from goliath_actors import Agent, Extension, RunAborted, open_runtime
from goliath_actors.errors import ModelUnavailable
from goliath_actors.hooks import HookContext, OnError
from goliath_actors.testing import Gate, ScriptedModel
from goliath_actors.values import FallbackRequest

gate = Gate()


class Alarm(Extension[None]):
    name = "alarm"

    def on_error(self, ctx: HookContext[None], question: OnError) -> None:
        print(f"alarm: {question.origin}: {type(question.error).__name__}: {question.error}")


class Broken(Extension[None]):
    """Even a broken observer hides nothing: its own error is only a diagnostic."""

    name = "broken"

    def on_error(self, ctx: HookContext[None], question: OnError) -> None:
        raise ValueError("the alarm bell is off the wall")


async def cloud(request: FallbackRequest) -> str:
    raise TimeoutError("the cloud is away")


model = ScriptedModel([ModelUnavailable("no memory left"), gate.then("never said")])
agent = Agent(model=model, extensions=[Broken(), Alarm()], fallback=cloud)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        try:
            await runtime.run("Hello?")
        except TimeoutError as error:  # the application's own error, as the same object
            print("caller:", error)
            for diagnostic in getattr(error, "goliath_diagnostics", ()):
                print("diagnostic:", diagnostic.extension, "|", diagnostic.error)

        run = runtime.submit("Hello again?")
        await gate.wait_reached()
        run.abort("too slow")
        try:
            await run.wait()
        except RunAborted as aborted:
            print("caller:", aborted)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   alarm: fallback: TimeoutError: the cloud is away
#   caller: the cloud is away
#   diagnostic: broken | the alarm bell is off the wall
#   alarm: abort: RunAborted: the run was aborted (requested) in answer: too slow
#   caller: the run was aborted (requested) in answer: too slow
