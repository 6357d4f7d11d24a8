"""The guided tour: what a runtime promises, shown and checked scene by scene, with a scripted model.

In this process, without network. Uses scenes.
"""

from __future__ import annotations

from typing import final

import attrs
import trio

from goliath_actors import open_runtime
from goliath_actors.values import RuntimeStatistics

from .cast import Observer, make_cast
from .scenes import SCENES, Scene, Stage
from .screen import Screen
from .trouble import EXIT_ERROR, EXIT_OK

__all__ = ["Tour"]

SCENE_SECONDS = 5.0


@final
@attrs.define(eq=False)
class Tour:
    """Shows the scenes one after the other on `screen` and holds each against what it says."""

    screen: Screen
    # Seconds between the pieces of a streamed answer, where somebody watches.
    pace: float = 0.02

    async def run(self) -> int:
        """Show everything.

        Returns: 0 if every scene and the accounting held, else 1.

        Cancellation: the runtime aborts what runs and tells its observers.
        """
        screen = self.screen
        screen.line("goliath-actors, a guided tour", "bold")
        screen.wrapped(
            "Every model here is a labelled demo: a script of replies, no language model, no network. Everything "
            "else is real: the runtime, its conversations, tools, hooks and observers.",
            "dim",
        )
        cast = make_cast(self.pace if screen.terminal else 0.0)
        held = True
        async with open_runtime(*cast.agents.values(), mailbox_capacity=2) as runtime:
            stage = Stage(screen, runtime, cast)
            for number, scene in enumerate(SCENES, 1):
                held &= await self._show(number, scene, stage)
            statistics = runtime.statistics()
        held &= self._account(statistics, cast.observer)
        return EXIT_OK if held else EXIT_ERROR

    async def _show(self, number: int, scene: Scene, stage: Stage) -> bool:
        screen = self.screen
        screen.line()
        screen.spans((f"{number:>2}  ", "cyan"), (scene.title, "bold"))
        screen.wrapped(scene.shows, "dim", indent="    ")
        held = False
        with trio.move_on_after(SCENE_SECONDS):  # a promise that is broken may also be a wait without end
            held = await scene.play(stage)
        self._verdict(held, scene.holds if held else f"this does not hold: {scene.holds}")
        return held

    def _verdict(self, held: bool, words: str) -> None:
        mark = self.screen.word("✓", "ok") if held else self.screen.word("✗", "FAILED")
        self.screen.wrapped(words, "green" if held else "red", first=f"    {mark} ", indent=" " * 6)

    def _account(self, statistics: RuntimeStatistics, observer: Observer) -> bool:
        """Print the accounting; return whether every accepted run ended, once, and its observer heard it."""
        screen, counts = self.screen, statistics
        ended = counts.completed + counts.stopped + counts.errors + counts.aborted
        heard = len(observer.finished)
        screen.line()
        screen.spans(("    ", ""), ("The accounting", "bold"))
        rows = [
            ("accepted", counts.accepted),
            ("completed", counts.completed),
            ("stopped", counts.stopped),
            ("error", counts.errors),
            ("aborted", counts.aborted),
            ("on_finish heard", heard),
            ("on_error heard", len(observer.failed)),
        ]
        for name, count in rows:
            screen.line(f"    {name:<16}{count:>4}")
        held = counts.accepted == ended == heard and len(observer.failed) == counts.errors + counts.aborted
        self._verdict(
            held,
            f"{counts.accepted} accepted = {counts.completed} completed + {counts.stopped} stopped + "
            f"{counts.errors} error + {counts.aborted} aborted = {heard} times on_finish",
        )
        return held
