"""Evaluation: what a fixture asks for, what an attempt is, and what the report says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from goliath_actors import Agent, Conductor, Extension, RunResult, Stop, ToolContext, ToolLoop, tool
from goliath_actors.errors import ConfigError, ModelUnavailable, Refused
from goliath_actors.evals import Attempt, Evaluated, Fixture, Report, acknowledge, evaluate
from goliath_actors.hooks import BeforeRun, HookContext
from goliath_actors.testing import Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.values import FallbackRequest

from .planned import ANSWER, GIVE_UP, planned, use

GREET = Fixture("greet", "Hello?", mentions=["HELLO"])
LIST = Fixture("list", "What is left?", tools=["read"], mentions=["milk"], forbids=["bread"])
CLOUD = Fixture("essay", "Write an essay.", handled_by="cloud")

GREETS: list[Any] = [ANSWER, "Hello there."]
LISTS: list[Any] = [use("read"), ANSWER, "Milk is left."]
ESCALATES: list[Any] = [GIVE_UP]


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


@tool
async def search() -> str:
    """Search the house."""
    return "bread"


def agents(*scripts: list[Any], **options: Any) -> Callable[[], Agent[Any]]:
    """A factory whose agents play one script each, in order; an exception in a script's place is raised by it."""
    left = list(scripts)

    def make() -> Agent[Any]:
        script = left.pop(0)
        if isinstance(script, Exception):
            raise script
        return planned(script, **{"tools": [read, search], "fallback": acknowledge, **options})

    return make


def failing(error: Exception) -> Any:
    """A script for `agents` that is none."""
    return error


# --- passing and failing --------------------------------------------------------------------------------------------


async def test_perfect_scripts_pass_and_the_device_answers_exactly_its_own_fixtures() -> None:
    report = await evaluate(agents(GREETS, LISTS, ESCALATES), [GREET, LIST, CLOUD])
    assert (report.passed, report.total, report.runs) == (3, 3, 1)
    assert (report.total_runs, report.on_device, report.escalated, report.errors) == (3, 2, 1, 0)
    assert [each.last.text for each in report.fixtures] == [
        "Hello there.",
        "Milk is left.",
        "Handed over (conductor-asked).",
    ]
    assert report.text().splitlines() == [
        "pass^1: 3 of 3 fixtures",
        "  pass  greet",
        "  pass  list",
        "  pass  essay",
        "3 runs: 2 on device, 1 escalated, 0 errors, 1.00 steps on average",
    ]


async def test_a_fixture_fails_if_the_second_of_two_runs_escalates() -> None:
    report = await evaluate(agents(GREETS, ESCALATES), [Fixture("greet", "Hello?")], runs=2)
    (greet,) = report.fixtures
    assert (greet.passed, greet.passes, len(greet.attempts)) == (False, 1, 2)
    assert greet.problems == (
        "Run 2: handled by cloud; expected device",
        "Run 2: escalated (conductor-asked), which is forbidden",
    )
    assert report.text().splitlines() == [
        "pass^2: 0 of 1 fixture",
        "  FAIL  greet (1 of 2 runs)",
        "        Run 2: handled by cloud; expected device",
        "        Run 2: escalated (conductor-asked), which is forbidden",
        "2 runs: 1 on device, 1 escalated, 0 errors, 0.50 steps on average",
    ]


async def test_a_wrong_tool_and_a_missing_word_are_both_told() -> None:
    report = await evaluate(agents([use("search"), ANSWER, "There is Bread."]), [LIST])
    assert report.fixtures[0].problems == (
        "tools: search; expected read",
        "does not mention 'milk'",
        "mentions 'bread', which is forbidden",
    )


async def test_a_fixture_fails_though_its_last_attempt_passed_and_keeps_both() -> None:
    report = await evaluate(agents([ANSWER, "Go away."], GREETS), [GREET], runs=2)
    (greet,) = report.fixtures
    assert greet.passed is False
    assert greet.problems == ("Run 1: does not mention 'HELLO'",)
    assert [(attempt.run, attempt.text, attempt.passed) for attempt in greet.attempts] == [
        (1, "Go away.", False),
        (2, "Hello there.", True),
    ]
    assert greet.last is greet.attempts[1]
    assert (report.passed, report.total, report.total_runs, report.on_device) == (0, 1, 2, 2)


