"""The HTTP server, over real sockets: asking, following, ending, finding again."""

from __future__ import annotations

import pytest
import trio

from goliath_actors import Agent, Conductor, ToolLoop
from goliath_actors.server import ServerConfig
from goliath_actors.testing import Gate, ScriptedModel

from .web import frames, open_web, read_all


def agent(*replies: object, name: str = "assistant") -> Agent[object]:
    return Agent(name=name, model=ScriptedModel(list(replies)), loop=ToolLoop())


async def test_an_ask_is_answered_as_json_with_its_run() -> None:
    async with open_web(agent("Hello Ada.")) as web:
        response = await web.ask("Hi.", "ada")
        assert response.status_code == 200
        body = response.json()
        assert (body["state"], body["status"], body["result"]["text"]) == ("done", "completed", "Hello Ada.")
        assert body["conversation_id"] == body["result"]["conversation_id"] == "ada"
        run_id = response.headers["x-run-id"]
        assert body["run_id"] == run_id
        assert response.headers["location"] == f"/v1/conversations/ada/runs/{run_id}?agent=assistant"
        again = (await web.client.get(response.headers["location"])).json()
        assert again == body


async def test_an_ask_is_answered_as_an_event_stream_that_ends_with_the_result() -> None:
    async with open_web(agent("Hello Ada.")) as web, web.stream("Hi.") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        sent = await read_all(response)
    assert [one.event for one in sent] == [
        "run-queued", "run-started", "budget", "model-started", "text-delta", "model-finished", "plan-made",
        "answer", "run-finished",
    ]  # fmt: skip
    assert [one.id for one in sent] == [one.data.get("through", one.data["seq"]) for one in sent]
    assert [one.data["kind"] for one in sent] == [one.event for one in sent]
    assert sent[-1].data["result"]["text"] == "Hello Ada."
    assert sent[-1].data["status"] == "completed"


async def test_an_ask_is_answered_at_once_and_followed_later() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        response = await web.ask("Hi.", wait=False, detach=True)
        assert response.status_code == 202
        body = response.json()
        assert body["state"] in ("queued", "running")
        await gate.wait_reached()
        gate.open()
        async with web.client.stream("GET", body["links"]["events"]) as stream:
            sent = await read_all(stream)
    assert sent[0].event == "run-queued"
    assert sent[-1].data["result"]["text"] == "Done."


async def test_a_stream_is_taken_up_behind_the_last_event_that_was_read() -> None:
    async with open_web(agent("one two three")) as web:
        run_id = (await web.ask("Hi.")).headers["x-run-id"]
        async with web.follow(run_id) as stream:
            whole = await read_all(stream)
        for position, one in enumerate(whole):
            async with web.follow(run_id, after=one.id) as stream:
                assert await read_all(stream) == whole[position + 1 :]


async def test_a_run_is_aborted_by_its_id() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("never"))) as web, web.stream("Hi.") as response:
        events = frames(response)
        first = await anext(events)
        await gate.wait_reached()
        path = f"/v1/conversations/c/runs/{first.data['run_id']}/abort"
        assert (await web.client.post(path, json={"reason": "enough"})).status_code == 202
        last = [one async for one in events][-1]
        assert (last.event, last.data["status"]) == ("run-finished", "aborted")
        assert last.data["abort"] == {"cause": "requested", "reason": "enough", "phase": "step"}


async def test_what_was_said_is_in_the_history_and_conversations_are_listed() -> None:
    async with open_web(agent("Hello.", "Again.")) as web:
        await web.ask("Hi.\nI am Ada.", "ada")
        await web.ask("Hi.", "bob")
        history = (await web.client.get("/v1/conversations/ada/history")).json()
        assert [(one["role"], one["text"]) for one in history["entries"]] == [
            ("user", "Hi.\nI am Ada."),
            ("assistant", "Hello."),
        ]
        listed = (await web.client.get("/v1/conversations")).json()
        assert [(one["id"], one["title"], one["running"]) for one in listed["conversations"]] == [
            ("ada", "Hi.", False),
            ("bob", "Hi.", False),
        ]
        first = (await web.client.get("/v1/conversations?limit=1")).json()
        assert first["next"] == "ada"
        rest = (await web.client.get("/v1/conversations?limit=1&after=ada")).json()
        assert [one["id"] for one in rest["conversations"]] == ["bob"]
        assert rest["next"] is None


async def test_a_forgotten_conversation_is_gone() -> None:
    async with open_web(agent("Hello.")) as web:
        run_id = (await web.ask("Hi.")).headers["x-run-id"]
        assert (await web.client.delete("/v1/conversations/c")).status_code == 204
        for path in ("", "/history", f"/runs/{run_id}", f"/runs/{run_id}/events"):
            assert (await web.client.get(f"/v1/conversations/c{path}")).status_code == 404
        assert (await web.client.get("/v1/conversations")).json()["conversations"] == []


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_client_that_leaves_aborts_its_run_unless_it_is_detached(accept: str, detach: bool) -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        raw = await web.connect()
        await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi.", "detach": detach}, accept=accept)
        await gate.wait_reached()
        status = (await web.client.get("/v1/conversations/c")).json()
        await raw.stream.aclose()
        run_id = status["run_id"]
        async with web.follow(run_id) as stream:
            events = frames(stream)
            assert (await anext(events)).event == "run-queued"
            if detach:
                gate.open()
            last = [one async for one in events][-1]
    assert last.data["status"] == ("completed" if detach else "aborted")
    if not detach:
        assert (last.data["abort"]["cause"], last.data["abort"]["reason"]) == ("caller", "the client left")


@pytest.mark.parametrize("loop", [Conductor(), ToolLoop()], ids=["planned", "native"])
async def test_the_server_ends_while_a_run_goes_on_and_its_client_is_told(loop: Conductor | ToolLoop) -> None:
    gate = Gate()
    own = Agent(model=ScriptedModel([gate.then("never")]), loop=loop)
    async with open_web(own, config=ServerConfig(drain_grace=0)) as web, web.stream("Hi.") as response:
        events = frames(response)
        await anext(events)
        await gate.wait_reached()
        web.server.shut_down()
        last = [one async for one in events][-1]
        assert last.data["abort"]["cause"] == "shutdown"


async def test_health_is_told_without_a_token_and_readiness_ends_before_the_server() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        assert (await web.client.get("/healthz")).json() == {"status": "ok"}
        assert (await web.client.get("/readyz")).status_code == 200
        async with trio.open_nursery() as nursery:
            nursery.start_soon(web.ask, "Hi.")
            await gate.wait_reached()
            web.server.shut_down()
            gate.open()
