"""A conversation in the terminal, or one ask for each line of standard input.

The session owns no thread and no signal: lines come out of a channel and Ctrl-C is a call, so that tests
can be both.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, final

import attrs
import trio

from goliath_actors import Agent, Conversation, Run, RunAborted, Runtime
from goliath_actors.tools import Confirmed, ConfirmRequest, answered_by

from .commands import ALIASES, COMMANDS, parse_command
from .console import Prompter
from .keyboard import without_keys
from .screen import Screen
from .trouble import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, explain, explain_reason
from .view import View, json_line

__all__ = ["Manner", "Session"]

_UNASKED = "nobody can be asked here; --yes approves"


@attrs.frozen
class Manner:
    """How a session behaves. `timeout` is in seconds; `where` is the model's address, for advice."""

    interactive: bool = False
    yes: bool = False
    timeout: float | None = None
    where: str | None = None
    traceback: bool = False


@attrs.define(eq=False)
class _Question:
    """A question to the user, answered once: with a line, or with None at the end of the input."""

    prompt: str
    answer: str | None = None
    answered: trio.Event = attrs.Factory(trio.Event)

    def reply(self, line: str | None) -> None:
        self.answer = line
        self.answered.set()


@final
@attrs.define(eq=False)
class Session:
    """One chat. `converse` takes it from the first prompt to the exit code; `interrupt` is Ctrl-C."""

    runtime: Runtime
    agent: Agent[Any]
    conversation: Conversation
    view: View
    errors: Screen
    lines: trio.MemoryReceiveChannel[str]
    prompter: Prompter
    manner: Manner = attrs.Factory(Manner)
    # Ends the runtime without waiting for what does not end by itself.
    shut_down: Callable[[], None] = lambda: None
    run: Run | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _inbox: tuple[trio.MemorySendChannel[str], trio.MemoryReceiveChannel[str]] = attrs.field(init=False)
    _question: _Question | None = attrs.field(default=None, init=False)
    # Parallel tools may want to ask at the same time; a person answers one question after the other.
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # Ctrl-C at the prompt was pressed once, and nothing typed since.
    _armed: bool = attrs.field(default=False, init=False)
    _presses: int = attrs.field(default=0, init=False)
    _at_prompt: bool = attrs.field(default=False, init=False)
    _code: int = attrs.field(default=EXIT_OK, init=False)
    _leaving: bool = attrs.field(default=False, init=False)
    _input_over: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        # A person's lines are kept while a run goes on; a file is read no faster than it is answered.
        room: float = float("inf") if self.manner.interactive else 0
        self._inbox = trio.open_memory_channel[str](room)

    @property
    def notes(self) -> Screen:
        """Where everything but answers goes."""
        return self.view.notes

    # --- from the first prompt to the exit code ---------------------------------------------------------------------

    async def converse(self) -> int:
        """Take turns until the input ends or the user leaves.

        Returns: the exit code. Interactive: 0, or 130 if Ctrl-C ended it. Otherwise also 1 if any ask failed.

        Cancellation: the run is left to the runtime, which aborts it as its block ends.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._route)
                await self._take_turns()
                nursery.cancel_scope.cancel()
        return self._code

    async def _take_turns(self) -> None:
        while not self._leaving:
            line = await self._next_line()
            if line is None:
                return
            text = line.strip()
            if not text:
                continue
            command = parse_command(text)
            if command is not None:
                await self._obey(*command)
            else:
                await self._ask(text.removeprefix("/") if text.startswith("//") else text)

    async def _next_line(self) -> str | None:
        if not self.manner.interactive:
            return await self._receive()
        try:
            line = self._inbox[1].receive_nowait()
        except trio.WouldBlock:
            pass
        except trio.EndOfChannel:
            return None
        else:  # it was typed while a run went on: show where it is answered
            self.notes.spans((self._prompt_text(), "bold"), (line, ""))
            return line
        self._prompt()
        self._at_prompt = True
        try:
            line_or_end = await self._receive()
        finally:
            self._at_prompt = False
        if line_or_end is None:
            self.notes.end_line()
        self._armed = False
        return line_or_end

    async def _receive(self) -> str | None:
        try:
            return await self._inbox[1].receive()
        except trio.EndOfChannel:
            return None

    def _prompt_text(self) -> str:
        return "you> " if self.conversation.id is None else f"you [{self.conversation.id}]> "

    def _prompt(self) -> None:
        self.prompter.ask(self._prompt_text(), "bold")

    async def _route(self) -> None:
        """Give every line to whoever waits for it: an open question, a command that works at once, or the next turn."""
        async with self._inbox[0]:
            async for line in self.lines:
                if self.manner.interactive:
                    line = without_keys(line)  # where the terminal alone reads the line, it knows no cursor keys
                    self.notes.typed()
                command = parse_command(line)
                if command is not None and self._works_now(command[0]):
                    await self._obey(*command)
                    if self._question is not None:
                        self._show_question()
                elif self._question is not None:
                    self._question.reply(line)
                else:
                    await self._inbox[0].send(line)
        self._input_over = True
        if self._question is not None:
            self._question.reply(None)

    def _works_now(self, name: str) -> bool:
        command = COMMANDS.get(ALIASES.get(name, name))
        return self.manner.interactive and self.run is not None and command is not None and command.at_once

    @property
    def typed_ahead(self) -> int:
        """Lines that wait for the run to end."""
        return self._inbox[1].statistics().current_buffer_used

    # --- one ask ----------------------------------------------------------------------------------------------------

    async def _ask(self, text: str) -> None:
        self._presses = 0
        if not self.manner.interactive:
            self.view.asked(text)
        try:
            with answered_by(self.confirm):  # also what sub-agents ask
                self.run = self.conversation.submit(
                    text, timeout=self.manner.timeout, confirm=self.confirm, on_event=self.view.on_event
                )
            result = await self.run.wait()
        except RunAborted as aborted:
            self._aborted(aborted)
        except Exception as error:  # noqa: BLE001  # shown; an ask that fails must not end the chat
            self._failed(error)
        else:
            self.view.finish(result)
            if self.manner.traceback:
                for diagnostic in result.diagnostics:  # what a tool of theirs raised, first of all
                    self._trace(diagnostic.error)
            if not result.text and result.reason is not None:
                escalation = self.view.escalation
                error_text = escalation.error if escalation is not None else None
                self._complain(explain_reason(result.reason, error_text, self.manner.where))
        finally:
            self.run = None
        if self.manner.interactive:
            self.notes.line()

    def _aborted(self, aborted: RunAborted) -> None:
        if aborted.cause == "requested":
            self.view.end()
            self.notes.line(f"  aborted{f' in {aborted.phase}' if aborted.phase else ''}", "yellow")
            self._count_failure()
        else:
            self._failed(aborted)

    def _failed(self, error: Exception) -> None:
        self._complain(explain(error, self.manner.where))
        if self.manner.traceback:
            self._trace(error)

    def _trace(self, error: BaseException) -> None:
        self.errors.line("".join(traceback.format_exception(error)).rstrip(), "dim")

    def complain(self, text: str) -> None:
        """Say what was wrong with a line, and count it as failed."""
        self._complain(text)

    def _complain(self, text: str) -> None:
        self.view.end()
        self.notes.end_line()
        self.errors.wrapped(text, "red", first="error: ", indent="  ")
        self._count_failure()

    def _count_failure(self) -> None:
        # At a terminal the user saw it; a script can only see the exit code.
        if not self.manner.interactive:
            self._code = EXIT_ERROR

    # --- questions --------------------------------------------------------------------------------------------------

    async def confirm(self, request: ConfirmRequest) -> Confirmed:
        """Ask the user about a call, and show all of what would be executed.

        Returns: approved; or refused, with the reason that was typed, or because nobody can be asked.

        Cancellation: the question is withdrawn.
        """
        if not self.manner.interactive:
            await trio.lowlevel.checkpoint()
            return Confirmed(True) if self.manner.yes else Confirmed(False, _UNASKED)
        async with self._asking:
            self.view.end()
            changes = "wants to change data" if request.tool.writes else "wants to run"
            whose = "" if request.agent == self.agent.name else f"{request.agent}: "
            self.notes.spans(
                ("  confirm ", "yellow"), (f"{whose}{request.tool.name}", "bold"), (f" {changes}", "yellow")
            )
            for name, value in request.input.items():
                self.notes.line(f"          {name}: {json_line(value)}")
            if self.manner.yes:
                self.notes.line("          approved, as --yes says", "dim")
                return Confirmed(True)
            answer = await self._question_about("go ahead? [y]es, [n]o, or why not: ")
        if answer is None:
            return Confirmed(False, "the input ended before anybody answered")
        if answer.casefold() in ("y", "yes"):
            return Confirmed(True)
        return Confirmed(False, "" if answer.casefold() in ("n", "no") else answer)

    async def approve(self, question: str) -> bool:
        """Ask the user a yes-or-no question; true where nobody can be asked, since then a script said it."""
        if not self.manner.interactive:
            await trio.lowlevel.checkpoint()
            return True
        async with self._asking:
            answer = await self._question_about(f"{question} [y]es, [n]o: ")
        return answer is not None and answer.casefold() in ("y", "yes")

    async def _question_about(self, prompt: str) -> str | None:
        """Return what was typed, None at the end of the input; an empty line is asked again."""
        while not self._input_over:
            self._question = question = _Question(prompt)
            self._show_question()
            try:
                await question.answered.wait()
            finally:
                self._question = None
                if not question.answered.is_set():
                    self.prompter.drop()
            if question.answer is not None and question.answer.strip():
                return question.answer.strip()
        await trio.lowlevel.checkpoint()
        return None

    def _show_question(self) -> None:
        assert self._question is not None
        self.prompter.ask(f"          {self._question.prompt}", "yellow", remember=False)

    # --- commands ---------------------------------------------------------------------------------------------------

    async def _obey(self, name: str, argument: str) -> None:
        command = COMMANDS.get(ALIASES.get(name, name))
        if command is None:
            self._complain(f"there is no command /{name}; /help lists them, and // begins an ask with a slash")
            return
        self.view.answers.end_line()
        try:
            await command.handler(self, argument)
        except Exception as error:  # noqa: BLE001  # shown, as for an ask
            self._failed(error)

    def switch(self, conversation_id: str) -> None:
        """Go on in another conversation of the same agent.

        Raises: `ConfigError` for an id that cannot be one.
        """
        self.conversation = self.runtime.conversation(conversation_id, self.agent)

    def leave(self, code: int | None = None) -> None:
        """End the chat: what runs is aborted, and its observers are told."""
        self._leaving = True
        if code is not None:
            self._code = code
        if self.run is not None:
            self.run.abort("the user left")
        self._scope.cancel()

    # --- Ctrl-C -----------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Ctrl-C: abort the run; at the prompt, leave on the second one. In a script, leave at once."""
        if self._leaving:
            self.shut_down()
            return
        if not self.manner.interactive:
            self.leave(EXIT_INTERRUPTED)
            return
        self.notes.typed()  # the terminal may have shown ^C
        self.notes.write("\n")
        self.prompter.drop()
        if self.run is None:
            self._interrupt_prompt()
            return
        self._presses += 1
        if self._presses == 1:
            self.run.abort("Ctrl-C")
        elif self._presses == 2:
            self.notes.line("  still ending; Ctrl-C again leaves without waiting", "yellow")
        else:
            self.leave(EXIT_INTERRUPTED)
            self.shut_down()

    def _interrupt_prompt(self) -> None:
        if self._question is not None:
            self._question.reply("n")
            return
        if self._armed:
            self.leave(EXIT_INTERRUPTED)
            return
        self._armed = True
        self.notes.line("  Ctrl-C again, Ctrl-D or /quit leaves", "dim")
        if self._at_prompt:
            self._prompt()
