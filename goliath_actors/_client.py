"""Who answers the questions of a run: its client, whoever asked it and however deep inside it a question comes up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from ._tool_words import Confirmed, ConfirmRequest

__all__ = ["NOBODY", "answered_by", "ask_client"]

NOBODY = "nobody can be asked here"

# A run has the context of whoever asked it (R5), and a sub-agent's run that of the call: so it is found at any depth.
_client: ContextVar[Callable[[ConfirmRequest], Awaitable[Confirmed]] | None] = ContextVar(
    "goliath_actors_client", default=None
)


@contextmanager
def answered_by(answer: Callable[[ConfirmRequest], Awaitable[Confirmed]] | None) -> Iterator[None]:
    """Return a block for whoever serves runs to people: runs that are accepted in it, and all that these ask, have
    `answer` for their `confirm=ask_client`.

    Arguments: `answer`, an async function of a `ConfirmRequest`; it may be called several times at once, since calls of
    sub-agents run side by side, and `run_id` tells their calls apart. None says that nobody can be asked.

    Cancellation: nothing here waits.
    """
    token = _client.set(answer)
    try:
        yield
    finally:
        _client.reset(token)


async def ask_client(request: ConfirmRequest) -> Confirmed:
    """A `confirm` that asks the client of the run: whoever talks to a server, or sits at the terminal. A sub-agent with
    it asks the client of the run that asked the sub-agent.

    Returns: the answer; a refusal where nobody can be asked.

    Raises: what asking the client raised.

    Cancellation: the question is withdrawn.
    """
    answer = _client.get()
    if answer is None:
        await trio.lowlevel.checkpoint()
        return Confirmed(False, NOBODY)
    return await answer(request)
