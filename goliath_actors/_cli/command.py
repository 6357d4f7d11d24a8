"""One command from its arguments to its exit code.

Opens what a command needs, closes it again, and turns every error into one line.
"""

from __future__ import annotations

import argparse
import math
import os
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TextIO

import attrs
import trio

from goliath_actors import Agent, Conversation, Runtime, __version__, open_runtime
from goliath_actors.abc import Store
from goliath_actors.errors import StoreCorrupt

from .assistant import DEMO_HINT, make_assistant
from .chat import Manner, Session
from .choose import LOOPBACK, Choice, Place, Wish, open_choice
from .commands import label
from .console import Prompter, open_prompter
from .demo_model import DemoModel
from .keyboard import listen_for_interrupts
from .listings import hooks_as_data, show_hooks, show_json, show_tools, tools_as_data
from .loading import load_agent
from .screen import Screen
from .trouble import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_SIGNAL, exit_code, explain
from .view import View

__all__ = ["Terminal", "run_command"]

_PACE = 0.012  # seconds between the demo model's words where somebody watches


@attrs.frozen
class Terminal:
    """What a command may touch of the process: its streams, its environment, its folder.

    `places` are the addresses at which a model server is looked for.
    """

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    folder: str
    places: Sequence[Place] = LOOPBACK


