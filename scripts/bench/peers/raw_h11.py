"""No framework: h11 over trio sockets, the same two calls and one tool, history in a list, replies streamed."""

from __future__ import annotations

import json
from typing import Any

import h11
import trio
from _turns import INSTRUCTIONS, QUESTION, Clock

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def weather(city: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


class Client:
    """One kept connection a conversation."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stream: trio.SocketStream | None = None

    async def complete(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if self.stream is None:
            self.stream = await trio.open_tcp_stream("127.0.0.1", self.port)
            self.wire = h11.Connection(h11.CLIENT)
        body = json.dumps({"model": "fake", "messages": messages, "tools": TOOLS, "stream": True}).encode()
        headers = [("host", "127.0.0.1"), ("content-type", "application/json"), ("content-length", str(len(body)))]
        wire = self.wire
        request = wire.send(h11.Request(method="POST", target="/v1/chat/completions", headers=headers))
        await self.stream.send_all(request + wire.send(h11.Data(data=body)) + wire.send(h11.EndOfMessage()))
        text, calls, buffer = "", dict[int, dict[str, Any]](), b""
        while True:
            event = wire.next_event()
            if event is h11.NEED_DATA:
                wire.receive_data(await self.stream.receive_some(65536))
            elif isinstance(event, h11.Data):
                buffer += event.data
                *frames, buffer = buffer.split(b"\n\n")
                for frame in frames:
                    if frame == b"data: [DONE]":
                        continue
                    for choice in json.loads(frame[6:])["choices"]:
                        delta = choice["delta"]
                        text += delta.get("content") or ""
                        for call in delta.get("tool_calls") or ():
                            calls.setdefault(call["index"], call)
            elif isinstance(event, h11.EndOfMessage):
                wire.start_next_cycle()
                break
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls.values()]
        return message


async def main() -> None:
    clock = Clock()
    warm = trio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation() -> None:
        client = Client(clock.port)
        messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]

        async def turn() -> str:
            messages.append({"role": "user", "content": QUESTION})
            while True:
                message = await client.complete(messages)
                messages.append(message)
                if not message.get("tool_calls"):
                    return str(message["content"])
                for call in message["tool_calls"]:
                    result = await weather(**json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        await clock.talk(turn, ready)
        if client.stream is not None:
            await client.stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(clock.conversations):
            nursery.start_soon(conversation)
    clock.tell()


trio.run(main)
