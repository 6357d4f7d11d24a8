"""`Run`: what users see of an envelope."""

from __future__ import annotations

import weakref
from typing import Literal, final

import attrs
import trio

from ._envelope import Envelope
from ._journal import EventStream
from .values import Outcome, RunResult

__all__ = ["Run", "envelope_of", "face_of"]


@final
@attrs.frozen(eq=False, repr=False)
class Run:
    """One ask going through a conversation. Made by `Runtime.submit`, `run` and `stream`."""

    _envelope: Envelope

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.state} conversation={self.conversation_id!r}>"

    @property
    def id(self) -> str:
        """The run's id."""
        return self._envelope.id

    @property
    def conversation_id(self) -> str | None:
        """None in the default conversation."""
        return self._envelope.conversation_id

    @property
    def ask(self) -> str:
        """As it was accepted."""
        return self._envelope.ask

    @property
    def state(self) -> Literal["queued", "running", "finishing", "done"]:
        """`queued`, `running`, `finishing` (its observers are being told) or `done`."""
        return self._envelope.state

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, once it is `done`; None before."""
        return self._envelope.outcome

    @property
    def followed_by(self) -> Run | None:
        """The run that took over what this one was not told in time (needs a `ToolLoop`)."""
        follower = self._envelope.followed_by
        return None if follower is None else face_of(follower)

    def abort(self, reason: str = "") -> None:
        """Ask the run to end, cause `requested`. Never blocks.

        A running run is cancelled; a queued one keeps its place, is answered at once and runs no hook but its
        observers at its turn. After the answer is out, or once the run is over, nothing changes.
        """
        self._envelope.request_abort("requested", reason)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> RunResult:
        """Wait for the run's reply.

        Returns: the result of a `completed` or `stopped` run.

        Raises: `RunAborted` if it was aborted; what the application raised, as the same object; `ReentrantRun` at
        once if this wait could never end.

        Cancellation: leaves the run alone; a wait does not own it.
        """
        envelope = self._envelope
        with envelope.guard():
            await envelope.wait_replied()
        return envelope.unwrap()

    @trio.lowlevel.enable_ki_protection
    async def wait_ended(self) -> None:
        """Wait until nothing of the run goes on, its observers included, however it ended.

        That is later than its reply only for a run that was aborted while it was queued: it is answered at once, and
        its observers hear of it at its turn.

        Raises: `ReentrantRun` inside a run, where this wait could never end.

        Cancellation: leaves the run alone.
        """
        envelope = self._envelope
        with envelope.ties.guarded(envelope, to_end=True):
            await envelope.wait_ended()

    def events(self, after: int = 0) -> EventStream:
        """Return an async iterator over the run's events from its start, ending after `RunFinished`.

        A reader that is slow gets text deltas merged and nothing else dropped; it cannot affect the run. Inside a run
        reading is a wait: `ReentrantRun` where it would never end. Without waiting, its `next_nowait()` gives the next
        event that is there already, else None.

        Arguments: `after` takes up a reading that was broken off: the `seq` of the last event that was read, the
        `through` of a text delta. Nothing is given twice and nothing is left out.
        """
        return self._envelope.events(after)


def envelope_of(run: Run) -> Envelope:
    """Return what is behind a face, for doors that carry runs to another place."""
    return run._envelope


def face_of(envelope: Envelope) -> Run:
    """Return what users see of an envelope: the same object for as long as anybody has it."""
    face = None if envelope.face is None else envelope.face()
    if not isinstance(face, Run):
        face = Run(envelope)
        envelope.face = weakref.ref(face)
    return face
