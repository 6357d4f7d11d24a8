"""Whole turns over HTTP: two model calls and one tool each, against bare h11 on trio, other clients, other frameworks.

    python scripts/bench/turns.py [--rounds 3] [--turns 400] [--peers 4] [--largest 256]
    python scripts/bench/turns.py --fleet 2000 [--pause-ms 200] [--peers 2]

The model is a server in a process of its own. Contestants are processes, too, and take turns; what counts is the CPU
that each used for its turns, those that warm up left out, or, of a fleet, the wall time. Only this machine is used, and
it ends by itself. `--peers` is how many of the other frameworks are run, the fastest first; with 0 only ours and bare
h11 are, of a fleet never other clients.

Bare h11 (`peers/raw_h11.py`) is what one writes for this server alone. It keeps a connection for each conversation and
its messages in a list, and streams. It looks at no status, has no time-outs, retries or limits, hands out no text
before its reply is whole, and leaves no record but the list. The other frameworks take replies whole, as their own way
to run a turn does; their time-outs are longer than they come with, so that a busy machine fails none of their turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _environments import python_of
from _figures import Figure, arguments, show

HERE = Path(__file__).parent
# In the order of their CPU for a turn, as it was measured last: the fastest first.
SCRIPTS = {
    "autogen-agentchat": "autogen_turns.py",
    "openai-agents": "openai_agents_turns.py",
    "langgraph": "langgraph_turns.py",
    "pydantic-ai": "pydantic_ai_turns.py",
}
CLIENTS = {"httpx": "httpx_turns.py", "httpx2": "httpx_turns.py", "aiohttp": "aiohttp_turns.py"}
LONGEST = 600  # seconds for one contestant; a fleet of a slow one needs minutes
SIZES = (1, 32, 256)


@contextmanager
def server(pause: float) -> Iterator[int]:
    """A model server; yields its port."""
    process = subprocess.Popen(
        [sys.executable, HERE / "fake_server.py", "--pause", str(pause)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def run(
    name: str, port: int, conversations: int, turns: int, warm_up: int = 1, *, collector: bool = False
) -> dict[str, Any]:
    """Run a contestant once; what it measured."""
    own = name in SCRIPTS or name in ("httpx", "aiohttp")
    python: Path | str = python_of(name) if own else sys.executable
    script = HERE / "peers" / {**SCRIPTS, **CLIENTS}.get(name, f"{name}.py")
    environ = {**os.environ, "NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none"}
    if own:
        environ.pop("PYTHONPATH", None)
    options: list[object] = ["--port", port, "--conversations", conversations, "--turns", turns, "--warm-up", warm_up]
    if collector:
        options.append("--collector")
    try:
        done = subprocess.run(
            [python, script, *map(str, options)], capture_output=True, text=True, timeout=LONGEST, env=environ
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {LONGEST} s"}
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def per_turn(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(result[key] / result["turns"] for result in results)


def turns_table(options: Any, names: list[str]) -> list[Figure]:
    """CPU per turn at several numbers of conversations."""
    figures = []
    for size in [size for size in SIZES if size <= options.largest]:
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        # Short conversations: how long ones fare is growth.py's question.
        turns = min(max(options.turns // size, 3), 20)
        with server(0.0) as port:
            for _ in range(options.rounds):
                for name in names:
                    slow = name in SCRIPTS
                    results[name].append(run(name, port, size, max(turns // (4 if slow else 1), 3)))
        figures += _turn_figures(size, _usable(results))
    return figures


def _usable(results: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    usable = {}
    for name, found in results.items():
        failed = [one["failed"] for one in found if "failed" in one] + [
            str(one["errors"]) for one in found if one.get("errors")
        ]
        if failed:
            print(f"  {name}: {failed[0]}", file=sys.stderr, flush=True)
        whole = [one for one in found if "failed" not in one]
        if whole:
            usable[name] = whole
    return usable


def _errors(results: list[dict[str, Any]]) -> str:
    """Return the words for turns that failed, which belong beside every time: a turn that failed is no fast one."""
    errors = sum(sum(one["errors"].values()) for one in results)
    return f", {errors} errors" if errors else ""


def _turn_figures(size: int, results: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    cpu = {name: per_turn(found, "cpu") * 1e3 for name, found in results.items()}
    failed = {name: _errors(found) for name, found in results.items()}
    wall = {name: per_turn(found, "wall") * 1e3 for name, found in results.items()}
    ours = f"{cpu['ours']:.2f} ms{failed['ours']}"
    ratio = cpu["ours"] / cpu["raw_h11"]
    figures = [
        Figure(
            f"{size} conversations, CPU of a turn",
            ours,
            f"bare h11 {cpu['raw_h11']:.2f} ms{failed['raw_h11']}",
            f"{ratio:.1f}",
            "<= 3",
            ratio <= 3,
        )
    ]
    peers = {name: value for name, value in wall.items() if name in SCRIPTS}
    for name in [name for name in cpu if name not in ("ours", "raw_h11")]:
        figures.append(
            Figure(
                f"{size} conversations, CPU of a turn",
                ours,
                f"{name} {cpu[name]:.2f} ms{failed[name]}",
                f"{cpu['ours'] / cpu[name]:.2f}",
                "",
                None,
            )
        )
    if peers:
        fastest = min(peers, key=peers.__getitem__)
        more = wall[fastest] / wall["ours"]
        figures.append(
            Figure(
                f"{size} conversations, turns a second",
                f"{1000 / wall['ours']:.0f}",
                f"{fastest} {1000 / wall[fastest]:.0f}{failed[fastest]}",
                f"{more:.1f}",
                ">= 6",
                more >= 6,
            )
        )
    return figures


def fleet_table(options: Any, names: list[str]) -> list[Figure]:
    """Wall time of many conversations at once, with a model that takes its time."""
    size = options.fleet
    tuned = {name: f"{name}, collector set" for name in names[:2]}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in [*names, *tuned.values()]}
    with server(options.pause_ms / 1000) as port:
        for _ in range(options.rounds):
            for name in names:
                # Every turn counts, also the first, with its connections: that is what a fleet is about.
                results[name].append(run(name, port, size, 3, warm_up=0))
            for name, label in tuned.items():
                results[label].append(run(name, port, size, 3, warm_up=0, collector=True))
    usable = _usable(results)
    wall = {name: statistics.median(one["wall"] for one in found) for name, found in usable.items()}
    ours = usable["ours"]
    figures = []
    for name in names[1:]:
        if name not in wall:
            continue
        ratio = wall["ours"] / wall[name]
        goal, ok = (">= 10 x faster", ratio <= 0.1) if name in SCRIPTS else ("", None)
        if name == "raw_h11":
            goal, ok = "<= 2.5", ratio <= 2.5
        shown = f"{ratio:.2f}" if name == "raw_h11" else f"1/{1 / ratio:.1f}"
        words = f"{name} {wall[name]:.1f} s{_errors(usable[name])}"
        figures.append(
            Figure(
                f"{size} x 3 turns, model {options.pause_ms} ms, wall", f"{wall['ours']:.1f} s", words, shown, goal, ok
            )
        )
    p99 = statistics.median(one["p99"] for one in ours)
    errors = sum(sum(one["errors"].values()) for one in ours)
    peak = max(one["peak_mb"] for one in ours)
    figures.append(Figure(f"{size} x 3 turns, p99 of a turn", f"{p99:.2f} s", "", "", "<= 2 s", p99 <= 2))
    figures.append(Figure(f"{size} x 3 turns, errors", str(errors), "", "", "0", errors == 0))
    figures.append(Figure(f"{size} x 3 turns, peak memory", f"{peak:.0f} MB", "", "", "<= 250 MB", peak <= 250))
    # As the guide to embedding advises for thousands at once; the default is what the goals are about.
    if all(label in wall for label in tuned.values()):
        here, there = (wall[label] for label in tuned.values())
        late = statistics.median(one["p99"] for one in usable[tuned["ours"]])
        what = f"{size} x 3 turns, garbage collector set for many"
        figures.append(
            Figure(f"{what}, wall", f"{here:.1f} s", f"raw_h11 {there:.1f} s", f"{here / there:.2f}", "", None)
        )
        figures.append(Figure(f"{what}, p99 of a turn", f"{late:.2f} s", "", "", "", None))
    return figures


def main() -> None:
    options = arguments(__doc__, rounds=3, turns=400, peers=len(SCRIPTS), largest=256, fleet=0, pause_ms=200)
    clients = CLIENTS if options.peers and not options.fleet else ()
    names = ["ours", "raw_h11", *clients, *list(SCRIPTS)[: options.peers]]
    if options.fleet:
        show(f"a fleet of {options.fleet}", fleet_table(options, names), options.json)
    else:
        show("turns over HTTP", turns_table(options, names), options.json)


if __name__ == "__main__":
    main()