@pytest.mark.parametrize(
    ("wanted", "script", "problem"),
    [
        (["read", "search"], [use("read"), use("search"), ANSWER, "Done."], None),
        (["read", "search"], [use("search"), use("read"), ANSWER, "Done."], "tools: search, read"),
        (["read", "search"], [use("read"), ANSWER, "Done."], "tools: read"),
        ([], [use("read"), ANSWER, "Done."], "tools: read"),
        (["read"], [ANSWER, "Done."], "tools: none"),
    ],
)
async def test_tools_are_exact_and_in_order(wanted: list[str], script: list[Any], problem: str | None) -> None:
    report = await evaluate(agents(script), [Fixture("f", "Look.", tools=wanted)])
    expected = () if problem is None else (f"{problem}; expected {', '.join(wanted) or 'none'}",)
    assert report.fixtures[0].problems == expected


async def test_a_call_that_was_declined_counts_among_the_tools() -> None:
    @tool(writes=True)
    async def add() -> str:
        """Add to the list."""
        raise AssertionError("it was declined")

    make = agents([use("add"), ANSWER, "You said no."], tools=[add], confirm=lambda request: False)
    report = await evaluate(make, [Fixture("f", "Add.", tools=["add"])])
    assert report.passed == 1


async def test_a_fixture_for_the_cloud_fails_if_the_device_answers() -> None:
    report = await evaluate(agents(GREETS), [CLOUD])
    assert report.fixtures[0].problems == ("handled by device; expected cloud", "not escalated, which was expected")


async def test_an_escalation_that_is_allowed_may_happen_or_not() -> None:
    fixture = Fixture("f", "Hello?", escalation="allowed")
    best_effort = [GIVE_UP, "As far as I know."]
    report = await evaluate(agents(GREETS, best_effort, fallback=None), [fixture], runs=2)
    assert report.passed == 1
    assert [(attempt.escalated, attempt.handled_by) for attempt in report.attempts] == [
        (False, "device"),
        (True, "device"),
    ]


@pytest.mark.parametrize(("reason", "passes"), [(None, False), ("guardrail", True), ("model-error", False)])
async def test_a_refusal_passes_only_if_its_reason_is_expected(reason: str | None, passes: bool) -> None:
    fixture = Fixture("f", "Something bad.", expected_reason=reason)
    report = await evaluate(agents([Refused("no")]), [fixture])
    assert report.fixtures[0].passed is passes
    assert (report.attempts[0].text, report.attempts[0].reason, report.on_device) == ("", "guardrail", 1)


async def test_an_empty_text_fails_even_where_an_escalation_is_allowed() -> None:
    report = await evaluate(agents([Refused("no")]), [Fixture("f", "Something bad.", escalation="allowed")])
    assert report.fixtures[0].problems == ("no text",)


async def test_an_expected_reason_that_did_not_come_is_told() -> None:
    report = await evaluate(agents(GREETS), [Fixture("f", "Something bad.", expected_reason="guardrail")])
    assert report.fixtures[0].problems == ("reason: none; expected guardrail",)


async def test_a_silent_stop_passes_only_with_the_reason_it_gave() -> None:
    class Closed(Extension[Any]):
        name = "closed"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop:
            return Stop("", "closed today")

    make = agents([], [], extensions=[Closed()])
    report = await evaluate(make, [Fixture("a", "Hello?"), Fixture("b", "Hello?", expected_reason="closed today")])
    assert [each.problems for each in report.fixtures] == [("reason: closed today; expected none", "no text"), ()]
    assert report.escalated == 0


async def test_an_agent_with_native_tool_calls_is_evaluated_alike() -> None:
    def make() -> Agent[Any]:
        return Agent(model=ScriptedModel([tool_calls(("read", {})), "Milk is left."]), loop=ToolLoop(), tools=[read])

    report = await evaluate(make, [LIST])
    assert report.fixtures[0].problems == ()
    assert report.attempts[0].tools == ("read",)


async def test_a_native_run_that_waits_for_a_person_passes_only_if_it_is_to_wait() -> None:
    @tool
    async def ask_them(ctx: ToolContext[Any]) -> str:
        """Ask a person."""
        return str(await ctx.suspend("Which one?"))

    def make() -> Agent[Any]:
        model = ScriptedModel([tool_calls(("ask_them", {}), text="One moment.")])
        return Agent(model=model, loop=ToolLoop(), tools=[ask_them])

    waits = Fixture("waits", "Ask.", tools=["ask_them"], expected_reason="waiting")
    report = await evaluate(make, [waits, Fixture("answers", "Ask.", tools=["ask_them"])])
    assert [each.passed for each in report.fixtures] == [True, False]
    assert "reason: waiting; expected none" in report.fixtures[1].problems


