"""What Prometheus is shown is what happened, and nothing that users or models invent becomes a label."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from trio.testing import MockClock

from goliath_actors import Agent, Extension, RunAborted, Stop, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.metrics import LABELS, Metrics
from goliath_actors.server import ServerConfig, Token, hash_token
from goliath_actors.testing import Gate, ScriptedModel, tool_calls
from goliath_actors.values import Usage

from .web import open_web


def agent(*replies: Any, **options: Any) -> Agent[Any]:
    model = ScriptedModel(list(replies), usage=options.pop("usage", None))
    options.setdefault("loop", ToolLoop())
    return Agent(name="a", model=model, confirm=approve_all, **options)


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Every sample of this name, by the values of its labels."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == name
    }


async def test_runs_are_counted_by_how_they_ended(autojump_clock: MockClock) -> None:
    metrics, gate = Metrics(), Gate()

    class Refuse(Extension[Any]):
        name = "refuse"

        def before_run(self, ctx: Any, question: Any) -> Stop | None:
            if ctx.ask == "fail":
                raise KeyError("a secret that is nobody's label")
            return Stop("No.", "because of 4711") if ctx.ask == "stop" else None

    async with open_runtime(metrics.watch(agent("x", gate.then("never"), extensions=[Refuse()]))) as runtime:
        metrics.collect(runtime)
        await runtime.run("ok")
        await runtime.run("stop")
        with pytest.raises(Exception, match="refuse"):
            await runtime.run("fail")
        run = runtime.submit("wait", conversation_id="c")
        await gate.wait_reached()
        queued = runtime.submit("queued", conversation_id="c")
        assert samples(metrics, "goliath_runs_running") == {(): 1}
        assert samples(metrics, "goliath_runs_waiting") == {(): 1}
        assert samples(metrics, "goliath_conversations") == {("live",): 1, ("idle",): 1}
        queued.abort("a reason")
        run.abort("another reason")
        for aborted in (run, queued):
            with pytest.raises(RunAborted):
                await aborted.wait()
        await trio.sleep(1)
        assert samples(metrics, "goliath_runs_total") == {
            ("a", "", "completed"): 1,
            ("a", "refuse", "stopped"): 1,
            ("a", "extension", "error"): 1,
            ("a", "requested", "aborted"): 2,
        }
        assert samples(metrics, "goliath_conversations") == {("live",): 0, ("idle",): 2}
    assert metrics._going == {}
    assert metrics._busy == {}
    text = metrics.text().decode()
    assert not re.search("secret|4711|a reason|another", text)


async def test_times_are_those_of_the_run(autojump_clock: MockClock) -> None:
    metrics = Metrics()

    async def slow(request: Any) -> str:
        await trio.sleep(2)
        return "text"

    class Slow(Extension[Any]):
        name = "slow"

        async def before_plan(self, ctx: Any, question: Any) -> None:
            await trio.sleep(0.5)

    one = agent(slow, slow, extensions=[Slow()], usage=Usage(10, 4, 2, 1))
    async with open_runtime(metrics.watch(one)) as runtime:
        first, second = runtime.submit("one"), runtime.submit("two")
        await first.wait()
        await second.wait()
    assert samples(metrics, "goliath_run_wait_seconds_sum") == {("a",): pytest.approx(2.5)}
    assert samples(metrics, "goliath_run_seconds_sum") == {("a", "completed"): pytest.approx(5.0)}
    assert samples(metrics, "goliath_first_delta_seconds_sum") == {("a",): pytest.approx(2.5 + 5.0)}
    assert samples(metrics, "goliath_model_call_seconds_sum") == {("a", "ok", "step"): pytest.approx(4.0)}
    hooks = samples(metrics, "goliath_hook_seconds_sum")
    assert hooks["a", "before_plan"] == pytest.approx(1.0)
    assert {hook for _, hook in hooks} >= {"before_run", "before_request", "after_plan", "after_answer", "on_finish"}
    assert samples(metrics, "goliath_hook_seconds_count")["a", "on_finish"] == 2
    assert samples(metrics, "goliath_tokens_total") == {
        ("a", "input"): 20,
        ("a", "output"): 8,
        ("a", "cached"): 4,
        ("a", "reasoning"): 2,
    }


async def test_tools_are_counted_and_names_that_a_model_makes_up_are_bounded(autojump_clock: MockClock) -> None:
    metrics = Metrics()

    @tool(writes=True)
    async def add(title: str) -> str:
        """Add."""
        await trio.sleep(0.25)
        return "added"

    replies: list[Any] = [tool_calls(("add", {"title": "x"}))]
    replies += [tool_calls((f"made_up_{number}", {})) for number in range(LABELS + 20)]
    async with open_runtime(
        metrics.watch(agent(*replies, "done", tools=[add], loop=ToolLoop(max_steps=200)))
    ) as runtime:
        await runtime.run("go")
    assert samples(metrics, "goliath_tool_seconds_sum")["a", "executed", "add"] == pytest.approx(0.25)
    tools = {labels[2] for labels in samples(metrics, "goliath_tool_seconds_count")}
    assert len(tools) == LABELS + 1
    assert "(other)" in tools
    assert samples(metrics, "goliath_confirmations_total") == {("a", "yes"): 1}


async def test_an_agents_own_callback_and_extensions_are_left_as_they_were(autojump_clock: MockClock) -> None:
    metrics, heard = Metrics(), []
    one = agent("x", on_event=lambda event: heard.append(event.kind))
    watched = metrics.watch(one)
    assert watched.extensions[1:] == one.extensions
    async with open_runtime(watched) as runtime:
        await runtime.run("hi")
    assert (heard[0], heard[-1]) == ("run-queued", "run-finished")

    def broken(event: Any) -> None:
        raise LookupError("mine")

    async with open_runtime(metrics.watch(agent("x", on_event=broken))) as runtime:
        with pytest.raises(LookupError, match="mine"):
            await runtime.run("hi")


async def test_two_runtimes_have_metrics_of_their_own(autojump_clock: MockClock) -> None:
    one, two = Metrics(), Metrics()
    async with open_runtime(one.watch(agent("x"))) as here, open_runtime(two.watch(agent("y"))):
        await here.run("hi")
    assert samples(one, "goliath_runs_total") == {("a", "", "completed"): 1}
    assert samples(two, "goliath_runs_total") == {}
    assert samples(one, "goliath_runs_running") == {}  # no runtime is shown before `collect`


async def test_requests_are_counted_by_route_and_never_by_address(autojump_clock: MockClock) -> None:
    metrics = Metrics()
    http = metrics.http()

    async def answer(request: Request) -> Response:
        await trio.sleep(0.1)
        return PlainTextResponse("ok", 201)

    async def fail(request: Request) -> Response:
        raise KeyError("x")

    app = http.wrap(
        Starlette(
            routes=[
                Route("/c/{id}/runs/{run_id}", answer),
                Route("/fail", fail),
                Route("/models/{model:path}", answer),
                Mount("/assets", routes=[Route("/{path:path}", answer)]),
            ]
        )
    )

    async def ask(path: str, method: str = "GET") -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [],
            "query_string": b"",
            "root_path": "",
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()

        await app(scope, receive, send)

    for number in range(5):
        await ask(f"/c/user-{number}/runs/run-{number}")
        await ask(f"/nothing/{number}")
        await ask(f"/assets/some/{number}.js")
        await ask(f"/models/maker/{number}")
        await ask(f"/models/{number}")
    await ask("/c/1/runs/2", "BREW")
    with pytest.raises(KeyError):
        await ask("/fail")
    assert samples(metrics, "goliath_http_requests_total") == {
        ("GET", "/c/{id}/runs/{run_id}", "201"): 5,
        ("GET", "(none)", "404"): 5,
        ("GET", "/assets/{path}", "201"): 5,
        ("GET", "/models/{model}", "201"): 10,
        ("(other)", "/c/{id}/runs/{run_id}", "405"): 1,
        ("GET", "/fail", "500"): 1,
    }
    assert samples(metrics, "goliath_http_request_seconds_sum")[("/c/{id}/runs/{run_id}",)] == pytest.approx(0.5)
    assert samples(metrics, "goliath_http_requests_open") == {(): 0}


async def test_lifespan_and_other_scopes_pass(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await Metrics().http().wrap(inner)({"type": "lifespan"}, lambda: None, lambda message: None)
    assert seen == ["lifespan"]


async def test_the_server_shows_its_metrics_to_those_who_may_see_them() -> None:
    chat, admin = "chat-token-0123456789abcdef", "admin-token-0123456789abcdef"
    config = ServerConfig(
        port=0,
        tokens=[
            Token("ada", ["chat", "read"], hash_token(chat)),
            Token("root", ["chat", "read", "admin"], hash_token(admin)),
        ],
    )
    async with open_web(agent("Hello."), config=config) as web:
        web.client.headers["authorization"] = f"Bearer {chat}"
        await web.ask("Hi.", "a conversation of Ada's")
        assert (await web.client.get("/metrics")).status_code == 403
        response = await web.client.get("/metrics", headers={"authorization": f"Bearer {admin}"})
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = response.text
    assert 'goliath_runs_total{agent="a",reason="",status="completed"} 1.0' in text
    assert 'goliath_http_requests_total{method="POST",route="/v1/conversations/{id}/runs",status="200"} 1.0' in text
    assert 'goliath_http_requests_total{method="GET",route="/metrics",status="403"} 1.0' in text
    assert "Ada" not in text


async def test_a_server_can_be_told_to_show_none() -> None:
    async with open_web(agent("Hello."), config=ServerConfig(port=0, metrics=False)) as web:
        assert (await web.client.get("/metrics")).status_code == 404
