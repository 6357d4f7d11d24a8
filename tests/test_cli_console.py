"""A chat at a real terminal, in this process: prompts that can be edited, Ctrl-C, and what is left behind."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import termios
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from goliath_actors._cli.command import Terminal, run_command
from goliath_actors._cli.console import Console, PlainPrompt, open_prompter
from goliath_actors._cli.parser import build_parser
from goliath_actors._cli.screen import Screen

SECONDS = 30.0  # reached only by a hang


@attrs.define(eq=False)
class Hands:
    """Somebody at the other end of a terminal, in a thread."""

    fd: int
    seen: str = ""
    _read_to: int = 0
    failure: Exception | None = None

    def waits_for(self, text: str) -> None:
        """Read until `text` shows up behind what was waited for before."""
        end = time.monotonic() + SECONDS
        while (place := self.seen.find(text, self._read_to)) < 0:
            ready, _, _ = select.select([self.fd], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"{text!r} did not show up; seen: {self.seen!r}")
            self.seen += os.read(self.fd, 65536).decode().replace("\r\n", "\n")
        self._read_to = place + len(text)

    def types(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def does(self, script: Callable[[Hands], None]) -> None:
        try:
            script(self)
        except Exception as error:  # shown by the test; the chat must end whatever happened here
            self.failure = error
            self.types("\x03\x15\x04")


def chat(script: Callable[[Hands], None], *arguments: str, term: str = "xterm", columns: str = "80") -> tuple[int, str]:
    """Hold a chat while `script` has the keyboard; return the exit code and all that was on the screen."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    hands = Hands(ours)
    thread = threading.Thread(target=hands.does, args=(script,))
    environ = {"NO_COLOR": "1", "COLUMNS": columns, "TERM": term}
    with open(theirs, "r+b", buffering=0, closefd=False) as raw:
        stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # type: ignore[type-var]  # raw is enough
        terminal = Terminal(stream, stream, stream, environ, ".", ())
        thread.start()
        try:
            code = run_command(build_parser().parse_args(["chat", "--model", "demo", *arguments]), terminal)
        finally:
            thread.join()
        stream.detach()
    after = termios.tcgetattr(theirs)
    os.close(theirs)
    os.close(ours)
    if hands.failure is not None:
        raise hands.failure
    assert after == before
    return code, hands.seen


def press_ctrl_c(hands: Hands) -> None:
    """This terminal controls no process, so the signal is sent as the terminal would."""
    os.kill(os.getpid(), signal.SIGINT)


def test_lines_are_edited_fetched_back_and_answered() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("2 * 2\x7f")
        hands.types("1\r")
        hands.waits_for("2 * 1 = 2.\n")
        hands.waits_for("you> ")
        hands.types("\x1b[A\x7f4\r")
        hands.waits_for("2 * 4 = 8.\n")
        hands.waits_for("you> ")
        hands.types("\x04")

    code, seen = chat(script)
    assert code == 0
    assert "\ryou> 2 * 1\x1b[K\n" in seen


def test_a_question_that_does_not_fit_gets_a_line_of_its_own() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("add a note: milk\r")
        hands.waits_for("go ahead? [y]es, [n]o, or why not:")
        hands.waits_for("> ")
        hands.types("y\r")
        hands.waits_for("noted as number 1: milk")
        hands.waits_for("you> ")
        hands.types("\x1b[A")  # the ask, not the "y"
        hands.waits_for("add a note: milk")
        hands.types("\x15/quit\r")

    code, _ = chat(script, columns="40")
    assert code == 0


def test_ctrl_c_forgets_what_was_typed_and_the_second_one_leaves() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("half a line")
        hands.waits_for("half a line")
        press_ctrl_c(hands)
        hands.waits_for("Ctrl-C again, Ctrl-D or /quit leaves")
        hands.waits_for("you> \x1b[K")
        press_ctrl_c(hands)

    code, seen = chat(script)
    assert code == 130
    assert "\ryou> half a line\x1b[K\r\x1b[16C\n  Ctrl-C again, Ctrl-D or /quit leaves\n\ryou> \x1b[K" in seen


