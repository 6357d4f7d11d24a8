"""CPU per request of the pool, of the plain client library and of bare h11, side by side on loopback.

    python scripts/bench/calls.py [--rounds 2] [--requests 1500]

A server in a process of its own answers each request after a pause with a short event stream. A number of tasks is
always in flight; the CPU time of this process is taken over the requests that end after every task has had its first,
so connecting is left out. The contestants take turns within one run, because two runs on one machine cannot be
compared. Bounded: it ends after a fixed number of requests, in two to four minutes; most of them are the plain
client's at 2,000 in flight.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

import h11
import trio

from goliath_actors.abc import ModelRequest
from goliath_actors.models import OpenAIChat
from goliath_actors.models._http import httpx
from goliath_actors.models._pool import Pool
from goliath_actors.values import Message

IN_FLIGHT = (1, 32, 256, 2000)
ASK = b'{"model":"m","messages":[{"role":"user","content":"Hello?"}],"stream":true}'
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
BODY = PIECE * 20 + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
)

Fetch: TypeAlias = Callable[[], Awaitable[None]]


async def answer(stream: trio.SocketStream) -> None:
    async with stream:
        try:
            while data := await stream.receive_some(65536):
                while b"\r\n\r\n" not in data or not data.endswith(b"}"):
                    more = await stream.receive_some(65536)
                    if not more:
                        return  # left in the middle of a request, as all are when a measurement ends
                    data += more
                await trio.sleep(int(data.split(b" ", 2)[1].split(b"/")[1]) / 1000)  # the path begins with the pause
                await stream.send_all(REPLY)
        except trio.BrokenResourceError:
            pass


async def serve() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(answer, [listener])


@asynccontextmanager
async def bare_h11(port: int, path: str) -> AsyncIterator[Callable[[], Fetch]]:
    headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json"), ("Content-Length", str(len(ASK)))]

    def for_task() -> Fetch:
        stream: trio.SocketStream | None = None
        connection = h11.Connection(h11.CLIENT)

        async def fetch() -> None:
            nonlocal stream
            if stream is None:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            top = connection.send(h11.Request(method="POST", target=path, headers=headers))
            body = connection.send(h11.Data(ASK))
            connection.send(h11.EndOfMessage())
            await stream.send_all((top or b"") + (body or b""))
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.EndOfMessage):
                    break
            connection.start_next_cycle()

        return fetch

    yield for_task


async def read(response: httpx.Response) -> None:
    try:
        assert len(await response.aread()) == len(BODY)
    finally:
        await response.aclose()


@asynccontextmanager
async def pool(port: int, path: str) -> AsyncIterator[Callable[[], Fetch]]:
    ours = Pool()
    url = httpx.URL(f"http://127.0.0.1:{port}{path}")

    async def fetch() -> None:
        headers = {"content-type": "application/json"}
        await read(await ours.handle_async_request(httpx.Request("POST", url, headers=headers, content=ASK)))

    yield lambda: fetch
    await ours.aclose()


@asynccontextmanager
async def plain_client(port: int, path: str) -> AsyncIterator[Callable[[], Fetch]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    url = httpx.URL(f"http://127.0.0.1:{port}{path}")
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def fetch() -> None:
            request = client.build_request("POST", url, headers={"content-type": "application/json"}, content=ASK)
            await read(await client.send(request, stream=True))

        yield lambda: fetch


@asynccontextmanager
async def adapter(port: int, path: str) -> AsyncIterator[Callable[[], Fetch]]:
    model = OpenAIChat("m", base_url=f"http://127.0.0.1:{port}{path}", api_key="")
    request = ModelRequest("answer", (Message("user", "Hello?"),))

    async def fetch() -> None:
        async with model.stream(request) as events:
            async for _ in events:
                pass

    yield lambda: fetch
    await model.aclose()


CONTESTANTS = {"h11": bare_h11, "pool": pool, "httpx2": plain_client, "adapter": adapter}


async def measure(name: str, port: int, in_flight: int, requests: int) -> float:
    """Return the CPU seconds of one request."""
    pause = max(1, in_flight // 5)  # milliseconds; long enough that all tasks really are in flight
    waiting_for_first, done, began, ended = in_flight, 0, 0.0, 0.0
    async with CONTESTANTS[name](port, f"/{pause}/v1") as for_task, trio.open_nursery() as nursery:

        async def task(fetch: Fetch) -> None:
            nonlocal waiting_for_first, done, began, ended
            await fetch()
            waiting_for_first -= 1
            if waiting_for_first == 0:
                gc.collect()
                began = time.process_time()
            while True:
                await fetch()
                done += waiting_for_first == 0
                if done >= requests:
                    ended = ended or time.process_time()
                    nursery.cancel_scope.cancel()

        for _ in range(in_flight):
            nursery.start_soon(task, for_task())
    return (ended - began) / requests


async def compare(port: int, rounds: int, requests: int) -> None:
    print(f"CPU per request in microseconds: median of {rounds} interleaved rounds")
    print(f"{'in flight':>9} " + "".join(f"{name:>9}" for name in CONTESTANTS) + "   pool/h11  httpx2/pool")
    for in_flight in IN_FLIGHT:
        taken: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        # Enough that what is half done at the start and at the end does not count for much.
        count = min(requests, 300) if in_flight == 1 else max(requests, 2 * in_flight)
        failed: dict[str, Exception] = {}
        for _ in range(rounds):
            for name in [name for name in taken if name not in failed]:
                try:
                    taken[name].append(await measure(name, port, in_flight, count))
                except Exception as error:  # noqa: BLE001  # whatever it is, the others are measured
                    failed[name] = error
        print(row(in_flight, {name: values for name, values in taken.items() if name not in failed}), flush=True)
        for name, error in failed.items():
            print(f"{'':9} {name}, no figure: {words(error)}", flush=True)


def row(in_flight: int, taken: Mapping[str, list[float]]) -> str:
    """Return a line of the table; a dash stands for what a contestant that failed did not come to."""
    cost = {name: statistics.median(seconds) for name, seconds in taken.items()}
    cells = [f"{cost[name] * 1e6:9.0f}" if name in cost else f"{'-':>9}" for name in CONTESTANTS]
    for (above, below), width in {("pool", "h11"): 11, ("httpx2", "pool"): 13}.items():
        both = above in cost and below in cost
        cells.append(f"{cost[above] / cost[below]:{width}.2f}" if both else f"{'-':>{width}}")
    return f"{in_flight:9} {''.join(cells)}"


def words(error: BaseException) -> str:
    """Return what went wrong in a line: of a task group, the first error in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1500)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve)
        return
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            trio.run(compare, int(server.stdout.readline()), options.rounds, options.requests)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
