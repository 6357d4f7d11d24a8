"""Checks of who may write and when: versions, leases, cancellation, and a second life on disk."""

from __future__ import annotations

from random import Random

import trio
from trio.testing import assert_checkpoints

from goliath_actors.abc import Change
from goliath_actors.errors import StoreConflict
from goliath_actors.values import Exchange, Memory

from ._reference import Reference, random_program, step
from ._trial import Trial, entry, everything, ids, raises, remembered, same


async def a_conflict_changes_nothing(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.commit(trial.key, Change(remembered("s"), {"a": 1}, {"b": 2}, 3, [entry("1"), entry("2")]))
        before = await everything(store, trial.key)
        change = Change(Memory("t"), {}, {}, 0, [entry("3")], visibility={"1": (False, False)}, truncate_after="1")
        for stale in (0, 2):
            await raises(StoreConflict, store.commit(trial.key, change, expect=stale), f"expect={stale}")
            same(await everything(store, trial.key), before, "after the conflict")
        for wrong in (
            Change(append=[entry("1")]),
            Change(visibility={"x": (True, True)}),
            Change(truncate_after="x"),
        ):
            await raises(StoreConflict, store.commit(trial.key, wrong, expect=0), "late and wrong: late comes first")
            same(await everything(store, trial.key), before, "after the conflict")
        other = f"{trial.key} other"
        await raises(StoreConflict, store.commit(other, Change(failures=1), expect=1), "expect=1 of nothing")
        same((await store.load(other)).version, 0, "after the conflict")
        same((await store.commit(trial.key, Change(), expect=1)).version, 2, "the right version")


async def one_of_many_writers_with_the_same_version_wins(trial: Trial) -> None:
    outcomes: list[object] = []
    async with trial.opened() as store:

        async def write(number: int) -> None:
            try:
                await store.commit(trial.key, Change(failures=number, append=[entry(f"{number}")]), expect=0)
            except StoreConflict:
                return
            outcomes.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(write, number)
        record = await store.load(trial.key)
        same(([record.failures], record.version, record.entries_count), (outcomes, 1, 1), "the winner")


async def commits_at_the_same_time_are_all_kept(trial: Trial) -> None:
    versions: list[tuple[int, int]] = []
    async with trial.opened() as store:

        async def write(number: int) -> None:
            for turn in range(5):
                name = f"{number}-{turn}"
                record = await store.commit(trial.key, Change(append=[entry(name + "a"), entry(name + "b")]))
                versions.append((record.version, record.entries_count))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(write, number)
        same(sorted(versions), [(n, 2 * n) for n in range(1, 51)], "versions and counts, in order")
        order = ids(await store.entries(trial.key, after=0, limit=100))
        pairs = [(id[:-1], other[:-1]) for id, other in zip(order[::2], order[1::2], strict=True)]
        same([pair for pair in pairs if pair[0] != pair[1]], [], "entries of one commit stand together")
        own = [first for first, _ in pairs if first.startswith("3-")]
        same(own, [f"3-{turn}" for turn in range(5)], "one writer's own order")


async def leases_are_exclusive_and_their_tokens_grow(trial: Trial) -> None:
    async with trial.opened() as store:
        same(await store.acquire(trial.key, "here", 60), 1, "the first token")
        same(await store.acquire(trial.key, "here", 60), 1, "a renewal")
        same(await store.acquire(trial.key, "there", 60), None, "held by another")
        await store.release(trial.key, "there")
        same(await store.acquire(trial.key, "there", 60), None, "released by somebody who has it not")
        await store.release(trial.key, "here")
        second = await store.acquire(trial.key, "there", 60)
        same(second, 2, "a new owner")
        await store.commit(trial.key, Change(), token=second)
        await store.forget(trial.key)
        same(await store.acquire(trial.key, "here", 60), None, "forgetting the conversation keeps the lease")
        await store.release(trial.key, "there")
        same(await store.acquire(trial.key, "there", 60), 3, "after a release")
        same(await store.acquire(f"{trial.key} other", "here", 60), 1, "another conversation")


async def a_lease_runs_out(trial: Trial) -> None:
    async with trial.opened() as store:
        first = await store.acquire(trial.key, "here", 0.05)
        await trial.pass_time(0.06)
        second = await store.acquire(trial.key, "there", 0.05)
        same((first, second), (1, 2), "taken over")
        await trial.pass_time(0.06)
        same(await store.acquire(trial.key, "there", 60), 2, "late, but nobody took it: the token stays")


async def a_renewed_lease_lasts_from_its_renewal(trial: Trial) -> None:
    async with trial.opened() as store:
        first = await store.acquire(trial.key, "here", 2)
        await trial.pass_time(1.2)
        same((first, await store.acquire(trial.key, "here", 2)), (1, 1), "a renewal")
        await trial.pass_time(1.2)
        same(await store.acquire(trial.key, "there", 2), None, "the first time would be over, the renewed one is not")
        await trial.pass_time(1.2)
        same(await store.acquire(trial.key, "there", 2), 2, "now it is over")


async def a_lease_binds_only_those_who_show_a_token(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.acquire(trial.key, "here", 60)
        same((await store.commit(trial.key, Change(append=[entry("1")]))).version, 1, "a commit without a token")
        same((await store.commit(trial.key, Change(), 1, 1)).version, 2, "the holder's, beside it")
        same(ids(await store.entries(trial.key)), ["1"], "reading")
        same((await store.load(trial.key)).version, 2, "reading")
        same(await store.acquire(trial.key, "there", 60), None, "nothing of it gave the lease away")


async def an_older_token_is_refused(trial: Trial) -> None:
    async with trial.opened() as store:
        await store.acquire(trial.key, "here", 60)
        await store.commit(trial.key, Change(append=[entry("1")]), token=1)
        await store.release(trial.key, "here")
        same((await store.commit(trial.key, Change(), token=1)).version, 2, "released, and nobody else came")
        await store.acquire(trial.key, "there", 60)
        before = await everything(store, trial.key)
        late = store.commit(trial.key, Change(failures=1, append=[entry("2")]), expect=2, token=1)
        await raises(StoreConflict, late, "the older token")
        same(await everything(store, trial.key), before, "after the conflict")
        same((await store.commit(trial.key, Change(), expect=2, token=2)).version, 3, "the newest token")


async def every_method_is_a_checkpoint(trial: Trial) -> None:
    async with trial.opened() as store:
        with assert_checkpoints():
            await store.commit(trial.key, Change(append=[entry("1")]))
        with assert_checkpoints():
            await store.load(trial.key)
        with assert_checkpoints():
            await store.entries(trial.key)
        with assert_checkpoints():
            await store.keys(trial.key)
        with assert_checkpoints():
            await store.find(trial.key, "i")
        with assert_checkpoints():
            await store.acquire(trial.key, "here", 60)
        with assert_checkpoints():
            await store.release(trial.key, "here")
        with assert_checkpoints():
            await store.forget(trial.key)


async def a_cancelled_commit_is_there_wholly_or_not_at_all(trial: Trial) -> None:
    async with trial.opened() as store:

        async def cancel_after(checkpoints: int, scope: trio.CancelScope) -> None:
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        version = 0
        for patience in range(12):
            finished = False
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel_after, patience, scope)
                    if patience == 0:
                        scope.cancel()
                    await store.commit(
                        trial.key, Change(failures=patience, append=[entry(f"{patience}a"), entry(f"{patience}b")])
                    )
                    finished = True
            record = await store.load(trial.key)
            if finished:
                same(record.version, version + 1, "a commit that returned")
            if record.version != version:
                same((record.version, record.failures), (version + 1, patience), "the whole change")
                same(ids(await store.entries(trial.key, limit=2)), [f"{patience}a", f"{patience}b"], "the whole change")
            same(record.entries_count, 2 * record.version, "the whole change")
            version = record.version


async def a_durable_store_is_found_again(trial: Trial) -> None:
    async with trial.opened() as store:
        if not getattr(store, "durable", False):
            return
        change = Change(remembered("s", Exchange("q", "a", 1.0)), {"a": 1}, {"b": 2}, 3, [entry("1"), entry("2")])
        await store.commit(trial.key, change)
        await store.acquire(trial.key, "here", 60)
        await store.release(trial.key, "here")
        before = await everything(store, trial.key)
    async with trial.opened() as store:
        same(await everything(store, trial.key), before, "opened again")
        same(await store.acquire(trial.key, "there", 60), 2, "tokens go on")


async def it_agrees_with_a_plain_reference(trial: Trial) -> None:
    async with trial.opened() as store:
        for seed in range(8):
            reference = Reference()
            # A seeded generator: the same programs for every store, each time.
            for serial, op in enumerate(random_program(Random(seed), 40)):
                real, right = await step(store, reference, op, serial, f"{trial.key} {seed} ")
                same(real, right, f"program {seed}, step {serial}, {op}")