def test_lines_pasted_together_are_asked_one_after_the_other() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("2 * 1\r2 * 2\r2 * 3")
        hands.waits_for("2 * 1 = 2.\n")
        hands.waits_for("2 * 2 = 4.\n")
        hands.waits_for("2 * 3")
        hands.types("\r")
        hands.waits_for("2 * 3 = 6.\n")
        hands.waits_for("you> ")
        hands.types("\x04")

    assert chat(script)[0] == 0


def test_a_terminal_that_can_do_nothing_gets_plain_prompts() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("2 * 21\n")
        hands.waits_for("= 42.\n")
        hands.waits_for("you> ")
        hands.types("\x04")

    code, seen = chat(script, term="dumb")
    assert code == 0
    assert "\x1b" not in seen


def test_coming_back_from_the_shell_draws_the_prompt_again() -> None:
    def script(hands: Hands) -> None:
        hands.waits_for("you> ")
        hands.types("2 * 2")
        hands.waits_for("2 * 2")
        os.kill(os.getpid(), signal.SIGCONT)
        hands.waits_for("you> 2 * 2")
        hands.types("\r")
        hands.waits_for("= 4.\n")
        hands.waits_for("you> ")
        hands.types("\x04")

    before = signal.getsignal(signal.SIGCONT)
    assert chat(script)[0] == 0
    assert signal.getsignal(signal.SIGCONT) == before


async def test_between_prompts_whole_lines_come_from_the_terminal_and_its_end_ends_the_input() -> None:
    ours, theirs = pty.openpty()
    screen = Screen.on(io.StringIO(), {})
    send, receive = trio.open_memory_channel[str](10)
    with Console(theirs, screen).held() as console:
        os.write(ours, b"one\ntwo\npart\x04")  # Ctrl-D behind text hands it over without an end
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.pump, send)
            assert [await receive.receive(), await receive.receive()] == ["one", "two"]
            os.write(ours, b"ial\n\x04")
            assert [line async for line in receive] == ["partial"]
    os.close(theirs)
    os.close(ours)


async def test_a_terminal_that_goes_away_is_an_input_that_ends() -> None:
    ours, theirs = pty.openpty()
    send, receive = trio.open_memory_channel[str](10)
    with Console(theirs, Screen.on(io.StringIO(), {})).held() as console:
        os.close(ours)
        await console.pump(send)
    assert [line async for line in receive] == []
    os.close(theirs)


