"""Lists of tools and hooks, for people of any width and for programs."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from goliath_actors import Agent, Extension, approve_all, tool
from goliath_actors._cli.assistant import make_assistant
from goliath_actors._cli.demo_model import DemoModel
from goliath_actors._cli.listings import (
    hooks_as_data,
    parameters_line,
    show_hooks,
    show_json,
    show_tools,
    tools_as_data,
)
from goliath_actors._cli.screen import Screen, cells
from goliath_actors.hooks import HOOKS
from goliath_actors.testing import ScriptedModel
from goliath_actors.tools import Tool

from .cli_stage import Tty


def printed(show: Any, *what: Any, width: int | None = None) -> str:
    stream = io.StringIO() if width is None else Tty()
    show(Screen.on(stream, {"COLUMNS": str(width or 0), "NO_COLOR": "1"}), *what)
    return stream.getvalue()


def test_tools_are_listed_with_arguments_and_marks() -> None:
    @tool(sequential=True, timeout=2.5, requires=("look",))
    async def go(where: str, times: int = 1) -> str:
        """Go somewhere."""
        return where

    @tool(confirm=True)
    async def look() -> str:
        """Look around."""
        return "sky"

    agent = Agent(name="walker", model=ScriptedModel([]), tools=[go, look], confirm=approve_all)
    assert printed(show_tools, agent) == (
        "go(where: string, times?: integer)\n"
        "    Go somewhere.\n"
        "    only after look; never beside another tool; at most 2.5 s\n"
        "look()\n"
        "    Look around.\n"
        "    asks first\n"
        "\n"
        "agent 'walker' has 2 tools; of these, none may change data\n"
    )


@pytest.mark.parametrize(("writes", "words"), [(True, "may change data"), (False, "changes no data")])
def test_a_single_tool_is_one_tool(writes: bool, words: str) -> None:
    @tool(writes=writes)
    async def touch() -> str:
        """Touch it."""
        return "touched"

    agent = Agent(name="hand", model=ScriptedModel([]), tools=[touch], confirm=approve_all)
    assert printed(show_tools, agent).splitlines()[-1] == f"agent 'hand' has 1 tool, which {words}"


def test_an_agent_without_tools_says_so() -> None:
    assert printed(show_tools, Agent(name="mute", model=ScriptedModel([]))) == "agent 'mute' has no tools\n"


def test_what_a_sub_agent_may_change_is_no_secret() -> None:
    @tool(writes=True)
    async def lend() -> str:
        """Lend a book."""
        return "lent"

    librarian = Agent(name="librarian", model=ScriptedModel([]), tools=[lend], confirm=approve_all)
    reader = Agent(name="reader", model=ScriptedModel([]))
    tools = [librarian.as_tool(description="Ask."), reader.as_tool(description="Read.")]
    assert printed(show_tools, Agent(name="desk", model=ScriptedModel([]), tools=tools)).splitlines() == [
        "librarian(ask: string)",
        "    Ask.",
        "    asks agent 'librarian', whose tools may change data",
        "reader(ask: string)",
        "    Read.",
        "    asks agent 'reader'",
        "",
        "agent 'desk' has 2 tools; of these, 1 may change data",
    ]


def test_tools_that_come_with_a_lifespan_are_announced() -> None:
    class Shelf(Extension[Any]):
        name = "shelf"

        @property
        def tools(self) -> list[Tool]:  # type: ignore[override]  # as the tools of a server are
            return []

    agent = Agent(name="desk", model=ScriptedModel([]), extensions=[Shelf()])
    assert printed(show_tools, agent).splitlines() == [
        "agent 'desk' has no tools",
        "tools of shelf are known only while a runtime is open",
    ]


def test_tools_as_json_hold_the_schema_and_what_asks_first() -> None:
    rows = json.loads(printed(show_json, tools_as_data(make_assistant(DemoModel()))))
    assert [(row["name"], row["writes"], row["confirm"]) for row in rows] == [
        ("clock", False, False),
        ("calculate", False, False),
        ("list_notes", False, False),
        ("add_note", True, True),
    ]
    assert rows[3]["parameters"]["required"] == ["text"]
    assert rows[3]["parameters"]["properties"]["text"]["description"] == "the note"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"type": "string"}, "x?: string"),
        ({"enum": ["a", 1]}, 'x?: "a" | 1'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x?: integer | null"),
        ({"type": "array", "items": {"type": "number"}}, "x?: list of number"),
        ({"type": ["string", "null"]}, "x?: string | null"),
        ({}, "x?: any"),
        (True, "x?: any"),
    ],
)
def test_any_schema_has_one_line(rule: Any, words: str) -> None:
    assert parameters_line({"properties": {"x": rule}}) == words


def test_every_hook_of_the_table_is_listed_in_its_order() -> None:
    rows = printed(show_hooks).splitlines()
    assert rows[0].split() == ["hook", "asked", "when", "may", "answer", "composition", "lenient", "asked", "by"]
    assert [row.split()[0] for row in rows[1:]] == list(HOOKS)


@pytest.mark.parametrize("width", [30, 60, 80, 300])
def test_hooks_fit_any_width(width: int) -> None:
    shown = printed(show_hooks, width=width)
    assert max(cells(row) for row in shown.splitlines()) <= width
    assert [row for row in shown.replace("\n", " ").split() if row in HOOKS] == list(HOOKS)
    assert "deny" in shown


def test_hooks_as_json_say_what_the_table_says() -> None:
    rows = {row["name"]: row for row in json.loads(printed(show_json, hooks_as_data()))}
    assert list(rows) == list(HOOKS)
    assert rows["before_tool"] == {
        "name": "before_tool",
        "when": HOOKS["before_tool"].when,
        "may_answer": "new input · Deny · Ask (the chain goes on) · Stop",
        "composition": "chain",
        "lenient": "deny",
        "asked_by": ["Conductor", "ToolLoop"],
        "shielded": False,
    }
    assert rows["on_finish"]["shielded"]
    assert (rows["on_finish"]["may_answer"], rows["on_finish"]["lenient"]) == ("nothing", None)
