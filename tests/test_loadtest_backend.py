"""Load on a real chat backend over loopback, and on a real model server: their counts and ours agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import HookContext
from goliath_actors.loadtest import BackendTarget, Clients, Dice, InProcess, LoadReport, Provider, Scenario, run_load
from goliath_actors.loadtest._simulated import SimulatedModel
from goliath_actors.models import OpenAIChat
from goliath_actors.server import Server, ServerConfig, Token, hash_token, make_token, serve

FAST = Provider(first_token=Dice("uniform", 0.01, 0.05), tokens=Dice("uniform", 4, 20), tokens_per_second=200)


class Heard(Extension[Any]):
    """Counts the ends that it is told of."""

    name = "heard"

    def __init__(self) -> None:
        self.ends = 0

    def on_finish(self, ctx: HookContext[Any], outcome: Any, /) -> None:
        self.ends += 1


@asynccontextmanager
async def backend(heard: Heard, provider: Provider = FAST, **config: Any) -> AsyncIterator[str]:
    """A chat backend with a simulated model, on a free port of this machine."""
    agent = Agent(name="load", model=SimulatedModel(provider), loop=ToolLoop(), extensions=[heard])
    async with served(agent, **config) as url:
        yield url


@asynccontextmanager
async def served(*agents: Agent[Any], **config: Any) -> AsyncIterator[str]:
    """A chat backend with these agents, on a free port of this machine."""
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            partial(serve, *agents, config=ServerConfig(port=0, drain_grace=1, **config))
        )
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.shut_down()


async def test_a_backend_with_clients_of_all_kinds_keeps_every_account() -> None:
    heard = Heard()
    async with backend(heard) as url:
        scenario = Scenario(
            duration=1.5,
            conversations=30,
            think=Dice("uniform", 0, 0.05),
            clients=Clients(abandon=0.2, abort=0.2, slow=0.2, slow_pause=0.01),
        )
        report = await run_load(scenario, BackendTarget(url))
    assert report.ok, report.as_text()
    counts = report.figures["counts"]
    assert counts["completed"] > 10
    assert counts["aborted"] > 5
    assert heard.ends == counts["sent"] - counts["refused"]
    assert report.figures["first"]["count"] > 0
    told = {check.name: check.detail for check in report.checks}[
        "every end was told to on_finish, by the server's counts"
    ]
    assert told.startswith(f"{heard.ends} of {heard.ends} runs are counted as over, which they are once every observer")
    assert "by the server's counts: " in report.as_text()


async def test_a_run_whose_observer_has_not_been_told_yet_is_not_over_by_the_servers_counts() -> None:
    """So what a load test says of observers there holds."""

    class Held(Extension[Any]):
        name = "held"

        def __init__(self) -> None:
            self.reached, self.gate = trio.Event(), trio.Event()

        async def on_finish(self, ctx: Any, question: Any) -> None:
            self.reached.set()
            await self.gate.wait()

    held = Held()
    agent = Agent(name="held", model=SimulatedModel(FAST), loop=ToolLoop(), extensions=[held])
    async with served(agent) as url:
        target = BackendTarget(url)

        async def let_go() -> None:
            await held.reached.wait()
            before = await target._statistics()
            assert (before["accepted"], before["completed"], before["running"]) == (1, 0, 1)
            held.gate.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            report = await run_load(Scenario(max_asks=1, think=Dice("fixed", 0)), target)
    assert report.ok, report.as_text()


async def test_a_model_that_fails_is_an_error_of_the_ask_and_no_fault_of_the_accounts() -> None:
    async with backend(Heard(), attrs.evolve(FAST, errors=1.0, retries=0)) as url:
        report = await run_load(Scenario(max_asks=5, think=Dice("fixed", 0)), BackendTarget(url))
    assert [check.name for check in report.checks if not check.ok] == ["an ask was answered"]
    assert report.figures["counts"]["error"] == 5


async def test_a_named_agent_of_a_backend_is_driven_and_one_that_is_not_there_is_refused() -> None:
    first, second = Heard(), Heard()
    model = SimulatedModel(FAST)
    agents = [
        Agent(name="first", model=model, loop=ToolLoop(), extensions=[first]),
        Agent(name="second", model=model, loop=ToolLoop(), extensions=[second]),
    ]
    scenario = Scenario(max_asks=5, conversations=2, think=Dice("fixed", 0))
    async with served(*agents) as url:
        report = await run_load(scenario, BackendTarget(url, agent="second"))
        with pytest.raises(ConfigError, match=r"has no agent 'third'; it has first, second$"):
            await run_load(scenario, BackendTarget(url, agent="third"))
    assert report.ok, report.as_text()
    assert report.target == f"agent 'second' of chat backend at {url}/"
    assert (first.ends, second.ends) == (0, 5)


async def test_a_backend_that_goes_away_in_the_middle_is_a_report_that_failed() -> None:
    scenario = Scenario(mode="open", rate=50, duration=1.0, timeout=None)
    reports: list[LoadReport] = []

    async def drive(url: str) -> None:
        reports.append(await run_load(scenario, BackendTarget(url)))

    async with trio.open_nursery() as nursery:
        async with backend(Heard()) as url:
            nursery.start_soon(drive, url)
            await trio.sleep(0.3)
    (report,) = reports
    failed = {check.name: check.detail for check in report.checks if not check.ok}
    assert "the server's counts can be read at the end" in failed
    assert "nothing answers at" in failed["the server's counts can be read at the end"]
    assert report.figures["counts"]["completed"] > 0


async def test_a_backend_that_is_full_refuses_and_that_is_counted_as_refused() -> None:
    slow = attrs.evolve(FAST, first_token=Dice("fixed", 0.3))
    async with backend(Heard(), slow, mailbox_capacity=1) as url:
        scenario = Scenario(mode="open", rate=100, duration=0.5, conversations=1, timeout=None)
        report = await run_load(scenario, BackendTarget(url))
    assert report.ok, report.as_text()
    assert report.reasons["refused: HTTP 429"] > 10


async def test_a_backend_with_tokens_wants_one_that_may_read_its_counts() -> None:
    secret = make_token()
    token = Token("ops", ["admin"], hash_token(secret))
    async with backend(Heard(), tokens=[token]) as url:
        for wrong, words in ((None, "set GOLIATH_TOKEN to one"), ("wrong", "set GOLIATH_TOKEN to another one")):
            with pytest.raises(ConfigError, match=rf"wants a token of scope 'admin'; {words} "):
                await run_load(Scenario(max_asks=1), BackendTarget(url, token=wrong))
        target = BackendTarget(url, token=secret)
        report = await run_load(Scenario(max_asks=3, think=Dice("fixed", 0)), target)
    assert report.ok, report.as_text()
    assert report.figures["counts"]["completed"] == 3
    assert secret not in repr(target) + report.as_json()


async def test_a_model_server_is_driven_through_whole_conversations_of_an_agent() -> None:
    async with backend(Heard()) as url:
        async with aclosing(OpenAIChat("load", base_url=f"{url}/v1")) as model:
            scenario = Scenario(max_asks=10, conversations=3, think=Dice("fixed", 0))
            agent = Agent(name="through", model=model, loop=ToolLoop())
            report = await run_load(scenario, InProcess(scenario, agent=agent))
    # The server shares this process, so what it holds counts as left behind here.
    assert [check.name for check in report.checks if not check.ok] in ([], ["nothing is left behind"])
    assert report.figures["counts"]["completed"] == 10
    assert report.figures["first"]["count"] == 10


async def test_what_is_no_chat_backend_is_a_clear_error() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(ConfigError, match="is no chat backend of goliath_actors"):
            await run_load(Scenario(max_asks=1), BackendTarget(f"http://127.0.0.1:{port}"))
        nursery.cancel_scope.cancel()
