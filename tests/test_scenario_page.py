"""docs/scenarios.md: every scenario is there, and names tests that exist or says why it cannot occur."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
ITEMS = re.findall(r"^- \*\*S(\d\d)\*\* (.+(?:\n {2}\S.*)*)", PAGE, re.M)


def test_every_scenario_is_there_once_in_order() -> None:
    assert [int(number) for number, _ in ITEMS] == list(range(1, 82))


@pytest.mark.parametrize(("number", "text"), ITEMS, ids=[f"S{number}" for number, _ in ITEMS])
def test_a_scenario_is_played_by_tests_that_exist_or_cannot_occur(number: str, text: str) -> None:
    named = re.findall(r"`(tests/test_\w+\.py)::(test_\w+)`", text)
    assert named or "Cannot occur" in text
    for path, name in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.M), (
            f"S{number} names {path}::{name}, which is not there"
        )
