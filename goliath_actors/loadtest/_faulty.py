"""A store that fails as often as a scenario says."""

from __future__ import annotations

import random

import attrs
import trio

from goliath_actors.errors import StoreError
from goliath_actors.testing import FailingStore

__all__ = ["FaultyStore"]


@attrs.define(eq=False, kw_only=True)
class FaultyStore(FailingStore):
    """A store in front of another of whose commits a `share` fails, before anything is changed. It has no plan and
    keeps no log: a soak test's memory is to be the runtime's."""

    share: float
    dice: random.Random

    async def _enter(self, method: str) -> None:
        if method == "commit" and self.dice.random() < self.share:
            await trio.lowlevel.checkpoint()
            raise StoreError("the simulated store failed, as the scenario says")
