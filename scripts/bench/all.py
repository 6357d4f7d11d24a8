"""Every measurement, one after another, and the page that shows them.

    python scripts/bench/all.py [--quick] [--only [NAME ...]]

Writes docs/performance.md, docs/images/performance-scale.svg and docs/images/performance-turn.svg. Peers are installed
into `.bench/` from the package index at first use. Takes about twenty minutes on a machine with nothing else to do;
`--quick` a few, on fewer rounds and smaller sizes. `--only` runs some alone, or none, and keeps what the page says of
the others. Says what it is at, and at the end what each took. The page is written anew after each: one that fails, or
takes longer than `LONGEST`, is told on it, with the figures of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
from _environments import PEERS
from _figures import cpu_name

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
DATA = ROOT / ".bench" / "figures.json"
LIBRARIES = ("trio", "attrs", "msgspec", "h11", "httpx2")


LONGEST = 1800.0
"""Seconds for one script."""


@attrs.frozen
class Bench:
    """One script. `shows`: it writes figures as data; else what it prints is shown as it is. `note` stands below."""

    name: str
    title: str
    full: Sequence[str]
    quick: Sequence[str]
    note: str
    shows: bool = True


BENCHES = (
    Bench(
        "actor",
        "What an ask costs before anything is done for it",
        (),
        ("--rounds", "5", "--asks", "800", "--idle", "2000"),
        "A run has a task, a scope, a journal and an account of its own, and its observers are told whatever happens.",
    ),
    Bench(
        "messages",
        "An ask against a message of other actor libraries",
        (),
        ("--rounds", "2", "--asks", "1500"),
        "CPU is that of all threads. A message of a threading actor is handed to another thread and back; it has no "
        "task, no scope, no deadline, and nobody is told of its end. A quarter of it is no more than one task and one "
        "event of bare trio, the least that an ask with a task of its own can cost: the goal was set before that was "
        "measured, and no design that keeps one task a run can reach it.",
    ),
    Bench(
        "toolturn",
        "A turn with a tool, without a network",
        (),
        ("--rounds", "5", "--turns", "100", "--peers", "0"),
        "The loop by hand is some lines around the same model: no run, no events, no record, no hooks. Ours supervises "
        "a run, tells its events, reads and commits a record, checks arguments against the tool's schema, and counts "
        "what is sent. Other frameworks take their replies whole, ours in pieces.",
    ),
    Bench(
        "turns",
        "Whole turns over HTTP",
        ("--rounds", "2"),
        ("--rounds", "1", "--turns", "60", "--largest", "32"),
        "Two model calls and one tool a turn, the history kept. Ours, bare h11 and the clients have replies streamed; "
        "the other frameworks take them whole, as their own way to run a turn does, and have longer time-outs than "
        "they come with, so that none of their turns fails for being slow. Bare h11 is a hundred lines by hand: "
        "it keeps a connection for each conversation and the messages in a list. It looks at no status, has no "
        "time-outs, retries or limits, hands out no text before its reply is whole, and leaves no record but the list.",
    ),
    Bench(
        "fleet",
        "Many turns at once",
        ("--fleet", "2000", "--rounds", "1", "--peers", "2"),
        ("--fleet", "300", "--rounds", "1", "--peers", "0"),
        "Wall time, so it is worth little on a busy machine. Of the other frameworks, no more than the two that are "
        "fastest above. With Python's own thresholds the garbage collector walks all runs in flight again and again, "
        "which is two fifths of ours here; `goliath-actors serve` sets it for many, and the embedding guide says how a "
        "program of its own does.",
    ),
    Bench(
        "growth",
        "Long conversations, and many in flight",
        ("--rounds", "2"),
        ("--rounds", "1", "--in-flight", "500"),
        "",
    ),
    Bench("idle", "Idle conversations", ("--rounds", "3"), ("--conversations", "20000", "--rounds", "2"), ""),
    Bench("abort", "Aborting everything at once", ("--rounds", "3"), ("--runs", "2000", "--rounds", "3"), ""),
    Bench(
        "fanout",
        "Event streams of the chat backend",
        (),
        ("--seconds", "6"),
        "Every delta costs a pass of the model's task and, merged with others, a frame through the application, the "
        "web server and the socket. A server of one core that is asked for more than it can give merges more texts "
        "into each frame; then it is late, and loses nothing. Reader and server share the machine.",
    ),
    Bench(
        "store",
        "Durable commits of SqliteStore",
        (),
        ("--rounds", "2", "--seconds", "1"),
        "Writers share one transaction and one write to the disk. The faster the disk, the less there is to share: "
        "then the processor's part of a commit is the limit. How far that goes say the same rows written by Python's "
        "`sqlite3` alone, by the same statements and as many in a transaction, without a loop, tasks, a queue or "
        "checks.",
    ),
    Bench(
        "scale",
        "From few to many",
        ("--svg", str(IMAGES / "performance-scale.svg")),
        ("--svg", str(IMAGES / "performance-scale.svg"), "--most", "10000", "--flight", "1000"),
        "",
    ),
    Bench(
        "flame",
        "Where a turn over HTTP spends its CPU",
        ("--svg", str(IMAGES / "performance-turn.svg")),
        ("--svg", str(IMAGES / "performance-turn.svg"), "--turns", "800"),
        "Shares of samples by the package whose code was running.",
        shows=False,
    ),
)
PICTURES: dict[str, str] = {
    "scale": "![Throughput, delay and memory, by conversations and by turns in flight](images/performance-scale.svg)",
    "flame": "![A flame graph of a turn](images/performance-turn.svg)",
}


def run(bench: Bench, quick: bool) -> dict[str, Any]:
    """Run one script; what it showed, and what it took."""
    script = HERE / f"{'turns' if bench.name == 'fleet' else bench.name}.py"
    options = list(bench.quick if quick else bench.full)
    file = DATA.with_name("one.json")
    file.unlink(missing_ok=True)
    command = [sys.executable, str(script), *options, *(["--json", str(file)] if bench.shows else [])]
    shown = " ".join(["python", f"scripts/bench/{script.name}", *_without_paths(options)])
    result: dict[str, Any] = {"command": shown, "load": os.getloadavg()[0]}
    start, used = time.monotonic(), _cpu_of_children()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {**result, "seconds": LONGEST, "failed": f"took longer than {LONGEST:.0f} s"}
    result |= {"seconds": time.monotonic() - start, "cpu": _cpu_of_children() - used}
    print(done.stdout, flush=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr, flush=True)
        result["failed"] = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
    elif bench.shows:
        tables = json.loads(file.read_text())
        result["figures"] = [figure for table in tables.values() for figure in table]
    else:
        result["text"] = done.stdout.strip("\n")
    return result


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _without_paths(options: Sequence[str]) -> list[str]:
    return [Path(option).name if "/" in option else option for option in options]


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    peers = ", ".join(package for packages in PEERS.values() for package in packages if "==" in package)
    lines = [
        "# Performance",
        "",
        "Every figure here comes from one command, `python scripts/bench/all.py`, which writes this page. Contestants "
        "take turns within one run, and ratios are what to read: on another machine the times differ, and the ratios "
        "little. A goal that was missed says so.",
        "",
        f"Machine: {cpu_name()}, {os.cpu_count()} cores, {platform.system()}; {platform.python_implementation()} "
        f"{platform.python_version()}; {libraries}. Beside each command stands the load average when it began: "
        "above the number of cores, other work took its share, which makes wall times worse, and CPU times somewhat.",
        "",
        f"Others, as they were newest: {peers}.",
    ]
    lines += ["", "## Goals", "", *_goals(found)]
    if "text" in found.get("flame", {}):
        lines += [
            "",
            "## Where the time goes",
            "",
            "Of a turn over HTTP: two model calls, a tool, the history kept.",
            "",
        ]
        lines += ["```text", *(line.rstrip() for line in found["flame"]["text"].splitlines()), "```"]
        lines += ["", "Shares of samples of CPU time, by the package whose code was running.", "", PICTURES["flame"]]
    for bench in BENCHES:
        one = found.get(bench.name)
        if one is None or (bench.name == "flame" and "text" in one):
            continue
        lines += ["", f"## {bench.title}", ""]
        if "failed" in one:
            lines.append(f"Not measured: `{one['failed']}`.")
        elif "figures" in one:
            lines += [*HEAD, *map(_row, one["figures"])]
        else:
            lines += ["```text", *(line.rstrip() for line in one["text"].splitlines()), "```"]
        if bench.note:
            lines += ["", bench.note]
        if bench.name in PICTURES:
            lines += ["", PICTURES[bench.name]]
        took = f"{one['seconds']:.0f} s, " if "seconds" in one else ""
        lines += ["", f"`{one['command']}`, {took}load average {one.get('load', 0):.1f}"]
    wrapped = [
        textwrap.fill(line, 120, break_on_hyphens=False)
        if len(line) > 120 and line[0] not in "|!`-" and "```" not in line
        else line
        for line in lines
    ]
    return "\n".join(wrapped) + "\n"


HEAD = ("| | ours | against | ratio | goal | |", "|---|---|---|---|---|---|")


def _row(figure: dict[str, Any]) -> str:
    mark = {True: "reached", False: "**missed**", None: ""}[figure["ok"]]
    cells = (*(figure[key] for key in ("what", "ours", "against", "ratio", "goal")), mark)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |".replace("|  |", "| |")


def _goals(found: dict[str, Any]) -> list[str]:
    """Return every figure that has a goal, in the order of the page, and before them how many were reached."""
    goals = [
        figure
        for bench in BENCHES
        for figure in found.get(bench.name, {}).get("figures", ())
        if figure["ok"] is not None
    ]
    reached = sum(bool(figure["ok"]) for figure in goals)
    return [f"{reached} of {len(goals)} were reached.", "", *HEAD, *map(_row, goals)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--only", nargs="*", choices=[bench.name for bench in BENCHES], metavar="NAME")
    options = parser.parse_args()
    DATA.parent.mkdir(exist_ok=True)
    found: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    PAGE.write_text(page(found))
    wanted = [bench for bench in BENCHES if options.only is None or bench.name in options.only]
    begun = time.monotonic()
    for number, bench in enumerate(wanted, 1):
        passed = time.monotonic() - begun
        print(f"--- {number} of {len(wanted)}, after {passed:.0f} s: {bench.title}", flush=True)
        found[bench.name] = run(bench, options.quick)
        DATA.write_text(json.dumps(found, indent=2) + "\n")
        PAGE.write_text(page(found))
    print("what each took:")
    for bench in wanted:
        one = found[bench.name]
        failed = f"  FAILED: {one['failed']}" if "failed" in one else ""
        print(f"  {bench.name:<10}{one['seconds']:6.0f} s  {one.get('cpu', 0):6.0f} s of CPU{failed}")
    print(f"  {'all':<10}{time.monotonic() - begun:6.0f} s")
    return 1 if any("failed" in one for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
