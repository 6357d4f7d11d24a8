"""The runs that this server accepted: found by id, kept for a while after their end, each with a task that puts it on
record."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, final

import attrs
import trio

from goliath_actors import Agent, Conversation, Run, Runtime, ToolLoop, approve_all
from goliath_actors.errors import StoreError
from goliath_actors.tools import answered_by, ask_client

from ._config import ServerConfig
from ._feed import Feed, Pace
from ._hosted import Asking, Hosted, Visitor
from ._ledger import Acceptance, Ledger
from ._problems import Problem
from ._wire import events_size, run_outcome

__all__ = ["Hosting"]

log = logging.getLogger("goliath_actors.server")


@final
@attrs.define(eq=False)
class Hosting:
    """Accepts asks, and holds their runs."""

    runtime: Runtime
    ledger: Ledger
    config: ServerConfig
    nursery: trio.Nursery
    # Any: the application's own context.
    make_context: Callable[[Visitor], Any] | None = None
    draining: bool = False
    pace: Pace = attrs.field(init=False)
    _runs: dict[str, Hosted] = attrs.Factory(dict)
    # Runs that are over, oldest first, with when they may be forgotten and what they hold.
    _over: deque[tuple[float, str, int]] = attrs.Factory(deque)
    # Invariant: the bytes of those in `_over`.
    _bytes: int = 0
    _active: dict[str, dict[str, Hosted]] = attrs.Factory(dict)
    # Asks with an idempotency key whose acceptance goes on, by ledger key and idempotency key.
    _claims: dict[tuple[str, str], trio.Event] = attrs.Factory(dict)
    _background: list[trio.CancelScope] = attrs.Factory(list)
    _keeping: int = 0
    _quiet: trio.Event = attrs.Factory(trio.Event)

    def __attrs_post_init__(self) -> None:
        self.pace = Pace(self.config.delta_interval)

    def feed(self, hosted: Hosted, after: int = 0) -> Feed:
        """Return the events of a run from behind `after`, as a stream is to send them."""
        return Feed(hosted, self.pace, self.config.keep_alive, hosted.run.events(after))

    # --- finding ----------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Hosted | None:
        """Return a run that is going on, or has ended not long ago."""
        self._forget_old()
        return self._runs.get(run_id)

    def active(self, key: str) -> Iterator[Hosted]:
        """Iterate over the runs of a conversation that are not over."""
        return iter(list(self._active.get(key, {}).values()))

    def _forget_old(self) -> None:
        now, config = trio.current_time(), self.config
        while self._over and (
            self._over[0][0] <= now or len(self._over) > config.keep_runs or self._bytes > config.keep_bytes
        ):
            _, run_id, size = self._over.popleft()
            self._bytes -= size
            self._runs.pop(run_id, None)

    # --- accepting --------------------------------------------------------------------------------------------------

    async def start(self, asking: Asking) -> tuple[Hosted | str, bool]:
        """Accept an ask and put it on record.

        Returns: the run and False; or, where the ask's idempotency key was seen before, the run it has, or only its id
        if it has been over for long, and True.

        Raises: the runtime's refusals; `Problem` for a key that another ask has had, and if nothing can be recorded.

        Cancellation: an accepted run goes on, and is put on record.
        """
        if asking.idempotency_key is None:
            return await self._start(asking), False
        claim = (asking.key, asking.idempotency_key)
        while claim in self._claims:  # the same ask, twice at once: the second one waits for what becomes of the first
            await self._claims[claim].wait()
        done = self._claims[claim] = trio.Event()
        try:
            found = await self.ledger.find(*claim)
            if found is None:
                try:
                    return await self._start(asking), False
                except StoreError:
                    found = await self.ledger.find(*claim)  # another process may have been quicker with the same key
                    if found is None:
                        raise
        finally:
            del self._claims[claim]
            done.set()
        run_id, body = found
        if body != asking.body:
            raise Problem("key-reused", "send a new Idempotency-Key with a new ask, and the same with the same")
        return await self._followed(asking.key, run_id), True

    async def _followed(self, key: str, run_id: str) -> Hosted | str:
        """Return the run that an ask has: where a restart asked it again, the later one."""
        hosted = self.get(run_id)
        if hosted is not None:
            return hosted
        for row in (await self.ledger.read(key)).private.get("ended", ()):
            if row["run_id"] == run_id and row["followed_by"] is not None and row["result"] is None:
                return await self._followed(key, row["followed_by"])
        return run_id

    async def _start(self, asking: Asking) -> Hosted:
        hosted = self._accept(asking)
        await hosted.acceptance.recorded.wait()
        error = hosted.acceptance.error
        if error is not None:
            hosted.run.abort("it could not be recorded")
            raise error if isinstance(error, StoreError) else StoreError(type(error).__name__)
        return hosted

    def _accept(self, asking: Asking) -> Hosted:
        """Accept or refuse, without a checkpoint: from the ask's acceptance to its being expected by the ledger nothing
        of the run can happen."""
        hosted = Hosted(asking)
        run = self._submit(asking, hosted)
        if run.id != hosted.id:  # handed to a running run: its own ask it will be only if that run does not take it
            taker = self._runs.get(run.id)
            if taker is None:  # one that the application itself has asked
                taker = Hosted(asking, id=run.id)
                taker.run = run
                self._adopt(taker)
                self.nursery.start_soon(self._hear_end, taker)
            taker.handed.append(hosted)
            return taker
        hosted.run = run
        self._adopt(hosted)
        return hosted

    def _adopt(self, hosted: Hosted) -> None:
        asking, run = hosted.asking, hosted.run
        hosted.acceptance = Acceptance(
            asking.key,
            run,
            asking.agent.name,
            asking.text,
            asking.kind,
            asking.timeout,
            asking.idempotency_key,
            asking.body,
            asking.instead_of,
        )
        self.ledger.expect(hosted.acceptance)
        self._runs[run.id] = hosted
        self._active.setdefault(asking.key, {})[run.id] = hosted
        self._keeping += 1
        self.nursery.start_soon(self._keep, hosted)

    def _submit(self, asking: Asking, hosted: Hosted) -> Run:
        conversation = self.runtime.conversation(asking.inner_id, asking.agent)
        context = asking.visitor if self.make_context is None else self.make_context(asking.visitor)
        limits = [limit for limit in (asking.timeout, self.config.run_timeout) if limit is not None]
        timeout = min(limits, default=None)
        confirm: Callable[..., Any] | None = None
        if self.config.confirm == "client" and asking.agent.confirm is not approve_all:
            confirm = ask_client
        limit = None if confirm is None else self.config.confirm_timeout
        # Any: each option has a type of its own, as in `Runtime.run`.
        options: dict[str, Any] = {
            "context": context,
            "timeout": timeout,
            "confirm": confirm,
            "confirm_timeout": limit,
            "on_event": hosted.hear,
            "when_busy": asking.when_busy,
        }
        answer = partial(hosted.ask_client, self.config.confirm_timeout)
        with answered_by(answer if asking.asks_client else None):
            if asking.kind == "run":
                return conversation.submit(asking.text, **options)
            if asking.kind == "steer":
                return conversation.steer(asking.text, **options)
            if asking.kind == "resume":
                return conversation.submit_resume(asking.answers, **options)
            return conversation.submit_rewrite("regenerate", **options)

    # --- keeping ----------------------------------------------------------------------------------------------------

    async def _keep(self, hosted: Hosted) -> None:
        """Put a run on record, wait for its end, and put that on record.

        Cancellation: the run stays on record as open.
        """
        asking, acceptance = hosted.asking, hosted.acceptance
        try:
            await self.ledger.accept(acceptance)
            await hosted.over.wait()
            # The last event is told a step before the run's own end, with no checkpoint between.
            outcome = run_outcome(hosted.run, asking.conversation_id, self.config.shows_errors)
            abort = hosted.run.outcome.abort if hosted.run.outcome is not None else None
            # What had not begun when the server ended stays open on record: the next one asks it again.
            left = abort is not None and abort.cause == "shutdown" and not acceptance.begun
            if acceptance.error is None and not left:
                await self._record_end(hosted, outcome)
            self._follow(hosted)
        finally:
            self.ledger.drop(acceptance)
            active = self._active.get(asking.key, {})
            active.pop(hosted.id, None)
            if not active:
                self._active.pop(asking.key, None)
            size = events_size(hosted.run)
            self._bytes += size
            self._over.append((trio.current_time() + self.config.keep_seconds, hosted.id, size))
            self._forget_old()
            hosted.kept.set()
            self._keeping -= 1
            if not self._keeping:
                self._quiet.set()

    async def _record_end(self, hosted: Hosted, outcome: dict[str, Any]) -> None:
        follower = hosted.run.followed_by
        if outcome["result"] is not None:  # the steps are in the history; a record of many ends is to stay small
            outcome["result"] = {**outcome["result"], "steps": []}
        row = {**outcome, "followed_by": None if follower is None else follower.id, "seq": hosted.last_seq}
        try:
            await self.ledger.end(hosted.acceptance, row)
        except Exception as error:  # noqa: BLE001  # the run is over, and told so; a restart finds it open, and closes it
            self.note(f"the end of {hosted.id} could not be recorded", error)

    def _follow(self, hosted: Hosted) -> None:
        """Texts that were handed to a run, and not taken, have become runs of their own."""
        handed = {text.id: text for text in hosted.handed if text.id}
        follower = hosted.run.followed_by
        while follower is not None and follower.id in handed:
            text = handed.pop(follower.id)
            text.run = follower
            self._adopt(text)
            follower = follower.followed_by

    async def _hear_end(self, hosted: Hosted) -> None:
        """The application has its own `on_event`, so its end is awaited."""
        async for event in hosted.run.events():
            hosted.hear(event)

    async def in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what goes on beside the runs, until `stop`.

        Cancellation: as of `work`.
        """
        with trio.CancelScope() as scope:
            self._background.append(scope)
            await work()

    def stop(self) -> None:
        """End what goes on beside the runs."""
        for scope in self._background:
            scope.cancel()

    async def wait_kept(self) -> None:
        """Wait until the end of every run is on record.

        Cancellation: what is left stays open on record.
        """
        while self._keeping:
            self._quiet = trio.Event()
            await self._quiet.wait()

    async def forget(self, conversation: Conversation, key: str) -> None:
        """Abort what goes on in a conversation, and forget it with its record here and its runs. What is accepted
        meanwhile is another conversation's beginning.

        Raises: what the store raised.

        Cancellation: the conversation may be gone, its record is not.
        """
        before: list[str] = []

        async def forget() -> None:
            before.extend(run_id for run_id, hosted in self._runs.items() if hosted.asking.key == key)
            await conversation.forget()

        await self.ledger.forget(key, forget)
        for run_id in before:
            self._runs.pop(run_id, None)

    @property
    def unready(self) -> str | None:
        """Why no more work should come here, None if it may."""
        if self.draining:
            return "draining"
        counts, config = self.runtime.statistics(), self.config
        if config.max_waiting is not None:
            full = counts.waiting >= config.high_water * config.max_waiting
        else:
            full = config.max_running is not None and counts.running >= config.high_water * config.max_running
        return "busy" if full else None

    def note(self, what: str, error: Exception) -> None:
        """Log something that went wrong behind a client's back."""
        log.error("%s: %s", what, type(error).__name__)

    def can_resume(self, agent: Agent[Any]) -> bool:
        """Say whether an agent can be steered, resumed and asked again."""
        return isinstance(agent.loop, ToolLoop)
