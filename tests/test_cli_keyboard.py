"""Lines from descriptors and objects, keys that are no text, and Ctrl-C."""

from __future__ import annotations

import io
import os
import queue
import signal
import threading
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from goliath_actors._cli import keyboard
from goliath_actors._cli.keyboard import (
    FdLines,
    FdReader,
    line_reader,
    listen_for_interrupts,
    pump_lines,
    without_keys,
)


def test_keys_of_the_cursor_are_no_part_of_a_line() -> None:
    assert without_keys("he\x1b[Al\x1b[1;5Dlo\x1bOP\x1b[3~\x1b") == "hello"
    assert without_keys("a\tb\x00\x08c 日本") == "a\tbc 日本"


@given(st.text())
def test_a_typed_line_is_printable_or_tabs(line: str) -> None:
    assert all(c.isprintable() or c == "\t" for c in without_keys(line))


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")), max_size=8), st.integers(1, 9))
async def test_lines_of_a_pipe_come_out_whole_however_they_arrive(lines: list[str], size: int) -> None:
    read, write = os.pipe()
    reader = FdLines(read)
    data = "".join(f"{line}\n" for line in lines).encode()

    def feed() -> None:
        for start in range(0, len(data), size):
            os.write(write, data[start : start + size])
        os.close(write)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        assert [await reader.readline() for _ in range(len(lines) + 1)] == [*(f"{line}\n" for line in lines), ""]
    finally:
        feeder.join()
        os.close(read)


async def test_a_last_line_without_a_new_line_counts_and_bad_bytes_are_replaced() -> None:
    read, write = os.pipe()
    os.write(write, b"one\r\nt\xffwo")
    os.close(write)
    reader = FdLines(read)
    assert [await reader.readline() for _ in range(3)] == ["one\r\n", "t\ufffdwo", ""]
    os.close(read)


async def test_a_line_without_end_is_given_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyboard, "MAX_LINE", 10)
    read, write = os.pipe()
    os.write(write, b"x" * 25)
    reader = FdLines(read)
    assert await reader.readline() == "x" * 25 + "\n"  # nobody has ended the line yet
    os.write(write, b"rest\n")
    os.close(write)
    assert [await reader.readline() for _ in range(2)] == ["rest\n", ""]
    os.close(read)


async def test_a_stream_without_a_descriptor_is_read_by_its_own_method() -> None:
    send, receive = trio.open_memory_channel[str](10)
    await pump_lines(line_reader(io.StringIO("one\ntwo\r\nthree")), send)
    assert [line async for line in receive] == ["one", "two", "three"]


async def test_a_stream_that_goes_away_is_an_input_that_ends() -> None:
    async def gone() -> str:
        raise OSError("the terminal went away")

    send, receive = trio.open_memory_channel[str](1)
    await pump_lines(gone, send)
    assert [line async for line in receive] == []


async def test_nobody_listening_ends_the_reading() -> None:
    send, receive = trio.open_memory_channel[str](1)
    receive.close()
    await pump_lines(line_reader(io.StringIO("one\ntwo\n")), send)


async def test_leaving_does_not_wait_for_a_key() -> None:
    """Nor where the input is an object whose `readline` nothing can end."""
    keys: queue.Queue[str] = queue.Queue()
    waiting = threading.Event()

    def readline(size: int = -1) -> str:
        waiting.set()
        return keys.get()

    slow = io.StringIO()
    slow.readline = readline  # type: ignore[method-assign]  # as an object that is read in its own way
    send, receive = trio.open_memory_channel[str](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump_lines, line_reader(slow), send)
        await trio.to_thread.run_sync(waiting.wait)
        nursery.cancel_scope.cancel()
    assert [line async for line in receive] == []
    keys.put("")  # lets the abandoned thread end


async def test_a_file_and_what_is_no_descriptor_are_read_like_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "asks").write_text("one\ntwo")
    file = os.open(tmp_path / "asks", os.O_RDONLY)
    assert [await FdReader(file).read() for _ in range(2)] == [b"one\ntwo", b""]
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await FdReader(file).read()


async def test_a_read_that_was_cancelled_before_it_began_reads_nothing() -> None:
    read, write = os.pipe()
    os.write(write, b"a line\n")
    with trio.CancelScope() as scope:
        scope.cancel()
        await FdReader(read).read()
    assert scope.cancelled_caught
    assert os.read(read, 100) == b"a line\n"
    os.close(read)
    os.close(write)


async def test_leaving_gives_up_a_read_that_was_robbed_of_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two programs wait at one terminal both see a key, and the one that is slower waits on in its read."""
    robbed = threading.Event()
    monkeypatch.setattr(keyboard, "PATIENCE", 0.01)
    monkeypatch.setattr(keyboard, "_wait_for_either", lambda fd, rung: robbed.set())
    read, write = os.pipe()
    reader = FdReader(read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        await trio.to_thread.run_sync(robbed.wait)
        nursery.cancel_scope.cancel()
    os.close(write)  # lets the abandoned thread end
    await reader._limiter.acquire_on_behalf_of(read)
    os.close(read)


async def test_every_ctrl_c_is_heard_in_the_loop_and_the_old_handler_comes_back() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in signals]
    heard: list[str] = []
    ended: list[int] = []
    with listen_for_interrupts(lambda: heard.append("ctrl-c"), ended.append):
        for _ in range(keyboard.STUCK + 2):
            signal.raise_signal(signal.SIGINT)
            await wait_all_tasks_blocked()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
            await wait_all_tasks_blocked()
    assert heard == ["ctrl-c"] * (keyboard.STUCK + 2)
    assert ended == [signal.SIGTERM, signal.SIGHUP]
    assert [signal.getsignal(number) for number in signals] == before


async def test_outside_the_main_thread_signals_are_left_alone() -> None:
    def other() -> None:
        async def listen() -> None:
            with listen_for_interrupts(lambda: None, lambda number: None):
                await trio.lowlevel.checkpoint()

        trio.run(listen)

    before = signal.getsignal(signal.SIGINT)
    await trio.to_thread.run_sync(other)
    assert signal.getsignal(signal.SIGINT) is before
