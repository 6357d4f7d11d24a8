"""What an application may bring: models, stores, token counters.

Adapters (`models/`, `stores/`) and the fakes in `testing.py` are built on these contracts only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import attrs

from ._frozen import freeze
from .values import Memory, Message, Page, ToolCall, Usage

__all__ = [
    "UNSET",
    "Change",
    "Entry",
    "Model",
    "ModelDone",
    "ModelEvent",
    "ModelRequest",
    "ModelResponse",
    "ModelText",
    "ModelToolCall",
    "ModelUsage",
    "Record",
    "Store",
    "TokenCounter",
    "ToolSpec",
    "Unset",
]


@attrs.frozen
class ToolSpec:
    """A tool as a provider is told about it: data, nothing executable."""

    name: str
    description: str
    parameters: Mapping[str, Any] = attrs.field(converter=freeze)

    @functools.cached_property
    def words(self) -> str:
        """All of it that costs tokens, in one text: name, description and schema."""
        return f"{self.name} {self.description} {json.dumps(self.parameters, ensure_ascii=False)}"


def _messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(messages)


def _tool_specs(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(tools)


@attrs.frozen
class ModelRequest:
    """One generation. `role` says who asks: `plan`, `arguments`, `answer`, `scribe`, `step` or `compact`.

    `schema` is a JSON schema for the reply, if one is wanted; `settings` are sampling parameters in the provider's
    words; `provider_options` go into the request body as they are; `max_output_tokens` is a count of tokens.
    """

    role: str
    messages: tuple[Message, ...] = attrs.field(converter=_messages)
    schema: Mapping[str, Any] | None = None
    tools: tuple[ToolSpec, ...] = attrs.field(default=(), converter=_tool_specs)
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    provider_options: Mapping[str, Any] = attrs.field(factory=dict)
    max_output_tokens: int | None = None
    attempt: int = 0

    @property
    def text(self) -> str:
        """All prompt text, joined by blank lines."""
        return "\n\n".join(message.text for message in self.messages)


@attrs.frozen
class ModelText:
    """A piece of the reply's text, as it arrives."""

    text: str


@attrs.frozen
class ModelToolCall:
    """A piece of a tool call. Pieces with the same `index` belong together: `id` and `name` are whole and come once,
    `arguments` is appended."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@attrs.frozen
class ModelUsage:
    """The call's tokens so far; a later one replaces an earlier one (providers send running totals)."""

    usage: Usage


@attrs.frozen
class ModelDone:
    """The end of a complete reply: `stop`, `length`, `tool_calls`, `content_filter`, `unknown`, or another word of the
    provider's. A stream that ends without one was cut off."""

    finish_reason: str = "stop"


ModelEvent: TypeAlias = ModelText | ModelToolCall | ModelUsage | ModelDone


@attrs.frozen
class ModelResponse:
    """An assembled reply: what `around_model` gets from `call_next` and may answer with."""

    message: Message
    usage: Usage | None = None
    finish_reason: str = "stop"


@runtime_checkable
class Model(Protocol):
    """A provider. Everything else is built on `stream`.

    Optional attributes: `window` (tokens), `count_tokens(text) -> int`, `retries` (how often the request room may
    repeat a failed attempt whose error is typed as retryable; adapters never retry by themselves).
    """

    @property
    def name(self) -> str:
        """Name of the model, for events and logs."""
        ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open one generation.

        Returns: an async context manager whose value iterates over the reply's events.

        Raises: `ModelError` and its kinds, on entering or while iterating.

        Cancellation: leaving the block, also by cancellation, closes the connection; nothing goes on generating.
        """
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    # Properties, so that a frozen class will do.
    @property
    def name(self) -> str:
        """Name of the counter, for budget events and errors."""
        ...

    @property
    def exact(self) -> bool:
        """False for an estimate."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`, control-token text counted as plain text; in bounded time."""
        ...


