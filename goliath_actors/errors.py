"""Every exception of the library, each with its blame: who has to act on it.

Application errors are never wrapped in these: they reach the caller as the same object.
"""

from __future__ import annotations

__all__ = [
    "AgentFailed",
    "BadRequest",
    "ConfigError",
    "ContextOverflow",
    "ConversationBusy",
    "ConversationElsewhere",
    "FallbackError",
    "GoliathBudgetError",
    "GoliathError",
    "GoliathExtensionError",
    "LeaseLost",
    "MailboxFull",
    "ModelError",
    "ModelUnavailable",
    "NotWaiting",
    "NothingToRegenerate",
    "ObserverTimeout",
    "RanksUnavailable",
    "RateLimited",
    "ReentrantRun",
    "Refused",
    "RunAborted",
    "RuntimeClosed",
    "ScriptExhausted",
    "StoreConflict",
    "StoreCorrupt",
    "StoreError",
    "StoreTooNew",
    "ToolFailure",
    "ToolInputError",
    "ToolInterrupted",
    "ToolTimeout",
    "ToolsUnavailable",
]


class GoliathError(Exception):
    """Base of everything this library raises on its own account."""


class ConfigError(GoliathError, ValueError):
    """The application's set-up or argument is wrong; raised before anything has begun."""


def _conversation(conversation_id: str | None) -> str:
    return "the default conversation" if conversation_id is None else f"conversation {conversation_id!r}"


class NotWaiting(ConfigError):
    """A `resume` names calls that do not wait for an answer: unknown ones, or ones that were answered already.

    `call_ids` are those, `waiting` the ids of the calls that do wait. Nothing was changed.
    """

    def __init__(self, conversation_id: str | None, call_ids: tuple[str, ...], waiting: tuple[str, ...]) -> None:
        self.conversation_id = conversation_id
        self.call_ids = call_ids
        self.waiting = waiting
        super().__init__(conversation_id, call_ids, waiting)

    def __str__(self) -> str:
        where = _conversation(self.conversation_id)
        ids, known = (", ".join(map(repr, names)) for names in (self.call_ids, self.waiting))
        if not self.waiting:
            return f"nothing waits for an answer in {where}" + (f" (not {ids} either)" if ids else "")
        return f"answers are by call id, and {ids or 'none'} does not wait in {where}; these do: {known}"


class NothingToRegenerate(ConfigError):
    """A `rewrite("regenerate")` of a conversation in which there is no ask. Nothing was changed."""

    def __init__(self, conversation_id: str | None) -> None:
        self.conversation_id = conversation_id
        super().__init__(conversation_id)

    def __str__(self) -> str:
        return f"there is nothing to answer anew in {_conversation(self.conversation_id)}"


class GoliathExtensionError(GoliathError):
    """A hook raised, or answered with something its row does not allow. The cause is `__cause__`.

    `extension` is the name of the extension, `phase` the row of the hook table.
    """

    def __init__(self, extension: str, phase: str, message: str = "") -> None:
        self.extension = extension
        self.phase = phase
        self.message = message
        super().__init__(extension, phase, message)

    def __str__(self) -> str:
        what = self.message or (str(self.__cause__) if self.__cause__ is not None else "the hook failed")
        return f"extension {self.extension!r} in {self.phase}: {what}"


class GoliathBudgetError(GoliathError):
    """A prompt does not fit its share of the window. `phase` is the label of the budget (`conductor`, `answer`, …)."""

    def __init__(self, phase: str, tokens: int, limit: int) -> None:
        self.phase = phase
        self.tokens = tokens
        self.limit = limit
        super().__init__(phase, tokens, limit)

    def __str__(self) -> str:
        return (
            f"the {self.phase} prompt needs {self.tokens} tokens and may use {self.limit}; "
            "shorten the ask, the instructions, the facts or the tools' schemas, or raise the loop's window"
        )


class MailboxFull(GoliathError):
    """The ask was refused and left no trace. `scope` is `"conversation"` or `"runtime"`."""

    def __init__(self, scope: str, waiting: int, capacity: int) -> None:
        self.scope = scope
        self.waiting = waiting
        self.capacity = capacity
        super().__init__(scope, waiting, capacity)

    def __str__(self) -> str:
        name = "mailbox_capacity" if self.scope == "conversation" else "max_waiting"
        return (
            f"the {self.scope} already has {self.waiting} of {self.capacity} asks waiting ({name}); "
            "try again later or wait on a limiter of your own before submitting"
        )


class ConversationBusy(GoliathError):
    """`when_busy="refuse"` and the conversation has a run or a waiting ask."""

    def __init__(self, conversation_id: str | None) -> None:
        self.conversation_id = conversation_id
        super().__init__(conversation_id)

    def __str__(self) -> str:
        name = _conversation(self.conversation_id)
        return f'{name} is busy; wait for its run, or ask with when_busy="queue" or "replace"'


class RuntimeClosed(GoliathError):
    """The runtime no longer accepts asks: its block has ended, it drains, or it was cancelled."""


