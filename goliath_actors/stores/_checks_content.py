"""Checks of what a store keeps and how it is read: records, entries, pages, keys."""

from __future__ import annotations

from typing import Any

import attrs

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import StoreError
from goliath_actors.values import Exchange, Memory, Message, Page, Step, ToolCall

from ._trial import Trial, entry, everything, ids, raises, remembered, same


async def an_unknown_key_has_an_empty_record_of_version_0(trial: Trial) -> None:
    async with trial.opened() as store:
        same(await store.load(trial.key), Record(), "load")
        same(await store.entries(trial.key), Page([], 0, None), "entries")
        same(await store.find(trial.key, "i"), None, "find")
        await store.forget(trial.key)
        await store.release(trial.key, "nobody")


async def a_commit_returns_what_load_returns_and_raises_the_version_by_one(trial: Trial) -> None:
    async with trial.opened() as store:
        change = Change(remembered("s", Exchange("q", "a", 2.5)), {"title": "t"}, {"cursor": 1}, 2, [entry("1")])
        expected = Record(1, remembered("s", Exchange("q", "a", 2.5)), {"title": "t"}, {"cursor": 1}, 2, 1)
        same(await store.commit(trial.key, change), expected, "first commit")
        same(await store.load(trial.key), expected, "load")
        same(await store.commit(trial.key, Change()), attrs.evolve(expected, version=2), "a commit of nothing")


async def unset_fields_stay_and_mappings_are_replaced_whole(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(remembered("s"), {"a": 1, "b": 2}, {"c": 3}, 4))
        after = await store.commit(trial.key, Change(metadata={"a": 5}))
        same(after, Record(2, remembered("s"), {"a": 5}, {"c": 3}, 4), "only metadata set")
        after = await store.commit(trial.key, Change(memory=Memory(), private={}, failures=0))
        same(after, Record(3, Memory(), {"a": 5}, {}, 0), "the rest emptied")


async def all_of_memory_and_entries_comes_back_but_raw_output(trial: Trial) -> None:
    steps = (
        Step(0, "tool", "look", "list_tasks", "c1", {"day": "today", "n": [1, None, 2.5]}, result="3", output=object()),
        Step(1, "tool", "add", "create_task", "c2", {}, "skipped", "policy", "read-only", writes=True),
        Step(2, "tool", "again", "list_tasks", "c3", {"day": "today"}, "cached", from_step=0, result="3"),
        Step(3, "answer", "say so", text="three"),
    )
    calls = (ToolCall("c1", "list_tasks", '{"day": "today"}', {"day": "today"}), ToolCall("c2", "x", "{bad"))
    entries = [
        Entry("1", 1.25, "user", Message("user", "hi", name="ann"), True, False, {"idempotency_key": "i"}),
        Entry("2", 2.25, "assistant", Message("assistant", "", calls), False, True),
        Entry("3", 3.25, "tool", Message("tool", "3", tool_call_id="c1"), False, False, {"nested": {"a": [True]}}),
        Entry("4", 4.25, "summary", Message("system", "in short")),
    ]
    stored = (attrs.evolve(steps[0], output=None), *steps[1:])
    async with trial.opened() as store:
        memory = remembered("s", Exchange("q", "a", 1.5, True, steps), Exchange("r", "b", 2.5))
        await store.commit(trial.key, Change(memory=memory, append=entries))
        same((await store.load(trial.key)).memory.recent[0].steps, stored, "steps")
        same((await store.load(trial.key)).memory.recent[1], Exchange("r", "b", 2.5), "second exchange")
        same(list((await store.entries(trial.key)).entries), entries, "entries")


async def every_text_comes_back_as_it_was(trial: Trial) -> None:
    texts = [
        "a\x00b",
        "日本\U0001f600",
        "\ud83d half",
        "' OR 1=1 --",
        "%_*?[",
        "\n\r\u2028",
        "é\ue000\uffff",
        "x" * 70_000,
    ]
    async with trial.opened() as store:
        for text in texts:
            key = f"{trial.key} {text[:500]}"
            entry = Entry(text, 1.0, "user", Message("user", text), private={"idempotency_key": text, text: text})
            await store.commit(key, Change(memory=Memory(text), metadata={text: [text]}, append=[entry]))
            record = await store.load(key)
            same((record.memory.summary, record.metadata), (text, {text: [text]}), "record")
            same(await store.find(key, text), entry, "entry")
        found = await store.keys(trial.key, limit=100)
        same(list(found), sorted(f"{trial.key} {text[:500]}" for text in texts), "keys")


