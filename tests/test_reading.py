"""Reading a conversation never waits for a run (S4), and looks at no more than is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from goliath_actors import open_runtime, tool
from goliath_actors.abc import Store
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import Gate, tool_calls

from .native import native
from .planned import ANSWER, planned, use


def agents(loop: str, gate: Gate, place: str) -> Any:
    @tool(writes=True)
    async def create(title: str) -> str:
        """Create."""
        if place == "tool":
            await gate.pass_through()
        return "created"

    async def confirm(request: Any) -> bool:
        if place == "confirm":
            await gate.pass_through()
        return True

    first: Any = gate.then("one") if place == "model" else "one"
    script: list[Any]
    if loop == "native":
        script = ["zero", first] if place == "model" else ["zero", tool_calls(("create", {"title": "x"})), "one"]
        return native(script, tools=[create], confirm=confirm)
    if place == "model":
        script = [ANSWER, "zero", ANSWER, first]
    else:
        script = [ANSWER, "zero", use("create"), {"title": "x"}, ANSWER, "one"]
    return planned(script, tools=[create], confirm=confirm)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("place", ["model", "tool", "confirm"])
@pytest.mark.parametrize("loop", ["planned", "native"])
async def test_memory_and_history_are_read_while_a_run_is_busy_and_others_wait(
    loop: str, place: str, kind: str, tmp_path: Path
) -> None:
    gate = Gate()
    store: Store = InMemoryStore() if kind == "memory" else SqliteStore(tmp_path / "chat.db")
    async with open_runtime(agents(loop, gate, place), store=store, max_running=1) as runtime:
        talk = runtime.conversation("c")
        await talk.run("zeroth")
        run = talk.submit("first")
        queued = talk.submit("second")
        await gate.wait_reached()
        with trio.fail_after(20):
            page = await talk.history()
            memory = await talk.memory()
        assert (run.state, queued.state) == ("running", "queued")
        assert [entry.message.text for entry in page.entries[:2]] == ["zeroth", "zero"]
        assert page.entries[-1].message.text != "one"
        assert len(memory.recent) == (1 if loop == "planned" else 0)
        queued.abort()
        gate.open()
        assert (await run.wait()).text == "one"
        # What was appended meanwhile shifts nothing for who reads on from an earlier anchor.
        again = await talk.history(anchor=page.anchor)
        assert [entry.id for entry in again.entries] == [entry.id for entry in page.entries]
        assert (await talk.history()).entries[-1].message.text == "one"


async def test_a_commit_that_hangs_holds_up_no_reader() -> None:
    gate = Gate()

    class Slow(InMemoryStore):
        async def commit(self, *args: Any, **options: Any) -> Any:
            if armed:
                await gate.pass_through()
            return await super().commit(*args, **options)

    armed = False
    async with open_runtime(planned([ANSWER, "zero", ANSWER, "one"], tools=[plain]), store=Slow()) as runtime:
        talk = runtime.conversation()
        await talk.run("zeroth")
        armed = True
        run = talk.submit("first")
        await gate.wait_reached()
        with trio.fail_after(20):
            assert [entry.message.text for entry in (await talk.history()).entries] == ["zeroth", "zero"]
            assert [exchange.answer for exchange in (await talk.memory()).recent] == ["zero"]
        gate.open()
        await run.wait()


@tool
async def plain(name: str) -> str:
    """Plain."""
    return name
