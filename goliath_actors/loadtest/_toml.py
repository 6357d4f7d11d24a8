"""A scenario as the TOML file that it could have been read from: what would run, and where to start from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ._dice import Dice, show_dice, show_number
from .scenario import NO_BOUND, Burst, Scenario

__all__ = ["as_toml"]

_WORDS: Mapping[str, str] = {
    "seed": "everything that is drawn follows from it",
    "load.mode": '"closed": clients ask, wait, think, ask again; "open": asks come at a rate, whatever the answers do',
    "load.rate": "open: asks a second",
    "load.arrivals": 'open: "poisson", "fixed" or "trace"',
    "load.trace": "starts in seconds, or the name of a file with one a line",
    "load.duration": 'seconds, or "90s", "5min"',
    "load.max_asks": "whichever comes first",
    "load.conversations": "clients (closed), or conversations that the asks are spread over (open)",
    "load.turns": "asks to a conversation before a new one takes its place",
    "load.think": "closed: the pause before the next ask",
    "load.timeout": "of an ask",
    "load.settle": "how long the last answers may take after the end",
    "load.bursts": 'open: so many more at once, such as [{at = "30s", asks = 300}]',
    "turn.ask": "{n} is the number of the ask",
    "turn.weight": "how often, against the other kinds",
    "turn.tools": "calls that the simulated model makes before it answers",
    "clients.abandon": "share that leaves in the middle of the stream",
    "clients.abort": "share that asks for the run to be aborted",
    "clients.slow": "share that pauses after every event",
    "provider.first_token": "a time, or uniform(LOW, HIGH), normal(MEAN, DEVIATION), exponential(MEAN), "
    "lognormal(MEDIAN, SIGMA)",
    "provider.tokens": "of an answer",
    "provider.errors": "share of calls that fail; so are rate_limited and stalls",
    "provider.retries": "of a call that failed before any output",
    "runtime.loop": '"toolloop" or "conductor"',
    "runtime.store": '"memory" or a file',
    "runtime.store_errors": "share of commits that fail, in memory",
    "runtime.max_running": "runs at once",
    "runtime.observers": "extensions that must hear of every end",
    "runtime.idle_timeout": "an idle conversation is forgotten after so many seconds",
}
_OWN_TABLES = ("name", "seed", "mix", "clients", "provider", "runtime")


def as_toml(scenario: Scenario) -> str:
    """Return the text of a scenario file that says all of `scenario`, with a word on each key that needs one."""
    lines = [f"name = {_value(scenario.name)}", _line("", "seed", scenario.seed)]
    lines += ["", "[load]", *_lines("load", scenario, leave_out=_OWN_TABLES)]
    for turn in scenario.mix:
        lines += ["", "[[turn]]", *_lines("turn", turn)]
    for table in ("clients", "provider", "runtime"):
        lines += ["", f"[{table}]", *_lines(table, getattr(scenario, table))]
    return "\n".join(lines) + "\n"


def _lines(table: str, values: Any, leave_out: tuple[str, ...] = ()) -> Iterator[str]:
    for field in attrs.fields(type(values)):
        if field.name not in leave_out:
            yield _line(table, field.name, getattr(values, field.name))


def _line(table: str, key: str, value: object) -> str:
    words = _WORDS.get(f"{table}.{key}" if table else key)
    text = f"{key} = {_value(value)}"
    return text if words is None else f"{text:<38}  # {words}"


def _value(value: object) -> str:
    match value:
        case None:
            return json.dumps(NO_BOUND)
        case bool() | int():
            return json.dumps(value)
        case float():
            return show_number(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Dice():
            return show_dice(value)
        case list() | tuple():
            return "[" + ", ".join(_value(inner) for inner in value) + "]"
        case Burst():
            return f"{{at = {_value(value.at)}, asks = {value.asks}}}"
        case _:
            raise TypeError(f"{value!r} cannot stand in a scenario file")
