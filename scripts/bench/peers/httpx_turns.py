"""httpx, or httpx2 where that is installed, without any framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from _client_turns import talk
from _turns import Clock

try:
    import httpx2 as httpx
except ImportError:
    import httpx  # type: ignore[no-redef]


async def main() -> None:
    clock = Clock()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:

        async def post(body: bytes) -> AsyncIterator[bytes]:
            headers = {"content-type": "application/json"}
            url = f"{clock.url}/chat/completions"
            async with client.stream("POST", url, content=body, headers=headers) as response:
                async for data in response.aiter_raw():
                    yield data

        await talk(clock, post)


asyncio.run(main())
