"""pykka: messages to one threading actor, each waited for."""

from __future__ import annotations

import json
import sys
import time

import pykka


class Echo(pykka.ThreadingActor):
    def on_receive(self, message: object) -> object:
        return message


times = int(sys.argv[1])
echo = Echo.start()
for _ in range(times // 10 + 1):
    echo.ask("hello")
start, began = time.process_time(), time.perf_counter()
for _ in range(times):
    assert echo.ask("hello") == "hello"
cpu, wall = time.process_time() - start, time.perf_counter() - began
print(json.dumps({"asks": times, "cpu": cpu, "wall": wall}))
echo.stop()
