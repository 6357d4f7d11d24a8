"""The command that measures everything: what it makes of figures, of goals, and of a part that fails."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("all")
    for name in [path.stem for path in BENCH.glob("*.py")]:
        sys.modules.pop(name, None)


def figure(what: str, goal: str = "", ok: bool | None = None) -> dict[str, Any]:
    return {"what": what, "ours": "1 ms", "against": "them 2 ms", "ratio": "0.50", "goal": goal, "ok": ok}


def test_the_page_begins_with_every_goal_reached_or_missed(bench: Any) -> None:
    found = {
        "actor": {"command": "python a.py", "figures": [figure("a run", "<= 3", ok=True), figure("an import")]},
        "idle": {"command": "python i.py", "seconds": 7.2, "figures": [figure("memory", "<= 400", ok=False)]},
    }
    page = bench.page(found)
    goals = page[page.index("## Goals") : page.index("## What an ask costs")]
    assert "1 of 2 were reached." in goals
    assert "| a run | 1 ms | them 2 ms | 0.50 | <= 3 | reached |" in goals
    assert "| memory | 1 ms | them 2 ms | 0.50 | <= 400 | **missed** |" in goals
    assert "an import" not in goals
    assert "`python i.py`, 7 s, load average 0.0" in page


def test_a_part_that_fails_is_told_and_the_others_keep_their_figures(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("import sys; sys.exit('no such thing')")
    (tmp_path / "slow.py").write_text("import threading; threading.Event().wait(60)")
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "DATA", tmp_path / "figures.json")
    broken = bench.run(bench.Bench("broken", "Broken", (), (), ""), False)
    assert (broken["failed"], broken["command"]) == ("no such thing", "python scripts/bench/broken.py")
    monkeypatch.setattr(bench, "LONGEST", 0.5)
    slow = bench.run(bench.Bench("slow", "Slow", (), (), ""), False)
    assert slow["failed"] == "took longer than 0 s"
    page = bench.page({"idle": {**broken}, "actor": {"command": "a", "figures": [figure("a run", "<= 3", ok=True)]}})
    assert "Not measured: `no such thing`." in page
    assert "1 of 1 were reached." in page


def test_a_time_is_a_multiple_of_its_base_and_held_against_its_goal(bench: Any) -> None:
    taken = {"bare": 10.0, "run": 35.0, "run, watched": 60.0}
    run, watched = importlib.import_module("_figures").multiples(taken, "bare", {"run": 3})
    assert (run.what, run.ours, run.against, run.ratio, run.goal, run.ok) == (
        "run, CPU",
        "35.0 µs",
        "bare 10.0 µs",
        "3.50",
        "<= 3",
        False,
    )
    assert (watched.ratio, watched.goal, watched.ok) == ("6.00", "", None)


# --- contestants that fail ------------------------------------------------------------------------------------------


def cells(figures: list[Any]) -> list[tuple[str, ...]]:
    return [tuple(figure.cells())[1:] for figure in figures]


def failing(names: set[str], result: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """What runs a contestant: those of these names fail."""
    return lambda name, *_, **__: {"failed": "no module named spam"} if name in names else dict(result)


TURNS = {"turns": 2, "cpu": 0.002, "wall": 0.004, "p99": 0.5, "peak_mb": 40.0, "errors": {}}


@pytest.fixture
def turns(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("turns")
    monkeypatch.setattr(module, "server", lambda pause: contextlib.nullcontext(1))
    return module


def test_a_framework_that_fails_is_a_line_of_the_turns_that_says_why(
    turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "run", failing({"langgraph"}, TURNS))
    options = argparse.Namespace(rounds=1, turns=4, largest=1)
    assert cells(turns.turns_table(options, ["ours", "raw_h11", "langgraph", "pydantic-ai"])) == [
        ("1.00 ms", "bare h11 1.00 ms", "1.0", "<= 3", "reached"),
        ("1.00 ms", "langgraph no figure: no module named spam", "", "", ""),
        ("1.00 ms", "pydantic-ai 1.00 ms", "1.00", "", ""),
        ("500", "pydantic-ai 500", "1.0", ">= 6", "missed"),
    ]


def test_a_round_without_a_figure_and_turns_that_failed_are_told_beside_a_value(
    turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [{"failed": "connection reset"}, {**TURNS, "errors": {"TimeoutError": 3}}]
    monkeypatch.setattr(turns, "run", lambda name, *_, **__: rounds.pop(0) if name == "raw_h11" else dict(TURNS))
    options = argparse.Namespace(rounds=2, turns=4, largest=1)
    (line,) = cells(turns.turns_table(options, ["ours", "raw_h11"]))
    beside = "bare h11 1.00 ms, 3 errors, 1 of 2 rounds without a figure: connection reset"
    assert line == ("1.00 ms", beside, "1.0", "<= 3", "reached")


def test_bare_h11_and_a_framework_that_fail_leave_a_fleet_its_other_lines(
    turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "run", failing({"raw_h11", "langgraph"}, TURNS))
    options = argparse.Namespace(rounds=1, fleet=10, pause_ms=5)
    assert cells(turns.fleet_table(options, ["ours", "raw_h11", "langgraph"])) == [
        ("0.0 s", "raw_h11 no figure: no module named spam", "", "", ""),
        ("0.0 s", "langgraph no figure: no module named spam", "", "", ""),
        ("0.50 s", "", "", "<= 2 s", "reached"),
        ("0", "", "", "0", "reached"),
        ("40 MB", "", "", "<= 250 MB", "reached"),
        ("0.0 s", "raw_h11 no figure: no module named spam", "", "", ""),
        ("0.50 s", "", "", "", ""),
    ]


def test_where_ours_fails_every_goal_is_missed_and_the_others_have_their_figures(
    turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "run", failing({"ours"}, TURNS))
    names = ["ours", "raw_h11", "langgraph"]
    why = "no figure: no module named spam"
    assert cells(turns.turns_table(argparse.Namespace(rounds=1, turns=4, largest=1), names)) == [
        (why, "bare h11 1.00 ms", "", "<= 3", "missed"),
        (why, "langgraph 1.00 ms", "", "", ""),
        (why, "langgraph 500", "", ">= 6", "missed"),
    ]
    fleet = turns.fleet_table(argparse.Namespace(rounds=1, fleet=10, pause_ms=5), names)
    assert [figure.ok for figure in fleet] == [False, False, False, False, False, None, None]


def test_a_library_that_fails_is_a_line_of_the_messages_and_is_not_run_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, asked = importlib.import_module("messages"), []

    def run(name: str, asks: int) -> tuple[float, float]:
        asked.append(name)
        if name == "pykka":
            raise importlib.import_module("_figures").NoFigure("no module named pykka")
        return (10.0, 20.0) if name == "ours" else (50.0, 50.0)

    monkeypatch.setattr(messages, "run", run)
    found = cells(messages.messages_table(argparse.Namespace(rounds=2, asks=1)))
    assert [line for line in found if "pykka" in line[1]] == [
        ("10 µs", "pykka no figure: no module named pykka", "", "", ""),
        ("20 µs", "pykka no figure: no module named pykka", "", "", ""),
    ]
    assert ("10 µs", "autogen-core 50 µs", "0.20", "<= 0.25", "reached") in found
    assert (asked.count("pykka"), asked.count("ours")) == (1, 2)


async def test_a_framework_that_fails_is_a_line_of_the_tool_turns(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toolturn = importlib.import_module("toolturn")

    def turns_of(name: str, turns: int) -> float:
        if name != "langgraph":
            raise importlib.import_module("_figures").NoFigure(f"{name} is not installed")
        return 1e9

    monkeypatch.setattr(toolturn, "_turns_of", turns_of)
    first, *others = [(figure.against, figure.ok) for figure in await toolturn.others(1)]
    assert first == ("langgraph 1000000000.0 µs", True)
    assert others == [
        ("autogen-agentchat no figure: autogen-agentchat is not installed", None),
        ("openai-agents no figure: openai-agents is not installed", None),
        ("pydantic-ai no figure: pydantic-ai is not installed", None),
    ]


@pytest.mark.parametrize("broken", ["import trio, attrs", "import goliath_actors"])
def test_an_import_that_fails_is_told_on_its_line(bench: Any, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    actor = importlib.import_module("actor")

    def seconds(statement: str) -> float:
        if statement == broken:
            raise importlib.import_module("_figures").NoFigure("no such module")
        return 0.1

    monkeypatch.setattr(actor, "import_seconds", seconds)
    reason = "no figure: no such module"
    if broken == "import goliath_actors":
        first = (reason, "trio, attrs 100 ms", "", "<= 250 ms", "missed")
        second = ("100 ms", "trio, attrs 100 ms", "1.00", "", "")
    else:
        first = ("100 ms", f"trio, attrs {reason}", "", "<= 250 ms", "reached")
        second = ("100 ms", f"trio, attrs {reason}", "", "", "")
    assert cells(actor.imports()) == [first, second]


async def test_a_client_that_fails_leaves_the_others_their_columns(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = importlib.import_module("calls")

    async def measure(name: str, *_: Any) -> float:
        if name == "pool":
            raise ExceptionGroup("tasks", [OSError("no route")])
        return {"h11": 1e-6, "httpx2": 4e-6, "adapter": 3e-6}[name]

    monkeypatch.setattr(calls, "measure", measure)
    monkeypatch.setattr(calls, "IN_FLIGHT", (1,))
    await calls.compare(1, 2, 10)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["1", "1", "-", "4", "3", "-", "-"],
        ["pool,", "no", "figure:", "OSError:", "no", "route"],
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('warming up', file=sys.stderr); sys.exit('no such port')", "no such port"),
        ("raise SystemExit(3)", "CalledProcessError, no reason given"),
        ("print('done')", "said no figure at its end: 'done'"),
        ("pass", "said no figure at its end: ''"),
        ("print(3)", "said no figure at its end: 3"),
        ("import threading; threading.Event().wait(60)", "took longer than 0 s"),
    ],
)
def test_why_a_process_came_to_no_figure_is_said_in_a_line(bench: Any, code: str, reason: str) -> None:
    figures = importlib.import_module("_figures")
    seconds = 0.3 if "wait" in code else 60
    with pytest.raises(figures.NoFigure) as caught:
        figures.process([sys.executable, "-c", code], seconds, {})
    assert str(caught.value) == reason


def test_an_environment_that_cannot_be_made_is_a_reason_and_no_end(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = importlib.import_module("_environments")
    monkeypatch.setattr(environments, "PLACE", tmp_path / "file")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(importlib.import_module("_figures").NoFigure, match="its environment could not be made: "):
        environments.python_of("pykka")


def test_every_peer_and_all_that_it_needs_is_pinned(bench: Any) -> None:
    environments = importlib.import_module("_environments")
    wanted = [package for packages in environments.PEERS.values() for package in packages]
    assert [package for package in wanted if not re.fullmatch(r"[a-z-]+(\[[a-z]+\])?==[\d.]+", package)] == []
    lines = environments.CONSTRAINTS.read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert len(pinned) > 70
    for package in wanted:
        name, version = re.sub(r"\[.*\]", "", package).split("==")
        assert pinned[name] == version
