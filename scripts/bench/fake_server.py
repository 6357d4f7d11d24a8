"""A model server that costs little: answers of the chat-completions dialect, after a pause, in a process of its own.

    python scripts/bench/fake_server.py [--pause 0.2]

Prints its port. The first call of a turn is answered with a tool call, the second, which has the tool's result, with
text; as an event stream if that was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Lund"}'},
}
WORDS = ["It", "is", "sunny", "in", "Lund", "today,", "with", "a", "light", "wind", "from", "the", "west."]
USAGE = {"prompt_tokens": 60, "completion_tokens": 14, "total_tokens": 74}


def whole(message: dict[str, Any], reason: str) -> bytes:
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}],
        "usage": USAGE,
    }
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)


def stream(deltas: list[dict[str, Any]], reason: str) -> bytes:
    frame: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    frames = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    frames.append({"choices": [], "usage": USAGE})
    data = b"".join(b"data: %s\n\n" % json.dumps({**frame, **part}).encode() for part in frames) + b"data: [DONE]\n\n"
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    )


CALL_WHOLE = whole({"content": None, "tool_calls": [CALL]}, "tool_calls")
TEXT_WHOLE = whole({"content": " ".join(WORDS)}, "stop")
CALL_STREAM = stream([{"role": "assistant", "content": None, "tool_calls": [{"index": 0, **CALL}]}], "tool_calls")
TEXT_STREAM = stream(
    [
        {"role": "assistant", "content": ""},
        *({"content": f"{'' if n == 0 else ' '}{word}"} for n, word in enumerate(WORDS)),
    ],
    "stop",
)


class Connection(asyncio.Protocol):
    """One connection; requests come one after another."""

    pause = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, parted, body = self.data.partition(b"\r\n\r\n")
        if not parted:
            return
        lower = head.lower()
        place = lower.find(b"content-length:")
        length = int(lower[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(body) < length:
            return
        self.data = b""
        reply = self.reply(json.loads(body))
        if self.pause:
            asyncio.get_running_loop().call_later(self.pause, self.send, reply)
        else:
            self.send(reply)

    def reply(self, request: dict[str, Any]) -> bytes:
        has_result = request["messages"][-1]["role"] == "tool"
        if request.get("stream"):
            return TEXT_STREAM if has_result else CALL_STREAM
        return TEXT_WHOLE if has_result else CALL_WHOLE

    def send(self, reply: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(reply)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS")
    Connection.pause = parser.parse_args().pause
    asyncio.run(serve())