async def what_callers_hold_is_apart_from_what_is_kept(trial: Trial) -> None:
    async with trial.opened() as store:
        mine: dict[str, Any] = {"list": [1]}
        await store.commit(trial.key, Change(metadata=mine, private=mine, append=[entry("1", private=mine)]))
        mine["list"].append(2)
        kept: Any = await store.load(trial.key)
        page: Any = await store.entries(trial.key)
        for mapping in (kept.metadata, kept.private, page.entries[0].private):
            same(mapping, {"list": [1]}, "after the caller changed its own")
            try:
                mapping["list"].append(3)
            except TypeError:
                continue  # read-only is fine, too
        again = await store.load(trial.key)
        same((again.metadata, again.private), ({"list": [1]}, {"list": [1]}), "after a reader changed its own")
        same((await store.entries(trial.key)).entries[0].private, {"list": [1]}, "after a reader changed its own")


async def pages_go_backwards_and_forwards(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(append=[entry(f"{n}") for n in range(1, 8)]))

        async def page(**where: int) -> tuple[list[str], int, int | None]:
            found = await store.entries(trial.key, **where)
            return ids(found), found.anchor, found.next

        same(await page(limit=3), (["5", "6", "7"], 7, 5), "the newest")
        same(await page(limit=3, before=5), (["2", "3", "4"], 7, 2), "backwards")
        same(await page(limit=3, before=2), (["1"], 7, None), "the last one backwards")
        same(await page(limit=3, after=0), (["1", "2", "3"], 7, 3), "forwards")
        same(await page(limit=3, after=3), (["4", "5", "6"], 7, 6), "forwards")
        same(await page(limit=3, after=6), (["7"], 7, None), "the last one forwards")
        same(await page(limit=3, after=2, before=5), (["3", "4"], 7, None), "between")
        same(await page(limit=7), ([f"{n}" for n in range(1, 8)], 7, None), "all of them")
        same(await page(before=1), ([], 7, None), "before the first")
        same(await page(after=7), ([], 7, None), "after the last")
        same(await page(after=99, before=99), ([], 7, None), "beyond")


async def an_anchor_keeps_pages_from_shifting(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(append=[entry(f"{n}") for n in range(1, 6)]))
        first = await store.entries(trial.key, limit=2)
        await store.commit(trial.key, Change(append=[entry(f"{n}") for n in range(6, 9)]))
        second = await store.entries(trial.key, limit=2, before=first.next, anchor=first.anchor)
        same((ids(first), ids(second)), (["4", "5"], ["2", "3"]), "two pages with commits between")
        again = await store.entries(trial.key, limit=2, anchor=first.anchor)
        same((ids(again), again.anchor), (["4", "5"], 5), "the newest of an old anchor")
        forwards = await store.entries(trial.key, limit=9, after=3, anchor=first.anchor)
        same((ids(forwards), forwards.next), (["4", "5"], None), "forwards up to an old anchor")
        same(ids(await store.entries(trial.key, anchor=0)), [], "an anchor of nothing")


async def truncation_drops_what_is_behind_an_entry(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(append=[entry(f"{n}") for n in range(1, 6)]))
        record = await store.commit(trial.key, Change(truncate_after="3", append=[entry("4"), entry("x")]))
        same((record.entries_count, record.version), (5, 2), "two dropped, two added")
        same(ids(await store.entries(trial.key)), ["1", "2", "3", "4", "x"], "truncation comes before appending")
        newest = await store.entries(trial.key, limit=1)
        same((newest.anchor, newest.next), (5, 5), "the position of the last one is the count")
        before = await everything(store, trial.key)
        await raises(StoreError, store.commit(trial.key, Change(failures=9, truncate_after="gone")), "unknown id")
        same(await everything(store, trial.key), before, "after the error")
        same((await store.commit(trial.key, Change(truncate_after=""))).entries_count, 0, "all dropped")
        same((await store.entries(trial.key)), Page([], 0, None), "all dropped")


