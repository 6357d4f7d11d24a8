"""Conversations and pages of history against plain lists: both stores, and a file that is opened again at any time.

The reference here is written from the rules, with nothing of the library in it: what a history holds after each deed,
and what a model is shown of it. A model's reply is a number made of all that it was shown, so a reply that is right
proves that what was sent was right.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors import Agent, Conversation, ToolLoop, open_runtime, tool
from goliath_actors.abc import (
    Change,
    Entry,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelText,
    ModelToolCall,
    Record,
    Store,
)
from goliath_actors.errors import BadRequest, ConfigError, StoreConflict, StoreError
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.tools import Suspend
from goliath_actors.values import Message, Page

from .native import check_valid

# --- the reference --------------------------------------------------------------------------------------------------

DENIED = "Not done: instead of an answer there came a new message."
NO_RESULT = "No result was recorded for this call."


@attrs.define
class Line:
    """An entry: who says what. `calls` are the ids of calls, `of` is the call that a result belongs to."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    of: str = ""
    transcript: bool = True
    context: bool = True


def shown(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """What of a history is sent: hidden lines are not, each call has a result behind it, neighbours are joined."""
    seen = [line for line in lines if line.context]
    sent: list[tuple[str, str]] = []
    for place, line in enumerate(seen):
        if line.role == "tool":
            continue
        joined = sent and sent[-1][0] == line.role and not (line.role == "assistant" and seen_calls(sent[-1]))
        if joined and not line.calls:
            sent[-1] = (line.role, "\n\n".join([sent[-1][1], line.text]))
        elif joined:
            sent[-1] = (line.role, "\n\n".join([sent[-1][1], f"{line.text} [{len(line.calls)}]"]))
        else:
            sent.append((line.role, f"{line.text} [{len(line.calls)}]" if line.calls else line.text))
        for call in line.calls:
            found = [one.text for one in seen[place:] if one.role == "tool" and one.of == call]
            sent.append(("tool", found[0] if found else NO_RESULT))
    return sent


def seen_calls(sent: tuple[str, str]) -> bool:
    return sent[1].endswith("]")


def digest(messages: Sequence[tuple[str, str]]) -> str:
    return f"reply {zlib.crc32(repr(list(messages)).encode())}"


@attrs.define
class Book:
    """A conversation as a list of lines."""

    lines: list[Line] = attrs.Factory(list)
    waiting: str = ""
    serial: int = 0

    def ids(self, count: int) -> tuple[str, ...]:
        """Ids as the model makes them: each is new."""
        self.serial += count
        return tuple(f"c{self.serial - count + n}" for n in range(count))

    def ask(self, text: str) -> None:
        if self.waiting:
            self.lines.append(Line("tool", DENIED, of=self.waiting))
            self.waiting = ""
        self.lines.append(Line("user", text))

    def answer(self) -> str:
        text = digest(shown(self.lines))
        self.lines.append(Line("assistant", text))
        return text

    def calls(self, kind: str) -> None:
        if kind == "tools":
            one, two = self.ids(2)
            self.lines.append(Line("assistant", "hm", (one, two)))
            self.lines += [Line("tool", "saw 1", of=one), Line("tool", "saw 2", of=two)]
        if kind == "pay":
            one, two = self.ids(2)
            self.lines.append(Line("assistant", "hm", (one, two)))
            self.lines.append(Line("tool", "saw 2", of=two))
            self.waiting = one

    def regenerate(self) -> Line | None:
        """Drop what lies behind the last ask that the model can see; None if there is none."""
        asks = [place for place, line in enumerate(self.lines) if line.role == "user" and line.context]
        if not asks:
            return None
        del self.lines[asks[-1] + 1 :]
        self.waiting = ""
        return self.lines[-1]


# --- the real one ---------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Mirror:
    """A model that answers with what it was shown. What it is to do is the last word of the last ask."""

    serial: int = 0
    name: str = "mirror"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        check_valid(request.messages)
        await trio.lowlevel.checkpoint()
        yield self._reply(request)

    async def _reply(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        kind = last.text.split()[-1] if last.role == "user" else ""
        if kind == "fails":
            raise BadRequest("no")
        if kind in ("tools", "pay"):
            names = ["look", "look"] if kind == "tools" else ["pay", "look"]
            yield ModelText("hm")
            for place, name in enumerate(names):
                arguments = f'{{"number": {place + 1}}}'
                yield ModelToolCall(place, f"c{self.serial + place}", name, arguments)
            self.serial += 2
        else:
            sent = [
                (message.role, f"{message.text} [{len(message.tool_calls)}]" if message.tool_calls else message.text)
                for message in request.messages
                if message.role != "system"
            ]
            yield ModelText(digest(sent))
        yield ModelDone("stop")


@tool
async def look(number: int) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {number}"


@tool(writes=True)
async def pay(number: int) -> str:
    """Pay."""
    await trio.lowlevel.checkpoint()
    return f"paid {number}"


def flat(entries: Sequence[Entry]) -> list[Line]:
    return [
        Line(
            entry.role,
            entry.message.text,
            tuple(call.id for call in entry.message.tool_calls),
            entry.message.tool_call_id or "",
            entry.transcript_visible,
            entry.context_visible,
        )
        for entry in entries
    ]


async def everything(conversation: Conversation) -> list[Entry]:
    return list((await conversation.history(after=0, limit=10_000)).entries)


# --- the machine ----------------------------------------------------------------------------------------------------

some = st.integers(0, 50)
deeds = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(["plain", "plain", "tools", "pay", "fails"])),
    st.tuples(st.just("ask"), st.sampled_from(["plain", "tools", "pay"])),
    st.tuples(st.just("show"), st.lists(st.tuples(some, st.booleans(), st.booleans()), min_size=1, max_size=3)),
    st.tuples(st.just("regenerate"), st.none()),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("page"), st.tuples(st.none() | some, st.none() | some, st.integers(1, 4), st.none() | some)),
    st.tuples(st.just("walk"), st.tuples(st.booleans(), st.integers(1, 3))),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("forget"), st.just(None)),
)


