"""What both clients below do: two calls and one tool a turn, the history in a list, replies streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

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
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def complete(post: Callable[[bytes], AsyncIterator[bytes]], messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "fake", "messages": messages, "tools": TOOLS, "stream": True}).encode()
    text, calls, buffer = "", dict[int, dict[str, Any]](), b""
    async for data in post(body):
        buffer += data
        *frames, buffer = buffer.split(b"\n\n")
        for frame in frames:
            if frame == b"data: [DONE]":
                continue
            for choice in json.loads(frame[6:])["choices"]:
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    calls.setdefault(call["index"], call)
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls.values()]
    return message


async def talk(clock: Clock, post: Callable[[bytes], AsyncIterator[bytes]]) -> None:
    warm = asyncio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation() -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]

        async def turn() -> str:
            messages.append({"role": "user", "content": QUESTION})
            while True:
                message = await complete(post, messages)
                messages.append(message)
                if "tool_calls" not in message:
                    return str(message["content"])
                for call in message["tool_calls"]:
                    result = await weather(**json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        await clock.talk(turn, ready)

    async with asyncio.TaskGroup() as group:
        for _ in range(clock.conversations):
            group.create_task(conversation())
    clock.tell()