async def visibility_changes_alone(trial: Trial) -> None:
    async with trial.opened() as store:
        second = entry("2", private={"p": 1})
        await store.commit(trial.key, Change(append=[entry("1"), second]))
        change = Change(append=[entry("3")], visibility={"2": (False, True), "3": (True, False)})
        await store.commit(trial.key, change)
        expected = [
            entry("1"),
            attrs.evolve(second, transcript_visible=False),
            attrs.evolve(entry("3"), context_visible=False),
        ]
        same(list((await store.entries(trial.key)).entries), expected, "entries")
        before = await everything(store, trial.key)
        for bad in (
            Change(visibility={"1": (False, False), "x": (True, True)}),
            Change(truncate_after="1", visibility={"2": (True, True)}),
        ):
            await raises(StoreError, store.commit(trial.key, bad), "unknown id")
            same(await everything(store, trial.key), before, "after the error")


async def an_id_is_taken_once(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(append=[entry("1"), entry("2")]))
        before = await everything(store, trial.key)
        for append in ([entry("3"), entry("1")], [entry("3"), entry("3")]):
            await raises(StoreError, store.commit(trial.key, Change(failures=5, append=append)), "an id twice")
            same(await everything(store, trial.key), before, "after the error")
        await store.commit(f"{trial.key} other", Change(append=[entry("1")]))
        record = await store.commit(trial.key, Change(truncate_after="1", append=[entry("2")]))
        same(record.entries_count, 2, "an id that was dropped is free")


async def entries_are_found_by_their_idempotency_key(trial: Trial) -> None:
    async with trial.opened() as store:
        first, second = entry("1", private={"idempotency_key": "i"}), entry("2", private={"idempotency_key": "j"})
        third = entry("3", private={"idempotency_key": "i"})
        await store.commit(trial.key, Change(append=[entry("0", private={"note": "i"}), first, second]))
        await store.commit(trial.key, Change(append=[third]))
        same(await store.find(trial.key, "i"), first, "the oldest")
        same(await store.find(trial.key, "j"), second, "another")
        same(await store.find(trial.key, "k"), None, "none")
        same(await store.find(f"{trial.key} other", "i"), None, "in another conversation")
        await store.commit(trial.key, Change(truncate_after="0"))
        same(await store.find(trial.key, "i"), None, "dropped")


async def forgetting_leaves_nothing(trial: Trial) -> None:
    async with trial.opened() as store:
        change = Change(Memory("s"), {"a": 1}, {"b": 1}, 2, [entry("1", private={"idempotency_key": "i"})])
        await store.commit(trial.key, change)
        await store.commit(f"{trial.key} other", change)
        await store.forget(trial.key)
        same(await everything(store, trial.key), (Record(), []), "forgotten")
        same(await store.find(trial.key, "i"), None, "find")
        same(list(await store.keys(trial.key)), [f"{trial.key} other"], "keys")
        same((await store.commit(trial.key, Change(append=[entry("1")]), expect=0)).entries_count, 1, "used again")


async def keys_come_in_order_page_by_page(trial: Trial) -> None:
    async with trial.opened() as store:
        prefix = f"{trial.key} "
        names = [prefix + name for name in ("b", "a", "aa", "Z", "é", "\U0001f600", "\ue000", "_", "%")]
        for name in (*names, f"{trial.key}!", f"{trial.key}"):
            await store.commit(name, Change())
        found: list[str] = []
        while page := await store.keys(prefix, found[-1] if found else None, limit=4):
            found += page
        same(found, sorted(names), "all pages")
        same(list(await store.keys(prefix + "a")), [prefix + "a", prefix + "aa"], "a longer prefix")
        same(
            list(await store.keys(prefix, after=prefix + "zzz", limit=1)),
            [prefix + "é"],
            "behind a key that is not there",
        )
        same(list(await store.keys(prefix, after="")), sorted(names), "from before the prefix")
