"""Agents as tools of other agents (T14): children of the run that calls them, with gates of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import (
    Agent,
    Conductor,
    Deny,
    Extension,
    RunAborted,
    Stop,
    ToolContext,
    ToolLoop,
    open_runtime,
    tool,
)
from goliath_actors.errors import AgentFailed, ConfigError, GoliathExtensionError, ReentrantRun
from goliath_actors.events import Confirm
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.tools import Confirmed, ConfirmRequest, Suspend, answered_by, ask_client
from goliath_actors.values import SubAgentOutcome

from .native import check_closed, check_requests, history, native, said
from .planned import planned, requests, use


def librarian(*script: Any, **options: Any) -> Agent[Any]:
    return native(list(script), name="librarian", **options)


def ask(text: str = "a book?") -> Any:
    return tool_calls(("librarian", {"ask": text}))


class Outcomes(Extension[Any]):
    """Keeps what `after_tool` sees of calls."""

    name = "outcomes"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_tool(self, ctx: Any, question: Any) -> None:
        self.seen.append(question.outcome)


# --- asking -----------------------------------------------------------------------------------------------------------


async def test_an_agent_is_asked_like_any_tool_and_its_answer_is_the_result() -> None:
    child = librarian("The field guide.")
    seen = Outcomes()
    parent = native([ask("Which book on trees?"), "Take the field guide."], tools=[child.as_tool()], extensions=[seen])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("A book on trees?", conversation_id="ada")
    assert result.text == "Take the field guide."
    assert [step.result for step in result.steps] == ["The field guide.", None]
    assert requests(child)[0].messages[-1].text == "Which book on trees?"
    check_requests(requests(parent))
    (outcome,) = seen.seen
    found = outcome.output
    assert (outcome.status, found.agent, found.status, found.text) == (
        "executed",
        "librarian",
        "completed",
        "The field guide.",
    )
    assert found.conversation_id == f"ada/{result.run_id}.{result.steps[0].call_id}"


async def test_a_planned_agent_may_ask_and_be_asked() -> None:
    child = planned(["The field guide."], name="librarian")
    parent = planned(
        [use("librarian"), {"ask": "Which book?"}, {"kind": "answer", "brief": "say it"}, "Take it."],
        tools=[child.as_tool()],
    )
    async with open_runtime(parent) as runtime:
        result = await runtime.run("A book?")
    assert (result.text, result.steps[0].status, result.steps[0].result) == ("Take it.", "executed", "The field guide.")


async def test_each_call_is_a_conversation_of_its_own_unless_the_application_names_one() -> None:
    child, keeper = librarian("one", "two"), native(["three", "four"], name="keeper")
    shared = keeper.as_tool(conversation_id=lambda ctx, input: f"of {ctx.conversation_id}")
    parent = native([ask(), ask(), tool_calls(("keeper", {"ask": "x"})), tool_calls(("keeper", {"ask": "y"})), "done"],
                    tools=[child.as_tool(), shared])  # fmt: skip
    store = InMemoryStore()
    async with open_runtime(parent, store=store) as runtime:
        await runtime.run("go", conversation_id="ada")
        keys = list(await store.keys("librarian"))
        kept = await history(store, keeper, "of ada")
    assert len(keys) == 2
    assert all(key.startswith("librarian/ada/run-") for key in keys)
    assert said(kept) == [("user", "x"), ("assistant", "three"), ("user", "y"), ("assistant", "four")]
    assert "one" not in requests(child)[1].text


async def test_an_async_callable_may_name_the_conversation_and_a_string_too() -> None:
    async def named(ctx: ToolContext[Any], input: dict[str, Any]) -> str:
        await trio.lowlevel.checkpoint()
        return str(input["ask"])

    child = librarian("one", "two")
    first = child.as_tool(name="first", conversation_id=named)
    second = child.as_tool(name="second", conversation_id="desk")
    parent = native(
        [tool_calls(("first", {"ask": "ann"})), tool_calls(("second", {"ask": "x"})), "done"], tools=[first, second]
    )
    store = InMemoryStore()
    async with open_runtime(parent, store=store) as runtime:
        await runtime.run("go")
        assert list(await store.keys("librarian")) == ["librarian/ann", "librarian/desk"]


async def test_the_longest_id_of_a_conversation_still_leads_to_one_for_the_child() -> None:
    child = librarian("one")
    parent = native([ask(), "done"], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go", conversation_id="x" * 512)
    assert result.steps[0].result == "one"


@pytest.mark.parametrize("bad", ["", " ", "x" * 513, 7])
async def test_a_conversation_id_that_is_none_is_refused_when_the_tool_is_made(bad: Any) -> None:
    with pytest.raises(ConfigError, match="conversation_id"):
        librarian().as_tool(conversation_id=bad)


async def test_a_callable_that_gives_no_id_is_a_result_and_a_diagnostic() -> None:
    child = librarian()
    nothing: Any = lambda ctx, input: None  # noqa: E731  # typed so that it may be passed
    shared = child.as_tool(conversation_id=nothing)
    parent = native([ask(), "sorry"], tools=[shared])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].status == "failed"
    assert [type(diagnostic.error) for diagnostic in result.diagnostics] == [ConfigError]


# --- registration -----------------------------------------------------------------------------------------------------


async def test_agents_come_along_with_those_whose_tools_they_are() -> None:
    opened: list[str] = []

    class Shelf(Extension[Any]):
        name = "shelf"

        @asynccontextmanager
        async def lifespan(self, agent: Any) -> AsyncIterator[None]:
            opened.append(agent.name)
            yield
            opened.append(f"-{agent.name}")

    inner = native(["deep"], name="inner", extensions=[Shelf()])
    middle = native([tool_calls(("inner", {"ask": "x"})), "middle"], name="middle", tools=[inner.as_tool()])
    parent = native([tool_calls(("middle", {"ask": "y"})), "top"], tools=[middle.as_tool()])
    async with open_runtime(parent) as runtime:
        assert opened == ["inner"]
        assert (await runtime.run("go")).text == "top"  # no agent named: the only one that was given
        assert (await runtime.conversation("c", "inner").history()).entries == []
    assert opened == ["inner", "-inner"]


async def test_an_agent_that_is_given_and_a_tool_is_the_same_one_and_another_of_its_name_is_refused() -> None:
    child = librarian("a", "b")
    parent = native([ask(), "done"], tools=[child.as_tool()])
    async with open_runtime(parent, child) as runtime:
        assert (await runtime.run("go", agent=parent)).text == "done"
        assert (await runtime.run("go", agent="librarian")).text == "b"
    with pytest.raises(ConfigError, match="two agents are named 'librarian'"):
        async with open_runtime(parent, librarian()):
            pass


async def test_what_replaces_an_agent_is_asked_in_its_place(autojump_clock: MockClock) -> None:
    child = librarian()
    parent = native([ask(), "done"], tools=[child.as_tool()])
    other = child.replace(model=ScriptedModel(["a", "b"]))
    async with open_runtime(parent, other) as runtime:
        result = await runtime.run("go", agent=parent)
        assert [step.result for step in result.steps[:-1]] == ["a"]
        assert (await runtime.run("go", agent=child)).text == "b"
        assert runtime.agents == (parent, other)
    with pytest.raises(ConfigError, match="two agents are named 'librarian'"):
        async with open_runtime(parent, other, child):
            pass
    with pytest.raises(ConfigError, match="replace keeps the name 'librarian'"):
        child.replace(name="clerk")
    with pytest.raises(ConfigError, match="unexpected keyword argument"):
        child.replace(modell=None)


# --- a child of the run -----------------------------------------------------------------------------------------------


async def test_it_uses_its_waiters_slot_and_runs_beside_its_siblings(autojump_clock: MockClock) -> None:
    gates = {name: Gate() for name in "ab"}
    children = [native([gate.then(f"{name} says")], name=name) for name, gate in gates.items()]
    parent = native(
        [tool_calls(("a", {"ask": "x"}), ("b", {"ask": "y"})), "done"], tools=[child.as_tool() for child in children]
    )
    async with open_runtime(parent, max_running=1) as runtime:
        run = runtime.submit("go")
        for gate in gates.values():
            await gate.wait_reached()
        assert runtime.statistics().running == 3
        for gate in gates.values():
            gate.open()
        result = await run.wait()
    assert [step.result for step in result.steps[:2]] == ["a says", "b says"]


async def test_it_is_aborted_with_its_parent_and_its_observers_are_told(autojump_clock: MockClock) -> None:
    gate, journal = Gate(), Journal()
    child = librarian(gate.then("never"), extensions=[journal])
    parent = native([ask()], tools=[child.as_tool()])
    store = InMemoryStore()
    async with open_runtime(parent, store=store) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        run.abort("enough")
        with pytest.raises(RunAborted, match="enough"):
            await run.wait()
        check_closed(await history(store, parent))
    assert journal.heard("on_finish") == [("a book?", "aborted")]
    (outcome,) = [question.outcome for row, _, question in journal.questions if row == "on_finish"]
    assert outcome.abort.cause == "caller"


async def test_a_time_limit_of_the_tool_ends_the_child(autojump_clock: MockClock) -> None:
    async def slow(request: Any) -> str:
        await trio.sleep(100)
        return "late"

    journal = Journal()
    child = librarian(slow, extensions=[journal])
    parent = native([ask(), "too slow"], tools=[child.as_tool(timeout=5)])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].result == "librarian did not finish within 5 s."
    assert journal.heard("on_finish") == [("a book?", "aborted")]


async def test_a_circle_of_conversations_is_a_result_and_the_chain_is_named() -> None:
    seen = Outcomes()

    @tool
    async def back(ctx: ToolContext[Any]) -> str:
        """Ask the first conversation again."""
        return (await runtime.run("again?", agent="desk", conversation_id="one")).text

    child = librarian(tool_calls(("back", {})), "I cannot.", tools=[back], extensions=[seen])
    parent = native([ask(), "I see."], name="desk", tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go", conversation_id="one")
    assert result.text == "I see."
    (outcome,) = seen.seen
    assert isinstance(outcome.error, ReentrantRun)
    assert outcome.error.chain[0] == outcome.error.chain[-1]
    assert "desk/one" in outcome.error.chain


async def test_asking_a_conversation_that_waits_for_this_run_is_refused_in_words() -> None:
    seen = Outcomes()

    @tool
    async def ask_inner(ctx: ToolContext[Any]) -> str:
        """Ask the inner agent."""
        return (await runtime.run("go", agent="parent", conversation_id="p")).text

    desk = native([tool_calls(("ask_inner", {})), "done"], name="desk", tools=[ask_inner])
    looped = native([tool_calls(("desk", {"ask": "x"})), "no"], name="parent", extensions=[seen],
                    tools=[desk.as_tool(conversation_id="d")])  # fmt: skip
    async with open_runtime(desk, looped) as runtime:
        result = await runtime.run("go", agent=desk, conversation_id="d")
    assert result.text == "done"
    (outcome,) = seen.seen
    assert isinstance(outcome.error, AgentFailed)
    assert isinstance(outcome.error.__cause__, ReentrantRun)
    assert outcome.error.text == "The agent 'desk' cannot be asked here: it waits for this run itself."


# --- gates ------------------------------------------------------------------------------------------------------------


async def test_the_parents_gates_hold_for_the_call_and_the_childs_for_what_it_does() -> None:
    done: list[str] = []

    @tool(writes=True)
    async def lend(book: str) -> str:
        """Lend a book."""
        done.append(book)
        return "lent"

    class Watch(Extension[Any]):
        def __init__(self, name: str, deny: str = "") -> None:
            self.name = name
            self.deny = deny
            self.seen: list[str] = []

        def before_tool(self, ctx: Any, question: Any) -> Any:
            self.seen.append(question.tool.name)
            return Deny("not today") if question.tool.name == self.deny else None

    outer, inner = Watch("outer", deny="lend"), Watch("inner")
    asked: list[str] = []

    def confirm(who: str) -> Any:
        def answer(request: ConfirmRequest) -> bool:
            asked.append(f"{who}: {request.tool.name}")
            return True

        return answer

    child = librarian(tool_calls(("lend", {"book": "trees"})), "It is lent.", tools=[lend], extensions=[inner],
                      confirm=confirm("child"))  # fmt: skip
    parent = native([ask(), "done"], tools=[child.as_tool()], extensions=[outer], confirm=confirm("parent"))
    async with open_runtime(parent) as runtime:
        await runtime.run("go", confirm=confirm("run"))
    assert (outer.seen, inner.seen, done, asked) == (["librarian"], ["lend"], ["trees"], ["child: lend"])

    denied = native([ask(), "no"], tools=[child.as_tool()], extensions=[Watch("outer", deny="librarian")])
    async with open_runtime(denied) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].status == "skipped"
    assert done == ["trees"]


async def test_the_call_may_itself_be_a_write_that_is_confirmed() -> None:
    child = librarian("yes")
    parent = native([ask(), "done"], tools=[child.as_tool(writes=True)], confirm=lambda request: False)
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert (result.steps[0].status, result.steps[0].skip_reason) == ("skipped", "confirmation")


@tool(writes=True)
async def order(book: str) -> str:
    """Order a book."""
    await trio.lowlevel.checkpoint()
    return f"ordered {book}"


def ordering(*books: str, **options: Any) -> Agent[Any]:
    """A librarian that orders, and then says so, once for each book."""
    script = [reply for book in books for reply in (tool_calls(("order", {"book": book})), f"{book} is ordered.")]
    return librarian(*script, tools=[order], **options)


async def test_the_client_of_a_run_is_asked_for_calls_of_its_agents_at_any_depth() -> None:
    asked: list[ConfirmRequest] = []

    async def client(request: ConfirmRequest) -> Confirmed:
        await trio.lowlevel.checkpoint()
        asked.append(request)
        return Confirmed(True)

    deep = ordering("Trees", "Stars", confirm=ask_client)
    middle = native([ask(), "Done."] * 2, name="desk", tools=[deep.as_tool()])
    parent = native([tool_calls(("desk", {"ask": "a book"})), "Good."] * 2, tools=[middle.as_tool()])
    async with open_runtime(parent) as runtime:
        with answered_by(client):
            run = runtime.submit("A book?", conversation_id="ada", context="a context")
        await run.wait()
        (request,) = asked
        assert (request.agent, request.tool.name, request.input, request.context) == (
            "librarian",
            "order",
            {"book": "Trees"},
            "a context",
        )
        assert request.run_id != run.id
        assert request.conversation_id is not None
        assert request.conversation_id.startswith("ada/")
        # Outside of the block there is nobody.
        await runtime.run("Another?", conversation_id="bob")
    assert len(asked) == 1
    assert "nobody can be asked here" in requests(deep)[-1].messages[-1].text


async def test_whoever_says_that_nobody_can_be_asked_hides_those_who_could() -> None:
    async def nobody_asks(request: ConfirmRequest) -> Confirmed:
        raise AssertionError(request)

    async with open_runtime(ordering("Trees", confirm=ask_client)) as runtime:
        with answered_by(nobody_asks), answered_by(None):
            run = runtime.submit("Trees?")
        assert (await run.wait()).steps[0].status == "skipped"


async def test_the_time_of_whoever_waits_stands_still_while_a_person_is_asked(autojump_clock: MockClock) -> None:
    async def slow(request: ConfirmRequest) -> bool:
        await trio.sleep({"Trees": 60, "Stars": 100}[request.input["book"]])
        return True

    @tool
    async def rest(seconds: float) -> str:
        """Rest."""
        await trio.sleep(seconds)
        return "rested"

    def parent(name: str, seconds: float) -> Agent[Any]:
        # Two at once: the time stands still until the last person has answered.
        both = tool_calls(("librarian", {"ask": "Trees?"}), ("librarian", {"ask": "Stars?"}))
        return native(
            [both, tool_calls(("rest", {"seconds": seconds})), "Good."], name=name, tools=[child.as_tool(), rest]
        )

    def by_ask(request: Any) -> Any:
        last = request.messages[-1]
        return tool_calls(("order", {"book": last.text.rstrip("?")})) if last.role == "user" else "Ordered."

    child = Agent(name="librarian", model=ScriptedModel([by_ask] * 8), tools=[order], loop=ToolLoop(), confirm=slow)
    async with open_runtime(parent("patient", 4), parent("late", 6)) as runtime:
        start = trio.current_time()
        result = await runtime.run("Two books?", agent="patient", timeout=5)
        assert (result.text, trio.current_time() - start) == ("Good.", 104)
        run = runtime.submit("Two books?", agent="late", timeout=5)
        with pytest.raises(RunAborted):
            await run.wait()
        assert run.outcome is not None
        assert run.outcome.abort is not None
        assert (run.outcome.abort.cause, trio.current_time() - start) == ("deadline", 104 + 105)


async def test_it_is_called_from_outside_through_the_same_gate() -> None:
    child = librarian("yes")
    parent = native([], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        outcome = await runtime.invoke_tool("librarian", {"ask": "x"})
    assert (outcome.status, outcome.output.text) == ("executed", "yes")


async def test_the_context_goes_along_and_state_does_not() -> None:
    seen: list[Any] = []

    class Looks(Extension[Any]):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_plan(self, ctx: Any, question: Any) -> None:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            seen.append((self.name, ctx.agent_name, ctx.context, ctx.state["n"]))

    look = Looks("look")
    child = librarian("yes", extensions=[look])
    parent = native([ask(), "done"], tools=[child.as_tool()], extensions=[look])
    context = object()
    async with open_runtime(parent) as runtime:
        await runtime.run("go", context=context)
    assert seen == [
        ("look", "agent", context, 1),
        ("look", "librarian", context, 1),
        ("look", "agent", context, 2),
    ]


# --- how it ended -----------------------------------------------------------------------------------------------------


class Stops(Extension[Any]):
    name = "stops"

    def before_run(self, ctx: Any, question: Any) -> Any:
        return Stop("Closed on Sundays.", "sunday")


async def test_a_stop_of_the_child_is_told_with_its_text() -> None:
    seen = Outcomes()
    child = librarian(extensions=[Stops()])
    parent = native([ask(), "closed"], tools=[child.as_tool()], extensions=[seen])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].result == "The agent 'librarian' was stopped (sunday). It said: Closed on Sundays."
    assert seen.seen[0].output.status == "stopped"


async def test_an_error_of_the_child_is_told_by_its_type_and_kept_as_the_same_object() -> None:
    seen, problem = Outcomes(), OSError("secret path")
    child = librarian(problem)
    parent = native([ask(), "sorry"], tools=[child.as_tool()], extensions=[seen])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert result.text == "sorry"
    (outcome,) = seen.seen
    failed = outcome.error
    assert isinstance(failed, AgentFailed)
    found = failed.outcome
    assert isinstance(found, SubAgentOutcome)
    assert (outcome.status, found.status, found.error) == ("failed", "error", problem)
    assert failed.__cause__ is problem
    assert result.steps[0].result == f"The agent 'librarian' failed (OSError, run {found.run_id})."
    assert "secret" not in requests(parent)[-1].text


async def test_an_abort_of_the_child_alone_is_told_and_the_parent_goes_on(autojump_clock: MockClock) -> None:
    gate, seen = Gate(), Outcomes()
    child = librarian(gate.then("never"))
    parent = native([ask(), "it was ended"], tools=[child.as_tool(conversation_id="desk")], extensions=[seen])
    async with open_runtime(parent) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation("desk", "librarian").abort("a private reason")
        result = await run.wait()
    assert result.text == "it was ended"
    assert result.steps[0].result == "The agent 'librarian' was ended before it answered (requested)."
    assert seen.seen[0].error.outcome.status == "aborted"
    assert isinstance(seen.seen[0].error.__cause__, RunAborted)


async def test_an_abort_while_the_child_is_queued_is_told_too(autojump_clock: MockClock) -> None:
    gate = Gate()
    child = librarian(gate.then("first"))
    parent = native([ask(), "it was ended"], tools=[child.as_tool(conversation_id="desk")])
    async with open_runtime(parent) as runtime:
        first = runtime.submit("first", agent=child, conversation_id="desk")
        await gate.wait_reached()
        run = runtime.submit("go")
        await wait_all_tasks_blocked()
        runtime.conversation("desk", "librarian").abort(queued=True)
        result = await run.wait()
        with pytest.raises(RunAborted):
            await first.wait()
    assert result.steps[0].result == "The agent 'librarian' was ended before it answered (requested)."


async def test_a_child_that_failed_after_a_write_says_that_it_may_have_changed_something() -> None:
    @tool(writes=True)
    async def lend() -> str:
        """Lend."""
        return "lent"

    child = librarian(tool_calls(("lend", {})), OSError("gone"), tools=[lend])
    parent = native([ask(), "sorry"], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert (result.steps[0].result or "").endswith("It had changed something before: look before asking it again.")


async def test_an_incomplete_answer_and_none_at_all_say_why() -> None:
    child = librarian(tool_calls(("librarian", {})), loop=ToolLoop(max_steps=1))
    cloudless = planned([OSError("x"), OSError("y"), OSError("z")], name="planner", loop=Conductor())
    parent = native(
        [tool_calls(("librarian", {"ask": "x"}), ("planner", {"ask": "y"})), "done"],
        tools=[child.as_tool(), cloudless.as_tool()],
    )
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    first, second = (step.result or "" for step in result.steps[:2])
    assert first.startswith("The agent 'librarian' could not finish (too-many-steps). It said: ")
    assert second.startswith("The agent 'planner' could not finish (")


async def test_a_failing_child_fails_no_sibling_and_a_failing_hook_of_it_is_its_own() -> None:
    class Breaks(Extension[Any]):
        name = "breaks"

        def before_plan(self, ctx: Any, question: Any) -> None:
            raise KeyError("x")

    seen = Outcomes()
    child, other = librarian(extensions=[Breaks()]), native(["fine"], name="other")
    parent = native(
        [tool_calls(("librarian", {"ask": "x"}), ("other", {"ask": "y"})), "done"],
        tools=[child.as_tool(), other.as_tool()],
        extensions=[seen],
    )
    async with open_runtime(parent) as runtime:
        run = runtime.submit("go")
        result = await run.wait()
        check_events([event async for event in run.events()])
    assert result.steps[1].result == "fine"
    assert isinstance(seen.seen[0].error.outcome.error, GoliathExtensionError)


async def test_usage_of_a_child_is_its_own() -> None:
    from goliath_actors.values import Usage

    seen = Outcomes()
    child = librarian()
    model = ScriptedModel(["yes"], usage=Usage(7, 3))
    child = native(model, name="librarian")
    parent = native(ScriptedModel([ask(), "done"], usage=Usage(10, 1)), tools=[child.as_tool()], extensions=[seen])
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert (result.usage, seen.seen[0].output.usage) == (Usage(20, 2), Usage(7, 3))


# --- waiting ----------------------------------------------------------------------------------------------------------


def waiting_child(done: list[str], *script: Any, confirm: Any = None) -> Agent[Any]:
    @tool(writes=True)
    async def lend(book: str) -> str:
        """Lend a book."""
        done.append(book)
        return f"lent {book}"

    @tool
    async def which(ctx: ToolContext[Any]) -> str:
        """Ask which."""
        return f"the {await ctx.suspend({'colours': ['red', 'blue']})} one"

    return librarian(*script, tools=[lend, which], confirm=confirm or (lambda request: Suspend("the boss")))


async def test_a_child_that_waits_lets_its_parent_wait_and_is_taken_up_with_it() -> None:
    done: list[str] = []
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"}), text="I ask."), "It is lent.")
    parent = native([ask(), "You have it."], tools=[child.as_tool()])
    store = InMemoryStore()
    async with open_runtime(parent, store=store) as runtime:
        conversation = runtime.conversation("ada")
        result = await conversation.run("go")
        (waiting,) = result.waiting
        assert (result.reason, waiting.tool, waiting.kind) == ("waiting", "librarian", "question")
        (inner,) = waiting.payload["waiting"]
        assert (inner["tool"], inner["input"], inner["kind"], inner["payload"]) == (
            "lend",
            {"book": "trees"},
            "approval",
            "the boss",
        )
        assert done == []
        result = await conversation.resume({waiting.call_id: {inner["call_id"]: True}})
        key = (await store.keys("librarian"))[0]
        kept = await history(store, child, key.removeprefix("librarian/"))
        check_closed(kept)
        check_closed(await history(store, parent, "ada"))
    assert (result.text, done, result.steps[0].result) == ("You have it.", ["trees"], "It is lent.")
    assert said(kept)[-2:] == [("tool", "lent trees"), ("assistant", "It is lent.")]


async def test_another_process_may_take_both_up_and_one_open_answer_needs_no_id(tmp_path: Path) -> None:
    done: list[str] = []

    def agents(parent: list[Any], child: list[Any]) -> Agent[Any]:
        return native(parent, tools=[waiting_child(done, *child).as_tool()])

    path = tmp_path / "chat.db"
    async with open_runtime(agents([ask()], [tool_calls(("which", {}))]), store=SqliteStore(path)) as runtime:
        result = await runtime.run("go", conversation_id="ada")
    async with open_runtime(agents(["You have it."], ["Red it is."]), store=SqliteStore(path)) as runtime:
        result = await runtime.conversation("ada").resume({result.waiting[0].call_id: "red"})
    assert (result.text, result.steps[0].result) == ("You have it.", "Red it is.")


async def test_a_child_may_wait_again_and_only_the_new_answer_is_given_to_it() -> None:
    done: list[str] = []
    child = waiting_child(
        done, tool_calls(("which", {}), ("lend", {"book": "trees"})), tool_calls(("lend", {"book": "roots"})), "Both."
    )
    parent = native([ask(), "You have them."], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        conversation = runtime.conversation("ada")
        result = await conversation.run("go")
        for answers in ({"which": "red"}, {"lend": True}, {"lend": True}):
            (waiting,) = result.waiting
            ids = {call["tool"]: call["call_id"] for call in waiting.payload["waiting"]}
            result = await conversation.resume(
                {waiting.call_id: {ids[name]: answer for name, answer in answers.items()}}
            )
    assert (result.text, done) == ("You have them.", ["trees", "roots"])
    assert [entry.text for entry in requests(child)[-1].messages if entry.role == "tool"] == [
        "the red one",
        "lent trees",
        "lent roots",
    ]


@pytest.mark.parametrize("bad", [{"no such call": True}, {}])
async def test_an_answer_that_is_none_of_the_childs_leaves_both_waiting(bad: Any) -> None:
    done: list[str] = []
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"})), "It is lent.")
    parent = native([ask(), "You have it."], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        conversation = runtime.conversation("ada")
        first = await conversation.run("go")
        call_id = first.waiting[0].call_id
        again = await conversation.resume({call_id: bad})
        assert again.reason == "waiting"
        assert "must be a mapping of" in again.waiting[0].payload["problem"]
        assert done == []
        assert (await conversation.resume({call_id: True})).text == "You have it."
    assert done == ["trees"]


async def test_a_refusal_of_what_the_child_wanted_is_a_result_for_it() -> None:
    done: list[str] = []
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"})), "Not lent.")
    parent = native([ask(), "No."], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        first = await runtime.run("go")
        result = await runtime.conversation().resume({first.waiting[0].call_id: False})
    assert (result.text, result.steps[0].result, done) == ("No.", "Not lent.", [])
    assert any(message.text.startswith("Declined by the user") for message in requests(child)[-1].messages)


async def test_a_child_that_was_answered_directly_has_nothing_left_to_be_answered() -> None:
    done: list[str] = []
    seen = Outcomes()
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"})), "It is lent.")
    parent = native([ask(), "I see."], tools=[child.as_tool()], extensions=[seen])
    async with open_runtime(parent) as runtime:
        first = await runtime.run("go")
        asked = first.waiting[0].payload
        direct = runtime.conversation(asked["conversation_id"], "librarian")
        assert (await direct.resume({asked["waiting"][0]["call_id"]: True})).text == "It is lent."
        result = await runtime.conversation().resume({first.waiting[0].call_id: True})
    assert (result.text, done) == ("I see.", ["trees"])
    assert isinstance(seen.seen[0].error.outcome.error, ConfigError)


async def test_a_planned_parent_cannot_wait_and_is_told_so() -> None:
    done: list[str] = []
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"}), text="I ask."))
    parent = planned(
        [use("librarian"), {"ask": "x"}, {"kind": "answer", "brief": "say it"}, "Later."], tools=[child.as_tool()]
    )
    async with open_runtime(parent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].status == "executed"
    assert result.steps[0].result == (
        "The agent 'librarian' waits for a person (approval for lend), and this run cannot wait with it. "
        "It said: I ask."
    )


async def test_a_new_message_to_the_parent_denies_the_call_and_leaves_the_child_as_it_is() -> None:
    done: list[str] = []
    child = waiting_child(done, tool_calls(("lend", {"book": "trees"})), "It is lent.")
    parent = native([ask(), "Never mind."], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime:
        first = await runtime.run("go")
        run = runtime.submit("forget it")
        assert (await run.wait()).text == "Never mind."
        told = [event async for event in run.events() if isinstance(event, Confirm)]
        assert [(event.tool, event.approved) for event in told] == [("librarian", False)]
        asked = first.waiting[0].payload
        direct = runtime.conversation(asked["conversation_id"], "librarian")
        assert (await direct.resume({asked["waiting"][0]["call_id"]: True})).text == "It is lent."


async def test_a_store_that_fails_the_child_is_its_error_alone() -> None:
    seen = Outcomes()
    child = librarian("never")
    parent = native([ask(), "sorry"], tools=[child.as_tool()], extensions=[seen])

    class OnlyChild(FailingStore):
        async def commit(self, key: str, *args: Any, **options: Any) -> Any:
            if key.startswith("librarian"):
                raise OSError("full")
            return await super().commit(key, *args, **options)

    async with open_runtime(parent, store=OnlyChild(InMemoryStore(), {})) as runtime:
        result = await runtime.run("go")
    assert result.text == "sorry"
    assert isinstance(seen.seen[0].error.outcome.error, OSError)


async def test_a_drain_lets_a_run_ask_its_agents_until_the_grace_is_over(autojump_clock: MockClock) -> None:
    gate = Gate()
    child = librarian("yes")
    parent = native([gate.then(ask()), "done"], tools=[child.as_tool()])
    async with open_runtime(parent) as runtime, trio.open_nursery() as nursery:
        run = runtime.submit("go")
        await gate.wait_reached()
        nursery.start_soon(runtime.drain, 10)
        await wait_all_tasks_blocked()
        gate.open()
        assert (await run.wait()).text == "done"


async def test_wherever_a_run_with_a_child_is_cut_both_are_told_and_both_histories_are_closed() -> None:
    @tool
    async def shelf(name: str) -> str:
        """Look at a shelf."""
        await trio.lowlevel.checkpoint()
        return f"{name}: empty"

    seen: set[tuple[str, ...]] = set()
    for at in range(120):
        outer, inner, store = Journal(), Journal(), InMemoryStore()
        script = [tool_calls(("librarian", {"ask": "x"}), ("librarian", {"ask": "y"})), "done", "again"]
        child = native(
            [*[tool_calls(("shelf", {"name": "a"}))] * 2, *["Nothing."] * 4],
            name="librarian",
            tools=[shelf],
            extensions=[inner],
        )
        parent = native(script, tools=[child.as_tool()], extensions=[outer])
        async with open_runtime(parent, store=store) as runtime:
            run = runtime.submit("go")
            for _ in range(at):
                await trio.lowlevel.checkpoint()
            over = run.state == "done"
            run.abort()
            await run.wait_ended()
            check_closed(await history(store, parent))
            for key in await store.keys("librarian"):
                check_closed(await history(store, child, key.removeprefix("librarian/")))
            assert runtime.statistics().running == 0
            check_events([event async for event in run.events()])
        # Every accepted run, the children too, is told of once; of those that were cut, the error comes first.
        statuses = sorted(status for _, status in inner.heard("on_finish"))
        assert len(inner.heard("on_error")) == statuses.count("aborted")
        assert len(outer.heard("on_finish")) == 1
        assert len(statuses) in (0, 1, 2)
        seen.add((outer.heard("on_finish")[0][1], *statuses))
        if over:
            break
    assert {("aborted",), ("aborted", "aborted", "aborted"), ("completed", "completed", "completed")} <= seen
