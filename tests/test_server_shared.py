"""Several servers on one store, and a server inside of an application of one's own."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import hypercorn.trio
import pytest
import trio
import trio.testing
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import goliath_actors.server
from goliath_actors import Agent, ToolLoop, open_runtime
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.server import Ledger, ServerConfig, create_app, recorded, serve, serve_app
from goliath_actors.server._alone import alone_with
from goliath_actors.server._ledger import Acceptance
from goliath_actors.stores import InMemoryStore, LeasedStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, ScriptedModel

from .web import Raw, Web, httpx, open_web, read_all


def agent(*replies: Any) -> Agent[Any]:
    return Agent(name="assistant", model=ScriptedModel(list(replies)), loop=ToolLoop())


RUNS = "/v1/conversations/c/runs"


async def test_what_another_living_server_has_is_left_to_it_and_what_it_leaves_is_taken_over() -> None:
    shared, gate = InMemoryStore(), Gate()
    config = ServerConfig(drain_grace=0)
    async with open_web(agent("Second."), store=LeasedStore(shared)) as other:
        async with open_web(agent(gate.then("never")), store=LeasedStore(shared), config=config) as web:
            first = (await web.ask("first", wait=False)).json()["run_id"]
            await gate.wait_reached()
            second = (await web.ask("second", wait=False)).json()["run_id"]
            for run_id, state in ((first, "running"), (second, "queued")):
                there = await other.client.get(f"{RUNS}/{run_id}")
                assert (there.json()["state"], there.json()["status"]) == (state, None)
                assert (await other.client.get(f"{RUNS}/{run_id}/events")).status_code == 409
        there = (await other.client.get(f"{RUNS}/{first}")).json()
        assert (there["state"], there["status"]) == ("done", "aborted")
        moved = (await other.client.get(f"{RUNS}/{second}")).json()
        assert (moved["status"], moved["abort"]["reason"]) == ("aborted", "restart")
        async with other.follow(moved["followed_by"]) as stream:
            assert (await read_all(stream))[-1].data["result"]["text"] == "Second."


async def test_an_ask_that_another_server_took_over_is_not_run_here() -> None:
    """A process that stood still for so long that it seemed dead."""
    store, gate = InMemoryStore(), Gate()
    own = agent(gate.then("First."), "never")
    async with open_web(own, store=store) as web:
        await web.ask("first", wait=False)
        await gate.wait_reached()
        second = (await web.ask("second", wait=False)).json()["run_id"]
        await web.server._hosting.ledger.close(":server/assistant/local/c", [second])
        gate.open()
        async with web.follow(second) as stream:
            assert (await read_all(stream))[-1].data["status"] == "error"
    assert len(own.model.requests) == 1  # type: ignore[attr-defined]


async def test_a_store_that_cannot_be_looked_through_stops_no_server() -> None:
    store = FailingStore(InMemoryStore(), {"keys": OSError("gone")})
    async with open_web(agent("Hello."), store=store) as web:
        assert (await web.ask("Hi.")).json()["status"] == "completed"


async def test_a_store_that_does_not_take_that_a_server_lives_stops_no_server() -> None:
    store = FailingStore(InMemoryStore(), {"acquire": [OSError("gone")], "release": OSError("gone")})
    async with open_web(agent("Hello."), store=LeasedStore(store)) as web:
        assert (await web.ask("Hi.")).json()["result"]["text"] == "Hello."


async def ends(web: Web, name: str) -> list[Any]:
    """Return the ends of the runs of a conversation that was recovered, once they are on record."""
    while True:
        rows = (await web.server._hosting.ledger.read(f":server/assistant/local/{name}")).private.get("ended", ())
        found = [row for row in rows if row["result"] is not None]
        if found:
            return found
        await trio.lowlevel.checkpoint()


async def test_more_than_may_wait_is_recovered_bit_by_bit() -> None:
    store = InMemoryStore()
    gate = Gate()
    names = [f"c{number}" for number in range(4)]
    config = ServerConfig(drain_grace=0, max_running=1)
    async with open_web(agent(gate.then("never")), store=store, config=config) as web:
        await web.ask("Hi.", "first", wait=False)
        await gate.wait_reached()
        for name in names:
            await web.ask("Hi.", name, wait=False)
    config = attrs.evolve(config, max_waiting=1, drain_grace=10)
    async with open_web(agent(*["Done."] * 4), store=store, config=config) as web:
        for name in names:
            (run,) = await ends(web, name)
            assert run["result"]["text"] == "Done."
        assert web.server.runtime.statistics().accepted == 4


async def test_what_could_not_be_read_at_first_is_recovered_when_it_is_asked_for() -> None:
    store, gate = InMemoryStore(), Gate()
    config = ServerConfig(drain_grace=0, max_running=1)
    async with open_web(agent(gate.then("never")), store=store, config=config) as web:
        await web.ask("Hi.", "first", wait=False)
        await gate.wait_reached()
        await web.ask("Hi.", "c", wait=False)
    failing = FailingStore(store, {"load": [StoreError("busy")] * 2})
    async with open_web(agent("Done."), store=failing, config=config) as web:
        ledger = web.server._hosting.ledger
        with trio.fail_after(5):
            while len(failing.calls) < 3:  # it is looked through: both conversations could not be read
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        assert (await ledger.read(":server/assistant/local/c")).private["open"]
        assert (await web.client.get("/v1/conversations/c")).status_code == 200
        (run,) = await ends(web, "c")
        assert run["result"]["text"] == "Done."


async def test_a_deletion_that_is_refused_keeps_what_was_accepted_before_it_on_record() -> None:
    async def refused() -> None:
        await trio.lowlevel.checkpoint()
        raise StoreError("not now")

    ledger, gate = Ledger(InMemoryStore()), Gate()
    async with open_runtime(agent(gate.then("Hello."))) as runtime:
        run = runtime.submit("Hi.")
        acceptance = Acceptance("c", run, "assistant", "Hi.", "run")
        ledger.expect(acceptance)
        with pytest.raises(StoreError, match="not now"):
            await ledger.forget("c", refused)
        await ledger.accept(acceptance)
        assert list((await ledger.read("c")).private["open"]) == [run.id]
        gate.open()


# --- inside of an application ---------------------------------------------------------------------------------------


async def test_the_api_is_mounted_in_an_application_of_ones_own() -> None:
    async def home(request: Request) -> PlainTextResponse:
        await trio.lowlevel.checkpoint()
        return PlainTextResponse("home")

    ledger = Ledger(InMemoryStore())
    async with open_runtime(recorded(agent("Hello."), ledger), store=ledger.store) as runtime:
        async with trio.open_nursery() as nursery:
            api = create_app(runtime, nursery, ledger=ledger)
            app = Starlette(routes=[Route("/home", home), Mount("/chat", api)])
            config = Config()
            config.bind = ["127.0.0.1:0"]
            config.errorlog = None
            (url,) = await nursery.start(partial(hypercorn.trio.serve, app, config))
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                assert (await client.get("/home")).text == "home"
                response = await client.post("/chat/v1/conversations/c/runs", json={"ask": "Hi."})
                assert response.json()["result"]["text"] == "Hello."
                assert (await client.get(response.headers["location"])).json() == response.json()
                assert (await client.get("/chat/openapi.json")).json()["servers"] == [{"url": "/chat"}]
                # The page, too: all that it asks for is found from where it lies.
                page = await client.get("/chat", follow_redirects=True)
                files = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
                assert len(files) > 3
                for file in files:
                    assert (await client.get(page.url.join(file))).status_code == 200, file
            await runtime.drain(1)
            nursery.cancel_scope.cancel()


def test_the_page_has_no_address_from_the_root_of_its_host() -> None:
    for file in (Path(goliath_actors.server.__file__).parent / "static").rglob("*.*"):
        assert not re.search(r"""["'`(]/(v1|assets)/""", file.read_text()), file