# --- attempts -------------------------------------------------------------------------------------------------------


async def test_each_attempt_asks_for_its_window_once_counts_with_its_counter_and_has_a_new_agent() -> None:
    windows: list[int] = []
    counted: list[str] = []
    made: list[Agent[Any]] = []

    def window() -> int:
        windows.append(4096)
        return 4096

    def count(text: str) -> int:
        counted.append(text)
        return len(text) // 4

    def make() -> Agent[Any]:
        made.append(planned(GREETS, tools=[read], loop=Conductor(window=window), token_counter=count))
        return made[-1]

    metadata: dict[str, Any] = {"model": "scripted", "tags": ["nightly"]}
    report = await evaluate(make, [GREET], runs=3, metadata=metadata)
    assert report.passed == 1
    assert len(windows) == 3
    assert len({id(agent) for agent in made}) == 3
    assert any("Hello?" in text for text in counted)
    metadata["tags"].append("changed")
    metadata["model"] = "another"
    assert report.metadata == {"model": "scripted", "tags": ["nightly"]}
    assert json.dumps(report.metadata) == '{"model": "scripted", "tags": ["nightly"]}'
    assert report.text().splitlines()[-2:] == ["model: scripted", "tags: ['nightly']"]


async def test_an_attempt_remembers_nothing_of_another() -> None:
    journal = Journal()
    report = await evaluate(agents(GREETS, GREETS, extensions=[journal]), [GREET], runs=2, conversation_id="c1")
    assert report.passed == 1
    assert [(memory.summary, memory.recent) for _, memory in journal.heard("after_recall", "c1")] == [
        ("", ()),
        ("", ()),
    ]


async def test_a_factory_may_be_async() -> None:
    async def make() -> Agent[Any]:
        await trio.lowlevel.checkpoint()
        return planned(GREETS, tools=[read])

    assert (await evaluate(make, [GREET])).passed == 1


async def test_an_agent_that_cannot_be_made_once_is_an_error_and_the_next_attempt_runs() -> None:
    error = OSError("no\nsuch model\x1b[2J")
    report = await evaluate(agents(failing(error), GREETS), [GREET], runs=2)
    first, second = report.attempts
    assert first.error is error
    assert (first.passed, first.steps, first.text, first.handled_by, first.tools) == (False, 0, "", None, ())
    assert (second.passed, second.steps, second.error) == (True, 1, None)
    assert report.fixtures[0].problems == ("Run 1: raised OSError: no such model[2J",)
    assert (report.errors, report.on_device, report.escalated, report.mean_steps) == (1, 1, 0, 0.5)


async def test_a_run_that_raises_is_an_error_with_the_same_object() -> None:
    error = LookupError("no facts")

    def facts() -> dict[str, str]:
        raise error

    report = await evaluate(agents(GREETS, facts=facts), [GREET])
    assert report.attempts[0].error is error
    assert report.fixtures[0].problems == ("raised LookupError: no facts",)


async def test_an_outage_is_no_error_of_an_attempt_but_an_escalation() -> None:
    fixture = Fixture("f", "Hello?", handled_by="cloud", expected_reason="model-unavailable")
    report = await evaluate(agents([ModelUnavailable("down"), ModelUnavailable("down")]), [fixture])
    assert (report.passed, report.errors, report.escalated) == (1, 0, 1)


async def test_a_cancellation_passes_and_is_not_scored() -> None:
    gate, journal = Gate(), Journal()
    told: list[Attempt] = []
    returned: list[Report] = []
    make = agents(GREETS, [gate.then(ANSWER)], GREETS, extensions=[journal])
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def body() -> None:
                returned.append(await evaluate(make, [GREET], runs=3, on_progress=told.append))

            nursery.start_soon(body)
            await gate.wait_reached()
            scope.cancel()
    assert scope.cancelled_caught
    assert returned == []
    assert [attempt.run for attempt in told] == [1]
    assert journal.heard("on_finish") == [("Hello?", "completed"), ("Hello?", "aborted")]


async def test_a_scope_that_is_already_cancelled_lets_no_attempt_begin() -> None:
    made: list[str] = []

    def make() -> Agent[Any]:
        made.append("agent")
        return planned(GREETS, tools=[read])

    with trio.CancelScope() as scope:
        scope.cancel()
        await evaluate(make, [GREET])
    assert scope.cancelled_caught
    assert made == []


