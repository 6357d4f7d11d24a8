"""Event streams of the chat backend: many at once, each with its deltas at a steady pace, read by another process.

    python scripts/bench/fanout.py [--streams 500] [--pace 50] [--seconds 8]

The server is a process of its own, held to one core where the system allows it. Each delta carries the time at which
the model gave it; a reader takes the time at which it has it. Deltas of the first and the last second are left out.
Ends by itself; only this machine is used.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from _figures import Figure, arguments, show

from goliath_actors import Agent, ToolLoop
from goliath_actors._cli.serving import COLLECT_SELDOM
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText
from goliath_actors.server import ServerConfig, serve

LATE = 0.1  # seconds: what a reader still takes for "at once"


@attrs.define(eq=False)
class Steady:
    """Gives `pace` deltas a second for `seconds`, each the time of its own making."""

    pace: float
    seconds: float
    name: str = "steady"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._play()

    async def _play(self) -> AsyncIterator[ModelEvent]:
        begin = trio.current_time()
        for number in range(int(self.pace * self.seconds)):
            await trio.sleep_until(begin + number / self.pace)
            yield ModelText(f"{time.monotonic():.4f} ")
        yield ModelDone("stop")


async def server(pace: float, seconds: float) -> None:
    """Serve until standard input ends; prints the port, and then the CPU that was used."""
    agent = Agent(name="bench", model=Steady(pace, seconds), loop=ToolLoop())
    config = ServerConfig(port=0, max_connections=20_000)
    gc.set_threshold(*COLLECT_SELDOM)  # as `goliath-actors serve` does
    async with trio.open_nursery() as nursery:
        running = await nursery.start(partial(serve, agent, config=config))
        print(running.url.rsplit(":", 1)[1].strip("/"), flush=True)
        while command := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            print(json.dumps({"cpu": time.process_time(), "command": command}), flush=True)
        running.shut_down()


class Reader(asyncio.Protocol):
    """One stream, read as cheaply as can be: the reader must not be what is measured."""

    def __init__(self, number: int, took: list[float], ended: asyncio.Future[None], window: list[float]) -> None:
        self.number, self.took, self.ended, self.window = number, took, ended, window
        self.data = b""

    def connection_made(self, transport: Any) -> None:
        body = b'{"ask": "go"}'
        transport.write(
            b"POST /v1/conversations/c%d/runs HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (self.number, len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        *whole, self.data = (self.data + data).split(b"\n\n")
        for part in whole:
            if b'"text-delta"' in part:
                text = json.loads(part[part.index(b"data: ") + 6 :])["text"]
                for word in text.split():
                    if self.window[0] < (made := float(word)) < self.window[1]:
                        self.took.append(now - made)
            elif b'"run-finished"' in part and not self.ended.done():
                self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the server ended the stream"))


async def read(port: int, streams: int, seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    now = time.monotonic()
    ends = []
    opened = 0.0
    window = [now + 1e9, now + 1e9]
    for number in range(streams):
        ended: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(partial(Reader, number, took, ended, window), "127.0.0.1", port)
        ends.append(ended)
        opened = time.monotonic()
    # All are open from here until the first one ends.
    window[:] = [opened + 1, now + seconds - 0.5]
    await asyncio.wait_for(asyncio.gather(*ends), seconds * 6 + 60)
    return took


def measure(streams: int, pace: int, seconds: float) -> tuple[list[float], float]:
    """Return what each delta took, in seconds, sorted, and the share of a core that the server used."""
    command: list[Any] = [sys.executable, Path(__file__), "--serve", "1", "--pace", pace, "--seconds", int(seconds)]
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(process.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:] or cores)
        start = time.monotonic()
        took = sorted(asyncio.run(read(port, streams, seconds)))
        process.stdin.write("cpu\n")
        process.stdin.flush()
        cpu = json.loads(process.stdout.readline())["cpu"]
        return took, cpu / (time.monotonic() - start)
    finally:
        process.kill()
        process.wait()


def fanout_table(options: Any) -> list[Figure]:
    """The share of deltas that come at once, and how late the others are; for a fifth of the streams, too."""
    figures = []
    for streams in (options.streams // 5, options.streams):
        took, busy = measure(streams, options.pace, options.seconds)
        what = f"{streams} streams x {options.pace} deltas/s"
        goal = ">= 90 %" if streams == options.streams else ""
        if not took:
            figures.append(Figure(f"{what}, deltas within 100 ms", "none read", "", "", ">= 90 %", False))
            continue
        share = sum(1 for one in took if one <= LATE) / len(took)
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        ok = share >= 0.9 if goal else None
        figures += [
            Figure(f"{what}, deltas within 100 ms", f"{share:.1%}", "", "", goal, ok),
            Figure(f"{what}, delay of a delta", f"p50 {p50 * 1e3:.0f} ms", f"p99 {p99 * 1e3:.0f} ms", "", "", None),
            Figure(f"{what}, the server's CPU", f"{busy:.0%} of a core", "", "", "", None),
        ]
    return figures


def main() -> None:
    options = arguments(__doc__, streams=500, pace=50, seconds=8, serve=0)
    if options.serve:
        trio.run(server, options.pace, options.seconds)
        return
    show("event streams", fanout_table(options), options.json)


if __name__ == "__main__":
    main()
