"""The command that measures everything: what it makes of figures, of goals, and of a part that fails."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("all")
    for name in ("all", "_figures", "_environments"):
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
