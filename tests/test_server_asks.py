"""Asks over HTTP: once for each idempotency key, refused where there is no room, steered, resumed and answered anew."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from goliath_actors import Agent, Conductor, Extension, ToolLoop, tool
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.server import ServerConfig, Visitor, ask_client
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.tools import ToolContext

from .web import Web, frames, open_web, read_all


def agent(*replies: Any, **more: Any) -> Agent[Any]:
    return Agent(**{"name": "assistant", "model": ScriptedModel(list(replies)), "loop": ToolLoop(), **more})


async def keyed(web: Web, ask: str, key: str, **more: Any) -> Any:
    return await web.client.post(
        "/v1/conversations/c/runs", json={"ask": ask, **more}, headers={"idempotency-key": key}
    )


# --- idempotency ----------------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_is_the_same_run_once() -> None:
    own = agent("Once.")
    async with open_web(own) as web:
        first = await keyed(web, "Hi.", "k1")
        again = await keyed(web, "Hi.", "k1")
        assert again.json() == first.json()
        assert again.headers["x-run-id"] == first.headers["x-run-id"]
        assert again.headers["idempotent-replayed"] == "true"
        assert "idempotent-replayed" not in first.headers
    assert len(own.model.requests) == 1  # type: ignore[attr-defined]


async def test_the_same_key_with_another_body_is_refused() -> None:
    async with open_web(agent("Once.")) as web:
        await keyed(web, "Hi.", "k1")
        for more in ({"ask": "Ho."}, {"ask": "Hi.", "timeout": 5}):
            response = await keyed(web, **more, key="k1")  # type: ignore[arg-type]
            assert response.status_code == 422
            assert response.json()["type"] == "urn:goliath-actors:problem:key-reused"


async def test_a_key_means_nothing_in_another_conversation() -> None:
    async with open_web(agent("One.", "Two.")) as web:
        for name, text in (("a", "One."), ("b", "Two.")):
            response = await web.client.post(
                f"/v1/conversations/{name}/runs", json={"ask": "Hi."}, headers={"idempotency-key": "k1"}
            )
            assert response.json()["result"]["text"] == text


async def test_two_requests_with_one_key_at_once_are_one_run_and_the_second_does_not_own_it() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Once."))) as web:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await keyed(web, "Hi.", "k1"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await gate.wait_reached()
            nursery.start_soon(ask)
            raw = await web.connect()
            await raw.send(
                "POST", "/v1/conversations/c/runs", {"ask": "Hi."},
                **{"idempotency-key": "k1", "accept": "text/event-stream"},
            )  # fmt: skip
            await raw.read_until(b"run-started")
            await raw.stream.aclose()
            gate.open()
    assert [answer.json()["result"]["text"] for answer in answers] == ["Once.", "Once."]
    assert len({answer.headers["x-run-id"] for answer in answers}) == 1


async def test_a_key_finds_its_run_after_a_restart() -> None:
    store = InMemoryStore()
    async with open_web(agent("Once."), store=store) as web:
        first = (await keyed(web, "Hi.", "k1")).json()
    async with open_web(agent(), store=store) as web:
        again = await keyed(web, "Hi.", "k1")
        assert again.status_code == 200
        assert again.json() == {**first, "result": {**first["result"], "steps": []}}
        assert (await keyed(web, "Ho.", "k1")).status_code == 422
        async with web.follow(first["run_id"]) as stream:
            (last,) = await read_all(stream)
        assert (last.event, last.data["result"]["text"]) == ("run-finished", "Once.")
        async with web.follow(first["run_id"], after=last.id) as stream:
            assert await read_all(stream) == []


async def test_an_ask_that_cannot_be_recorded_is_refused_and_does_nothing() -> None:
    own = agent("never")
    async with open_web(own, store=FailingStore(InMemoryStore(), {"commit": OSError("disk full")})) as web:
        response = await web.ask("Hi.")
        assert response.status_code == 503
        assert response.json()["type"] == "urn:goliath-actors:problem:store"
        assert "disk full" not in response.text
    assert own.model.requests == []  # type: ignore[attr-defined]


async def test_an_ask_of_an_agent_that_came_along_as_a_tool_waits_for_its_record_too() -> None:
    journal = Journal()
    librarian = Agent(name="librarian", model=ScriptedModel([]), loop=ToolLoop(), extensions=[journal])
    desk = agent(tools=[librarian.as_tool()])
    async with open_web(desk, store=FailingStore(InMemoryStore(), {"commit": OSError("disk full")})) as web:
        assert (await web.ask("Hi.", agent="librarian")).status_code == 503
    assert journal.rows == ["on_error", "on_finish"]


# --- no room --------------------------------------------------------------------------------------------------------


async def test_a_full_mailbox_is_429_and_a_full_runtime_503_with_when_to_come_again() -> None:
    gate = Gate()
    config = ServerConfig(mailbox_capacity=1, max_waiting=2, max_running=1, high_water=0.5)
    async with open_web(agent(gate.then("1"), "2", "3"), config=config) as web:
        more = {"wait": False, "detach": True}
        await web.ask("running", "a", **more)
        await gate.wait_reached()
        assert (await web.client.get("/readyz")).status_code == 200
        await web.ask("waits", "a", **more)
        ready = await web.client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "busy")  # before anything is refused
        full = await web.ask("too many", "a", **more)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json()["type"] == "urn:goliath-actors:problem:mailbox-full"
        await web.ask("waits", "b", **more)
        full = await web.ask("too many", "x", **more)
        assert (full.status_code, full.headers["retry-after"]) == (503, "2")
        assert (await web.client.get("/v1/conversations/x")).status_code == 404  # no trace
        assert (await web.ask("Hi.", "a", when_busy="refuse")).status_code == 409
        gate.open()


# --- questions ------------------------------------------------------------------------------------------------------


@tool(writes=True)
async def save(ctx: ToolContext[Visitor], text: str) -> str:
    """Save a text."""
    return f"saved {text} for {ctx.context.principal} in {ctx.conversation_id}"


@pytest.mark.parametrize("approve", [True, False])
async def test_a_question_is_told_answered_and_closed(approve: bool) -> None:
    own = agent(tool_calls(("save", {"text": "milk"})), "Done.", tools=[save], confirm=ask_client)
    async with open_web(own) as web, web.stream("save milk") as response:
        events = frames(response)
        async for sent in events:
            if sent.event == "confirmation-open":
                break
        assert sent.id is None
        call_id, run_id = sent.data["call_id"], sent.data["run_id"]
        assert (sent.data["tool"], sent.data["writes"], sent.data["input"]) == ("save", True, {"text": "milk"})
        status = (await web.client.get("/v1/conversations/c")).json()
        assert [(one["run_id"], one["call_id"]) for one in status["confirmations"]] == [(run_id, call_id)]
        path = f"/v1/conversations/c/runs/{run_id}/confirmations"
        late = await web.connect()  # whoever comes late is told of it
        await late.send("GET", f"/v1/conversations/c/runs/{run_id}/events", **{"last-event-id": "1000"})
        await late.read_until(call_id.encode())
        await late.stream.aclose()
        assert (await web.client.post(f"{path}/other", json={"approve": True})).status_code == 404
        answer = await web.client.post(f"{path}/{call_id}", json={"approve": approve, "reason": "because"})
        assert answer.status_code == 200
        assert (await web.client.post(f"{path}/{call_id}", json={"approve": True})).status_code == 404
        rest = [one async for one in events]
    closed = next(one for one in rest if one.event == "confirmation-closed")
    assert (closed.data["approved"], closed.data["reason"]) == (approve, "because")
    finished = next(one for one in rest if one.event == "tool-finished")
    assert finished.data["result"] == (
        "saved milk for local in local/c"
        if approve
        else "Declined by the user: because. Do not try it again unless the user asks for it."
    )


async def test_a_question_that_nobody_answers_is_refused_in_the_end() -> None:
    own = agent(tool_calls(("save", {"text": "milk"})), "Done.", tools=[save], confirm=ask_client)
    async with open_web(own, config=ServerConfig(confirm_timeout=0.05)) as web:
        result = (await web.ask("save milk")).json()["result"]
        assert [step["status"] for step in result["steps"][:1]] == ["skipped"]
        assert "nobody answered within 0.05 s" in result["steps"][0]["result"]


async def test_an_agent_that_confirms_by_itself_may() -> None:
    own = agent(tool_calls(("save", {"text": "milk"})), "Done.", tools=[save], confirm=lambda request: True)
    async with open_web(own, config=ServerConfig(confirm="agent")) as web:
        result = (await web.ask("save milk")).json()["result"]
        assert result["steps"][0]["status"] == "executed"


def desk(*replies: Any, calls: int = 1, **more: Any) -> Agent[Any]:
    """An agent that has another one save for it, which asks the client."""

    def saving(request: Any) -> Any:
        last = request.messages[-1]
        return tool_calls(("save", {"text": last.text})) if last.role == "user" else f"Told: {last.text}"

    clerk = agent(*[saving] * 4, name="clerk", tools=[save], confirm=ask_client)
    both = tool_calls(*[("clerk", {"ask": text}) for text in ("milk", "bread")[:calls]])
    return agent(both, *replies, tools=[clerk.as_tool()], **more)


async def test_the_client_is_asked_for_what_a_sub_agent_wants_and_ids_of_two_are_different() -> None:
    async with open_web(desk("Done.", calls=2)) as web, web.stream("save both") as response:
        opened: list[Any] = []
        sent: list[Any] = []
        async for one in frames(response):
            sent.append(one)
            if one.event != "confirmation-open":
                continue
            opened.append(one.data)
            if len(opened) < 2:
                continue
            status = (await web.client.get("/v1/conversations/c")).json()
            assert [row["agent"] for row in status["confirmations"]] == ["clerk", "clerk"]
            for row in status["confirmations"]:
                approve = row["input"] == {"text": "milk"}
                path = f"/v1/conversations/c/runs/{row['run_id']}/confirmations/{row['call_id']}"
                assert (await web.client.post(path, json={"approve": approve, "reason": "why"})).status_code == 200
        assert {row["run_id"] for row in opened} == {sent[-1].data["run_id"]}
        assert len({row["call_id"] for row in opened}) == 2
    told = sorted(one.data["result"] for one in sent if one.event == "tool-finished")
    assert told[0].startswith("Told: Declined by the user: why.")
    assert told[1].startswith("Told: saved milk for local in local/c/")
    assert len([one for one in sent if one.event == "confirmation-closed"]) == 2


async def test_what_a_sub_agent_asks_waits_as_long_as_other_questions_and_a_new_message_denies_it() -> None:
    async with open_web(desk("Done."), config=ServerConfig(confirm_timeout=0.05)) as web:
        result = (await web.ask("save it")).json()["result"]
        assert "nobody answered within 0.05 s" in result["steps"][0]["result"]
    async with open_web(desk("Not saved.", "Yes?")) as web, web.stream("save it") as response:
        events = frames(response)
        async for one in events:
            if one.event == "confirmation-open":
                break
        assert (await web.ask("are you there?")).json()["result"]["text"] == "Yes?"
        rest = [one async for one in events]
    assert [one.data["approved"] for one in rest if one.event == "confirmation-closed"] == [False]
    assert "a new message came instead of an answer" in rest[-1].data["result"]["steps"][0]["result"]


async def test_an_abort_withdraws_what_a_sub_agent_asks() -> None:
    async with open_web(desk("Never.")) as web, web.stream("save it") as response:
        rest: list[Any] = []
        async for one in frames(response):
            rest.append(one)
            if one.event == "confirmation-open":
                run = f"/v1/conversations/c/runs/{one.data['run_id']}"
                assert (await web.client.post(f"{run}/abort", json={})).status_code == 202
        assert [one.data["approved"] for one in rest if one.event == "confirmation-closed"] == [False]
        assert rest[-1].data["status"] == "aborted"
        late = await web.client.post(f"{run}/confirmations/{'x'}", json={"approve": True})
        assert late.status_code == 404


async def test_an_agent_that_is_left_to_confirm_may_ask_the_client() -> None:
    own = agent(tool_calls(("save", {"text": "milk"})), "Done.", tools=[save], confirm=ask_client)
    async with open_web(own, config=ServerConfig(confirm="agent")) as web, web.stream("save milk") as response:
        async for one in frames(response):
            if one.event == "confirmation-open":
                path = f"/v1/conversations/c/runs/{one.data['run_id']}/confirmations/{one.data['call_id']}"
                assert (await web.client.post(path, json={"approve": True})).status_code == 200
    assert own.model.requests[-1].messages[-1].text == "saved milk for local in local/c"  # type: ignore[attr-defined]


async def test_a_new_message_denies_the_question_that_is_open_and_is_run() -> None:
    own = agent(tool_calls(("save", {"text": "milk"})), "Not saved.", "Yes?", tools=[save], confirm=ask_client)
    async with open_web(own) as web, web.stream("save milk") as response:
        events = frames(response)
        async for sent in events:
            if sent.event == "confirmation-open":
                break
        assert (await web.ask("are you there?")).json()["result"]["text"] == "Yes?"
        rest = [one async for one in events]
    decided = next(one for one in rest if one.event == "confirm")
    assert (decided.data["approved"], decided.data["reason"]) == (False, "a new message came instead of an answer")
    assert [one.data["approved"] for one in rest if one.event == "confirmation-closed"] == [False]
    assert rest[-1].data["result"]["text"] == "Not saved."


async def test_forgetting_ends_what_goes_on_and_what_waits() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("never"), "never", "Afresh.")) as web:
        ids = [(await web.ask("Hi.", wait=False)).json()["run_id"] for _ in range(2)]
        await gate.wait_reached()
        assert (await web.client.delete("/v1/conversations/c")).status_code == 204
        for run_id in ids:
            assert (await web.client.get(f"/v1/conversations/c/runs/{run_id}")).status_code == 404
        assert web.server.runtime.statistics().aborted == 2
        assert (await web.ask("Hi.")).json()["result"] is not None
        entries = (await web.client.get("/v1/conversations/c/history")).json()["entries"]
        assert [one["role"] for one in entries] == ["user", "assistant"]


# --- native tool calling --------------------------------------------------------------------------------------------


async def test_a_text_is_handed_to_the_running_run() -> None:
    gate = Gate()

    @tool
    async def look() -> str:
        """Look."""
        await gate.pass_through()
        return "seen"

    async with open_web(agent(tool_calls(("look", {})), "Both.", tools=[look])) as web:
        first = await web.ask("Hi.", wait=False)
        await gate.wait_reached()
        steered = await web.client.post("/v1/conversations/c/steer", json={"text": "And this."})
        assert steered.status_code == 202
        assert steered.json()["run_id"] == first.json()["run_id"]
        gate.open()
        async with web.follow(first.json()["run_id"]) as stream:
            sent = await read_all(stream)
    assert [one.data["text"] for one in sent if one.event == "steered"] == ["And this."]


async def test_texts_that_a_run_did_not_take_become_runs_that_can_be_followed_and_asked() -> None:
    gate = Gate()
    replies = [
        gate.then("Over."),
        tool_calls(("save", {"text": "a"})), "One.",
        tool_calls(("save", {"text": "b"})), "Two.",
    ]  # fmt: skip
    async with open_web(agent(*replies, tools=[save], confirm=ask_client)) as web:
        first = (await web.ask("Hi.", wait=False, detach=True)).json()["run_id"]
        await gate.wait_reached()
        for text in ("this", "that"):
            steered = await web.client.post("/v1/conversations/c/steer", json={"text": text})
            assert steered.json()["run_id"] == first
        await web.client.post(f"/v1/conversations/c/runs/{first}/abort", json={})
        run_id, texts = first, []
        async with web.follow(run_id) as stream:
            last = (await read_all(stream))[-1]
        while last.data["followed_by"] is not None:
            run_id = last.data["followed_by"]
            async with web.follow(run_id) as stream:
                async for last in frames(stream):
                    if last.event == "confirmation-open":
                        path = f"/v1/conversations/c/runs/{run_id}/confirmations/{last.data['call_id']}"
                        assert (await web.client.post(path, json={"approve": True})).status_code == 200
            texts.append(last.data["result"]["text"])
    assert texts == ["One.", "Two."]


async def test_a_text_for_a_conversation_at_rest_is_an_ask() -> None:
    async with open_web(agent("Hello.")) as web:
        steered = await web.client.post("/v1/conversations/c/steer", json={"text": "Hi."})
        async with web.follow(steered.json()["run_id"]) as stream:
            assert (await read_all(stream))[-1].data["result"]["text"] == "Hello."


async def test_a_call_that_waits_is_told_and_taken_up() -> None:
    @tool
    async def fetch(ctx: ToolContext[Any]) -> str:
        """Ask a person."""
        return f"they said {await ctx.suspend({'question': 'which?'})}"

    store = InMemoryStore()
    async with open_web(agent(tool_calls(("fetch", {})), tools=[fetch]), store=store) as web:
        (waiting,) = (await web.ask("Hi.")).json()["result"]["waiting"]
        assert (waiting["tool"], waiting["kind"], waiting["payload"]) == ("fetch", "question", {"question": "which?"})
    async with open_web(agent("That one.", tools=[fetch]), store=store) as web:
        status = (await web.client.get("/v1/conversations/c")).json()
        assert status["waiting_calls"] == [waiting]
        body = {"answers": {waiting["call_id"]: "this"}}
        response = await web.client.post("/v1/conversations/c/resume", json=body)
        assert response.json()["result"]["text"] == "That one."
        assert (await web.client.get("/v1/conversations/c")).json()["waiting_calls"] == []


@pytest.mark.parametrize("door", ["resume", "runs"])
async def test_a_call_that_a_failed_run_has_seen_to_waits_no_more(door: str) -> None:
    @tool
    async def fetch(ctx: ToolContext[Any]) -> str:
        """Ask a person."""
        return f"they said {await ctx.suspend({'question': 'which?'})}"

    async with open_web(agent(tool_calls(("fetch", {})), RuntimeError("no"), tools=[fetch])) as web:
        (waiting,) = (await web.ask("Hi.")).json()["result"]["waiting"]
        body = {"answers": {waiting["call_id"]: "this"}} if door == "resume" else {"ask": "Never mind."}
        response = await web.client.post(f"/v1/conversations/c/{door}", json=body)
        assert response.json()["status"] == "error"
        assert (await web.client.get("/v1/conversations/c")).json()["waiting_calls"] == []


async def test_the_last_ask_is_answered_anew() -> None:
    async with open_web(agent("One.", "Two.")) as web:
        await web.ask("Hi.")
        async with web.client.stream(
            "POST", "/v1/conversations/c/regenerate", headers={"accept": "text/event-stream"}
        ) as stream:
            assert (await read_all(stream))[-1].data["result"]["text"] == "Two."
        entries = (await web.client.get("/v1/conversations/c/history")).json()["entries"]
        assert [one["text"] for one in entries] == ["Hi.", "Two."]


async def test_an_error_names_the_conversation_as_its_client_does() -> None:
    async with open_web(agent(), config=ServerConfig(show_errors=False)) as web:
        run = (await web.client.post("/v1/conversations/mine/regenerate", json={})).json()
        assert run["status"] == "error"
        assert "'mine'" in run["error"]["detail"]
        assert "local/mine" not in run["error"]["detail"]


async def test_a_planned_agent_cannot_be_steered_resumed_or_asked_anew_and_says_so() -> None:
    async with open_web(agent(loop=Conductor())) as web:
        for door, body in (("steer", {"text": "x"}), ("resume", {"answers": {"x": True}}), ("regenerate", {})):
            response = await web.client.post(f"/v1/conversations/c/{door}", json=body)
            assert response.status_code == 409
            assert "ToolLoop" in response.json()["detail"]


class Held(Extension[Any]):
    """Holds runs that were aborted in their observer."""

    name = "held"

    def __init__(self) -> None:
        self.gate = Gate()

    async def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        if question.outcome.status == "aborted":
            await self.gate.pass_through()


async def test_an_ask_behind_a_deletion_is_not_deleted_along() -> None:
    """It was acknowledged: its run can be found, its conversation is listed, and its key does not run it again."""
    held, first, second = Held(), Gate(), Gate()
    own = Agent(
        model=ScriptedModel([first.then("one"), second.then("two")]), loop=ToolLoop(), extensions=[held], name="agent"
    )
    key = {"idempotency-key": "k"}
    asked: list[Any] = []
    answered = trio.Event()
    async with open_web(own) as web, trio.open_nursery() as nursery:

        async def delete() -> None:
            assert (await web.client.delete("/v1/conversations/c")).status_code == 204

        async def ask() -> None:
            body = {"ask": "again", "detach": True, "wait": False}
            asked.append(await web.client.post("/v1/conversations/c/runs", json=body, headers=key))
            answered.set()

        await web.ask("Hi.", detach=True, wait=False)
        await first.wait_reached()
        nursery.start_soon(delete)
        await held.gate.wait_reached()
        nursery.start_soon(ask)
        while web.server.runtime.statistics().accepted < 2:
            await web.client.get("/healthz")
        held.gate.open()
        await second.wait_reached()
        second.open()
        await answered.wait()
        run_id = asked[0].json()["run_id"]
        await web.server._hosting.wait_kept()
        assert (await web.client.get(f"/v1/conversations/c/runs/{run_id}")).json()["result"]["text"] == "two"
        listed = (await web.client.get("/v1/conversations")).json()["conversations"]
        assert [(one["id"], one["title"]) for one in listed] == [("c", "again")]
        await ask()
        assert (asked[1].json()["run_id"], asked[1].headers["idempotent-replayed"]) == (run_id, "true")


async def test_what_waits_no_more_and_what_was_never_asked_are_errors_of_their_runs() -> None:
    async with open_web(agent()) as web:
        answers = await web.client.post("/v1/conversations/c/resume", json={"answers": {"call-1": True}})
        again = await web.client.post("/v1/conversations/c/regenerate", json={})
    found = [(response.status_code, response.json()["error"]) for response in (answers, again)]
    assert [(status, error["type"]) for status, error in found] == [(200, "NotWaiting"), (200, "NothingToRegenerate")]
    assert found[0][1]["detail"].startswith("nothing waits for an answer in conversation")


async def test_an_agent_and_one_that_is_its_tool_are_served_side_by_side() -> None:
    librarian = Agent(name="librarian", model=ScriptedModel(["Borges.", "Eco."]), loop=ToolLoop())
    desk = agent(tool_calls(("librarian", {"ask": "Who?"})), "Borges, they say.", tools=[librarian.as_tool()])
    async with open_web(desk, librarian) as web:
        assert (await web.ask("Who?")).json()["result"]["text"] == "Borges, they say."
        body = {"ask": "Who else?", "agent": "librarian"}
        response = await web.client.post("/v1/conversations/d/runs", json=body)
        assert response.json()["result"]["text"] == "Eco."
