"""One of several server processes on one database, for tests: `python -m tests.cluster_process ADDRESS EFFECTS TTL`.

Prints its URL. Each run that begins writes a line to the file EFFECTS: what may happen once. An ask that begins with
"slow" takes longer than any test.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import trio

from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors.abc import ModelRequest
from goliath_actors.server import Server, ServerConfig, serve
from goliath_actors.stores import LeasedStore, PostgresStore
from goliath_actors.testing import ScriptedModel


class Effects(Extension[Any]):
    """Leaves a trace of each run that begins, in one write, whichever process it is in."""

    name = "effects"

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def before_run(self, ctx: Any, question: Any) -> None:
        os.write(self.file, f"{os.getpid()} {ctx.conversation_id} {ctx.ask}\n".encode())


async def reply(request: ModelRequest) -> str:
    ask = [message.text for message in request.messages if message.role == "user"][-1].splitlines()[-1]
    await trio.sleep(600 if ask.startswith("slow") else 0.02)
    return f"re: {ask}"


async def main(address: str, effects: str, ttl: float) -> None:
    agent = Agent(model=ScriptedModel([reply] * 10_000), extensions=[Effects(effects)], loop=ToolLoop())
    store = LeasedStore(PostgresStore(address), ttl=ttl)
    config = ServerConfig(port=0, drain_grace=5.0)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED) -> None:
                await serve(agent, store=store, config=config, task_status=task_status)
                nursery.cancel_scope.cancel()

            server: Server = await nursery.start(run)
            print(server.url, flush=True)
            async for _ in signals:
                server.shut_down()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]))