@attrs.define(eq=False)
class Machine:
    """Does a deed to both, and compares."""

    book: Book = attrs.Factory(Book)
    asked: int = 0
    versions: list[int] = attrs.Factory(list)

    async def do(self, conversation: Conversation, deed: tuple[str, Any]) -> None:
        name, value = deed
        await getattr(self, name)(conversation, value)
        assert flat(await everything(conversation)) == self.book.lines, deed

    async def ask(self, conversation: Conversation, kind: str) -> None:
        self.asked += 1
        text = f"ask {self.asked} {kind}"
        self.book.ask(text)
        if kind == "fails":
            with pytest.raises(BadRequest):
                await conversation.run(text)
            return
        self.book.calls(kind)
        result = await conversation.run(text)
        if kind == "pay":
            assert [waiting.call_id for waiting in result.waiting] == [self.book.waiting]
        else:
            assert (result.text, result.waiting) == (self.book.answer(), ())

    async def resume(self, conversation: Conversation, approved: bool) -> None:
        waiting = self.book.waiting
        if waiting and not all(line.context for line in self.book.lines[-3:]):
            return  # a model that does not see what it asked for would ask for it again
        if not waiting:
            with pytest.raises(ConfigError, match="nothing waits"):
                await conversation.resume({"c0": True})
            return
        said = "paid 1" if approved else "Declined by the user. Do not try it again unless the user asks for it."
        self.book.lines.append(Line("tool", said, of=waiting))
        self.book.waiting = ""
        result = await conversation.resume({waiting: approved})
        assert result.text == self.book.answer()

    async def regenerate(self, conversation: Conversation, _: None) -> None:
        ask = self.book.regenerate()
        if ask is None:
            with pytest.raises(ConfigError, match="nothing to answer anew"):
                await conversation.rewrite("regenerate")
            return
        kind = ask.text.split()[-1]
        if kind == "fails":
            with pytest.raises(BadRequest):
                await conversation.rewrite("regenerate")
            return
        self.book.calls(kind)
        result = await conversation.rewrite("regenerate")
        if kind != "pay":
            assert result.text == self.book.answer()

    async def show(self, conversation: Conversation, changes: Sequence[tuple[int, bool, bool]]) -> None:
        lines = self.book.lines
        if not lines:
            with pytest.raises(StoreError):
                await conversation.set_visibility({"nobody": (True, True)})
            return
        entries = await everything(conversation)
        wanted = {number % len(lines): (transcript, context) for number, transcript, context in changes}
        await conversation.set_visibility({entries[place].id: axes for place, axes in wanted.items()})
        for place, (transcript, context) in wanted.items():
            lines[place].transcript, lines[place].context = transcript, context

    async def page(self, conversation: Conversation, where: tuple[int | None, int | None, int, int | None]) -> None:
        before, after, limit, anchor = where
        page = await conversation.history(before, after, limit, anchor)
        end = len(self.book.lines) if anchor is None else min(anchor, len(self.book.lines))
        numbers = [n for n in range(1, end + 1) if (before is None or n < before) and (after is None or n > after)]
        part = numbers[-limit:] if after is None else numbers[:limit]
        assert flat(page.entries) == [self.book.lines[n - 1] for n in part]
        assert page.anchor == end
        more = len(part) < len(numbers)
        assert page.next == ((part[0] if after is None else part[-1]) if more else None)

    async def walk(self, conversation: Conversation, how: tuple[bool, int]) -> None:
        """Read all pages with the first one's anchor, while a message is answered between any two."""
        forwards, limit = how
        before = list(self.book.lines)
        page = await conversation.history(after=0 if forwards else None, limit=limit)
        parts = [flat(page.entries)]
        for _ in range(4):
            if page.next is None:
                break
            await self.ask(conversation, "plain")
            at = {"after": page.next} if forwards else {"before": page.next}
            page = await conversation.history(limit=limit, anchor=page.anchor, **at)
            parts.append(flat(page.entries))
        read = [line for part in (parts if forwards else parts[::-1]) for line in part]
        # A denial of what waited is no change of what was there.
        assert read == (before[: len(read)] if forwards else before[len(before) - len(read) :])

    async def forget(self, conversation: Conversation, _: None) -> None:
        await conversation.forget()
        self.book.lines.clear()
        self.book.waiting = ""


