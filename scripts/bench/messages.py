"""An ask through an actor against a message of other actor libraries: what each costs before anything is done for it.

    python scripts/bench/messages.py [--rounds 5] [--asks 5000]

Each is a process of its own; they take turns. CPU is that of all threads: a threading actor hands each message over to
another thread and back, whose waiting shows in the wall time only. An ask of ours has a task and a run of its own, with
a scope, a journal and observers; the others' messages have none of these. A task and an event of bare trio is the
least that ours could come to.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _environments import PEERS, python_of
from _figures import Figure, arguments, show

HERE = Path(__file__).parent / "peers"
SCRIPTS = {
    "a task and an event": "raw_trio_messages.py",
    "autogen-core": "autogen_core_messages.py",
    "pykka": "pykka_messages.py",
}
GOALS = {("pykka", "CPU"): 0.25, ("autogen-core", "CPU"): 0.25}


def run(name: str, asks: int) -> tuple[float, float]:
    """Return the CPU and the wall time of one ask, in microseconds.

    Raises: `subprocess.CalledProcessError`.
    """
    environ = dict(os.environ)
    python: Path | str = sys.executable
    if name in PEERS:
        python = python_of(name)
        environ.pop("PYTHONPATH", None)
    script = HERE / SCRIPTS.get(name, "our_messages.py")
    done = subprocess.run([python, script, str(asks)], capture_output=True, text=True, env=environ, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return float(found["cpu"]) / found["asks"] * 1e6, float(found["wall"]) / found["asks"] * 1e6


def messages_table(options: Any) -> list[Figure]:
    """CPU and wall time of an ask, and of a message of each other library."""
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], **{name: [] for name in SCRIPTS}}
    for _ in range(options.rounds):
        for name, found in taken.items():
            found.append(run(name, options.asks))
    figures = []
    for place, kind in enumerate(("CPU", "wall")):
        cost = {name: statistics.median(one[place] for one in found) for name, found in taken.items()}
        for name in SCRIPTS:
            ratio, goal = cost["ours"] / cost[name], GOALS.get((name, kind))
            figures.append(
                Figure(
                    f"an ask through an actor, {kind}",
                    f"{cost['ours']:.0f} µs",
                    f"{name} {cost[name]:.0f} µs",
                    f"{ratio:.2f}",
                    "" if goal is None else f"<= {goal:g}",
                    None if goal is None else ratio <= goal,
                )
            )
    return figures


def main() -> None:
    options = arguments(__doc__, rounds=5, asks=5000)
    show("messages", messages_table(options), options.json)


if __name__ == "__main__":
    main()
