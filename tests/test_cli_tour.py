"""The guided tour: every scene holds, the accounting holds, and a scene that does not is seen."""

from __future__ import annotations

import io

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors._cli import tour as room
from goliath_actors._cli.cast import Observer
from goliath_actors._cli.scenes import SCENES, Scene, Stage
from goliath_actors._cli.screen import Screen
from goliath_actors._cli.tour import Tour
from goliath_actors.values import RuntimeStatistics

from .cli_stage import PLAIN, Tty


async def test_every_scene_and_the_accounting_hold() -> None:
    out = io.StringIO()
    assert await Tour(Screen.on(out, {})).run() == 0
    shown = out.getvalue()
    assert [scene.title for scene in SCENES if f"    ✓ {scene.holds}\n" in shown] == [scene.title for scene in SCENES]
    assert "16 accepted = 13 completed + 1 stopped + 1 error + 1 aborted = 16 times on_finish" in shown
    assert "✗" not in shown
    assert "\x1b" not in shown


async def test_the_tour_shows_each_thing_it_promises() -> None:
    out = io.StringIO()
    await Tour(Screen.on(out, {})).run()
    shown = out.getvalue()
    for line in (
        "      plan    use list_tasks: the list is asked for\n",
        '      confirm add_task {"title": "buy milk"}? a person says: yes\n',
        "      result  [cached] Same as step 1:",
        "      hook    read-only in before_tool: deny: this account is read-only\n",
        '      denied  add_task {"title": "paint it red"}\n',
        "      stopped no-secrets in before_run: a password in the ask\n",
        "    The second brain answers, told why it was asked: conductor-asked.\n",
        "      as a value: Weather(city='Oslo', degrees=-3)\n",
        "      the asker gets: the run was aborted (requested) in answer: changed my mind\n",
        "      the asker gets: extension 'broken' in before_run: there is no user 7\n",
        "      ada's began in the order 1, 2\n      bob's began in the order 1, 2\n",
        "      refused: the conversation already has 2 of 2 asks waiting",
    ):
        assert line in shown


async def test_on_a_terminal_it_is_paced_and_takes_less_than_ten_seconds(autojump_clock: MockClock) -> None:
    out = Tty()
    began = trio.current_time()
    assert await Tour(Screen.on(out, {"COLUMNS": "80"})).run() == 0
    assert 0.5 < trio.current_time() - began < 10
    assert "\x1b[1m" in out.getvalue()


async def test_it_fits_a_narrow_terminal() -> None:
    out = Tty()
    assert await Tour(Screen.on(out, {**PLAIN, "COLUMNS": "40"}), pace=0).run() == 0
    assert max(map(len, out.getvalue().splitlines())) <= 46  # asks are never cut


async def test_a_scene_that_does_not_hold_is_told_and_makes_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(stage: Stage) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(room, "SCENES", (SCENES[0], Scene("A lie", "It is shown.", "it holds", fails)))
    out = io.StringIO()
    assert await Tour(Screen.on(out, {})).run() == 1
    assert "✗ this does not hold: it holds\n" in out.getvalue()


async def test_a_scene_that_hangs_is_given_up_and_its_run_aborted(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def hangs(stage: Stage) -> bool:
        await stage.runtime.run("think for ever", agent="slow")
        return True

    monkeypatch.setattr(room, "SCENES", (Scene("A wait without end", "It hangs.", "it ends", hangs),))
    out = io.StringIO()
    assert await Tour(Screen.on(out, {})).run() == 1
    assert "✗ this does not hold: it ends\n" in out.getvalue()
    assert "1 accepted = 0 completed + 0 stopped + 0 error + 1 aborted = 1 times on_finish" in out.getvalue()


@pytest.mark.parametrize(
    ("change", "finished", "failed"),
    [({"accepted": 4}, 3, 1), ({}, 2, 1), ({}, 4, 1), ({}, 3, 0), ({"completed": 1}, 3, 1)],
)
def test_the_accounting_sees_every_run_that_is_missing(change: dict[str, int], finished: int, failed: int) -> None:
    observer = Observer()
    observer.finished += [("ask", "completed")] * finished
    observer.failed += [("ask", "abort")] * failed
    fine = RuntimeStatistics(0, 0, 0, accepted=3, completed=2, stopped=0, errors=0, aborted=1)
    tour = Tour(Screen.on(io.StringIO(), {}))
    assert not tour._account(attrs.evolve(fine, **change), observer)
    good = Observer()
    good.finished += [("ask", "completed")] * 3
    good.failed += [("ask", "abort")]
    assert tour._account(fine, good)
