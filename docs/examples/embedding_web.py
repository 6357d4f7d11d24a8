"""Routes of a web server, without the server: stream an answer, and abort any run by its id."""

from collections.abc import Awaitable, Callable

import attrs
import trio
import trio.lowlevel

from goliath_actors import Agent, Run, Runtime, open_runtime
from goliath_actors.events import RunFinished, RunStarted, TextDelta
from goliath_actors.testing import Gate, ScriptedModel


@attrs.define(eq=False)
class Routes:
    """What a web framework on trio calls, one method a route. A runtime keeps no table of runs, so this one does."""

    runtime: Runtime
    running: dict[str, Run] = attrs.Factory(dict)

    async def post_ask(self, user: str, ask: str, send: Callable[[str], Awaitable[None]]) -> None:
        """POST /chats/{user}: the answer while it comes. Whoever leaves the block aborts the run."""
        async with self.runtime.stream(ask, conversation_id=user) as run:
            self.running[run.id] = run
            try:
                async for event in run.events():
                    if isinstance(event, RunStarted):
                        await send(run.id)
                    elif isinstance(event, TextDelta):
                        await send(event.text)
                    elif isinstance(event, RunFinished):
                        await send(f"({event.status})")
            finally:
                del self.running[run.id]

    def delete_run(self, run_id: str) -> int:
        """DELETE /runs/{run_id}, from whatever client: the HTTP status."""
        run = self.running.get(run_id)
        if run is None:
            return 404
        run.abort("by hand")
        return 202


async def main() -> None:
    gate = Gate()
    agent = Agent(model=ScriptedModel(["Hello Ada.", gate.then("never said")]))
    sent: list[str] = []

    async def send(text: str) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(text)

    async with open_runtime(agent) as runtime, trio.open_nursery() as nursery:
        routes = Routes(runtime)
        await routes.post_ask("ada", "Hi.", send)
        print("ada was sent:", *sent[1:])

        nursery.start_soon(routes.post_ask, "ada", "Tell me everything.", send)
        await gate.wait_reached()
        print("DELETE:", routes.delete_run(*routes.running), routes.delete_run("run-unknown"))
    print("then:", sent[-1])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   ada was sent: Hello Ada. (completed)
#   DELETE: 202 404
#   then: (aborted)