async def test_an_application_of_ones_own_can_have_the_connections_of_serve() -> None:
    """Under Hypercorn's own worker the junk behind the upgrade would end everything."""
    junk = b"GET /home HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    junk += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\xff\xff\xff"
    ledger = Ledger(InMemoryStore())
    async with open_runtime(recorded(agent("Hello."), ledger), store=ledger.store) as runtime:
        async with trio.open_nursery() as nursery:
            app = Starlette(routes=[Mount("/chat", create_app(runtime, nursery, ledger=ledger))])
            url = await nursery.start(serve_app, app, ServerConfig(port=0))
            raw = Raw(await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])))
            await raw.stream.send_all(junk)
            await raw.read_to_end()
            await raw.stream.aclose()
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                response = await client.post("/chat/v1/conversations/c/runs", json={"ask": "Hi."})
                assert response.json()["result"]["text"] == "Hello."
            await runtime.drain(1)
            nursery.cancel_scope.cancel()


async def test_what_the_application_itself_has_asked_can_be_seen() -> None:
    async with open_web(agent("Hello.")) as web:
        await web.server.runtime.run("Hi.", conversation_id="local/own", agent="assistant")
        history = (await web.client.get("/v1/conversations/own/history")).json()
        assert [one["text"] for one in history["entries"]] == ["Hi.", "Hello."]
        assert (await web.client.get("/v1/conversations/own")).status_code == 200
        assert (await web.client.delete("/v1/conversations/own")).status_code == 204
        assert (await web.client.get("/v1/conversations/own")).status_code == 404


async def test_a_server_that_is_cancelled_aborts_its_runs_and_tells_their_clients() -> None:
    gate = Gate()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            start = partial(serve, agent(gate.then("never")), config=ServerConfig(port=0))
            server = await nursery.start(start)
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            raw = Raw(stream)
            await raw.send("POST", RUNS, {"ask": "Hi."}, accept="text/event-stream")
            await gate.wait_reached()
            nursery.cancel_scope.cancel()
        assert server.runtime.statistics().aborted == 1
        await raw.read_to_end()
        await stream.aclose()


async def test_an_address_that_cannot_be_had_is_an_error_at_once() -> None:
    async with open_web(agent()) as web:
        with pytest.raises(ConfigError, match="in use"):
            await serve(agent(), config=ServerConfig(port=web.server.port))
    with pytest.raises(ConfigError, match="no address of this machine"):
        await serve(agent(), config=ServerConfig(host="no.such.host.invalid", insecure=True))


def test_a_second_server_of_one_process_that_ends_leaves_the_file_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    program = "from goliath_actors.server._alone import alone_with; from goliath_actors.stores import SqliteStore\n"
    program += f"with alone_with(SqliteStore({str(path)!r})): pass"

    def enter() -> str:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr

    with alone_with(SqliteStore(path)):
        with alone_with(SqliteStore(path)):
            pass
        assert "is served by another process already" in enter()
    assert enter() == ""
