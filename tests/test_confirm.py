"""A question to a person that is open when something else happens: a new message, a time limit, an abort."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.errors import ConversationBusy, MailboxFull
from goliath_actors.events import Confirm
from goliath_actors.testing import Gate, tool_calls
from goliath_actors.tools import ConfirmRequest, Tool

from .native import native
from .planned import ANSWER, planned, prompt, requests, told, use

LOOPS = pytest.mark.parametrize("loop", ["planned", "native"])
INSTEAD = "a new message came instead of an answer"


class Person:
    """Is asked, and answers "yes" once the gate is open. Counts, and notes what closed the question."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.asked: list[dict[str, Any]] = []
        self.closed = 0

    async def __call__(self, request: ConfirmRequest) -> bool:
        self.asked.append(dict(request.input))
        answered = False
        try:
            await self.gate.pass_through()
            answered = True
        finally:
            self.closed += not answered
        return True


def creator(made: list[str]) -> Tool:
    @tool(writes=True)
    async def create(title: str) -> str:
        """Create a thing."""
        made.append(title)
        return f"created {title}"

    return create


def creating(loop: str, made: list[str], person: Any, *titles: str, **options: Any) -> Agent[Any]:
    """An agent that creates things, all in one message where it can, says "done", and then answers "next"."""
    tools = [creator(made)]
    if loop == "native":
        calls = tool_calls(*(("create", {"title": title}) for title in titles))
        return native([calls, "done", "next", "last"], tools=tools, confirm=person, **options)
    script: list[Any] = []
    for title in titles:
        script += [use("create"), {"title": title}]
    return planned([*script, ANSWER, "done", ANSWER, "next"], tools=tools, confirm=person, **options)


# --- a new message (§P) -----------------------------------------------------------------------------------------------


@LOOPS
async def test_a_new_message_denies_the_open_question_says_so_to_both_and_is_run(loop: str) -> None:
    person, made = Person(), list[str]()
    agent = creating(loop, made, person, "x")
    async with open_runtime(agent) as runtime:
        first = runtime.submit("make x")
        await person.gate.wait_reached()
        second = runtime.submit("never mind")
        result = await first.wait()
        assert (await second.wait()).text == "next"
    assert (result.text, made, person.closed, len(person.asked)) == ("done", [], 1, 1)
    assert [(event.approved, event.reason) for event in told(result, Confirm)] == [(False, INSTEAD)]
    assert (result.steps[0].status, result.steps[0].skip_reason) == ("skipped", "confirmation")
    assert f"Declined by the user: {INSTEAD}." in prompt(agent, 1 if loop == "native" else 2)


@LOOPS
async def test_a_run_that_was_answered_with_a_message_asks_no_further_question(loop: str) -> None:
    person, made = Person(), list[str]()
    async with open_runtime(creating(loop, made, person, "x", "y")) as runtime:
        first = runtime.submit("make both")
        await person.gate.wait_reached()
        runtime.submit("never mind")
        result = await first.wait()
    assert (made, [asked["title"] for asked in person.asked]) == ([], ["x"])
    assert [(event.approved, event.reason) for event in told(result, Confirm)] == [(False, INSTEAD)] * 2


@LOOPS
async def test_a_message_that_came_before_the_question_denies_nothing(loop: str) -> None:
    person, made = Person(), list[str]()
    async with open_runtime(creating(loop, made, person, "x")) as runtime:
        first, second = runtime.submit("make x"), runtime.submit("and then?")
        await person.gate.wait_reached()
        person.gate.open()
        assert (await first.wait()).text == "done"
        assert (await second.wait()).text == "next"
    assert made == ["x"]


@LOOPS
async def test_a_message_that_is_refused_leaves_the_question_open(loop: str) -> None:
    person, made = Person(), list[str]()
    async with open_runtime(creating(loop, made, person, "x"), mailbox_capacity=0) as runtime:
        first = runtime.submit("make x")
        await person.gate.wait_reached()
        with pytest.raises(MailboxFull):
            runtime.submit("never mind")
        with pytest.raises(ConversationBusy):
            runtime.submit("never mind", when_busy="refuse")
        await wait_all_tasks_blocked()
        person.gate.open()
        await first.wait()
    assert (made, person.closed) == (["x"], 0)


