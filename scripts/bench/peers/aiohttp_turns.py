"""aiohttp without any framework; its parser is written in C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from _client_turns import talk
from _turns import Clock


async def main() -> None:
    clock = Clock()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def post(body: bytes) -> AsyncIterator[bytes]:
            headers = {"content-type": "application/json"}
            async with session.post(f"{clock.url}/chat/completions", data=body, headers=headers) as response:
                async for data in response.content.iter_any():
                    yield data

        await talk(clock, post)


asyncio.run(main())
