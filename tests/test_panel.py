"""The dispatcher's compositions: order, copies, validation, leniency, verdicts, nesting, pipes."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Extension, tool
from goliath_actors._callables import CALLBACKS, check_takes
from goliath_actors._decisions import StreamVerdict, combine
from goliath_actors._journal import RunJournal
from goliath_actors._panel import Panel
from goliath_actors._roster import Roster
from goliath_actors.abc import ModelDone, ModelText
from goliath_actors.errors import ConfigError, GoliathExtensionError, ToolInputError
from goliath_actors.hooks import (
    AfterAnswer,
    AfterPlan,
    AfterRecall,
    AfterResponse,
    AfterStep,
    AfterTool,
    AroundTool,
    Ask,
    BeforeFallback,
    BeforePlan,
    BeforeRequest,
    BeforeRun,
    BeforeTool,
    Complete,
    Continue,
    Deny,
    NextStep,
    PlanPatch,
    Respond,
    RunPatch,
    Stop,
)
from goliath_actors.tools import ToolDescriptor, ToolOutcome
from goliath_actors.values import Exchange, FallbackRequest, Memory, Message, Plan

REQUEST = FallbackRequest("ask", reason="why")
READ, WRITE = ToolDescriptor("read", "Reads."), ToolDescriptor("write", "Writes.", writes=True)


def extension(name: str, *, lenient: bool = False, **hooks: Callable[..., Any]) -> Extension[Any]:
    """Return an extension whose hooks are these functions, called without `self`."""
    methods = {row: staticmethod(function) for row, function in hooks.items()}
    made: Extension[Any] = type("Made", (Extension,), {"name": name, "lenient": lenient, **methods})()
    return made


def panel(*extensions: Extension[Any]) -> Panel:
    journal = RunJournal("run-1", "c1")
    return Panel(Roster.of(extensions), journal, "ask", "agent", {"user": 1}, lambda *a, **k: None, lambda: False)


def answer_question(text: str = "text") -> AfterAnswer:
    return AfterAnswer(text, "device", False, ())


# --- the roster -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_an_extension_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        Roster.of([extension(name)])


def test_extension_names_are_unique_within_an_agent() -> None:
    with pytest.raises(ConfigError, match="two extensions are named 'a'"):
        Roster.of([extension("a"), extension("a")])


@pytest.mark.parametrize(
    ("method", "hint"),
    [("before_tol", "before_tool"), ("on_finished", "on_finish"), ("after_anwser", "after_answer"), ("beforetool", "")],
)
def test_a_method_that_looks_like_a_hook_but_is_none_is_refused_with_a_hint(method: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"{method}.*{hint}"):
        Roster.of([extension("a", **{method: lambda ctx, question: None})])


def test_helpers_and_data_of_an_extension_are_left_alone() -> None:
    class Fine(Extension[Any]):
        name = "fine"
        before_noon = True  # data, not a method

        def _before_all(self) -> None: ...

        def count(self) -> int:
            return 0

    assert Roster.of([Fine()]).names == ("fine",)


def test_a_class_in_place_of_an_instance_is_refused() -> None:
    with pytest.raises(ConfigError, match="pass an instance"):
        Roster.of([Extension])  # type: ignore[list-item]


def test_a_hook_that_is_no_method_is_refused() -> None:
    broken = extension("a")
    broken.before_run = 3  # type: ignore[assignment, method-assign]
    with pytest.raises(ConfigError, match="before_run must be a method"):
        Roster.of([broken])


class Kit:
    """Something to call that is no function."""

    def one(self, question: Any) -> None: ...

    def __call__(self, ctx: Any, question: Any) -> None: ...


def both(ctx: Any, question: Any) -> None: ...


def three(ctx: Any, question: Any, more: Any) -> None: ...


def one(question: Any) -> None: ...


@functools.wraps(one)
def passes_on_less(ctx: Any, question: Any) -> None:
    one(question)


@functools.wraps(both)
def takes_less_than_it_wraps(ctx: Any) -> None: ...


@functools.wraps(one)
def says_other_than_it_takes(*arguments: Any) -> None: ...


says_other_than_it_takes.__signature__ = inspect.signature(one)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("row", "hook", "says"),
    [
        ("before_tool", one, "before_tool is called with (ctx, question), but takes (question)"),
        ("on_finish", three, "on_finish is called with (ctx, question), but takes (ctx, question, more)"),
        ("after_answer", lambda: None, "after_answer is called with (ctx, question), but takes ()"),
        ("around_tool", both, "around_tool is called with (ctx, question, call_next), but takes (ctx, question)"),
        ("transform_stream", both, "transform_stream is called with (ctx, events, control), but takes (ctx, question)"),
        ("before_run", takes_less_than_it_wraps, "before_run is called with (ctx, question), but takes (ctx)"),
        ("before_run", Kit().one, "before_run is called with (ctx, question), but takes (question)"),
        (
            "before_run",
            functools.partial(both, question=None),
            "before_run is called with (ctx, question), but takes (ctx, *, question=None)",
        ),
    ],
)
def test_a_hook_that_cannot_take_what_its_row_gives_is_refused(row: str, hook: Callable[..., Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"extension 'a': {says}") + "$"):
        Roster.of([extension("a", **{row: hook})])


@pytest.mark.parametrize(
    "hook",
    [
        both,
        Kit(),
        functools.partial(three, more=3),
        functools.partial(three, None),
        passes_on_less,
        says_other_than_it_takes,
        lambda *arguments: None,
        lambda ctx, question, more=None: None,
        max,
        dict.get,
        Deny,
    ],
    ids=repr,
)
def test_a_callable_that_may_take_what_its_row_gives_is_left_alone(hook: Callable[..., Any]) -> None:
    assert len(Roster.of([extension("a", before_tool=hook)]).rows["before_tool"]) == 1


def test_a_method_without_self_is_told_so() -> None:
    class Bare(Extension[Any]):
        name = "bare"

        def before_tool(ctx: Any, question: Any) -> None:  # type: ignore[override]
            ...

    says = "before_tool is called with (ctx, question), but takes (question); a method's first parameter is self"
    with pytest.raises(ConfigError, match=re.escape(says)):
        Roster.of([Bare()])


@pytest.mark.parametrize(
    ("name", "function", "called"),
    [
        ("confirm", lambda: True, "(request), but takes ()"),
        ("confirm", lambda call, more: True, "(request), but takes (call, more)"),
        ("fallback", lambda: "", "(request) or (request, ctx) or (request, ctx=), but takes ()"),
        ("facts", lambda one, two: {}, "() or (ctx) or (ctx=), but takes (one, two)"),
        ("on_event", lambda: None, "(event), but takes ()"),
    ],
)
def test_a_callback_that_cannot_be_called_in_any_way_is_refused(
    name: str, function: Callable[..., Any], called: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'Agent({name}=...) is called with {called}')}$"):
        check_takes(f"Agent({name}=...)", function, *CALLBACKS[name])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("confirm", lambda request: True),
        ("confirm", lambda *requests: True),
        ("fallback", lambda request: ""),
        ("fallback", lambda request, about: ""),
        ("fallback", lambda request, *, ctx: ""),
        ("facts", dict),
        ("facts", lambda: {"a": "b"}),
        ("facts", lambda ctx: {}),
        ("on_event", [].append),
        ("on_event", print),
    ],
)
def test_a_callback_that_can_be_called_in_one_way_is_taken(name: str, function: Callable[..., Any]) -> None:
    check_takes(name, function, *CALLBACKS[name])


@tool
def look() -> str:
    """Look."""
    return ""


async def coroutine(agent: Any) -> None: ...


async def asynchronous_generator(agent: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("instructions", 5, "instructions must be a string, not int"),
        ("instructions", lambda: "text", "instructions must be a string, not function"),
        ("lenient", "yes", "lenient must be True or False, not 'yes'"),
        ("lenient", None, "lenient must be True or False, not None"),
        ("tools", look, "tools must be a list; write tools = [look]"),
        ("tools", 3, "tools must be a list of tools, not int"),
        ("tools", {"look": look}, "tools must be a list of tools, not dict"),
        ("tools", "look", "tools must be a list of tools, not str"),
        ("lifespan", 5, "lifespan must be a method, not int"),
        ("lifespan", lambda: None, "lifespan is called with (agent), but takes ()"),
        ("snapshot", (), "snapshot must be a method, not tuple"),
        ("snapshot", lambda run: (), "snapshot is called with (), but takes (run)"),
        *(
            (
                "lifespan",
                function,
                "lifespan must give an async context manager; decorate it with contextlib.asynccontextmanager",
            )
            for function in (coroutine, asynchronous_generator)
        ),
    ],
)
def test_an_attribute_of_the_wrong_kind_is_refused_with_the_extensions_name(
    attribute: str, value: Any, says: str
) -> None:
    made = extension("a")
    setattr(made, attribute, value)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'extension {made.name!r}: {says}')}$"):
        Roster.of([made])


def test_what_an_extension_may_have_in_these_places_is_taken() -> None:
    class Late(Extension[Any]):
        name = "late"
        tools = (look,)

        @property
        def instructions(self) -> str:  # type: ignore[override]
            raise RuntimeError("read before there was a run")

        @asynccontextmanager
        async def lifespan(self, agent: Any) -> AsyncIterator[None]:
            yield

    class Duck:
        name = "duck"
        lifespan = None
        snapshot = None

    assert Roster.of([Late(), Duck()]).names == ("late", "duck")  # type: ignore[list-item]


# --- chain ----------------------------------------------------------------------------------------------------------


async def test_a_chain_asks_in_registration_order_and_a_later_hook_sees_the_earlier_answer() -> None:
    async def first(ctx: Any, question: AfterAnswer) -> str:
        await trio.lowlevel.checkpoint()
        return question.text + "1"

    asked = panel(
        extension("a", after_answer=first),
        extension("b", after_answer=lambda ctx, question: None),
        extension("c", after_answer=lambda ctx, question: question.text + "3"),
    )
    decision = await asked.decide("after_answer", answer_question())
    assert (decision.question.text, decision.verdict) == ("text13", None)


async def test_a_verdict_that_ends_the_row_keeps_rewrites_made_before_it_and_asks_nobody_else() -> None:
    later: list[str] = []
    asked = panel(
        extension("a", before_tool=lambda ctx, q: {"x": 2}),
        extension("b", before_tool=lambda ctx, q: Deny("not today")),
        extension("c", before_tool=lambda ctx, q: later.append("asked")),
    )
    decision = await asked.decide("before_tool", BeforeTool("call", READ, {"x": 1}, "brief", ()))
    assert (decision.verdict, decision.extension, later) == (Deny("not today"), "b", [])
    assert decision.question.input == {"x": 2}
    assert [(e.extension, e.decision, e.reason) for e in asked.journal.trace] == [("b", "deny", "not today")]


async def test_ask_is_remembered_and_the_chain_goes_on() -> None:
    asked = panel(
        extension("a", before_tool=lambda ctx, q: Ask("sensitive")),
        extension("b", before_tool=lambda ctx, q: {"x": 2}),
    )
    decision = await asked.decide("before_tool", BeforeTool("call", READ, {"x": 1}, "brief", ()))
    assert (decision.asks, decision.question.input, decision.verdict) == ((("a", "sensitive"),), {"x": 2}, None)


async def test_a_replaced_input_passes_the_tools_own_check_and_its_failure_is_the_extensions() -> None:
    def check(raw: Any) -> Any:
        if raw["x"] == "bad":
            raise ToolInputError("read", ("x: an integer is wanted",))
        return {"x": int(raw["x"])}

    good = panel(extension("a", before_tool=lambda ctx, q: {"x": "7"}))
    decision = await good.decide("before_tool", BeforeTool("call", READ, {"x": 1}, "", (), check))
    assert decision.question.input == {"x": 7}
    bad = panel(extension("a", before_tool=lambda ctx, q: {"x": "bad"}))
    with pytest.raises(GoliathExtensionError, match="an integer is wanted"):
        await bad.decide("before_tool", BeforeTool("call", READ, {"x": 1}, "", (), check))


async def test_containers_are_copies_per_hook_and_mutating_one_changes_nothing() -> None:
    seen: list[Any] = []

    def mutate(ctx: Any, question: BeforeTool) -> None:
        question.input["x"].append(99)
        seen.append(question.input)

    original = {"x": [1]}
    asked = panel(extension("a", before_tool=mutate), extension("b", before_tool=lambda ctx, q: seen.append(q.input)))
    decision = await asked.decide("before_tool", BeforeTool("call", READ, original, "", ()))
    assert seen == [{"x": [1, 99]}, {"x": [1]}]
    assert (original, decision.question.input) == ({"x": [1]}, {"x": [1]})


async def test_a_tools_raw_output_is_a_copy_per_hook_and_opaque_objects_are_passed_as_they_are() -> None:
    opaque = object()
    output = {"rows": [1], "handle": opaque}
    seen: list[Any] = []

    def look(ctx: Any, question: AfterTool) -> None:
        question.outcome.output["rows"].append(2)
        seen.append(question.outcome.output)

    asked = panel(extension("a", after_tool=look), extension("b", after_tool=look))
    await asked.decide("after_tool", AfterTool("call", READ, {}, "text", ToolOutcome("executed", output), ()))
    assert seen == [{"rows": [1, 2], "handle": opaque}] * 2
    assert seen[0]["handle"] is opaque
    assert output["rows"] == [1]


@pytest.mark.parametrize(
    ("row", "question", "bad", "words"),
    [
        ("after_answer", answer_question(), " ", "blank"),
        ("after_answer", answer_question(), 7, "may answer text"),
        ("after_answer", answer_question(), Deny("no"), "not Deny"),
        ("after_answer", answer_question(), Stop("x", 3), "reason must be a string"),
        ("after_recall", AfterRecall(Memory()), {"summary": ""}, "Memory"),
        ("before_request", BeforeRequest((Message("user", "x"),), "plan", 0), "text", "messages"),
        ("before_request", BeforeRequest((Message("user", "x"),), "plan", 0), [], "empty"),
        ("before_request", BeforeRequest((Message("user", "x"),), "plan", 0), ["x"], "Message"),
        ("after_plan", AfterPlan(Plan("answer"), (READ,), (), 0), Plan("tool", tool="write"), "not available"),
        ("after_plan", AfterPlan(Plan("answer"), (READ,), (), 0), Plan("dance"), "not 'dance'"),  # type: ignore[arg-type]
        ("after_plan", AfterPlan(Plan("answer"), (READ,), (), 0), Respond(" "), "blank"),
        ("after_plan", AfterPlan(Plan("answer"), (), (), 0), Plan("answer", 3), "plan.brief is of type int"),  # type: ignore[arg-type]
        ("after_plan", AfterPlan(Plan("answer"), (), (), 0), Plan("answer", why=3), "plan.why"),  # type: ignore[arg-type]
        ("after_recall", AfterRecall(Memory()), Memory(3), "summary"),  # type: ignore[arg-type]
        ("after_recall", AfterRecall(Memory()), Memory("", [3]), "must hold exchanges"),
        ("after_recall", AfterRecall(Memory()), Memory("", [Exchange(3, "x", 0.0)]), "recent.ask"),  # type: ignore[arg-type]
        ("after_recall", AfterRecall(Memory()), Memory("", [Exchange("x", "x", math.nan)]), "seconds since the epoch"),
        ("after_recall", AfterRecall(Memory()), Memory("", [Exchange("x", "x", 0.0, steps=["s"])]), "must hold steps"),
        ("before_fallback", BeforeFallback(REQUEST), attrs.evolve(REQUEST, ask=3), "request.ask"),
        ("before_fallback", BeforeFallback(REQUEST), attrs.evolve(REQUEST, error=3), "request.error"),
        ("before_fallback", BeforeFallback(REQUEST), attrs.evolve(REQUEST, recent=[3]), "must hold exchanges"),
        ("before_fallback", BeforeFallback(REQUEST), attrs.evolve(REQUEST, reason="other"), "must stay 'why'"),
        ("before_run", BeforeRun("a", "i", {}), RunPatch(model="gpt"), "model must be a Model"),  # type: ignore[arg-type]
        ("before_run", BeforeRun("a", "i", {}), RunPatch(ask=" "), "ask"),
        ("before_run", BeforeRun("a", "i", {}), RunPatch(facts={"zone": 3}), "facts"),  # type: ignore[dict-item]
        ("before_run", BeforeRun("a", "i", {}), RunPatch(tools=["nope"]), "no tool of this agent is called 'nope'"),
        ("before_plan", BeforePlan("a", (), "", (), 0), PlanPatch(context_text=3), "context_text"),  # type: ignore[arg-type]
        ("before_plan", BeforePlan("a", (), "", (), 0), PlanPatch(tools="read"), "list of tool names"),
        ("before_plan", BeforePlan("a", (), "", (), 0), PlanPatch(settings=[1]), "settings"),  # type: ignore[arg-type]
    ],
)
async def test_a_bad_answer_is_the_extensions_error_and_says_what_is_wrong(
    row: str, question: Any, bad: Any, words: str
) -> None:
    asked = panel(extension("a", **{row: lambda ctx, q: bad}))
    with pytest.raises(GoliathExtensionError, match=words) as caught:
        await asked.decide(row, question)
    assert (caught.value.extension, caught.value.phase) == ("a", row)
    assert asked.journal.origin_of(caught.value) == "extension"


async def test_a_hook_that_raises_is_named_and_no_later_hook_is_asked() -> None:
    later: list[str] = []
    error = LookupError("k")

    def raises(ctx: Any, question: Any) -> None:
        raise error

    asked = panel(
        extension("a", after_answer=raises), extension("b", after_answer=lambda ctx, q: later.append("asked"))
    )
    with pytest.raises(GoliathExtensionError) as caught:
        await asked.decide("after_answer", answer_question())
    assert caught.value.__cause__ is error
    assert later == []


async def test_a_lenient_extension_is_skipped_and_reported() -> None:
    def raises(ctx: Any, question: Any) -> None:
        raise LookupError("k")

    asked = panel(
        extension("a", lenient=True, after_answer=raises),
        extension("b", after_answer=lambda ctx, q: q.text + "b"),
    )
    decision = await asked.decide("after_answer", answer_question())
    assert decision.question.text == "textb"
    assert [(d.extension, d.phase) for d in asked.journal.diagnostics] == [("a", "after_answer")]
    assert [(e.decision, e.reason) for e in asked.journal.trace] == [("skip", "k")]


async def test_a_lenient_extension_that_fails_before_a_tool_denies_the_call() -> None:
    def raises(ctx: Any, question: Any) -> None:
        raise LookupError("policy server down")

    asked = panel(extension("a", lenient=True, before_tool=raises))
    decision = await asked.decide("before_tool", BeforeTool("call", READ, {}, "", ()))
    assert isinstance(decision.verdict, Deny)
    assert "policy server down" in decision.verdict.reason


async def test_a_lenient_extension_is_still_strict_where_skipping_would_leak_or_lose() -> None:
    def raises(ctx: Any, question: Any) -> None:
        raise LookupError("k")

    from goliath_actors.hooks import BeforeAppend

    asked = panel(extension("a", lenient=True, before_append=raises))
    with pytest.raises(GoliathExtensionError):
        await asked.decide("before_append", BeforeAppend(Message("user", "x")))


async def test_cancellation_is_honoured_before_the_first_hook_and_after_each() -> None:
    heard: list[str] = []
    with trio.CancelScope() as scope:

        def cancels(ctx: Any, question: Any) -> None:
            heard.append("a")
            scope.cancel()

        asked = panel(
            extension("a", after_answer=cancels), extension("b", after_answer=lambda ctx, q: heard.append("b"))
        )
        await asked.decide("after_answer", answer_question())
    assert scope.cancelled_caught
    assert heard == ["a"]
    with trio.CancelScope() as scope:
        scope.cancel()
        await asked.decide("after_answer", answer_question())
    assert heard == ["a"]


# --- merge ----------------------------------------------------------------------------------------------------------


async def test_run_patches_merge_facts_by_key_and_the_later_wins() -> None:
    asked = panel(
        extension("a", before_run=lambda ctx, q: RunPatch(facts={"zone": "west", "x": "1"}, ask="better")),
        extension("b", before_run=lambda ctx, q: RunPatch(facts={"zone": "east"}, instructions=q.ask + "!")),
    )
    decision = await asked.decide("before_run", BeforeRun("ask", "do", {"day": "Monday"}))
    merged = decision.question
    assert (merged.ask, merged.instructions) == ("better", "better!")
    assert merged.facts == {"day": "Monday", "zone": "east", "x": "1"}


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True), max_size=5))
def test_tool_filters_intersect_and_cannot_be_undone(filters: list[list[str]]) -> None:
    tools = tuple(ToolDescriptor(name, "x") for name in "abcd")

    async def ask() -> Any:
        hooks = [
            extension(str(n), before_plan=lambda ctx, q, names=names: PlanPatch(tools=names))
            for n, names in enumerate(filters)
        ]
        return await panel(*hooks).decide("before_plan", BeforePlan("a", tools, "", (), 0, frozenset("abcd")))

    decision = trio.run(ask)
    left = set("abcd").intersection(*map(set, filters)) if filters else set("abcd")
    assert [tool.name for tool in decision.question.tools] == sorted(left)


@given(
    st.lists(
        st.builds(
            RunPatch,
            settings=st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers()),
            provider_options=st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers()),
            model=st.none() | st.sampled_from(["m1", "m2"]),  # type: ignore[arg-type]
        )
    )
)
def test_a_patch_with_a_model_starts_a_fresh_route(patches: list[RunPatch]) -> None:
    combined = combine(patches)
    last = max((n for n, patch in enumerate(patches) if patch.model is not None), default=0)
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for patch in patches[last:]:
        settings.update(patch.settings or {})
        options.update(patch.provider_options or {})
    assert (combined.settings or {}, combined.provider_options or {}) == (settings, options)
    assert combined.model == (patches[last].model if patches else None)


# --- first ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([None, NextStep(), Complete(), Continue("more")]), max_size=6))
def test_the_first_answer_wins_and_complete_beats_all(answers: list[Any]) -> None:
    async def ask() -> Any:
        hooks = [extension(str(n), after_step=lambda ctx, q, a=answer: a) for n, answer in enumerate(answers)]
        return await panel(*hooks).decide("after_step", AfterStep(Plan("answer"), True))

    given_answers = [answer for answer in answers if answer is not None]
    expected = Complete() if Complete() in given_answers else (given_answers[0] if given_answers else None)
    assert trio.run(ask).verdict == expected


# --- nest -----------------------------------------------------------------------------------------------------------


async def test_nest_makes_the_first_registered_the_outermost() -> None:
    order: list[str] = []

    def around(name: str) -> Any:
        async def hook(ctx: Any, question: Any, call_next: Any) -> Any:
            order.append(f"{name} in")
            output = await call_next()
            order.append(f"{name} out")
            return f"{name}({output})"

        return hook

    asked = panel(extension("a", around_tool=around("a")), extension("b", around_tool=around("b")))

    async def inner(question: AroundTool) -> str:
        await trio.lowlevel.checkpoint()
        order.append("tool")
        return "out"

    assert await asked.nest("around_tool", AroundTool("call", READ, {}), inner) == "a(b(out))"
    assert order == ["a in", "b in", "tool", "b out", "a out"]


async def test_an_error_let_through_a_nest_stays_what_it_was() -> None:
    error = LookupError("tool")

    async def through(ctx: Any, question: Any, call_next: Any) -> Any:
        return await call_next()

    async def inner(question: AroundTool) -> str:
        await trio.lowlevel.checkpoint()
        raise error

    asked = panel(extension("a", around_tool=through), extension("b", around_tool=through))
    with pytest.raises(LookupError) as caught:
        await asked.nest("around_tool", AroundTool("call", READ, {}), inner)
    assert caught.value is error


async def test_an_error_that_a_nest_hook_makes_itself_is_that_extensions_and_the_innermost_is_named() -> None:
    async def through(ctx: Any, question: Any, call_next: Any) -> Any:
        return await call_next()

    async def breaks(ctx: Any, question: Any, call_next: Any) -> Any:
        await call_next()
        raise ValueError("mine")

    async def inner(question: AroundTool) -> str:
        await trio.lowlevel.checkpoint()
        return "out"

    asked = panel(extension("outer", around_tool=through), extension("inner", around_tool=breaks))
    with pytest.raises(GoliathExtensionError, match="mine") as caught:
        await asked.nest("around_tool", AroundTool("call", READ, {}), inner)
    assert caught.value.extension == "inner"


async def test_a_nest_hook_without_an_opinion_gets_out_of_the_way() -> None:
    async def inner(question: AroundTool) -> str:
        await trio.lowlevel.checkpoint()
        return "out"

    async def calls_and_forgets(ctx: Any, question: Any, call_next: Any) -> None:
        await call_next()

    asked = panel(
        extension("a", around_tool=lambda ctx, q, call_next: None), extension("b", around_tool=calls_and_forgets)
    )
    assert await asked.nest("around_tool", AroundTool("call", READ, {}), inner) == "out"


async def test_a_patch_that_a_nest_row_does_not_take_is_the_hooks_mistake() -> None:
    async def patches(ctx: Any, question: Any, call_next: Any) -> Any:
        return await call_next({"x": 1})

    async def inner(question: AroundTool) -> str:
        raise AssertionError("unreachable: the call is refused")

    with pytest.raises(GoliathExtensionError, match="takes no argument"):
        await panel(extension("a", around_tool=patches)).nest("around_tool", AroundTool("call", READ, {}), inner)


# --- pipe -----------------------------------------------------------------------------------------------------------


async def source(*texts: str) -> AsyncGenerator[Any, None]:
    for text in texts:
        await trio.lowlevel.checkpoint()
        yield ModelText(text)
    yield ModelDone("stop")


async def read(asked: Panel, events: AsyncGenerator[Any, None]) -> tuple[list[Any], list[StreamVerdict]]:
    out: list[Any] = []
    verdicts: list[StreamVerdict] = []
    with trio.CancelScope() as scope:
        async with aclosing(events), asked.pipe("transform_stream", events, scope, verdicts) as stream:
            async for event in stream:
                out.append(event)
    return out, verdicts


async def test_a_pipe_sends_events_through_every_transform_in_order() -> None:
    def adding(mark: str) -> Any:
        async def transform(ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
            async for event in events:
                yield ModelText(event.text + mark) if isinstance(event, ModelText) else event

        return transform

    asked = panel(
        extension("a", transform_stream=adding("a")),
        extension("b", transform_stream=lambda ctx, events, control: None),
        extension("c", transform_stream=adding("c")),
    )
    out, verdicts = await read(asked, source("x", "y"))
    assert out == [ModelText("xac"), ModelText("yac"), ModelDone("stop")]
    assert verdicts == []


async def test_control_abort_does_not_return_to_the_transform_and_closes_everything() -> None:
    closed: list[str] = []

    async def transform(ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        try:
            async for event in events:
                if getattr(event, "text", "") == "bad":
                    await control.abort("policy", replacement="nothing to see")
                    closed.append("returned")
                yield event
        finally:
            closed.append("closed")

    out, verdicts = await read(panel(extension("a", transform_stream=transform)), source("good", "bad", "more"))
    assert out == [ModelText("good")]
    assert verdicts == [StreamVerdict("a", "abort", "nothing to see", "policy", "blocked")]
    assert closed == ["closed"]


async def test_control_retry_carries_the_feedback() -> None:
    async def transform(ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            await control.retry("shorter, please")
            yield event

    out, verdicts = await read(panel(extension("a", transform_stream=transform)), source("x"))
    assert (out, verdicts) == ([], [StreamVerdict("a", "retry", "shorter, please")])


async def test_errors_in_a_pipe_are_told_apart() -> None:
    error = LookupError("provider")

    async def failing() -> AsyncGenerator[Any, None]:
        yield ModelText("x")
        raise error

    async def through(ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event

    async def breaks(ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event
            raise ValueError("mine")

    asked = panel(extension("a", transform_stream=through), extension("b", transform_stream=through))
    with pytest.raises(LookupError) as provider:
        await read(asked, failing())
    assert provider.value is error
    with pytest.raises(GoliathExtensionError, match="mine"):
        await read(panel(extension("a", transform_stream=breaks)), source("x"))
    with pytest.raises(GoliathExtensionError, match="async generator"):
        await read(panel(extension("a", transform_stream=lambda ctx, events, control: [1])), source("x"))

    def refuses(ctx: Any, events: Any, control: Any) -> Any:
        raise ValueError("at once")

    with pytest.raises(GoliathExtensionError, match="at once"):
        await read(panel(extension("a", transform_stream=refuses)), source("x"))


# --- observe, context, contributions --------------------------------------------------------------------------------


async def test_an_observer_that_raises_or_answers_is_a_diagnostic_and_the_next_is_told() -> None:
    told: list[str] = []

    def raises(ctx: Any, question: Any) -> None:
        raise KeyError("b")

    asked = panel(
        extension("a", after_response=raises), extension("b", after_response=lambda ctx, q: told.append(q.role))
    )
    await asked.observe("after_response", AfterResponse("answer"))
    assert told == ["answer"]
    assert [(d.extension, d.phase, repr(d.error)) for d in asked.journal.diagnostics] == [
        ("a", "after_response", "KeyError('b')")
    ]


async def test_state_is_private_to_an_extension_and_shared_by_its_hooks() -> None:
    def write(ctx: Any, question: Any) -> None:
        ctx.state["n"] = ctx.state.get("n", 0) + 1

    seen: list[Any] = []
    asked = panel(
        extension("a", before_run=write, after_answer=lambda ctx, q: seen.append(dict(ctx.state))),
        extension("b", after_answer=lambda ctx, q: seen.append(dict(ctx.state))),
    )
    await asked.decide("before_run", BeforeRun("a", "i", {}))
    await asked.decide("after_answer", answer_question())
    assert seen == [{"n": 1}, {}]


async def test_the_context_carries_what_was_promised() -> None:
    seen: list[Any] = []
    asked = panel(extension("a", after_answer=lambda ctx, q: seen.append(ctx)))
    await asked.decide("after_answer", answer_question())
    (ctx,) = seen
    assert (ctx.run_id, ctx.conversation_id, ctx.ask, ctx.agent_name) == ("run-1", "c1", "ask", "agent")
    assert ctx.context is asked.context
    assert ctx.abort_requested is False


async def test_snapshots_and_instructions_are_contributions_in_order_and_a_failing_snapshot_is_a_diagnostic() -> None:
    def broken() -> Any:
        raise OSError("no snapshot")

    a, b = extension("a", snapshot=lambda: ["first"]), extension("b", snapshot=broken)
    a.instructions, b.instructions = "Be kind.", "Be brief."
    asked = panel(a, extension("c"), b)
    assert asked.snapshots() == ["first"]
    assert asked.instructions() == "Be kind.\nBe brief."
    assert [d.extension for d in asked.journal.diagnostics] == ["b"]


@pytest.mark.parametrize("verdict", [Deny("no"), Stop("x", "y"), Ask("why"), Complete()])
async def test_a_verdict_is_no_output_of_a_tool(verdict: Any) -> None:
    async def inner(question: AroundTool) -> str:
        await trio.lowlevel.checkpoint()
        return "out"

    async def answers(ctx: Any, question: Any, call_next: Any) -> Any:
        await call_next()
        return verdict

    with pytest.raises(GoliathExtensionError, match=f"not {type(verdict).__name__}"):
        await panel(extension("a", around_tool=answers)).nest("around_tool", AroundTool("call", READ, {}), inner)


async def test_the_words_of_an_ask_are_checked_too() -> None:
    asked = panel(extension("a", before_tool=lambda ctx, q: Ask(3)))  # type: ignore[arg-type]
    with pytest.raises(GoliathExtensionError, match=r"Ask\.reason must be a string"):
        await asked.decide("before_tool", BeforeTool("call", READ, {}, "", ()))


async def test_an_observer_that_answers_is_a_diagnostic() -> None:
    async def late(ctx: Any, question: Any) -> str:
        await trio.lowlevel.checkpoint()
        return "an opinion"

    asked = panel(extension("a", after_response=lambda ctx, q: 3), extension("b", after_response=late))
    await asked.observe("after_response", AfterResponse("answer"))
    assert [(d.extension, type(d.error), str(d.error)) for d in asked.journal.diagnostics] == [
        ("a", TypeError, "after_response only observes and must return nothing, not int"),
        ("b", TypeError, "after_response only observes and must return nothing, not str"),
    ]
