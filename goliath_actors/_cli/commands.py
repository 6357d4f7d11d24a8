"""What a line that begins with a slash does in a chat.

Uses view, listings; used by chat.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import attrs
import trio

from goliath_actors import Agent, Conversation, Run, Runtime

from .listings import show_tools
from .screen import Screen

__all__ = ["COMMANDS", "Chat", "Command", "parse_command"]

_FORM = re.compile(r"/([a-zA-Z?]+)(?:\s+(.*))?$", re.DOTALL)
_ENTRIES = 20  # of a history, unless the user says how many
_NARROW = 64  # columns; below, a history's text gets lines of its own, since its margin would take half of each


class Chat(Protocol):
    """What a command may use of the chat it is typed in."""

    @property
    def runtime(self) -> Runtime:
        """The runtime that all conversations live in."""
        ...

    @property
    def agent(self) -> Agent[Any]:
        """The agent that is talked to."""
        ...

    @property
    def conversation(self) -> Conversation:
        """The conversation that the next ask goes to."""
        ...

    @property
    def notes(self) -> Screen:
        """Where everything but answers goes."""
        ...

    @property
    def run(self) -> Run | None:
        """The run that goes on, if there is one."""
        ...

    def switch(self, conversation_id: str) -> None:
        """Go on in another conversation."""
        ...

    def leave(self) -> None:
        """End the chat, and what runs."""
        ...

    @property
    def typed_ahead(self) -> int:
        """Lines that wait for the run to end."""
        ...

    async def approve(self, question: str) -> bool:
        """Ask the user; true where nobody can be asked."""
        ...

    def complain(self, text: str) -> None:
        """Say what was wrong with a line, and count it as failed."""
        ...


Handler = Callable[[Chat, str], Awaitable[None]]


@attrs.frozen
class Command:
    """One command. `at_once` ones also work while a run goes on, others wait for its end."""

    usage: str
    summary: str
    handler: Handler
    at_once: bool = False


def parse_command(line: str) -> tuple[str, str] | None:
    """Return (name, argument) of a line that is a command, None for an ask.

    A path such as `/etc/hosts` is no command, and two slashes begin an ask that begins with one.
    """
    found = _FORM.match(line.strip())
    return None if found is None else (found[1].lower(), (found[2] or "").strip())


async def _help(chat: Chat, argument: str) -> None:
    for command in COMMANDS.values():
        chat.notes.spans((f"  {command.usage:<14}", "bold"), (command.summary, ""), cut=True)
    chat.notes.wrapped("Anything else is asked. // begins an ask that begins with a slash.", "dim", indent="  ")
    await trio.lowlevel.checkpoint()


async def _abort(chat: Chat, argument: str) -> None:
    if chat.run is None:
        chat.notes.line("  nothing is running", "dim")
    else:
        chat.run.abort(argument or "/abort")
    await trio.lowlevel.checkpoint()


async def _status(chat: Chat, argument: str) -> None:
    status = chat.conversation.status()
    counts = chat.runtime.statistics()
    doing = f"{label(chat.conversation.id)}: {status.run_id or 'idle'}"
    chat.notes.wrapped(doing, first="  conversation  ", indent=" " * 16)
    if status.run_id is not None:
        seconds = 0.0 if status.since is None else trio.current_time() - status.since
        chat.notes.line(f"  phase         {status.phase or 'starting'} for {seconds:.1f} s")
    if chat.typed_ahead:
        chat.notes.line(f"  typed ahead   {chat.typed_ahead}")
    chat.notes.wrapped(
        f"{counts.accepted} accepted: {counts.completed} completed, {counts.stopped} stopped, "
        f"{counts.errors} failed, {counts.aborted} aborted, {counts.running} running",
        first="  runs          ",
        indent=" " * 16,
    )
    await trio.lowlevel.checkpoint()


async def _memory(chat: Chat, argument: str) -> None:
    memory = await chat.conversation.memory()
    if not memory.summary and not memory.recent:
        chat.notes.line("  nothing is remembered yet", "dim")
        return
    if memory.summary:
        chat.notes.line("  summary", "bold")
        for row in memory.summary.splitlines():
            chat.notes.wrapped(row, indent="    ")
    for exchange in memory.recent:
        chat.notes.wrapped(exchange.ask, "bold", indent="          ", first="  you     ")
        mark = " (unfinished)" if exchange.best_effort else ""
        chat.notes.wrapped(exchange.answer + mark, indent="          ", first="  answer  ")


async def _history(chat: Chat, argument: str) -> None:
    if argument and not (argument.isdecimal() and int(argument) > 0):
        chat.complain(f"/history takes a number of entries, not {argument!r}")
        await trio.lowlevel.checkpoint()
        return
    limit = int(argument) if argument else _ENTRIES
    page = await chat.conversation.history(limit=min(limit, 1000))
    shown = [entry for entry in page.entries if entry.transcript_visible]
    if not shown:
        chat.notes.line("  nothing was said yet", "dim")
    narrow = chat.notes.width is not None and chat.notes.width < _NARROW
    for entry in shown:
        at = datetime.fromtimestamp(entry.at).strftime("%d %b %H:%M")
        who = "you" if entry.role == "user" else entry.role
        if narrow:
            chat.notes.line(f"  {at}  {who}", "dim")
            chat.notes.wrapped(entry.message.text, indent="    ")
        else:
            chat.notes.wrapped(entry.message.text, indent=" " * 27, first=f"  {at}  {who:<11}")
    if page.next is not None:
        chat.notes.line(f"  … there is more before that: /history {limit * 2}", "dim")


async def _forget(chat: Chat, argument: str) -> None:
    name = label(chat.conversation.id)
    if await chat.approve(f"delete {name}?"):
        await chat.conversation.forget()
        chat.notes.line(f"  {name} is forgotten", "dim")
    else:
        chat.notes.line("  nothing was deleted", "dim")


async def _new(chat: Chat, argument: str) -> None:
    if not argument:
        chat.complain("/new needs an id, such as /new shopping")
    else:
        chat.switch(argument)
        chat.notes.line(f"  now in {label(argument)}", "dim")
    await trio.lowlevel.checkpoint()


async def _tools(chat: Chat, argument: str) -> None:
    show_tools(chat.notes, chat.agent)
    await trio.lowlevel.checkpoint()


async def _quit(chat: Chat, argument: str) -> None:
    chat.leave()
    await trio.lowlevel.checkpoint()


def label(conversation_id: str | None) -> str:
    """Return a conversation's name in words."""
    return "the default conversation" if conversation_id is None else f"conversation {conversation_id!r}"


COMMANDS: Mapping[str, Command] = {
    "help": Command("/help", "list the commands", _help, at_once=True),
    "abort": Command("/abort", "abort the run (Ctrl-C does, too)", _abort, at_once=True),
    "status": Command("/status", "what runs, and what ran", _status, at_once=True),
    "memory": Command("/memory", "what is remembered of this conversation", _memory, at_once=True),
    "history": Command("/history [N]", f"what was said, the last {_ENTRIES} or N entries", _history, at_once=True),
    "tools": Command("/tools", "what the agent may do", _tools, at_once=True),
    "forget": Command("/forget", "delete this conversation", _forget),
    "new": Command("/new ID", "go on in another conversation", _new),
    "quit": Command("/quit", "leave (Ctrl-D does, too)", _quit, at_once=True),
}
ALIASES = {"?": "help", "h": "help", "exit": "quit", "q": "quit", "stop": "abort"}
