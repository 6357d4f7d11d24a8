"""An ask through an actor against a message of other actor libraries: what each costs before anything is done for it.

    python scripts/bench/messages.py [--rounds 5] [--asks 5000]

Each is a process of its own; they take turns. CPU is that of all threads: a threading actor hands each message over to
another thread and back, whose waiting shows in the wall time only. An ask of ours has a task and a run of its own, with
a scope, a journal and observers; the others' messages have none of these. A task and an event of bare trio is the
least that ours could come to.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

from _environments import PEERS, python_of
from _figures import Figure, Found, NoFigure, arguments, process, show

HERE = Path(__file__).parent / "peers"
LONGEST = 300  # seconds for one contestant
SCRIPTS = {
    "a task and an event": "raw_trio_messages.py",
    "autogen-core": "autogen_core_messages.py",
    "pykka": "pykka_messages.py",
}
GOALS = {("pykka", "CPU"): 0.25, ("autogen-core", "CPU"): 0.25}


def run(name: str, asks: int) -> tuple[float, float]:
    """Return the CPU and the wall time of one ask, in microseconds.

    Raises: `NoFigure`.
    """
    environ = dict(os.environ)
    python: Path | str = sys.executable
    if name in PEERS:
        python = python_of(name)
        environ.pop("PYTHONPATH", None)
    script = HERE / SCRIPTS.get(name, "our_messages.py")
    found = process([python, script, asks], LONGEST, environ)
    return float(found["cpu"]) / found["asks"] * 1e6, float(found["wall"]) / found["asks"] * 1e6


def messages_table(options: Any) -> list[Figure]:
    """CPU and wall time of an ask, and of a message of each other library."""
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], **{name: [] for name in SCRIPTS}}
    failed: dict[str, str] = {}
    for _ in range(options.rounds):
        for name in [name for name in taken if name not in failed]:
            try:
                taken[name].append(run(name, options.asks))
            except NoFigure as error:
                failed[name] = str(error)
    figures = []
    for place, kind in enumerate(("CPU", "wall")):
        whole = [name for name in taken if name not in failed]
        found = Found({name: statistics.median(one[place] for one in taken[name]) for name in whole}, failed)
        for name in SCRIPTS:
            goal = GOALS.get((name, kind))
            figures.append(
                found.line(
                    f"an ask through an actor, {kind}",
                    name,
                    "{:.0f} µs".format,
                    "" if goal is None else f"<= {goal:g}",
                    most=goal,
                )
            )
    return figures


def main() -> None:
    options = arguments(__doc__, rounds=5, asks=5000)
    show("messages", messages_table(options), options.json)


if __name__ == "__main__":
    main()