@attrs.define(eq=False)
class Threads:
    """Stands between trio and its threads: each begins when it may, and says when it has ended."""

    run_sync: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    begun: threading.Event = attrs.Factory(threading.Event)
    may_begin: threading.Event = attrs.Factory(threading.Event)
    ended: threading.Event = attrs.Factory(threading.Event)

    async def run(self, function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        def work() -> Any:
            self.begun.set()
            self.may_begin.wait()
            try:
                return function(*arguments)
            finally:
                self.ended.set()

        return await self.run_sync(work, **how)

    async def wait(self, event: threading.Event) -> None:
        await self.run_sync(event.wait, SECONDS)
        assert event.is_set()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_who_left_a_prompt_takes_no_key_from_the_next_reader(
    monkeypatch: pytest.MonkeyPatch, term: str, late: bool
) -> None:
    """Neither a thread that waits for a key, nor one that a busy machine lets begin only now."""
    ours, theirs = pty.openpty()
    threads = Threads()
    send, receive = trio.open_memory_channel[str](10)
    stdin = io.TextIOWrapper(io.FileIO(theirs, closefd=False))
    with open_prompter(stdin, Screen(io.StringIO()), {"TERM": term}, interactive=True) as prompter:
        prompter.ask("> ", "")
        with monkeypatch.context() as patch:
            patch.setattr(trio.to_thread, "run_sync", threads.run)
            async with trio.open_nursery() as nursery:
                if not late:
                    threads.may_begin.set()
                nursery.start_soon(prompter.pump, send)
                await threads.wait(threads.begun)
                nursery.cancel_scope.cancel()
    os.write(ours, b"ls\n")
    threads.may_begin.set()
    await threads.wait(threads.ended)
    assert select.select([theirs], [], [], 0)[0]
    assert os.read(theirs, 100) == b"ls\n"
    assert receive.statistics().current_buffer_used == 0
    os.close(theirs)
    os.close(ours)


async def test_a_line_that_was_begun_before_the_prompt_goes_on_at_it() -> None:
    ours, theirs = pty.openpty()
    out = io.StringIO()
    send, receive = trio.open_memory_channel[str](10)
    with Console(theirs, Screen(out, terminal=True)).held() as console:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.pump, send)
            os.write(ours, b"one\nhalf a ")
            assert await receive.receive() == "one"  # the rest is in the terminal, and nobody can read it yet
            console.ask("you> ", "")
            os.write(ours, b"line\r")
            assert await receive.receive() == "half a line"
            nursery.cancel_scope.cancel()
    assert out.getvalue().endswith("\ryou> half a line\x1b[K\n")
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize("interactive", [True, False])
def test_what_is_no_terminal_gets_plain_prompts(interactive: bool) -> None:
    stdin = io.StringIO("one\n")
    with open_prompter(stdin, Screen.on(io.StringIO(), {}), {"TERM": "xterm"}, interactive=interactive) as prompter:
        assert isinstance(prompter, PlainPrompt)


def test_a_pipe_is_no_terminal_even_if_it_has_a_descriptor() -> None:
    read, write = os.pipe()
    os.close(write)
    with open(read) as stdin:
        with open_prompter(stdin, Screen.on(io.StringIO(), {}), {"TERM": "xterm"}, interactive=True) as prompter:
            assert isinstance(prompter, PlainPrompt)


async def test_in_another_thread_the_console_leaves_signals_alone() -> None:
    ours, theirs = pty.openpty()

    def hold() -> None:
        async def held() -> None:
            with Console(theirs, Screen.on(io.StringIO(), {})).held() as console:
                console.ask("> ", "bold")
                console.drop()
                await trio.lowlevel.checkpoint()

        trio.run(held)

    before = signal.getsignal(signal.SIGCONT)
    await trio.to_thread.run_sync(hold)
    assert signal.getsignal(signal.SIGCONT) == before
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize("before_the_prompt", [True, False])
async def test_ctrl_d_leaves_whether_it_comes_before_the_prompt_or_after(before_the_prompt: bool) -> None:
    """A terminal that changes from whole lines to single keys hands out a Ctrl-D that was typed before as a NUL."""
    ours, theirs = pty.openpty()
    send, receive = trio.open_memory_channel[str](1)
    with Console(theirs, Screen(io.StringIO(), terminal=True)).held() as console:
        if before_the_prompt:
            os.write(ours, b"\x04")
        console.ask("you> ", "")
        if not before_the_prompt:
            os.write(ours, b"\x04")
        with trio.fail_after(SECONDS):
            await console.pump(send)
    with pytest.raises(trio.EndOfChannel):
        await receive.receive()
    os.close(theirs)
    os.close(ours)


async def test_a_nul_that_comes_after_the_first_keys_at_a_prompt_is_no_ctrl_d(autojump_clock: object) -> None:
    ours, theirs = pty.openpty()
    with Console(theirs, Screen(io.StringIO(), terminal=True)).held() as console:
        console.ask("you> ", "")
        assert console._typed("a\0") == "a\x04"
        assert console._typed("b\0") == "b\0"
        console.drop()
        console.ask("you> ", "")
        await trio.sleep(1)
        assert console._typed("c\0") == "c\0"
    os.close(theirs)
    os.close(ours)