async def test_progress_hears_each_attempt_once_it_is_over_in_order() -> None:
    told: list[tuple[str, int, bool]] = []

    async def hear(attempt: Attempt) -> None:
        await trio.lowlevel.checkpoint()
        told.append((attempt.fixture_id, attempt.run, attempt.passed))

    await evaluate(agents(GREETS, GREETS, LISTS, GREETS), [GREET, LIST], runs=2, on_progress=hear)
    assert told == [("greet", 1, True), ("greet", 2, True), ("list", 1, True), ("list", 2, False)]


async def test_what_progress_raises_ends_the_evaluation_as_the_same_object() -> None:
    error = OSError("the terminal is gone")

    def hear(attempt: Attempt) -> None:
        raise error

    with pytest.raises(OSError, match="terminal") as caught:
        await evaluate(agents(GREETS, GREETS), [GREET], runs=2, on_progress=hear)
    assert caught.value is error


# --- refusals -------------------------------------------------------------------------------------------------------


def no_agent() -> Agent[Any]:
    raise AssertionError("nothing may begin")


@pytest.mark.parametrize("runs", [0, -1, 1.5, 2.0, float("nan"), float("inf"), True, "2", None])
async def test_runs_are_a_positive_integer(runs: Any) -> None:
    with pytest.raises(ConfigError, match="positive integer"):
        await evaluate(no_agent, [GREET], runs=runs)


@pytest.mark.parametrize(
    ("fixtures", "message"),
    [
        ([], "at least one fixture"),
        ([GREET, Fixture("greet", "Hi?")], "two fixtures have the id 'greet'"),
        (["greet"], "takes fixtures, not str"),
        (GREET, "list of fixtures"),
        ("greet", "list of fixtures"),
    ],
)
async def test_fixtures_that_cannot_be_told_apart_or_are_none_are_refused(fixtures: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await evaluate(no_agent, fixtures)


async def test_an_agent_in_place_of_a_factory_and_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="callable that makes an agent"):
        await evaluate(planned(GREETS), [GREET])  # type: ignore[arg-type]  # the slip under test
    with pytest.raises(ConfigError, match="on_progress"):
        await evaluate(no_agent, [GREET], on_progress="print")  # type: ignore[arg-type]  # the slip under test
    with pytest.raises(ConfigError, match="metadata"):
        await evaluate(no_agent, [GREET], metadata=["model"])  # type: ignore[arg-type]  # the slip under test


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": " "}, r"Fixture\(id"),
        ({"ask": ""}, r"Fixture\(ask"),
        ({"expected_reason": ""}, "expected_reason"),
        ({"tools": "read"}, "lists of strings"),
        ({"mentions": "milk"}, "lists of strings"),
        ({"forbids": [""]}, "strings with text"),
        ({"tools": [read]}, "strings with text"),
        ({"handled_by": "phone"}, "handled_by"),
        ({"escalation": "maybe"}, "escalation"),
        ({"handled_by": "cloud", "escalation": "forbidden"}, "which it forbids"),
    ],
)
def test_a_fixture_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fixture(**{"id": "f", "ask": "Hello?", **options})


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "means"),
    [
        ({}, "forbidden"),
        ({"handled_by": "cloud"}, "expected"),
        ({"expected_reason": "guardrail"}, "allowed"),
        ({"handled_by": "cloud", "expected_reason": "model-error"}, "expected"),
        ({"handled_by": "cloud", "escalation": "allowed"}, "allowed"),
        ({"expected_reason": "waiting", "escalation": "forbidden"}, "forbidden"),
    ],
)
def test_the_escalation_of_a_fixture_follows_from_who_handles_it(options: dict[str, Any], means: str) -> None:
    assert Fixture("f", "Hello?", **options).escalates == means


def test_steps_on_average_are_rounded_to_two_decimals() -> None:
    error = Attempt("f", 1, error=OSError("gone"), problems=("raised OSError: gone",))
    assert Report((Evaluated(GREET, (error, error)),), runs=2).mean_steps == 0.0
    ran = Attempt("f", 2, result=RunResult("r", None, "completed", "Hello.", steps=(object(),) * 2))  # type: ignore[arg-type]  # only counted
    assert Report((Evaluated(GREET, (error, ran, error)),), runs=3).mean_steps == 0.67


def test_the_canned_fallback_says_why_it_was_asked() -> None:
    assert acknowledge(FallbackRequest("Hello?", reason="model-error")).text == "Handed over (model-error)."
