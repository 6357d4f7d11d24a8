"""What a number that an application gives must be: seconds, or a count. Refusing leaves no trace."""

from __future__ import annotations

import sys

from .errors import ConfigError

__all__ = ["check_count", "check_seconds"]


def check_seconds(what: str, value: object, *, zero: bool = False, none: bool = True) -> None:
    """Refuse what is no number of seconds above (or, if `zero`, from) 0; None, if it is allowed, means no limit.

    Raises: `ConfigError`, also for an integer that is too large for a clock.
    """
    if value is None and none:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool) and (value > 0 or (zero and value == 0))
    if not good or (isinstance(value, int) and value > sys.float_info.max):
        least = "a number of seconds, 0 or more" if zero else "a positive number of seconds"
        limitless = " or None" if none else "" if zero else " (math.inf for no limit)"
        raise ConfigError(f"{what} must be {least}{limitless}, not {value!r}")


def check_count(what: str, value: object, least: int, *, none: bool = True) -> None:
    """Refuse what is no count of at least `least`; None only if `none`.

    Raises: `ConfigError`.
    """
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} must be an integer of at least {least}{' or None' if none else ''}, not {value!r}")
