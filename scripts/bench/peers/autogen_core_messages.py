"""autogen-core: messages to one agent of its single-threaded runtime, each waited for."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler


@dataclass
class Ask:
    text: str


class Echo(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("echo")

    @message_handler
    async def answer(self, message: Ask, ctx: MessageContext) -> Ask:
        return message


async def main(times: int) -> None:
    runtime = SingleThreadedAgentRuntime()
    await Echo.register(runtime, "echo", Echo)
    runtime.start()
    place = AgentId("echo", "c")
    for _ in range(times // 10 + 1):
        await runtime.send_message(Ask("hello"), place)
    start, began = time.process_time(), time.perf_counter()
    for _ in range(times):
        answer = await runtime.send_message(Ask("hello"), place)
        assert answer.text == "hello"
    cpu, wall = time.process_time() - start, time.perf_counter() - began
    print(json.dumps({"asks": times, "cpu": cpu, "wall": wall}))
    await runtime.stop()


asyncio.run(main(int(sys.argv[1])))