def run_command(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run one command.

    Returns: the exit code: 0 ok, 1 error, 2 wrong usage or set-up, 130 interrupted.
    """
    errors = Screen.on(terminal.stderr, terminal.environ)
    try:
        return _COMMANDS[arguments.command](arguments, terminal)
    except (KeyboardInterrupt, Exception, BaseExceptionGroup) as error:  # one line for the user, the rest on request
        real = _first_leaf(error)
        if isinstance(real, KeyboardInterrupt):
            errors.line("\ninterrupted" if errors.terminal else "interrupted", "yellow")
            return EXIT_INTERRUPTED
        if not isinstance(real, Exception):
            raise
        if isinstance(real, BrokenPipeError):
            # Whoever read the output has left, as `head` does: nothing to say, and nobody to say it to.
            _drop_output(terminal.stdout)
            return EXIT_ERROR
        try:
            errors.wrapped(explain(real), "red", first="error: ", indent="  ")
            if arguments.traceback:
                errors.line("".join(traceback.format_exception(real)).rstrip(), "dim")
        except OSError:  # the terminal went away with whatever the error was
            pass
        return exit_code(real)


def _first_leaf(error: BaseException) -> BaseException:
    """Return the error itself, or the first one in a group: nurseries of ours are no news to the user."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _drop_output(stream: TextIO) -> None:
    """Let the interpreter's last flush of a closed pipe go to nowhere."""
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    except (OSError, ValueError):  # no descriptor of its own
        pass


# --- listings and the tour ------------------------------------------------------------------------------------------


def _hooks(arguments: argparse.Namespace, terminal: Terminal) -> int:
    screen = Screen.on(terminal.stdout, terminal.environ)
    if arguments.json:
        show_json(screen, hooks_as_data())
    else:
        show_hooks(screen)
    return EXIT_OK


def _tools(arguments: argparse.Namespace, terminal: Terminal) -> int:
    screen = Screen.on(terminal.stdout, terminal.environ)
    agent = make_assistant(DemoModel()) if arguments.agent is None else load_agent(arguments.agent, terminal.folder)
    if arguments.json:
        show_json(screen, tools_as_data(agent))
    else:
        show_tools(screen, agent)
    return EXIT_OK


def _demo(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from .tour import Tour

    return trio.run(Tour(Screen.on(terminal.stdout, terminal.environ)).run)


def _loadtest(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from .loadtest import run_loadtest

    screen = Screen.on(terminal.stdout, terminal.environ)
    return run_loadtest(
        arguments, screen, Screen.on(terminal.stderr, terminal.environ), terminal.environ, terminal.folder
    )


# --- chat -----------------------------------------------------------------------------------------------------------


def _chat(arguments: argparse.Namespace, terminal: Terminal) -> int:
    agent = None if arguments.agent is None else load_agent(arguments.agent, terminal.folder)
    return trio.run(partial(_open_chat, arguments, terminal, agent))


@attrs.define(eq=False)
class _Interrupts:
    """Who hears Ctrl-C: until there is a session, the start-up, which it ends."""

    scope: trio.CancelScope
    session: Session | None = None
    output_lost: bool = False
    signal: int | None = None

    def ended(self, number: int) -> None:
        """The process is asked to end: what runs is aborted, its observers are told."""
        self.signal = number
        self.scope.cancel()

    def lost(self) -> None:
        """Nobody reads the output any more: end, as for Ctrl-C, but quietly."""
        self.output_lost = True
        self.scope.cancel()

    def heard(self) -> None:
        if self.session is None:
            self.scope.cancel()
        else:
            self.session.interrupt()


async def _open_chat(arguments: argparse.Namespace, terminal: Terminal, agent: Agent[Any] | None) -> int:
    outputs = Screen.on(terminal.stdout, terminal.environ)
    errors = Screen.on(terminal.stderr, terminal.environ)
    interactive = _is_terminal(terminal.stdin) and outputs.terminal
    # Answers alone on standard output, so that they can be piped on; where a person sits, all on one screen.
    notes = outputs if interactive else errors
    wish = Wish(
        arguments.model,
        arguments.model_url,
        None if agent is None else agent.model,
        DEMO_HINT if agent is None else "Use a word of one of my tools' names and I call it.",
        _PACE if interactive else 0.0,
    )
    tell = partial(_tell, notes, arguments.quiet)
    code = EXIT_INTERRUPTED
    interrupts = _Interrupts(trio.CancelScope())
    # Left by cancellation only if Ctrl-C came before there was anybody to ask, or twice.
    with interrupts.scope:
        with listen_for_interrupts(interrupts.heard, interrupts.ended):
            async with open_choice(wish, terminal.environ, tell, terminal.places) as choice:
                if agent is None:
                    agent = make_assistant(choice.model)
                elif choice.model is not agent.model:
                    agent = agent.replace(model=choice.model)
                store = _store(arguments.store)
                async with open_runtime(agent, store=store) as runtime:
                    conversation = runtime.conversation(arguments.conversation)
                    remembered, unread = await _remembered(conversation)
                    if unread is not None:
                        errors.wrapped(explain(unread), "red", first="error: ", indent="  ")
                    if not arguments.quiet or interactive:
                        _banner(notes, arguments, agent, choice, remembered, interactive)
                    view = View(outputs, notes, arguments.quiet, interrupts.lost, interactive)
                    manner = Manner(interactive, arguments.yes, arguments.timeout, choice.where, arguments.traceback)
                    with open_prompter(terminal.stdin, notes, terminal.environ, interactive=interactive) as prompter:
                        code = await _with_lines(runtime, agent, view, errors, manner, interrupts, arguments, prompter)
                    if unread is not None and not interactive:
                        code = code or EXIT_ERROR
    if interrupts.signal is not None:
        return EXIT_SIGNAL + interrupts.signal
    if interrupts.output_lost:
        _drop_output(terminal.stdout)
        return EXIT_ERROR
    if code == EXIT_INTERRUPTED and not interactive:
        errors.line("interrupted", "yellow")
    return code


async def _remembered(conversation: Conversation) -> tuple[int, StoreCorrupt | None]:
    """Return how many exchanges are remembered, and what could not be read: then the conversation goes on without it,
    since the store has set it aside and only wants somebody to know."""
    try:
        return len((await conversation.memory()).recent), None
    except StoreCorrupt as error:
        return 0, error


async def _with_lines(
    runtime: Runtime,
    agent: Agent[Any],
    view: View,
    errors: Screen,
    manner: Manner,
    interrupts: _Interrupts,
    arguments: argparse.Namespace,
    prompter: Prompter,
) -> int:
    send, receive = trio.open_memory_channel[str](math.inf if manner.interactive else 0)
    session = Session(
        runtime,
        agent,
        runtime.conversation(arguments.conversation),
        view,
        view.notes if manner.interactive else errors,
        receive,
        prompter,
        manner,
        interrupts.scope.cancel,
    )
    interrupts.session = session
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prompter.pump, send)
        code = await session.converse()
        nursery.cancel_scope.cancel()
    return code


def _store(file: str | None) -> Store | None:
    if file is None:
        return None
    from goliath_actors.stores import SqliteStore

    return SqliteStore(file)


def _tell(screen: Screen, quiet: bool, text: str) -> None:
    if not quiet:
        screen.line(f"  {text}", "dim")


def _banner(
    screen: Screen,
    arguments: argparse.Namespace,
    agent: Agent[Any],
    choice: Choice,
    remembered: int,
    interactive: bool,
) -> None:
    """Say who is talked to, with which model and why that one, and what will be kept."""
    if interactive:
        screen.spans((f"goliath-actors {__version__}", "bold"), (f", agent {agent.name!r}", ""))
    at = f" at {choice.where}" if choice.where else ""
    screen.wrapped(f"{choice.model.name}{at}; {choice.why}", indent="  ", first="model: ")
    for note in choice.notes:
        screen.wrapped(note, "dim", indent="  ")
    if arguments.store is None:
        kept = "conversations are in memory and gone when you leave; --store FILE keeps them"
    else:
        kept = f"{arguments.store}, {label(arguments.conversation)}"
        kept += f", {remembered} earlier exchange{'s' if remembered != 1 else ''} remembered" if remembered else ""
    screen.wrapped(kept, indent="  ", first="store: ")
    if interactive:
        screen.wrapped("/help lists the commands, Ctrl-C aborts a run, Ctrl-D leaves", "dim")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


# --- serve ----------------------------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from .serving import serve_agents

    screen = Screen.on(terminal.stdout, terminal.environ)
    places = tuple(terminal.places)
    return trio.run(partial(serve_agents, arguments, screen, terminal.environ, terminal.folder, places))


def _token(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from .serving import make_token_line

    token, line = make_token_line(arguments.name, arguments.scopes)
    Screen.on(terminal.stderr, terminal.environ).line(f"the token, shown once: {token}")
    Screen.on(terminal.stdout, terminal.environ).line(line)
    return EXIT_OK


_COMMANDS = {
    "serve": _serve,
    "token": _token,
    "chat": _chat,
    "demo": _demo,
    "tools": _tools,
    "hooks": _hooks,
    "loadtest": _loadtest,
}
