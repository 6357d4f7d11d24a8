"""What the chat page needs of the server, without a browser: its files, and what a reload is told."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from goliath_actors import Agent, Conductor, Extension, ToolLoop, tool
from goliath_actors.abc import Change
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

from .web import open_web, read_all

STATIC = Path(str(files("goliath_actors.server") / "static"))
SOURCES = sorted(STATIC.rglob("*.*"))


@tool
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


def agent(*replies: object) -> Agent[object]:
    return Agent(name="assistant", model=ScriptedModel(list(replies)), tools=[look], loop=ToolLoop())


async def test_the_page_comes_with_a_policy_that_allows_nothing_but_its_own_files() -> None:
    async with open_web(agent()) as web:
        page = await web.client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        policy = dict(row.strip().partition(" ")[::2] for row in page.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
            asset = await web.client.get(path)
            assert asset.status_code == 200, path
            assert asset.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_file_of_the_page_parses_text_as_html_or_asks_for_anything_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("):
        assert word not in text, word
    addresses = set(re.findall(r"https?://[^\s\"'`)<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}, addresses  # a namespace, never asked for
    if path.suffix == ".html":
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", text)


async def test_a_history_says_how_each_call_ended_and_which_answer_was_cut_off() -> None:
    calls = tool_calls(("look", {"what": "a"}), ("gone", {}))
    async with open_web(agent(calls, "That is all.")) as web:
        await web.ask("Look.")
        entries = (await web.client.get("/v1/conversations/c/history")).json()["entries"]
    assert [entry["role"] for entry in entries] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [entry.get("status") for entry in entries] == [None, None, "executed", "failed", None]
    assert not any("partial" in entry for entry in entries)


async def test_a_conversation_says_what_its_runs_were_asked() -> None:
    gate = Gate()
    async with open_web(agent("first", gate.then("again"), "second")) as web:
        await web.ask("One.")
        begun = (await web.client.post("/v1/conversations/c/regenerate", json={"wait": False, "detach": True})).json()
        await gate.wait_reached()
        queued = (await web.ask("Two.", wait=False, detach=True)).json()
        runs = (await web.client.get("/v1/conversations/c")).json()["runs"]
        assert runs == [
            {"run_id": begun["run_id"], "state": "running", "kind": "regenerate", "ask": None},
            {"run_id": queued["run_id"], "state": "queued", "kind": "run", "ask": "Two."},
        ]
        gate.open()


async def test_who_followed_a_run_is_told_its_end_by_the_next_server(tmp_path: Path) -> None:
    store, gate = InMemoryStore(), Gate()
    async with open_web(agent("one ", gate.then("never")), store=store) as web:
        run_id = (await web.ask("Hi.", wait=False, detach=True)).json()["run_id"]
        row = (await store.load(":server/assistant/local/c")).private["open"][run_id]
        web.server.shut_down()
    # As a kill would leave it: open, and begun.
    record = await store.load(":server/assistant/local/c")
    await store.commit(
        ":server/assistant/local/c",
        Change(private={**record.private, "open": {run_id: {**row, "begun": True}}, "ended": []}),
        expect=record.version,
    )
    async with open_web(agent("never asked"), store=store) as web:
        async with web.follow(run_id, after=5) as stream:
            sent = await read_all(stream)
        assert [(one.event, one.data["status"], one.data["reason"]) for one in sent] == [
            ("run-finished", "aborted", "shutdown")
        ]


class Refuses(Extension[Any]):
    name = "refuses"

    def before_run(self, ctx: Any, question: Any) -> None:
        if question.ask == "first":
            raise RuntimeError("out of cheese")


async def test_a_conversation_says_which_of_its_last_asks_got_no_answer_and_why() -> None:
    gate = Gate()
    model = ScriptedModel([gate.then("never"), RuntimeError("gone"), "fine"])
    planned = Agent(name="assistant", model=model, loop=Conductor(), extensions=[Refuses()])
    async with open_web(planned) as web:
        await web.ask("first")
        stopped = (await web.ask("second", wait=False, detach=True)).json()["run_id"]
        await gate.wait_reached()
        await web.client.post(f"/v1/conversations/c/runs/{stopped}/abort", json={})
        assert (await web.ask("third")).json()["status"] == "completed"
        assert (await web.ask("fourth")).json()["result"]["text"] == "fine"
        rows = (await web.client.get("/v1/conversations/c")).json()["unanswered"]
        history = (await web.client.get("/v1/conversations/c/history")).json()["entries"]
    assert [
        (
            row["ask"],
            row["status"],
            row["reason"],
            (row["error"] or {}).get("detail"),
            (row["abort"] or {}).get("cause"),
        )
        for row in rows
    ] == [
        ("first", "error", None, "extension 'refuses' in before_run: out of cheese", None),
        ("second", "aborted", None, "the run was aborted (requested) in answer: the client asked for it", "requested"),
        ("third", "completed", "model-error", None, None),
    ]
    assert all(row["at"] > 1_700_000_000 for row in rows)
    assert [entry["text"] for entry in history] == ["fourth", "fine"]
