"""Worker threads for plain functions: bounded twice, abandoned on cancellation, never lost places."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from goliath_actors._threads import CONVERSATION_THREADS, ConversationThreads, ToolThreads


async def test_a_function_runs_in_a_thread_and_its_error_comes_back_as_itself() -> None:
    threads = ConversationThreads(ToolThreads())
    assert await threads.run(threading.get_ident) != threading.get_ident()
    error = LookupError("k")

    def fails() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        await threads.run(fails)
    assert caught.value is error


async def test_one_conversation_has_at_most_its_share_and_others_go_on() -> None:
    shared = ToolThreads()
    hung, other = ConversationThreads(shared), ConversationThreads(shared)
    release = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2 * CONVERSATION_THREADS):
            nursery.start_soon(hung.run, release.wait)
        await wait_all_tasks_blocked()
        assert shared.limiter.borrowed_tokens == CONVERSATION_THREADS
        assert await other.run(lambda: "quick") == "quick"
        release.set()
    assert shared.limiter.borrowed_tokens == 0


async def test_an_abandoned_thread_keeps_its_places_until_it_ends() -> None:
    shared = ToolThreads(trio.CapacityLimiter(1))
    threads = ConversationThreads(shared)
    release, started = threading.Event(), threading.Event()

    def hang() -> str:
        started.set()
        release.wait()
        return "too late"

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.run, hang)
            await trio.to_thread.run_sync(started.wait)
            scope.cancel()
    assert scope.cancelled_caught
    assert shared.limiter.borrowed_tokens == 1
    release.set()
    with trio.fail_after(5):
        assert await ConversationThreads(shared).run(lambda: "next") == "next"
    assert threads._own is not None
    assert (shared.limiter.borrowed_tokens, threads._own.borrowed_tokens) == (0, 0)


async def test_a_call_cancelled_before_its_thread_began_never_runs_and_gives_its_place_back() -> None:
    shared = ToolThreads(trio.CapacityLimiter(1))
    threads = ConversationThreads(shared)
    release = threading.Event()
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ConversationThreads(shared).run, release.wait)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await threads.run(lambda: ran.append("ran"))
        assert scope.cancelled_caught
        assert threads._own is not None
        assert threads._own.borrowed_tokens == 0
        release.set()
    assert ran == []
