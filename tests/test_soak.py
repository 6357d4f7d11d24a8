"""A short soak: the long one is `scripts/soak.py`, and here its accounts and its judgement of memory are held."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("hdrh")

from goliath_actors import Extension

SCRIPT = Path(__file__).parents[1] / "scripts" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_short_soak_settles_every_account_and_comes_to_rest_at_every_point(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--seconds", "4", "--rate", "20", "--json", tmp_path / "s.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "FAIL" not in done.stdout
    assert "nothing is left behind" in done.stdout
    assert "aborted: requested" in done.stdout
    assert "at rest no more conversations than before: 0 at the end" in done.stdout
    assert "a run of less than 60 s is not judged" in done.stdout
    data = json.loads((tmp_path / "s.json").read_text())
    assert (data["report"]["ok"], len(data["memory"]) >= 1) == (True, True)


class Hoarder(Extension[Any]):
    """Keeps something of every run."""

    name = "hoarder"

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def on_finish(self, ctx: Any, question: Any, /) -> None:
        self.kept.append([object() for _ in range(200)])


@pytest.mark.timeout(120)
async def test_a_leak_of_some_hundred_objects_an_ask_is_found_in_seconds(soak: Any) -> None:
    class Leaking(soak.Soaked):  # type: ignore[name-defined, misc]  # a script, loaded by its path
        def _agent(self) -> Any:
            agent = super()._agent()
            return agent.replace(extensions=(*agent.extensions, Hoarder()))

    said: list[str] = []
    report, measures = await soak.soak(3.2, 60.0, 1, said.append, Leaking, 16)
    assert report.ok, report.as_text()
    blocks = measures[0]
    assert (blocks.what, blocks.grows, blocks.verdict) == ("Python's blocks", True, "IT GROWS")
    assert blocks.whole.rate == pytest.approx(203, rel=0.2)
    assert len(said) == 16


def test_a_point_with_a_conversation_and_a_file_for_every_ask_are_found(soak: Any) -> None:
    def at(asks: int, conversations: int, files: int) -> Any:
        return soak.Point(asks, 0, 0, 0, conversations, 7, files)

    def wrong(*points: Any) -> list[str]:
        return [check.name for check in soak._rest(points) if not check.ok]

    assert wrong(*(at(number * 50, 0, 20 + min(number, 9)) for number in range(12))) == []
    assert wrong(*(at(number * 50, number == 7, 20) for number in range(12))) == [
        "at rest no more conversations than before"
    ]
    assert wrong(*(at(number * 50, 0, 20 + number * 5) for number in range(12))) == [
        "at rest no more files than before"
    ]


async def test_trio_lets_go_of_deadlines_that_were_called_off(soak: Any) -> None:
    with trio.CancelScope(deadline=trio.current_time() + 1e5) as scope:
        await trio.lowlevel.checkpoint()
    held = weakref.ref(scope)
    del scope
    assert held() is not None
    await soak.forget_deadlines()
    assert held() is None


# --- judging ----------------------------------------------------------------------------------------------------------


def points(rise: float, noise: float, count: int = 30, seed: int = 1) -> list[tuple[float, float]]:
    dice = random.Random(seed)
    return [(at * 1000.0, 260_000 + rise * at * 1000 + dice.gauss(0, noise)) for at in range(count)]


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"), [(0.99, 5, 4.032), (0.99, 28, 2.763), (0.95, 10, 2.228), (0.999, 28, 3.674)]
)
def test_students_quantiles_are_those_of_the_tables(
    soak: Any, confidence: float, freedom: int, quantile: float
) -> None:
    assert soak.student(confidence, freedom) == pytest.approx(quantile, abs=0.011)


def test_a_line_without_noise_is_found_exactly(soak: Any) -> None:
    slope = soak.fit([(0.0, 10.0), (1.0, 12.0), (2.0, 14.0), (3.0, 16.0)])
    assert slope.rate == pytest.approx(2.0)
    assert slope.margin == pytest.approx(0.0, abs=1e-9)
    assert slope.rises


def test_the_interval_holds_the_true_slope(soak: Any) -> None:
    fits = [soak.fit(points(0.5, 300, seed=seed)) for seed in range(300)]
    assert sum(abs(slope.rate - 0.5) <= slope.margin for slope in fits) >= 298


def test_memory_that_stays_is_not_said_to_grow(soak: Any) -> None:
    judged = [soak.growth("x", "blocks", points(0.0, 300, seed=seed)) for seed in range(300)]
    assert [one for one in judged if one.grows] == []
    assert judged[0].verdict.startswith("not to be told from zero; a leak of 0.0")


def test_a_leak_of_one_block_in_ten_asks_is_found_in_the_noise_of_hundreds(soak: Any) -> None:
    judged = soak.growth("x", "blocks", points(0.1, 300))
    assert (judged.grows, judged.verdict) == (True, "IT GROWS")
    assert judged.whole.rate == pytest.approx(0.1, rel=0.3)


def test_a_cache_that_fills_up_and_stays_is_no_leak(soak: Any) -> None:
    filling = [(at, size + min(at, 8000.0)) for at, size in points(0.0, 100)]
    judged = soak.growth("x", "blocks", filling)
    assert judged.whole.rises
    assert (judged.grows, judged.verdict) == (False, "rose at first, and not in the last half")


def test_what_a_larger_crowd_than_ever_took_is_no_leak_and_a_leak_beside_it_is_one(soak: Any) -> None:
    crowds = [100.0] * 20 + [400.0] * 4 + [1300.0] * 6

    def judged(leak: float) -> Any:
        sizes = [(at, size + 5 * crowd) for (at, size), crowd in zip(points(leak, 100), crowds, strict=True)]
        return soak.growth("x", "bytes", sizes, crowds)

    assert soak.growth(
        "x", "bytes", [(at, 5 * crowd) for (at, _), crowd in zip(points(0, 0), crowds, strict=True)]
    ).grows
    assert judged(0.0).grows is False
    assert judged(0.1).grows
    assert judged(0.1).whole.rate == pytest.approx(0.1, rel=0.3)


def test_memory_that_shrinks_does_not_grow(soak: Any) -> None:
    judged = soak.growth("x", "blocks", points(-1.0, 100))
    assert (judged.grows, judged.verdict) == (False, "falls")


@pytest.mark.parametrize("samples", [[(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)], [(1.0, 1.0)] * 5])
def test_what_makes_no_line_is_refused(soak: Any, samples: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=r"four samples|one place"):
        soak.fit(samples)
