"""Log records of runs, model calls and tool calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, RunAborted, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError, ModelUnavailable
from goliath_actors.logs import Logs
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

SECRET = "the secret word"
STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@tool
async def look(word: str) -> str:
    """Look."""
    await trio.sleep(2)
    return f"saw {word}"


@tool
async def lose() -> str:
    """Lose."""
    raise ToolFailure(SECRET)


def agent_of(*replies: Any, logs: Logs | None = None, **options: Any) -> Agent[Any]:
    options = {"tools": [look, lose], "loop": ToolLoop(), "name": "helper", **options}
    return Agent(model=ScriptedModel(list(replies), name="m1"), extensions=[logs or Logs()], **options)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "goliath_actors.logs")
    return caplog


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def of(log: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [fields(record) for record in log.records if getattr(record, "event", None) == event]


async def test_a_run_and_its_calls_are_logged_with_ids_and_without_contents(
    log: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    calls = tool_calls(("look", {"word": SECRET}), ("lose", {}))
    async with open_runtime(agent_of(calls, SECRET)) as runtime:
        result = await runtime.run(SECRET, conversation_id="c1")
    assert [(record.levelname, getattr(record, "event", "")) for record in log.records] == [
        ("DEBUG", "run-started"),
        ("DEBUG", "model-finished"),
        ("DEBUG", "tool-finished"),
        ("WARNING", "tool-finished"),
        ("DEBUG", "model-finished"),
        ("INFO", "run-finished"),
    ]
    common = {"run_id": result.run_id, "conversation_id": "c1", "agent": "helper"}
    assert all(fields(record).items() >= common.items() for record in log.records)
    looked, lost = of(log, "tool-finished")
    assert looked == {
        **common,
        "event": "tool-finished",
        "tool": "look",
        "call_id": result.steps[0].call_id,
        "status": "executed",
        "reason": None,
        "seconds": 2.0,
        "error_type": None,
    }
    assert (lost["status"], lost["error_type"]) == ("failed", "ToolFailure")
    (run,) = of(log, "run-finished")
    assert run.pop("waited") >= 0
    assert run == {
        **common,
        "event": "run-finished",
        "status": "completed",
        "reason": None,
        "cause": None,
        "error_type": None,
        "origin": None,
        "handled_by": "device",
        "seconds": 2.0,
        "input_tokens": result.usage.input_tokens,
        "output_tokens": result.usage.output_tokens,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
    }
    assert log.records[-1].getMessage() == f"run {result.run_id}: completed in 2.000 s"
    assert SECRET not in str([vars(record) for record in log.records]) + log.text


async def test_contents_are_there_when_they_are_wanted_and_bounded(
    log: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    agent = agent_of(tool_calls(("look", {"word": "x" * 9000})), SECRET, logs=Logs(contents=True))
    async with open_runtime(agent) as runtime:
        await runtime.run("what?")
    assert of(log, "run-started")[0]["ask"] == "what?"
    assert of(log, "run-finished")[0]["text"] == SECRET
    looked = of(log, "tool-finished")[0]
    assert len(looked["input"]) == 2000
    assert looked["result"].startswith("saw xxx")


@pytest.mark.parametrize(
    ("end", "cause", "level"), [("abort", "requested", "INFO"), ("deadline", "deadline", "WARNING")]
)
async def test_an_abort_says_its_cause(
    log: pytest.LogCaptureFixture, autojump_clock: MockClock, end: str, cause: str, level: str
) -> None:
    gate = Gate()
    async with open_runtime(agent_of(gate.then("never"))) as runtime:
        run = runtime.submit("go", timeout=5 if end == "deadline" else None)
        await gate.wait_reached()
        if end == "abort":
            run.abort("enough")
        with pytest.raises(RunAborted):
            await run.wait()
    record = log.records[-1]
    assert (record.levelname, fields(record)["status"], fields(record)["cause"]) == (level, "aborted", cause)
    assert f"aborted ({cause}) in" in record.getMessage()


async def test_a_run_that_never_had_its_turn_is_logged_too(
    log: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    gate = Gate()
    async with open_runtime(agent_of(gate.then("done"))) as runtime:
        runtime.submit("go")
        queued = runtime.submit("and?")
        await gate.wait_reached()
        queued.abort()
        gate.open()
    assert [(one["run_id"] == queued.id, one["seconds"]) for one in of(log, "run-finished")] == [
        (False, 0.0),
        (True, 0.0),
    ]


async def test_a_failed_run_is_an_error_with_its_type_and_origin(
    log: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with open_runtime(agent_of(ModelUnavailable(SECRET))) as runtime:
        with pytest.raises(ModelUnavailable):
            await runtime.run("go")
    assert [record.levelname for record in log.records] == ["DEBUG", "WARNING", "ERROR"]
    (run,) = of(log, "run-finished")
    assert (run["error_type"], run["origin"]) == ("ModelUnavailable", "model")
    assert SECRET not in log.text


async def test_a_fallback_is_logged_with_its_reason(log: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async def cloud(request: Any) -> str:
        return "from the cloud"

    agent = agent_of(OSError("no"), loop=Conductor(), fallback=cloud)
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert [one["reason"] for one in of(log, "fallback-started")] == ["model-error"]
    assert of(log, "run-finished")[0]["handled_by"] == "cloud"


async def test_a_logger_that_raises_changes_nothing_and_is_a_diagnostic(autojump_clock: MockClock) -> None:
    class Broken(logging.Logger):
        def log(self, *args: Any, **options: Any) -> None:
            raise OSError("the disk is full")

    agent = agent_of(tool_calls(("look", {"word": "x"})), "done", logs=Logs(Broken("broken")))
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    assert result.text == "done"
    assert [(one.extension, one.phase, str(one.error)) for one in result.diagnostics] == [
        ("logs", "on_finish", "the disk is full")
    ]


@pytest.mark.parametrize("options", [{"logger": 3}, {"level": "INFO"}, {"contents": 1}])
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Logs"):
        Logs(**options)
