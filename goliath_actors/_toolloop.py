"""`ToolLoop`: native tool calling on a transcript, for large context windows.

The configuration, and what stands around a run: it is driven to its end, and its history is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, final

import attrs
import trio

from ._callables import CALLBACKS, check_takes
from ._compact import Compaction, step_limit
from ._decisions import RunStopped
from ._kept import saving_seconds
from ._native import NativeRun
from ._session import check_int
from ._stream import Screen
from ._thinking import Thinker
from ._transcript import Transcript
from ._work import Ending, Work
from .errors import ConfigError, GoliathExtensionError, NothingToRegenerate
from .hooks import Respond
from .values import Responded

__all__ = ["Compaction", "ToolLoop", "check_tool_window"]

Window: TypeAlias = "int | Callable[[], int | Awaitable[int]]"


@final
@attrs.frozen(kw_only=True)
class ToolLoop:
    """Native tool calling on a transcript: the model is sent the conversation and calls tools until it answers.

    Arguments:
      window: tokens of input and output together, or a callable (sync or async) that says so once a run.
      max_steps: model calls of a run; the last one is told to answer.
      max_parallel_tools: how many tools of one message run side by side.
      hook_retries: how often, in each step, an extension may reject a reply.
      compaction: when old history is summarised; None: never.

    Raises: `ConfigError`.
    """

    window: Window = 128_000
    max_steps: int = 20
    max_parallel_tools: int = 8
    hook_retries: int = 2
    compaction: Compaction | None = attrs.Factory(Compaction)

    def __attrs_post_init__(self) -> None:
        if callable(self.window):
            check_takes("ToolLoop(window=...)", self.window, *CALLBACKS["window"])
        else:
            check_tool_window(self.window)
        check_int("ToolLoop(max_steps=...)", self.max_steps, 1)
        check_int("ToolLoop(max_parallel_tools=...)", self.max_parallel_tools, 1)
        check_int("ToolLoop(hook_retries=...)", self.hook_retries, 0)
        if self.compaction is not None and not isinstance(self.compaction, Compaction):
            raise ConfigError(
                f"ToolLoop(compaction=...) must be a Compaction or None, not {type(self.compaction).__name__}"
            )

    async def last_ask(self, work: Work) -> str:
        """Return the text of the last ask in the history, which a rewrite answers anew.

        Raises: `NothingToRegenerate`, with origin `config`, if there is none; what the store raised.

        Cancellation: as `Transcript.load`.
        """
        ask = (await Transcript.load(work)).last_ask
        with work.journal.origin("config"):
            if ask is None:
                raise NothingToRegenerate(work.journal.conversation_id)
        return ask.message.text

    async def drive(self, work: Work, responded: tuple[Respond, Responded] | None = None) -> Ending:
        """Take a run from its ask to its end. As `Loop.drive`.

        Raises: also the provider's error, as the same object; `GoliathBudgetError` for a prompt that does not fit.

        Cancellation: the history is closed: results of tools that had finished, for all other calls a result that
        says so, and the text that was shown, marked partial. Within `finish_timeout` or 10 seconds.
        """
        if work.window != self.window:  # a callable's answer, or the model's own
            with work.journal.origin("config"):
                check_tool_window(work.window)
        work.kept = True  # what this run does is in the transcript, never in an exchange
        transcript = await Transcript.load(work)
        screen = Screen(work.journal)
        thinker = Thinker(work, transcript, screen, self.max_steps, self.hook_retries, self.compaction)
        run = NativeRun(self.max_parallel_tools, work, transcript, screen, thinker)
        done, ask = False, True
        stopped: RunStopped | None = None
        try:
            try:
                ending = await run.begin(responded)
                while ending is None:
                    # Here and not in the run: each coroutine around the wait for the model costs the collector.
                    ending = await run.act(await run.handed_in() or await thinker.think())
                done = True
                return ending
            except GoliathExtensionError as error:
                # No later hook of the row; unless it is a model's or an application's own, which says nothing of hooks.
                ask = work.journal.origin_of(error) != "extension"
                raise
            except RunStopped as stop:
                stopped = stop
            # Out here, so that what a callback raises does not carry our own signal as its context.
            run.screen.retract(stopped.text)
            raise stopped
        finally:
            if not done:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + saving_seconds(work)):
                    await run.close(ask and stopped is None)


def check_tool_window(window: object) -> None:
    """Refuse a window that has no room for a prompt beside what is reserved.

    Raises: `ConfigError`.
    """
    check_int("ToolLoop(window=...)", window, 1)
    assert isinstance(window, int)
    if step_limit(window) <= 0:
        raise ConfigError(f"a window of {window} tokens leaves no room for a prompt; a ToolLoop needs far more")