class Unset:
    """The type of `UNSET`: a field of a change that leaves things as they are (None is a value)."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        # A copied or pickled change says the same: a store may hand one to another process.
        return "UNSET"


UNSET = Unset()


@attrs.frozen
class Entry:
    """One entry of a conversation's history. `role` is `user`, `assistant`, `tool` or `summary`; `at` is seconds since
    the epoch; visibility has two independent axes. `private` never leaves the server; its key `idempotency_key`, where
    present, can be looked up with `Store.find`."""

    id: str
    at: float
    role: Literal["user", "assistant", "tool", "summary"]
    message: Message
    transcript_visible: bool = True
    context_visible: bool = True
    private: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Record:
    """A conversation between runs, without its entries. `version` is 0 when nothing was ever committed."""

    version: int = 0
    memory: Memory = Memory()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    private: Mapping[str, Any] = attrs.field(factory=dict)
    failures: int = 0
    entries_count: int = 0


@attrs.frozen
class Change:
    """One atomic commit. What is `UNSET` stays; `metadata` and `private` replace the whole mapping; `append` adds
    entries; `visibility` maps entry ids to (transcript, context); `truncate_after` drops every entry behind that id
    (None: nothing; an empty string: all of them), before `append`."""

    memory: Memory | Unset = UNSET
    metadata: Mapping[str, Any] | Unset = UNSET
    private: Mapping[str, Any] | Unset = UNSET
    failures: int | Unset = UNSET
    append: Sequence[Entry] = ()
    visibility: Mapping[str, tuple[bool, bool]] = attrs.field(factory=dict)
    truncate_after: str | None = None


@runtime_checkable
class Store(Protocol):
    """Where conversations live between runs. Keys are strings made by the runtime.

    What is kept: any `str` comes back as it was, in keys, ids, texts, and inside of mappings: with NUL characters, with
    half of a surrogate pair (no UTF-8 holds one; users paste it), and of any length. `metadata` and `private` are JSON
    data. What a caller passed and what it got stay apart from what is kept: changing the one never changes the other.
    All of a `Memory` and an `Entry` comes back equal, but for `Step.output`, which comes back as None: it lives only as
    long as its run and need not be JSON data.

    Every method is a checkpoint. A key of which nothing is known is no error anywhere: it has an empty record, no
    entries, and no lease.

    Optional attributes: `durable` (True if what `commit` returned survives the process, and `acquire`'s tokens too);
    `hold(key)`, an async context manager that a runtime enters around each run of that conversation, before it reads
    anything (`LeasedStore` has one); and the async context manager protocol: a runtime enters the store when it opens
    and leaves it last.
    """

    async def load(self, key: str) -> Record:
        """Return the record, or an empty one of version 0.

        Raises: `StoreCorrupt` if the record cannot be read (it is set aside, not replaced).
        """
        ...

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """Apply `change` atomically and return the new record, its version raised by one, also for a change of nothing.

        First `truncate_after` drops entries, then `append` adds some, then `visibility` changes what is there by now.
        Ids are unique in a conversation; one that was dropped is free again.

        Arguments: `expect`, the version that the change was made against (None: whatever is there; 0: nothing);
        `token`, the fencing token of a lease, if the caller holds one. It is compared with the newest that `acquire`
        has given out for this key, 0 if it never has: an older one is refused, the newest is accepted also after its
        lease ran out or was released.

        Raises: `StoreConflict` if the version differs or a newer token exists; then, in a change that comes in time,
        `StoreError` if `append` has an id that is taken, or `visibility` or `truncate_after` names one that is not
        there. A change that is both late and wrong is a conflict. What can never be stored (no JSON data) is a
        `StoreError` before or after. Whatever is raised, nothing is changed.

        Cancellation: the change is either wholly there or not at all; load again to know.
        """
        ...

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        """Return a page of entries, oldest first.

        Arguments: positions count from 1 in order of append, up to the record's `entries_count`; those that
        `truncate_after` freed are given out again. `after` pages forwards from there (exclusive), `before` backwards
        (exclusive); neither: the newest `limit`; both: forwards from `after`, up to but without `before`. Positions
        that do not exist (0, or beyond the end) are no error. `limit` is at least 1. `anchor` is the last position that
        paging may see, from an earlier page; None, or one beyond the end, takes the end as it is now.

        Returns: `Page(entries, anchor, next)`; `anchor` is the one that was used; `next` is the position to pass as
        `before` (or `after`, if `after` was given) to continue, None when there is no more. So it is the position of
        the page's first entry (or its last).
        """
        ...

    async def forget(self, key: str) -> None:
        """Delete the record and its entries; a lease on the key stays, and so does the count of its tokens.

        Deleting what is not there is no error.
        """
        ...

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """Return up to `limit` keys that begin with `prefix`, in order, from behind `after`.

        The order is that of Python's strings, by code point. `after` need not exist nor begin with `prefix`. A key is
        listed if something was ever committed to it and not forgotten since.
        """
        ...

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """Return the entry whose private `idempotency_key` is this one, the oldest of several, or None."""
        ...

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """Take or renew the lease on a conversation for `ttl` seconds from now. The conversation need not exist.

        Returns: the fencing token, or None if another holds the lease. The first token of a key is 1, and each new
        lease gets one more; only an owner who acquires again keeps its token, also after its time ran out, if nobody
        took the lease meanwhile. A lease that was released is over: its owner gets a new token, too.
        """
        ...

    async def release(self, key: str, owner: str) -> None:
        """Give the lease back early; its token stays the newest. Releasing what one does not hold is no error."""
        ...


def assemble(text: str, calls: Sequence[ToolCall]) -> Message:
    """Return the assistant message made of streamed text and calls."""
    return Message("assistant", text, tuple(calls))