def same_file(path: Path) -> Any:
    """A store on the same file each time it is opened."""
    return lambda before=None: SqliteStore(path / "chat.db", synchronous="NORMAL")


def same_object(path: Path) -> Any:
    return lambda before=None: InMemoryStore() if before is None else before


@pytest.mark.parametrize("place", [same_object, same_file])
@settings(deadline=None, max_examples=45)
@given(deeds=st.lists(deeds, min_size=3, max_size=14))
def test_any_conversation_is_what_a_plain_list_says_and_its_model_sees_what_that_shows(
    place: Any, deeds: list[tuple[str, Any]]
) -> None:
    async def main(make: Any) -> None:
        machine, model = Machine(), Mirror()
        agent: Agent[Any] = Agent(
            model=model,
            tools=[look, pay],
            instructions="Be brief.",
            confirm=lambda request: Suspend() if request.tool.name == "pay" else True,
            loop=ToolLoop(compaction=None),
        )
        left, store = list(deeds), make()
        while left:
            async with open_runtime(agent, store=store) as runtime:
                conversation = runtime.conversation("c")
                assert flat(await everything(conversation)) == machine.book.lines
                while left:
                    deed = left.pop(0)
                    if deed[0] == "reopen":
                        store = make(store)
                        break
                    await machine.do(conversation, deed)
                    assert machine.book.serial == model.serial

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, place(Path(folder)))


# --- stores alone ---------------------------------------------------------------------------------------------------

keys = st.sampled_from(["a", "b"])
commits = st.tuples(
    st.just("commit"), keys, st.integers(0, 3), st.sampled_from([None, 0, -1, 1]), st.sampled_from([None, 0, -1])
)
leases = st.tuples(st.just("acquire"), keys, st.sampled_from(["here", "there"]), st.sampled_from([5.0, 50.0]))
passing = st.tuples(st.just("pass"), st.sampled_from([1.0, 5.0, 49.0, 50.0]))
store_deeds = st.one_of(
    commits,
    commits,
    leases,
    st.tuples(st.just("release"), keys, st.sampled_from(["here", "there"])),
    passing,
    st.tuples(st.just("find"), keys, st.integers(0, 4)),
    st.tuples(st.just("forget"), keys),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("cut"), keys, st.integers(0, 6)),
)


