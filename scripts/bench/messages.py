"""An ask through an actor against a message of other actor libraries: what each costs before anything is done for it.

    python scripts/bench/messages.py [--rounds 3] [--asks 3000]

Each is a process of its own; they take turns. What is compared is CPU time. An ask of ours has a run of its own, with
a scope, a journal and observers; the others' messages have none of these.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _environments import python_of
from _figures import Figure, arguments, show

PEERS = Path(__file__).parent / "peers"
SCRIPTS = {"autogen-core": "autogen_core_messages.py", "pykka": "pykka_messages.py"}


def run(name: str, asks: int) -> float:
    """Return the CPU of one ask, in microseconds.

    Raises: `subprocess.CalledProcessError`.
    """
    environ = dict(os.environ)
    python: Path | str = sys.executable
    if name in SCRIPTS:
        python = python_of(name)
        environ.pop("PYTHONPATH", None)
    script = PEERS / SCRIPTS.get(name, "our_messages.py")
    done = subprocess.run([python, script, str(asks)], capture_output=True, text=True, env=environ, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return float(found["cpu"]) / found["asks"] * 1e6


def messages_table(options: Any) -> list[Figure]:
    """CPU of an ask, and of a message of each other library."""
    taken: dict[str, list[float]] = {"ours": [], **{name: [] for name in SCRIPTS}}
    for _ in range(options.rounds):
        for name, found in taken.items():
            found.append(run(name, options.asks))
    cost = {name: statistics.median(found) for name, found in taken.items()}
    return [
        Figure(
            "an ask through an actor, CPU",
            f"{cost['ours']:.0f} µs",
            f"{name} {cost[name]:.0f} µs",
            f"{cost['ours'] / cost[name]:.2f}",
            "",
            None,
        )
        for name in SCRIPTS
    ]


def main() -> None:
    options = arguments(__doc__, rounds=3, asks=3000)
    show("messages", messages_table(options), options.json)


if __name__ == "__main__":
    main()
