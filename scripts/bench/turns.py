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

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _environments import python_of
from _figures import Figure, Found, NoFigure, arguments, process, show

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
    """Run a contestant once; what it measured, or what `failed`."""
    own = name in SCRIPTS or name in ("httpx", "aiohttp")
    script = HERE / "peers" / {**SCRIPTS, **CLIENTS}.get(name, f"{name}.py")
    environ = {**os.environ, "NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none"}
    if own:
        environ.pop("PYTHONPATH", None)
    options: list[object] = ["--port", port, "--conversations", conversations, "--turns", turns, "--warm-up", warm_up]
    if collector:
        options.append("--collector")
    try:
        python: Path | str = python_of(name) if own else sys.executable
        return process([python, script, *options], LONGEST, environ)
    except NoFigure as error:
        return {"failed": str(error)}


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
        figures += _turn_figures(size, results)
    return figures


def _found(results: Mapping[str, list[dict[str, Any]]], value: Callable[[list[dict[str, Any]]], float]) -> Found:
    """Return what each contestant came to in the rounds in which it came to something.

    Turns that failed are said beside every value, since one that failed is no fast one; and so are rounds without any.
    """
    whole = {name: [one for one in rounds if "failed" not in one] for name, rounds in results.items()}
    values = {name: value(rounds) for name, rounds in whole.items() if rounds}
    failed, beside = {}, {}
    for name, rounds in results.items():
        reasons = [one["failed"] for one in rounds if "failed" in one]
        errors = sum(sum(one["errors"].values()) for one in whole[name])
        if name not in values:
            failed[name] = reasons[0] if reasons else "it was not run"
        beside[name] = f", {errors} errors" if errors else ""
        if reasons:
            beside[name] += f", {len(reasons)} of {len(rounds)} rounds without a figure: {reasons[0]}"
    return Found(values, failed, beside)


def _turn_figures(size: int, results: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    what, shown = f"{size} conversations, CPU of a turn", "{:.2f} ms".format
    cpu = _found(results, lambda rounds: per_turn(rounds, "cpu") * 1e3)
    bare = cpu.line(what, "raw_h11", shown, "<= 3", most=3.0, label="bare h11", ratio="{:.1f}".format)
    figures = [bare, *(cpu.line(what, name, shown) for name in results if name not in ("ours", "raw_h11"))]
    speed = _found(results, lambda rounds: 1 / per_turn(rounds, "wall"))
    peers = {name: value for name, value in speed.values.items() if name in SCRIPTS}
    if peers:
        fastest = max(peers, key=peers.__getitem__)
        what, shown = f"{size} conversations, turns a second", "{:.0f}".format
        figures.append(speed.line(what, fastest, shown, ">= 6", least=6.0, ratio="{:.1f}".format))
    return figures


def fleet_table(options: Any, names: list[str]) -> list[Figure]:
    """Wall time of many conversations at once, with a model that takes its time."""
    size = options.fleet
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    tuned: dict[str, list[dict[str, Any]]] = {name: [] for name in names[:2]}
    with server(options.pause_ms / 1000) as port:
        for _ in range(options.rounds):
            for name in names:
                # Every turn counts, also the first, with its connections: that is what a fleet is about.
                results[name].append(run(name, port, size, 3, warm_up=0))
            for name in tuned:
                tuned[name].append(run(name, port, size, 3, warm_up=0, collector=True))
    return _fleet_figures(f"{size} x 3 turns", options.pause_ms, results, tuned)


def _fleet_figures(
    fleet: str, pause_ms: int, results: Mapping[str, list[dict[str, Any]]], tuned: Mapping[str, list[dict[str, Any]]]
) -> list[Figure]:
    what, seconds = f"{fleet}, model {pause_ms} ms, wall", "{:.1f} s".format
    wall = _found(results, lambda rounds: statistics.median(one["wall"] for one in rounds))
    figures = [wall.line(what, "raw_h11", seconds, "<= 2.5", most=2.5)]
    for name in [name for name in results if name not in ("ours", "raw_h11")]:
        figures.append(
            wall.line(what, name, seconds, ">= 10 x faster", most=0.1, ratio=lambda found: f"1/{1 / found:.1f}")
        )
    p99 = _found(results, lambda rounds: statistics.median(one["p99"] for one in rounds))
    peak = _found(results, lambda rounds: max(one["peak_mb"] for one in rounds))
    errors = _found(results, lambda rounds: sum(sum(one["errors"].values()) for one in rounds))
    for rest, found, shown, goal, most in (
        ("p99 of a turn", p99, "{:.2f} s".format, "<= 2 s", 2.0),
        ("errors", errors, "{:.0f}".format, "0", 0.0),
        ("peak memory", peak, "{:.0f} MB".format, "<= 250 MB", 250.0),
    ):
        ours = found.values.get("ours")
        said = found.said("ours", shown) if ours is None else shown(ours)
        figures.append(Figure(f"{fleet}, {rest}", said, "", "", goal, ours is not None and ours <= most))
    # As the guide to embedding advises for thousands at once; the default is what the goals are about.
    what = f"{fleet}, garbage collector set for many"
    figures.append(
        _found(tuned, lambda rounds: statistics.median(one["wall"] for one in rounds)).line(
            f"{what}, wall", "raw_h11", seconds
        )
    )
    late = _found(tuned, lambda rounds: statistics.median(one["p99"] for one in rounds))
    figures.append(Figure(f"{what}, p99 of a turn", late.said("ours", "{:.2f} s".format), "", "", "", None))
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
