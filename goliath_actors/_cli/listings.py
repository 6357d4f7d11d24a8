"""Tools and hooks as lists for people, and as JSON.

The hooks come out of the hook table itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from goliath_actors import Agent
from goliath_actors.hooks import HOOKS, Composition, Row
from goliath_actors.tools import Tool

from .screen import Screen, cells, one_line
from .view import thaw

__all__ = ["hooks_as_data", "parameters_line", "show_hooks", "show_json", "show_tools", "tools_as_data"]

_GAP = 2


def show_json(screen: Screen, data: Any) -> None:
    """Print `data` as JSON, ASCII only, so that it survives any pipe."""
    screen.line(json.dumps(data, indent=2))


# --- tools ----------------------------------------------------------------------------------------------------------


def tools_as_data(agent: Agent[Any]) -> list[dict[str, Any]]:
    """Return the agent's tools, those of its extensions included, as plain data."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "writes": tool.writes,
            "confirm": tool.writes or bool(tool.confirm),
            "parameters": thaw(tool.parameters),
            "requires": list(tool.requires),
            "output_mode": tool.output_mode,
            "sequential": tool.sequential,
            "timeout": tool.timeout,
        }
        for tool in agent.tool_table.values()
    ]


def show_tools(screen: Screen, agent: Agent[Any]) -> None:
    """Print the agent's tools: name, arguments, whether it changes anything, description."""
    tools = list(agent.tool_table.values())
    if not tools:
        screen.line(f"agent {agent.name!r} has no tools")
        _show_later(screen, agent)
        return
    for tool in tools:
        screen.spans((tool.name, "bold"), (f"({parameters_line(tool.parameters)})", ""))
        screen.wrapped(tool.description, indent="    ")
        marks = _marks(tool)
        if marks:
            screen.wrapped(marks, "yellow" if tool.writes else "dim", indent="    ")
    writes = sum(_may_change(tool) for tool in tools)
    screen.line()
    if len(tools) == 1:
        count = f"1 tool, which {'may change' if writes else 'changes no'} data"
    else:
        count = f"{len(tools)} tools; of these, {writes or 'none'} may change data"
    screen.wrapped(f"agent {agent.name!r} has {count}", "dim")
    _show_later(screen, agent)


def _show_later(screen: Screen, agent: Agent[Any]) -> None:
    """Say which extensions may have tools that are not known yet: those whose tools are a property."""
    later = [
        extension.name
        for extension in agent.extensions
        if isinstance(getattr(type(extension), "tools", None), property)
    ]
    if later:
        screen.wrapped(f"tools of {', '.join(later)} are known only while a runtime is open", "dim")


def _asked(tool: Tool) -> Agent[Any] | None:
    """Return the agent that a tool asks, if it is one made with `as_tool`."""
    agent = getattr(tool.execute, "agent", None)
    return agent if isinstance(agent, Agent) else None


def _may_change(tool: Tool) -> bool:
    agent = _asked(tool)
    return tool.writes or (agent is not None and any(map(_may_change, agent.tool_table.values())))


def _marks(tool: Tool) -> str:
    marks = ["changes data, asks first"] if tool.writes else ["asks first"] if tool.confirm else []
    agent = _asked(tool)
    if agent is not None:
        marks.append(f"asks agent {agent.name!r}{', whose tools may change data' if _may_change(tool) else ''}")
    if tool.requires:
        marks.append(f"only after {', '.join(tool.requires)}")
    if tool.sequential:
        marks.append("never beside another tool")
    if tool.timeout is not None:
        marks.append(f"at most {tool.timeout:g} s")
    return "; ".join(marks)


def parameters_line(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema's properties as one line: `text: string, count?: integer`."""
    required = set(schema.get("required", ()))
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(rule)}" for name, rule in schema.get("properties", {}).items()
    )


def _type(rule: Any) -> str:
    if not isinstance(rule, Mapping):
        return "any"
    if "enum" in rule:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in rule["enum"])
    for word in ("anyOf", "oneOf"):
        if word in rule:
            return " | ".join(_type(option) for option in rule[word])
    kind = rule.get("type", "any")
    if kind == "array":
        return f"list of {_type(rule.get('items', {}))}"
    return kind if isinstance(kind, str) else " | ".join(map(str, kind))


# --- hooks ----------------------------------------------------------------------------------------------------------


def _answers(row: Row) -> str:
    return row.words or " · ".join(kind.__name__ for kind in row.answers) or "nothing"


def _lenient(row: Row) -> str:
    # A failing observer is a diagnostic anyway.
    return "-" if row.composition is Composition.OBSERVE else row.lenient or "no"


def _asked_by(row: Row) -> str:
    return ", ".join(sorted(row.asked_by))


def hooks_as_data() -> list[dict[str, Any]]:
    """Return the hook table as plain data, one object a row, in the order in which a run can ask them."""
    return [
        {
            "name": row.name,
            "when": row.when,
            "may_answer": _answers(row),
            "composition": row.composition.value,
            "lenient": row.lenient,
            "asked_by": sorted(row.asked_by),
            "shielded": row.shielded,
        }
        for row in HOOKS.values()
    ]


def show_hooks(screen: Screen) -> None:
    """Print the hook table: as columns where they fit (or where there is no terminal), else a block a row."""
    head = ("hook", "asked when", "may answer", "composition", "lenient", "asked by")
    rows = [
        (row.name, row.when, _answers(row), row.composition.value, _lenient(row), _asked_by(row))
        for row in HOOKS.values()
    ]
    widths = [max(cells(row[column]) for row in (head, *rows)) for column in range(len(head))]
    if screen.width is None or sum(widths) + _GAP * (len(widths) - 1) < screen.width:
        screen.line(_row(head, widths), "bold")
        for row in rows:
            screen.spans((row[0].ljust(widths[0] + _GAP), "cyan"), (_row(row[1:], widths[1:]), ""))
        return
    for name, when, answers, composition, lenient, asked_by in rows:
        screen.line(name, "cyan")
        screen.wrapped(when, indent="    ")
        screen.wrapped(f"may answer: {answers}", indent="    ")
        screen.wrapped(f"{composition}; lenient: {lenient}; asked by {asked_by}", "dim", indent="    ")


def _row(values: Sequence[str], widths: Sequence[int]) -> str:
    padded = (one_line(value) + " " * (width - cells(value)) for value, width in zip(values, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()
