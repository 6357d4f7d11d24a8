"""Rate limit: at most so many asks in any stretch of time, for each user. The clock is trio's, here a test's."""

import attrs
import trio
from trio.testing import MockClock

from goliath_actors import Agent, open_runtime
from goliath_actors.policies import RateLimit
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class User:
    name: str


limit = RateLimit(2, 60, scope=lambda ctx: ctx.context.name, max_wait=90)
agent = Agent(model=ScriptedModel(["ok"] * 5), extensions=[limit])


async def main() -> None:
    begin = trio.current_time()
    async with open_runtime(agent) as runtime:

        async def ask(user: str, conversation_id: str) -> None:
            result = await runtime.run("hello", conversation_id=conversation_id, context=User(user))
            print(f"{trio.current_time() - begin:3.0f} s  {user}: {result.text}")

        for user, conversation_id in [("ada", "1"), ("ada", "2"), ("bob", "3")]:
            await ask(user, conversation_id)
        await ask("ada", "4")  # waits until the window has slid
        await ask("ada", "5")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))

# Prints:
#     0 s  ada: ok
#     0 s  ada: ok
#     0 s  bob: ok
#    60 s  ada: ok
#    60 s  ada: ok