@attrs.define(eq=False)
class Ledger:
    """What a store is to know: versions, entries, and who holds what until when."""

    versions: dict[str, int] = attrs.Factory(dict)
    entries: dict[str, list[str]] = attrs.Factory(dict)
    holders: dict[str, tuple[str, float]] = attrs.Factory(dict)
    tokens: dict[str, int] = attrs.Factory(dict)
    now: float = 0.0
    serial: int = 0

    def new(self, count: int) -> list[str]:
        self.serial += count
        return [f"e{self.serial - n}" for n in range(count)]


def entry(name: str) -> Entry:
    private = {"idempotency_key": f"key {int(name[1:]) % 5}"}
    return Entry(name, 1.0, "user", Message("user", name), private=private)


async def do(store: Store, ledger: Ledger, deed: tuple[Any, ...]) -> None:
    name, *rest = deed
    if name == "commit":
        key, count, off, older = rest
        expect = None if off is None else ledger.versions.get(key, 0) + off
        token = None if older is None else ledger.tokens.get(key, 0) + older
        if token is not None and token < 1:
            token = None  # no token that was ever given out
        names = ledger.new(count)
        late = off not in (None, 0) or (token is not None and older != 0)
        change = Change(append=[entry(name) for name in names], private={"last": names})
        if late:
            with pytest.raises(StoreConflict):
                await store.commit(key, change, expect, token)
            return
        record = await store.commit(key, change, expect, token)
        ledger.versions[key] = ledger.versions.get(key, 0) + 1
        ledger.entries.setdefault(key, []).extend(names)
        assert (record.version, record.entries_count) == (ledger.versions[key], len(ledger.entries[key]))
        assert record.private == {"last": names}
    elif name == "acquire":
        key, owner, seconds = rest
        holder, end = ledger.holders.get(key, ("", 0.0))
        token = await store.acquire(key, owner, seconds)
        if holder not in ("", owner) and ledger.now < end:
            assert token is None
            return
        ledger.tokens[key] = ledger.tokens.get(key, 0) + (holder != owner)
        ledger.holders[key] = (owner, ledger.now + seconds)
        assert token == ledger.tokens[key]
    elif name == "release":
        key, owner = rest
        await store.release(key, owner)
        if ledger.holders.get(key, ("", 0.0))[0] == owner:
            del ledger.holders[key]
    elif name == "find":
        key, number = rest
        found = await store.find(key, f"key {number}")
        wanted = [one for one in ledger.entries.get(key, []) if int(one[1:]) % 5 == number]
        assert (found.id if found else None) == (wanted[0] if wanted else None)
    elif name == "forget":
        await store.forget(rest[0])
        ledger.versions.pop(rest[0], None)
        ledger.entries.pop(rest[0], None)
    elif name == "cut":
        key, place = rest
        there = ledger.entries.get(key, [])
        if there:
            place %= len(there)
            await store.commit(key, Change(truncate_after=there[place]))
            ledger.versions[key] += 1
            del there[place + 1 :]


@pytest.mark.parametrize("place", [same_object, same_file])
@settings(deadline=None, max_examples=45)
@given(program=st.lists(store_deeds, min_size=3, max_size=25))
def test_a_store_that_is_opened_again_at_any_time_knows_what_a_plain_ledger_knows(
    place: Any, program: list[tuple[Any, ...]]
) -> None:
    async def main(folder: Path, clock: MockClock) -> None:
        def make(before: Any = None) -> Any:
            if place is same_object:
                return before or InMemoryStore()
            return SqliteStore(folder / "chat.db", synchronous="NORMAL", clock=lambda: 1000.0 + ledger.now)

        ledger = Ledger()
        store = make()
        for deed in program:
            if deed[0] == "pass":
                clock.jump(deed[1])
                ledger.now += deed[1]
            elif deed[0] == "reopen":
                if isinstance(store, SqliteStore):
                    await store.aclose()
                store = make(store)
            else:
                await do(store, ledger, deed)
            for key in ("a", "b"):
                record: Record = await store.load(key)
                assert record.version == ledger.versions.get(key, 0)
                page: Page = await store.entries(key, after=0, limit=1000)
                assert [one.id for one in page.entries] == ledger.entries.get(key, [])
            assert list(await store.keys()) == sorted(ledger.versions)
        if isinstance(store, SqliteStore):
            await store.aclose()

    with tempfile.TemporaryDirectory() as name:
        clock = MockClock()
        trio.run(main, Path(name), clock, clock=clock)
