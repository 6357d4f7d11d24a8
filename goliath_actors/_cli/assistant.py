"""The agent that `chat` talks to when none is named: a few harmless tools that read, write and ask."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, final

import attrs
import msgspec

from goliath_actors import Agent, ToolContext, ToolFailure, tool
from goliath_actors.abc import Model
from goliath_actors.tools import Confirmed, ConfirmRequest, Tool

__all__ = ["DEMO_HINT", "Notebook", "calculate", "make_assistant"]

DEMO_HINT = (
    "Ask me for the time, to add a note (add a note: buy milk), to list the notes, or to calculate something (2 * 21)."
)
_INSTRUCTIONS = (
    "You are a helpful assistant in a terminal. Be short and exact, and say so when you do not know. "
    "Use a tool for the time, for notes and for arithmetic."
)
_MOST_NOTES = 100
_LONGEST = 200  # characters of an expression
_ARITHMETIC = re.compile(r"[\d\s.()+*/%eE-]+", re.ASCII)

Number = int | float
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@final
@attrs.define(eq=False)
class Notebook:
    """Notes by conversation, as long as the program runs."""

    _notes: dict[str | None, list[str]] = attrs.field(factory=dict)

    def of(self, conversation_id: str | None) -> list[str]:
        """Return the notes of one conversation, to read and to add to."""
        return self._notes.setdefault(conversation_id, [])


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression of numbers, + - * / // % and parentheses.

    Powers are left out, since a short one can take for ever.

    Raises: `ToolFailure`, saying what cannot be calculated.
    """
    if len(expression) > _LONGEST:
        raise ToolFailure(f"the expression has {len(expression)} characters, at most {_LONGEST} are allowed")
    text = expression.strip().replace("×", "*").replace("÷", "/")
    try:
        # The compiler warns of some odd texts on standard error; those with other characters never get there.
        if not _ARITHMETIC.fullmatch(text):
            raise ValueError("only numbers, + - * / // % and parentheses")
        value = _value(ast.parse(text, mode="eval").body)
        if not math.isfinite(value):
            raise OverflowError("the value is out of range")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ToolFailure(f"{expression!r} is no arithmetic that can be calculated") from error
    except ZeroDivisionError as error:
        raise ToolFailure(f"{expression!r} divides by zero") from error
    return f"{expression.strip()} = {value}"


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]  # the line above says so
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only numbers, + - * / // % and parentheses")


def _tools(notebook: Notebook, now: Callable[[], datetime]) -> list[Tool]:
    @tool
    async def clock() -> str:
        """Tell the date and the time of day."""
        return now().strftime("%A, %d %B %Y, %H:%M:%S")

    @tool(name="calculate")
    async def calculate_tool(
        expression: Annotated[str, msgspec.Meta(description="numbers, + - * / // % and parentheses")],
    ) -> str:
        """Calculate an arithmetic expression."""
        return calculate(expression)

    @tool
    async def list_notes(ctx: ToolContext[Any]) -> list[str] | str:
        """List the notes of this conversation."""
        return notebook.of(ctx.conversation_id) or "there are no notes"

    @tool(writes=True)
    async def add_note(
        ctx: ToolContext[Any], text: Annotated[str, msgspec.Meta(description="the note", min_length=1)]
    ) -> str:
        """Add a note to this conversation."""
        notes = notebook.of(ctx.conversation_id)
        if len(notes) >= _MOST_NOTES:
            raise ToolFailure(f"there are {len(notes)} notes, more are not kept")
        notes.append(text)
        return f"noted as number {len(notes)}: {text}"

    return [clock, calculate_tool, list_notes, add_note]


def _nobody(request: ConfirmRequest) -> Confirmed:
    return Confirmed(False, "nobody was asked")


def make_assistant(
    model: Model, notebook: Notebook | None = None, now: Callable[[], datetime] = datetime.now
) -> Agent[Any]:
    """Return the built-in assistant on `model`. It has a clock, a calculator, and notes kept in `notebook`."""
    tools = _tools(notebook or Notebook(), now)
    return Agent(name="assistant", model=model, tools=tools, instructions=_INSTRUCTIONS, confirm=_nobody)
