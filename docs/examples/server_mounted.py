"""The chat backend inside of a web application of one's own."""

import httpx2 as httpx
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from goliath_actors import Agent, ToolLoop, open_runtime
from goliath_actors.server import Ledger, ServerConfig, create_app, recorded, serve_app
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel

agent = Agent(name="shop", model=ScriptedModel(["We are open from 9 to 17."]), loop=ToolLoop())


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("the shop")


async def main() -> None:
    ledger = Ledger(InMemoryStore())
    async with open_runtime(recorded(agent, ledger), store=ledger.store) as runtime, trio.open_nursery() as nursery:
        api = create_app(runtime, nursery, ledger=ledger)
        app = Starlette(routes=[Route("/", home), Mount("/chat", api)])
        url = await nursery.start(serve_app, app, ServerConfig(port=0))
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            response = await client.post("/chat/v1/conversations/ada/runs", json={"ask": "Hello?"})
            print(response.json()["result"]["text"])
        await runtime.drain(5)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   We are open from 9 to 17.