class RunAborted(GoliathError):
    """The run was ended by its scope. `cause` is `caller`, `requested`, `deadline` or `shutdown`."""

    def __init__(self, cause: str, reason: str = "", phase: str | None = None) -> None:
        self.cause = cause
        self.reason = reason
        self.phase = phase
        super().__init__(cause, reason, phase)

    def __str__(self) -> str:
        where = f" in {self.phase}" if self.phase else ""
        why = f": {self.reason}" if self.reason else ""
        return f"the run was aborted ({self.cause}){where}{why}"


class ReentrantRun(GoliathError):
    """Waiting would never end, since the awaited conversation waits for this run. `chain` names the conversations."""

    def __init__(self, chain: tuple[str, ...]) -> None:
        self.chain = chain
        super().__init__(chain)

    def __str__(self) -> str:
        return f"this would wait for itself: {' -> '.join(self.chain)}; use submit() without waiting instead"


class ModelError(GoliathError):
    """A provider failed, or answered with what is no answer.

    `retryable` says whether the same request may be sent again; `status` is the HTTP status where there was one;
    `code` the provider's own word; `partial` the text that had arrived before; `retry_after` the pause in seconds
    that the provider asked for, None if it asked for none.
    """

    retryable: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool | None = None,
        status: int | None = None,
        code: str | None = None,
        partial: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.code = code
        self.partial = partial
        if retryable is not None:
            self.retryable = retryable


class ModelUnavailable(ModelError):
    """No usable reply: refused connection, server fault, time-out, a stream that broke off."""

    retryable = True


class BadRequest(ModelError):
    """The provider will never take this request: wrong key, unknown model, wrong parameter."""


class ContextOverflow(ModelError):
    """The provider says that the prompt is larger than the model's window."""


class Refused(ModelError):
    """The provider's safety filter ended the reply. Stays on the device and is never asked of a second brain."""


class RateLimited(ModelError):
    """Too many requests. `retry_after` is in seconds, or None if the provider did not say."""

    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        retry_after: float | None = None,
        retryable: bool | None = None,
        status: int | None = None,
        code: str | None = None,
        partial: str = "",
    ) -> None:
        super().__init__(message, retryable=retryable, status=status, code=code, partial=partial)
        self.retry_after = retry_after


class FallbackError(GoliathError):
    """The fallback answered with blank text or with something that is no answer."""


class StoreError(GoliathError):
    """A store could not do what was asked."""


class StoreConflict(StoreError):
    """The record has moved on, or the lease was lost; nothing was changed."""


class LeaseLost(StoreConflict):
    """This process had a conversation's lease and lost it: another one may have the conversation now."""


class ConversationElsewhere(StoreError):
    """Another process has a run of the conversation, for longer than was to be waited; ask again later.

    `retry_after` is a number of seconds after which that process has renewed its lease, or has lost it.
    """

    def __init__(self, key: str, retry_after: float) -> None:
        self.key = key
        self.retry_after = retry_after
        super().__init__(key, retry_after)

    def __str__(self) -> str:
        return f"another process has a run of {self.key!r}; ask again in {self.retry_after:g} seconds"


class StoreTooNew(StoreError):
    """The file was written by a newer version of this library and was left untouched."""


class StoreCorrupt(StoreError):
    """A record could not be read; it was set aside (quarantined), never replaced by an empty one."""


class ToolFailure(GoliathError):
    """Raised by a tool: `text` is told to the model word for word. `retryable` allows a read one identical repeat."""

    def __init__(self, text: str, retryable: bool = False) -> None:
        self.text = text
        self.retryable = retryable
        super().__init__(text)


class ToolInterrupted(ToolFailure):
    """A tool broke off, and nobody can say how far it had come: what it had begun may have happened."""


class ToolTimeout(ToolInterrupted):
    """A tool did not finish within the time it declares; what it had begun may have happened."""


class AgentFailed(ToolFailure):
    """An agent that was called as a tool did not come to an answer. `text` is what the calling model is told;
    `outcome`, a `SubAgentOutcome`, says more to hooks, None if there was no run."""

    def __init__(self, text: str, outcome: object = None) -> None:
        self.outcome = outcome
        super().__init__(text)


class ToolsUnavailable(GoliathError):
    """A server that gives tools could not be reached, or does not speak as it should."""


class ToolInputError(GoliathError):
    """Arguments do not fit a tool's schema. `problems` names every one of them."""

    def __init__(self, tool: str, problems: tuple[str, ...]) -> None:
        self.tool = tool
        self.problems = problems
        super().__init__(tool, problems)

    def __str__(self) -> str:
        return f"arguments of {self.tool!r} are not valid: {'; '.join(self.problems)}"


class ObserverTimeout(GoliathError):
    """An observer was cut off after `seconds`; the next one was asked nevertheless."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"cut off after {self.seconds:g} s"


class RanksUnavailable(GoliathError):
    """No tokenizer vocabulary was found on disk (none is ever downloaded)."""


class ScriptExhausted(GoliathError):
    """A scripted model was asked more often than its script says, or got no reply from it. A test's mistake, so no
    `ModelError`: it always fails the run."""
