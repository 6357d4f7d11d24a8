"""The demo model's rules, under the planned loop and by themselves, and the built-in assistant's tools."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Agent, ToolContext, ToolFailure, approve_all, open_runtime, tool
from goliath_actors._cli.assistant import Notebook, calculate, make_assistant
from goliath_actors._cli.demo_model import DemoModel
from goliath_actors.abc import ModelDone, ModelRequest, ModelText, ModelToolCall, ToolSpec
from goliath_actors.tools import Tool
from goliath_actors.values import Message, RunResult, ToolCall


async def ask(agent: Agent[Any], *asks: str) -> list[RunResult]:
    async with open_runtime(agent) as runtime:
        return [await runtime.run(text) for text in asks]


def used(result: RunResult) -> list[tuple[str | None, dict[str, Any]]]:
    return [(step.tool, dict(step.input or {})) for step in result.steps if step.kind == "tool"]


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ("what time is it?", [("clock", {})]),
        ("which DATE is today", [("clock", {})]),
        ("list the notes", [("list_notes", {})]),
        ("show my notes please", [("list_notes", {})]),
        ("add a note: buy milk", [("add_note", {"text": "buy milk"})]),
        ('add the note "call Ada: now"', [("add_note", {"text": "call Ada: now"})]),
        ("add a note to call Ada", [("add_note", {"text": "call Ada"})]),
        ("what is 2 * (3+4)?", [("calculate", {"expression": "2 * (3+4)"})]),
        ("calculate 10 / 4", [("calculate", {"expression": "10 / 4"})]),
        ("add a note: milk then list the notes", [("add_note", {"text": "milk"}), ("list_notes", {})]),
        ("hello there", []),
    ],
)
async def test_the_rules_choose_tools_and_fill_in_their_arguments(
    words: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    agent = attrs.evolve(make_assistant(DemoModel()), confirm=approve_all)
    (result,) = await ask(agent, words)
    assert used(result) == calls
    assert result.reason is None
    assert result.text.startswith("Demo model: " if calls else "I am the demo model: fixed rules")


async def test_every_answer_says_that_it_is_the_demo_and_is_the_same_every_time() -> None:
    agent = make_assistant(DemoModel(), Notebook())
    asks = ("2 * 21", "add a note: x", "hello", "2 * 21", "2 * 21", "2 * 21")
    first, second = await ask(agent, *asks), await ask(agent, *asks)
    assert [result.text for result in first] == [result.text for result in second]
    assert all("emo model" in result.text for result in first)
    assert first[-1].text == "Demo model: calculate says: 2 * 21 = 42."


async def test_what_is_remembered_does_not_look_like_a_step_of_this_run() -> None:
    results = await ask(make_assistant(DemoModel()), "list the notes", "list the notes")
    assert [used(result) for result in results] == [[("list_notes", {})]] * 2


async def test_a_required_value_that_is_not_there_is_named_as_missing() -> None:
    @tool
    async def book(ctx: ToolContext[Any], seats: int, vegan: bool, day: Literal["mon", "tue"], names: list[str]) -> str:
        """Book a table."""
        return f"{seats} {vegan} {day} {names}"

    agent = Agent(model=DemoModel(), tools=[book])
    (full,) = await ask(agent, "book 4 on tue for: Ada, Bob and Eve")
    assert full.steps[0].result == "4 True tue ['Ada', 'Bob', 'Eve']"
    (short,) = await ask(agent, "book a table")
    assert (short.steps[0].status, short.steps[0].skip_reason) == ("skipped", "missing")


async def test_a_structured_answer_is_made_from_its_schema() -> None:
    @attrs.frozen
    class Order:
        count: int
        item: str

    agent = Agent(model=DemoModel(), output=Order)
    (result,) = await ask(agent, "order 3: apples")
    assert result.output == Order(3, "apples")


async def test_a_tool_that_fails_is_reported_as_failed() -> None:
    (result,) = await ask(make_assistant(DemoModel()), "calculate 1/0")
    assert result.text.startswith("Demo model: calculate failed: '1/0' divides by zero")


async def events(model: DemoModel, request: ModelRequest) -> list[Any]:
    async with model.stream(request) as stream:
        return [event async for event in stream]


async def test_a_native_loop_gets_calls_and_then_an_answer_about_their_results() -> None:
    spec = ToolSpec("get_time", "Tell the time.", {"type": "object", "properties": {}})
    asked = Message("user", "what time is it?")
    first = await events(DemoModel(), ModelRequest("step", (asked,), tools=(spec,)))
    assert first == [ModelToolCall(0, "demo-1", "get_time", "{}"), ModelDone("tool_calls")]
    call = Message("assistant", "", (ToolCall("demo-1", "get_time"),))
    told = Message("tool", "noon", tool_call_id="demo-1")
    second = await events(DemoModel(), ModelRequest("step", (asked, call, told), tools=(spec,)))
    assert "".join(event.text for event in second if isinstance(event, ModelText)) == "Demo model: get_time says: noon."
    assert second[-1] == ModelDone("stop")


@given(st.text(max_size=200), st.sampled_from(["plan", "arguments", "answer", "scribe", "step", "compact"]))
def test_no_prompt_makes_the_rules_fail(text: str, role: str) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
    model = DemoModel()
    for request in (
        ModelRequest(role, (Message("user", text),)),
        ModelRequest(role, (Message("system", text), Message("user", f"Request: {text}")), schema=schema),
    ):
        assert isinstance(model._reply(request), str)


# --- the assistant's tools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2*(3+4)", "14"), ("-3 + +1", "-2"), ("7 // 2", "3"), ("7 % 4", "3"), ("1/4", "0.25"), ("6 × 7 ÷ 2", "21.0")],
)
def test_arithmetic_is_calculated(expression: str, value: str) -> None:
    assert calculate(expression) == f"{expression} = {value}"


@pytest.mark.parametrize(
    "expression",
    [
        "2**9**9",
        "__import__('os')",
        "a+1",
        "",
        "(1",
        "True + 1",
        "1 if 1 else 2",
        "'x' * 9",
        "1;2",
        "(" * 150,
        "1" * 201,
        "1e308 * 10 // 1",
        "\x00",
    ],
)
def test_what_is_no_arithmetic_is_refused_and_never_run(expression: str) -> None:
    with pytest.raises(ToolFailure):
        calculate(expression)


@given(st.text(st.sampled_from("0123456789+-*/%(). e"), max_size=60))
def test_any_expression_has_a_value_or_is_refused(expression: str) -> None:
    try:
        assert " = " in calculate(expression)
    except ToolFailure:
        pass


async def test_notes_are_kept_for_each_conversation_and_are_bounded() -> None:
    notebook = Notebook()
    agent = attrs.evolve(make_assistant(DemoModel(), notebook), confirm=approve_all)
    async with open_runtime(agent) as runtime:
        await runtime.run("add a note: one", conversation_id="a")
        await runtime.run("add a note: two", conversation_id="b")
        notebook.of("a").extend(["more"] * 99)
        full = await runtime.run("add a note: too many", conversation_id="a")
    assert notebook.of("b") == ["two"]
    assert len(notebook.of("a")) == 100
    assert "there are 100 notes" in full.text


async def test_without_somebody_to_ask_the_assistant_refuses_to_write() -> None:
    agent = make_assistant(DemoModel())
    assert isinstance(agent.tool_table["add_note"], Tool)
    (result,) = await ask(agent, "add a note: x")
    assert result.steps[0].skip_reason == "confirmation"
