"""When a conversation stops asking a device that keeps failing (C7).

The counter is in the conversation's record; the time of the last probe only in memory.
"""

from __future__ import annotations

import math
from typing import final

import attrs
import trio

from ._work import Work
from .errors import ConfigError

__all__ = ["Session", "SessionFallback", "check_int"]

# Escalation reasons that count: the device is failing, not the ask.
COUNTED = frozenset({"model-error", "model-unavailable"})


def check_int(what: str, value: object, least: int) -> None:
    """Refuse what is no integer of at least `least`.

    Raises: `ConfigError`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ConfigError(f"{what} must be {kind}, not {value!r}")


@final
@attrs.frozen(kw_only=True)
class SessionFallback:
    """When a conversation stops asking a device that keeps failing.

    Arguments:
      after: runs in a row whose model failed before the fallback is asked at once.
      probe_every: seconds after which one run is let through to the device again; when it succeeds, all are.

    Raises: `ConfigError`.
    """

    after: int = 3
    probe_every: float = 300.0

    def __attrs_post_init__(self) -> None:
        check_int("SessionFallback(after=...)", self.after, 1)
        seconds = self.probe_every
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ConfigError(
                f"SessionFallback(probe_every=...) must be a number of seconds, 0 or more, not {seconds!r}"
            )


@attrs.define(eq=False)
class Session:
    """What one run learns about the device, and what the conversation knew before."""

    settings: SessionFallback | None
    work: Work
    # The counter as it was recalled: saving it changes the record, and must not count twice.
    before: int
    # False: this run says nothing about the device (session fallback, or an extension answered).
    asks_device: bool = True
    failed: bool = False

    def skips_device(self) -> bool:
        """Decide the route, letting a probe through when it is time."""
        settings, health = self.settings, self.work.health
        if settings is None or self.work.fallback is None or self.before < settings.after:
            return False
        now = trio.current_time()
        if health.probed_at is None or now - health.probed_at >= settings.probe_every:
            health.probed_at = now
            return False
        return True

    def escalated(self, reason: str) -> None:
        """Note why the run gave up on the device."""
        self.failed = reason in COUNTED

    def failures(self) -> int | None:
        """Return the counter after this run, None if the run says nothing about the device."""
        if self.settings is None or not self.asks_device:
            return None
        if not self.failed:
            return 0
        failures = self.before + 1
        if failures >= self.settings.after:
            self.work.health.probed_at = trio.current_time()
        return failures