@LOOPS
async def test_a_message_to_another_conversation_leaves_the_question_open(loop: str) -> None:
    person, made = Person(), list[str]()
    async with open_runtime(creating(loop, made, person, "x")) as runtime:
        first = runtime.submit("make x", conversation_id="a")
        await person.gate.wait_reached()
        await runtime.conversation("b").forget()
        other = runtime.submit("hello", conversation_id="b")
        await wait_all_tasks_blocked()
        person.gate.open()
        await first.wait()
        await other.wait()
    assert (made, person.closed) == (["x"], 0)


async def test_an_ask_that_a_run_makes_is_no_message_of_a_person() -> None:
    made: list[str] = []
    reached, release = trio.Event(), trio.Event()
    others: list[Any] = []

    async def confirm(request: ConfirmRequest) -> bool:
        # A callback may queue a follow-up while it asks: it runs in the run's own context.
        others.append(runtime.submit("follow up"))
        reached.set()
        await release.wait()
        return True

    async with open_runtime(creating("planned", made, confirm, "x")) as runtime:
        first = runtime.submit("make x")
        await reached.wait()
        await wait_all_tasks_blocked()
        release.set()
        await first.wait()
        assert (await others[0].wait()).text == "next"
    assert made == ["x"]


async def test_a_message_denies_also_what_a_sub_agent_asks_on_the_way() -> None:
    person, made = Person(), list[str]()
    helper = attrs.evolve(creating("planned", made, person, "x"), name="helper")
    agent = native([tool_calls(("helper", {"ask": "make x"})), "done", "next"], tools=[helper.as_tool()])
    async with open_runtime(agent, helper) as runtime:
        first = runtime.submit("make x", agent=agent)
        await person.gate.wait_reached()
        second = runtime.submit("never mind", agent=agent)
        assert (await first.wait()).text == "done"
        assert (await second.wait()).text == "next"
    assert (made, person.closed) == ([], 1)


async def test_a_text_that_is_handed_in_denies_the_question_and_is_taken() -> None:
    person, made = Person(), list[str]()
    agent = creating("native", made, person, "x")
    async with open_runtime(agent) as runtime:
        first = runtime.submit("make x")
        await person.gate.wait_reached()
        assert runtime.conversation().steer("make y instead") is first
        assert (await first.wait()).text == "done"
    assert (made, person.closed) == ([], 1)
    said = [message.text for message in requests(agent)[1].messages[-2:]]
    assert said == [
        f"Declined by the user: {INSTEAD}. Do not try it again unless the user asks for it.",
        "make y instead",
    ]


@LOOPS
async def test_an_answer_that_is_given_in_the_same_moment_stands(loop: str) -> None:
    made: list[str] = []
    asked = Gate()

    async def stubborn(request: ConfirmRequest) -> bool:
        with trio.CancelScope(shield=True):  # the answer is being written down
            await asked.pass_through()
        return True

    async with open_runtime(creating(loop, made, stubborn, "x", "y")) as runtime:
        first = runtime.submit("make x")
        await asked.wait_reached()
        runtime.submit("never mind")
        asked.open()
        await first.wait()
    assert made == ["x", "y"]


# --- time (§P, R6) ----------------------------------------------------------------------------------------------------


@LOOPS
@pytest.mark.parametrize("door", ["run", "submit", "stream", "conversation"])
async def test_the_time_for_an_answer_may_be_given_with_the_ask(
    door: str, loop: str, autojump_clock: MockClock
) -> None:
    person, made = Person(), list[str]()
    agent = creating(loop, made, person, "x", confirm_timeout=100.0)
    async with open_runtime(agent) as runtime:
        if door == "run":
            result = await runtime.run("make x", confirm_timeout=7)
        elif door == "submit":
            result = await runtime.submit("make x", confirm_timeout=7).wait()
        elif door == "stream":
            async with runtime.stream("make x", confirm_timeout=7) as envelope:
                result = await envelope.wait()
        else:
            result = await runtime.conversation().run("make x", confirm_timeout=7)
        assert trio.current_time() == 7
    assert (made, person.closed) == ([], 1)
    assert [event.reason for event in told(result, Confirm)] == ["nobody answered within 7 s"]


async def test_a_question_names_the_run_that_asks_it() -> None:
    asked: list[ConfirmRequest] = []

    def confirm(request: ConfirmRequest) -> bool:
        asked.append(request)
        return True

    async with open_runtime(creating("planned", [], confirm, "x")) as runtime:
        envelope = runtime.submit("make x", conversation_id="c")
        result = await envelope.wait()
    (request,) = asked
    assert (request.run_id, request.conversation_id) == (envelope.id, "c")
    assert request.call_id == result.steps[0].call_id
