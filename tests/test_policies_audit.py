"""`Audit`: to every enter one exit, whichever way it ended; and nothing about the run changes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Deny, Extension, Stop, ToolFailure, open_runtime, tool
from goliath_actors.errors import ConfigError, ModelUnavailable, RunAborted
from goliath_actors.hooks import BeforeRun, BeforeTool, HookContext
from goliath_actors.policies import Audit, AuditRecord
from goliath_actors.testing import Gate, ScriptedModel
from goliath_actors.values import Usage

from .planned import ANSWER, GIVE_UP, end, planned, run, use


@tool
async def look(where: str) -> str:
    """Look."""
    await trio.sleep(2)
    if where == "nowhere":
        raise ToolFailure("there is no such place")
    return f"seen {where}"


def line(record: AuditRecord) -> tuple[Any, ...]:
    return record.of, record.edge, record.name, record.outcome


def paired(records: list[AuditRecord]) -> None:
    """Every enter has exactly one exit after it, and nothing else has one."""
    opened: set[tuple[str, str, str]] = set()
    seen: set[tuple[str, str, str]] = set()
    for record in records:
        key = (record.run_id, record.of, record.id)
        if record.edge == "enter":
            assert key not in seen
            assert (record.seconds, record.outcome) == (None, None)
            opened.add(key)
            seen.add(key)
        else:
            opened.remove(key)
            assert record.seconds is not None
            assert record.outcome is not None
    assert opened == set()


async def test_a_run_is_told_from_its_ask_to_its_end(autojump_clock: MockClock) -> None:
    records: list[AuditRecord] = []
    model = ScriptedModel([use("look"), {"where": "here"}, ANSWER, "done"], usage=Usage(10, 3))
    agent = planned(model, tools=[look], extensions=[Audit(records.append)])
    result = await run(agent, "look!", conversation_id="c")
    paired(records)
    assert [line(record) for record in records] == [
        ("run", "enter", "agent", None),
        ("model", "enter", "plan", None),
        ("model", "exit", "plan", "completed"),
        ("model", "enter", "arguments", None),
        ("model", "exit", "arguments", "completed"),
        ("tool", "enter", "look", None),
        ("tool", "exit", "look", "executed"),
        ("model", "enter", "plan", None),
        ("model", "exit", "plan", "completed"),
        ("model", "enter", "answer", None),
        ("model", "exit", "answer", "completed"),
        ("run", "exit", "agent", "completed"),
    ]
    assert {(record.run_id, record.conversation_id, record.agent) for record in records} == {
        (result.run_id, "c", "agent")
    }
    assert records[0].detail == {"ask": "look!", "entry": "run"}
    assert records[5].detail == {"input": {"where": "here"}}
    assert (records[6].seconds, records[6].detail) == (2, {"input": {"where": "here"}, "result": "seen here"})
    assert records[-2].detail == {"text": "done", "finish_reason": "stop", "input_tokens": 10, "output_tokens": 3}
    assert (records[-1].seconds, records[-1].detail["text"], records[-1].detail["output_tokens"]) == (2, "done", 12)


async def test_failures_of_models_and_tools_are_outcomes(autojump_clock: MockClock) -> None:
    records: list[AuditRecord] = []
    script = [ModelUnavailable("down"), use("look"), {"where": "nowhere"}, ANSWER, "done"]
    agent = planned(ScriptedModel(script, retries=1), tools=[look], extensions=[Audit(records.append)])
    await run(agent)
    paired(records)
    exits = [(record.of, record.outcome, record.detail.get("error")) for record in records if record.edge == "exit"]
    assert exits[0] == ("model", "error", "ModelUnavailable: down")
    assert ("tool", "failed", "ToolFailure: there is no such place") in exits
    assert [record.detail["attempt"] for record in records if record.of == "model" and record.edge == "enter"][:2] == [
        *(0, 1)
    ]


async def test_a_denied_call_is_told_also_if_the_audit_hears_of_it_only_afterwards(autojump_clock: MockClock) -> None:
    class Never(Extension[Any]):
        name = "never"

        def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny:
            return Deny("no")

    for order in (0, 1):
        records: list[AuditRecord] = []
        extensions: list[Extension[Any]] = [Never()]
        extensions.insert(order, Audit(records.append))
        agent = planned([use("look"), {"where": "here"}, ANSWER, "done"], tools=[look], extensions=extensions)
        await run(agent)
        paired(records)
        (ended,) = [record for record in records if record.of == "tool" and record.edge == "exit"]
        assert (ended.outcome, ended.detail["reason"], ended.detail["extension"]) == ("skipped", "policy", "never")


async def test_a_fallback_is_told(autojump_clock: MockClock) -> None:
    async def cloud(request: object) -> str:
        await trio.sleep(3)
        return "from above"

    records: list[AuditRecord] = []
    agent = planned([GIVE_UP], tools=[look], extensions=[Audit(records.append)], fallback=cloud)
    await run(agent)
    paired(records)
    entered, ended = (record for record in records if record.of == "fallback")
    assert (entered.name, ended.outcome, ended.seconds, ended.detail) == (
        "conductor-asked",
        "completed",
        3,
        {"text": "from above"},
    )


@pytest.mark.parametrize("place", ["model", "tool", "fallback"])
async def test_what_was_under_way_when_the_run_was_aborted_ends_with_it(autojump_clock: MockClock, place: str) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.pass_through()
        return ""

    async def cloud(request: object) -> str:
        await gate.pass_through()
        return ""

    script = {"model": [gate.then(ANSWER)], "tool": [use("wait")], "fallback": [GIVE_UP]}[place]
    records: list[AuditRecord] = []
    agent = planned(script, tools=[wait], extensions=[Audit(records.append)], fallback=cloud)
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hi")
        await gate.wait_reached()
        envelope.abort("enough")
        with pytest.raises(RunAborted):
            await envelope.wait()
    paired(records)
    assert [line(record) for record in records[-2:]] == [
        (place, "exit", records[-2].name, "aborted"),
        ("run", "exit", "agent", "aborted"),
    ]
    assert records[-1].detail["cause"] == "requested"


async def test_a_run_that_was_aborted_in_the_queue_has_both_records(autojump_clock: MockClock) -> None:
    gate = Gate()
    records: list[AuditRecord] = []
    agent = planned([gate.then("done")], extensions=[Audit(records.append)])
    async with open_runtime(agent) as runtime:
        runtime.submit("first")
        second = runtime.submit("second")
        await gate.wait_reached()
        second.abort()
        gate.open()
    paired(records)
    assert [line(record) for record in records if record.run_id == second.id] == [
        ("run", "enter", "agent", None),
        ("run", "exit", "agent", "aborted"),
    ]


async def test_a_stop_and_an_error_are_told_with_who_made_them(autojump_clock: MockClock) -> None:
    class Ends(Extension[Any]):
        name = "ends"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop:
            if question.ask == "raise":
                raise ZeroDivisionError("zero")
            return Stop("no", "because")

    records: list[AuditRecord] = []
    agent = planned([], extensions=[Audit(records.append), Ends()])
    await end(agent, "stop")
    await end(agent, "raise")
    paired(records)
    stopped, failed = (record for record in records if record.edge == "exit")
    assert (stopped.outcome, stopped.detail["stopped_by"]) == ("stopped", "ends")
    assert (failed.outcome, failed.detail["origin"]) == ("error", "extension")
    assert failed.detail["error"].endswith("zero")


async def test_the_redaction_callback_sees_every_record_first(autojump_clock: MockClock) -> None:
    def redact(record: AuditRecord) -> AuditRecord | None:
        return None if record.of == "model" else attrs.evolve(record, detail={"keys": sorted(record.detail)})

    records: list[AuditRecord] = []
    await run(planned(["secret"], extensions=[Audit(records.append, redact=redact)]))
    assert [(record.of, record.detail["keys"][:1]) for record in records] == [
        ("run", ["ask"]),
        ("run", ["handled_by"]),
    ]
    assert "secret" not in repr(records)


async def test_a_failing_callback_is_a_diagnostic_and_changes_nothing(autojump_clock: MockClock) -> None:
    def broken(record: AuditRecord) -> AuditRecord:
        raise RuntimeError("disk full")

    records: list[AuditRecord] = []
    for audit in (Audit(broken), Audit(records.append, redact=broken)):
        result = await run(planned(["done"], extensions=[audit]))
        assert result.text == "done"
        assert [(known.extension, known.phase, str(known.error)) for known in result.diagnostics] == [
            ("audit", "on_finish", "disk full")
        ]
    paired(records)
    assert {str(record.detail) for record in records} == {"{}"}


def test_wrong_configuration_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        Audit(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Audit(print, redact="x")  # type: ignore[arg-type]
