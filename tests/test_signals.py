"""Ctrl-C in a real process: every observer is told, the record is whole, and the process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from goliath_actors.stores import SqliteStore

PROGRAM = textwrap.dedent(
    """
    import sys
    import trio
    import trio.testing
    from goliath_actors import Agent, Extension, approve_all, open_runtime, tool
    from goliath_actors.stores import SqliteStore
    from goliath_actors.testing import ScriptedModel

    BUSY = {busy}

    @tool(writes=True)
    async def wait_long(text: str) -> str:
        "Wait for a long time."
        if BUSY:
            print("started", flush=True)
        while BUSY:
            pass
        await trio.sleep(60)
        return text

    class Told(Extension):
        name = "told"

        async def on_finish(self, ctx, question):
            await trio.sleep(0.05)
            outcome = question.outcome
            print("told", ctx.ask, outcome.status, flush=True)

    async def main():
        script = [{{"kind": "tool", "tool": "wait_long", "brief": "wait"}}, {{"text": "x"}}]
        agent = Agent(model=ScriptedModel(script), tools=[wait_long], confirm=approve_all, extensions=[Told()])
        async with open_runtime(agent, store=SqliteStore(sys.argv[1])) as runtime:
            runtime.submit("go", conversation_id="c")
            runtime.submit("queued", conversation_id="c")
            await trio.sleep(0.2)
            await trio.testing.wait_all_tasks_blocked(0.1)
            print("started", flush=True)
            await trio.sleep_forever()

    trio.run(main)
    """
)


@pytest.mark.parametrize("busy", [False, True], ids=["while waiting", "inside the tool's own code"])
def test_an_interrupt_tells_every_observer_keeps_the_write_and_ends_the_process(tmp_path: Path, busy: bool) -> None:
    program, database = tmp_path / "program.py", tmp_path / "chat.db"
    program.write_text(PROGRAM.format(busy=busy), encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, str(program), str(database)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "ExceptionGroup" not in errors
    status = "error" if busy else "aborted"
    assert output.splitlines() == [f"told go {status}", "told queued aborted"]

    async def read() -> list[tuple[str, bool, list[str]]]:
        async with SqliteStore(database) as store:
            record = await store.load("agent/c")
        assert "open_run" not in record.private
        return [(e.ask, e.best_effort, [step.status for step in e.steps]) for e in record.memory.recent]

    assert trio.run(read) == [("go", True, ["unknown"])]
