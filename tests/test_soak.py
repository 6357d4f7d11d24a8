"""A short soak: the long one is `scripts/soak.py`, and here its accounts and its judgement of memory are held."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hdrh")

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


@pytest.mark.timeout(120)
def test_a_short_soak_settles_every_account() -> None:
    command = [sys.executable, SCRIPT, "--seconds", "3", "--conversations", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "FAIL" not in done.stdout
    assert "nothing is left behind" in done.stdout
    assert "aborted: requested" in done.stdout
    assert "too short to judge" in done.stdout


def line(rate: float, noise: float, seconds: float = 1800.0, seed: int = 1) -> list[tuple[float, float]]:
    dice = random.Random(seed)
    return [(at / 2, 60e6 + rate * at / 2 + dice.gauss(0, noise)) for at in range(int(2 * seconds))]


def test_memory_that_stays_is_not_said_to_grow(soak: Any) -> None:
    assert [seed for seed in range(100) if soak.fit(line(0.0, 2e6, seed=seed)).grows] == []


def test_a_leak_of_four_kilobytes_a_second_is_found(soak: Any) -> None:
    slope = soak.fit(line(4096.0, 2e6))
    assert (slope.grows, slope.verdict) == (True, "it grows")
    assert slope.rate == pytest.approx(4096, rel=0.1)
    assert slope.error < 200


def test_a_line_without_noise_is_found_exactly(soak: Any) -> None:
    slope = soak.fit([(0.0, 10.0), (1.0, 12.0), (2.0, 14.0), (3.0, 16.0)])
    assert (slope.rate, slope.mean, slope.seconds) == (pytest.approx(2.0), pytest.approx(13.0), 3.0)
    assert slope.error == pytest.approx(0.0, abs=1e-9)


def test_memory_that_shrinks_does_not_grow(soak: Any) -> None:
    slope = soak.fit(line(-4096.0, 1e6))
    assert (slope.grows, slope.verdict) == (False, "it shrinks")


def test_a_trifle_is_named_and_let_pass(soak: Any) -> None:
    slope = soak.fit(line(500.0, 1e4))
    assert (slope.grows, slope.verdict) == (False, "it grows by less than 2% in this run, which is let pass")


def test_two_samples_make_no_slope(soak: Any) -> None:
    with pytest.raises(ValueError, match="three samples"):
        soak.fit([(0.0, 1.0), (1.0, 2.0)])
