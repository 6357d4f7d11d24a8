"""What leaves a run or an observer: let through, kept, or held back until everybody was told."""

from __future__ import annotations

import math

import trio

from ._leaves import single

__all__ = ["Held", "Witness"]


class Witness:
    """Sees what leaves a run inside its scope, such as the error that a cancellation replaced in a `finally` (§P).

    Two things go no further: what is no `Exception`, until everybody was told (R12), and a `Cancelled` that is no
    cancellation.
    """

    __slots__ = ("passed", "replaced")

    def __init__(self) -> None:
        self.replaced: Exception | None = None
        self.passed: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        if _only_cancelled(error):
            if trio.current_effective_deadline() != -math.inf:
                self.passed = _stray()
                return True
            self.replaced = _replaced(error)
            return False
        if isinstance(error, BaseExceptionGroup):  # the run's own cancellation may be in it, which its scope takes out
            return False
        self.passed = error
        return True


class Held:
    """Holds back what leaves an observer until everybody was told: `fatal` if it ends the program (R12).

    A cancellation is let through to the `shield` inside which it came, if that cuts the observer off.
    """

    __slots__ = ("_shield", "fatal", "raised")

    def __init__(self, shield: trio.CancelScope | None = None) -> None:
        self._shield = shield
        self.raised: BaseException | None = None
        self.fatal: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        if self._shield is not None and self._shield.cancel_called and _has_cancelled(error):
            return False
        # Observers are told under a shield, where no cancellation arrives from outside.
        self.raised = _stray() if _only_cancelled(error) else single(error)
        if not isinstance(self.raised, Exception):
            self.fatal = self.raised
        return True


def _only_cancelled(error: BaseException) -> bool:
    real = single(error)
    return real is None or isinstance(real, trio.Cancelled)


def _has_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


# Why a stray `Cancelled` goes no further: code of the run kept one to raise it later, or held a scope across a yield.
# No scope would take it but that of the nursery of all runs, which would end every one of them without a word (R17).
def _stray() -> RuntimeError:
    return RuntimeError(
        "a trio.Cancelled came out that belongs to no cancel scope around it; never keep one to raise it later, and "
        "hold no cancel scope or nursery across a yield"
    )


def _replaced(error: BaseException) -> Exception | None:
    """Return the error that was on its way out when a cancellation took its place, however often one did."""
    if isinstance(error, trio.Cancelled) and error.__context__ is None:  # as nearly always
        return None
    pending: list[BaseException] = [error]
    seen: set[int] = set()
    while pending:
        link = pending.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        # WouldBlock is no error but how trio's own doors ask whether they have to wait: they are in its handler then.
        if isinstance(link, (trio.Cancelled, trio.WouldBlock)):
            pending.extend([] if link.__context__ is None else [link.__context__])
        elif isinstance(link, BaseExceptionGroup) and single(link) is None:
            pending.extend(reversed(link.exceptions))
        else:
            real = single(link)
            return real if isinstance(real, Exception) else None
    return None
