"""Conversations behind FastAPI on uvicorn: JSON, a stream of server-sent events, and clients that leave."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors.bridge import Bridge, BridgeRun, open_bridge
from goliath_actors.errors import MailboxFull, RuntimeClosed
from goliath_actors.events import RunFinished, TextDelta
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.testing import Gate, ScriptedModel

ended: list[str] = []
gate = Gate()


class Ending(Extension[None]):
    name = "ending"

    def on_finish(self, ctx: HookContext[None], question: OnFinish) -> None:
        ended.append(f"{ctx.conversation_id}: {question.outcome.status}")


agent = Agent(
    model=ScriptedModel(["Hello Ada.", "Hello Bob.", gate.then("never said")]), extensions=[Ending()], loop=ToolLoop()
)


class Ask(BaseModel):
    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Runs that were accepted have ten seconds when the server stops, then they are aborted.
    async with open_bridge(agent, grace=10) as bridge:
        app.state.bridge = bridge
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(MailboxFull)
async def full(request: Request, error: MailboxFull) -> JSONResponse:
    return JSONResponse({"detail": "this conversation is busy"}, 429, headers={"Retry-After": "1"})


@app.exception_handler(RuntimeClosed)
async def closed(request: Request, error: RuntimeClosed) -> JSONResponse:
    return JSONResponse({"detail": "the server is stopping"}, 503)


class RunResponse(StreamingResponse):
    """A run's text as server-sent events. However the response ends, the run ends with it."""

    def __init__(self, run: BridgeRun) -> None:
        super().__init__(self.lines(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self.run = run

    async def lines(self) -> AsyncIterator[str]:
        async for event in self.run.events():
            if isinstance(event, TextDelta):
                yield f"data: {json.dumps({'text': event.text})}\n\n"
            elif isinstance(event, RunFinished):
                yield f"event: end\ndata: {json.dumps({'status': event.status})}\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.run.abort("the client has left")  # changes nothing once the run is over


@app.post("/chats/{user}")
async def answer(user: str, ask: Ask, request: Request) -> dict[str, str]:
    bridge: Bridge = request.app.state.bridge
    result = await bridge.run(ask.text, conversation_id=user)
    return {"text": result.text}


@app.post("/chats/{user}/stream", response_model=None)
async def stream(user: str, ask: Ask, request: Request) -> RunResponse:
    bridge: Bridge = request.app.state.bridge
    return RunResponse(await bridge.submit(ask.text, conversation_id=user))  # refusals come before the first byte


# --- a client, over real sockets --------------------------------------------------------------------------------------


async def post(port: int, path: str, text: str, *, until: bytes | None = None) -> str:
    """Post an ask and return the last line of what came; with `until`, leave as soon as that was seen."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text": text}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        reply = await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()
        await writer.wait_closed()
    lines = [line for line in reply.decode().splitlines() if line.startswith(("data:", "{", "HTTP"))]
    return lines[-1]


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)

    print(await post(port, "/chats/ada", "Hi."))
    print(await post(port, "/chats/bob/stream", "Hi."))
    print(await post(port, "/chats/eve/stream", "Tell me everything.", until=b"\r\n\r\n"))  # and is gone
    while len(ended) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    server.should_exit = True
    await serving
    print(*ended, sep=", ")


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   {"text":"Hello Ada."}
#   data: {"status": "completed"}
#   HTTP/1.1 200 OK
#   ada: completed, bob: completed, eve: aborted
