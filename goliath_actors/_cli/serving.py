"""`serve`: agents behind HTTP, with a page, until a signal; and `token`, which makes what its clients need.

The server is imported when it is needed, since it needs an extra.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import trio

from goliath_actors import Agent, ToolLoop, __version__, approve_all
from goliath_actors.abc import Store
from goliath_actors.errors import ConfigError

from .assistant import DEMO_HINT, Notebook, make_assistant
from .choose import Choice, Place, Wish, open_choice
from .demo_model import DemoModel
from .loading import load_agent
from .screen import Screen
from .trouble import EXIT_ERROR, EXIT_OK

if TYPE_CHECKING:
    from goliath_actors.server import Server, ServerConfig, Token

__all__ = ["make_token_line", "serve_agents"]

TOKENS = "GOLIATH_ACTORS_TOKENS"
IN_MEMORY = "memory"
DATABASES = ("postgresql://", "postgres://")
# With Python's own numbers the collector walks every live object of thousands of runs again and again: at 3,000 in
# flight it took more than half of the processor (`scripts/bench/scale.py`).
COLLECT_SELDOM = (50_000, 20, 100)
_PACE = 0.03  # seconds between the demo model's words: a person watches


async def serve_agents(
    arguments: argparse.Namespace, screen: Screen, environ: Mapping[str, str], folder: str, places: tuple[Place, ...]
) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP: then runs get their grace; a second signal ends them at once, a third all.

    Returns: the exit code: 0 for an orderly end.

    Raises: `ConfigError` for what is wrong with the arguments, the address or the set-up.

    Cancellation: every run is aborted and its observers are told.
    """
    server = _server_room()
    thresholds = gc.get_threshold()
    try:
        agents = [load_agent(spec, folder) for spec in arguments.agents]
        if gc.get_threshold() == thresholds:  # else a module of theirs has set its own
            gc.set_threshold(*COLLECT_SELDOM)
        return await _serve_agents(server, agents, arguments, screen, environ, places)
    finally:
        gc.set_threshold(*thresholds)


async def _serve_agents(
    server: Any,
    agents: list[Agent[Any]],
    arguments: argparse.Namespace,
    screen: Screen,
    environ: Mapping[str, str],
    places: tuple[Place, ...],
) -> int:
    config = _config(arguments, environ)
    store = _store(arguments.store)
    wish = Wish(arguments.model, arguments.model_url, agents[0].model if agents else None, DEMO_HINT, _PACE)
    scope = trio.CancelScope()
    with trio.open_signal_receiver(*_ending_signals()) as signals:
        with scope:
            async with _choice(wish, bool(agents), environ, partial(_note, screen), places) as choice:
                if choice is not None:
                    agents = _demo_agents(choice)
                if arguments.yes:
                    agents = [agent.replace(confirm=approve_all) for agent in agents]
                async with trio.open_nursery() as nursery:
                    ended = trio.Event()

                    async def serve(task_status: trio.TaskStatus[Server]) -> None:
                        report = await server.serve(*agents, store=store, config=config, task_status=task_status)
                        _note(screen, f"ended; runs finished meanwhile: {report.finished}, aborted: {report.aborted}")
                        ended.set()

                    running: Server = await nursery.start(serve)
                    _banner(screen, running, agents, choice, arguments, config)
                    nursery.start_soon(_obey, signals, running, screen, scope)
                    await ended.wait()
                    nursery.cancel_scope.cancel()
    return EXIT_ERROR if scope.cancelled_caught else EXIT_OK


def make_token_line(name: str, scopes: str) -> tuple[str, str]:
    """Return a new token, and the line of a token file that lets it in.

    Raises: `ConfigError` for a name or scopes that there are not.
    """
    server = _server_room()
    token = server.make_token()
    kept = server.Token(name, [scope.strip() for scope in scopes.split(",")], server.hash_token(token))
    return token, f"{kept.principal} {','.join(sorted(kept.scopes))} {kept.hash}"


def _server_room() -> Any:
    try:
        from goliath_actors import server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; the server needs the extra 'web': pip install '/path/to/clone[web]'"
        ) from error
    return server


@asynccontextmanager
async def _choice(
    wish: Wish, own: bool, environ: Mapping[str, str], tell: Any, places: tuple[Place, ...]
) -> AsyncIterator[Choice | None]:
    """Choose a model for the built-in assistant; agents of one's own bring theirs."""
    if own:
        if wish.name is not None or wish.url is not None:
            raise ConfigError(
                "--model and --model-url are for the built-in assistant; module:agent brings its own model"
            )
        yield None
        return
    async with open_choice(wish, environ, tell, places) as choice:
        yield choice


def _demo_agents(choice: Choice) -> list[Agent[Any]]:
    """Return the built-in assistant on both loops: on the one that can do more first."""
    notebook = Notebook()
    native = attrs.evolve(make_assistant(choice.model, notebook), loop=ToolLoop())
    planned = attrs.evolve(make_assistant(choice.model, notebook), name="planner")
    return [native, planned]


def _ending_signals() -> list[signal.Signals]:
    """Return what ends a server in order: a terminal that closes, too, unless `nohup` has said to outlive it."""
    ending = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        ending.append(hangup)
    return ending


async def _obey(signals: AsyncIterator[int], running: Server, screen: Screen, scope: trio.CancelScope) -> None:
    count = 0
    async for number in signals:
        if count and signal.Signals(number).name == "SIGHUP":
            continue  # a terminal that closes sends it more than once, through its shell: nobody is in a hurry
        count += 1
        if count > 2:
            scope.cancel()
            return
        running.shut_down()
        name = signal.Signals(number).name
        words = ("ending: runs get their grace; once more ends them at once", "aborting every run")[count - 1]
        _note(screen, f"{name}, {words}")


def _config(arguments: argparse.Namespace, environ: Mapping[str, str]) -> ServerConfig:
    config: ServerConfig = _server_room().ServerConfig(
        host=arguments.host,
        port=arguments.port,
        tokens=_tokens(environ),
        token_file=arguments.token_file,
        insecure=arguments.insecure,
        allowed_hosts=arguments.allow_host,
        cors_origins=arguments.cors_origin,
        drain_grace=arguments.drain_grace,
        run_timeout=arguments.timeout,
        max_running=arguments.max_running,
        max_waiting=arguments.max_waiting,
        mailbox_capacity=arguments.mailbox,
        idle_timeout=arguments.idle_timeout,
    )
    return config


def _tokens(environ: Mapping[str, str]) -> tuple[Token, ...]:
    """Read the tokens of the environment."""
    found: tuple[Token, ...] = _server_room().read_tokens(environ.get(TOKENS, "").replace(";", "\n"), TOKENS)
    return found


def _store(file: str) -> Store | None:
    if file == IN_MEMORY:
        return None
    if file.startswith(DATABASES):
        try:
            from goliath_actors.stores import LeasedStore, PostgresStore
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is not installed; a database needs the extra 'postgres': "
                "pip install '/path/to/clone[postgres]'"
            ) from error
        # Other processes may serve the same conversations from it.
        return LeasedStore(PostgresStore(file))
    from goliath_actors.stores import SqliteStore

    return SqliteStore(file)


def _note(screen: Screen, text: str) -> None:
    with suppress(OSError):  # a terminal that went away: the server goes on to its end in order, unheard
        screen.line(f"  {text}", "dim")


def _banner(
    screen: Screen,
    running: Server,
    agents: list[Agent[Any]],
    choice: Choice | None,
    arguments: argparse.Namespace,
    config: ServerConfig,
) -> None:
    """Say where it is, what it serves, what will be kept, and who may enter."""
    names = ", ".join(repr(agent.name) for agent in agents)
    screen.spans((f"goliath-actors {__version__}", "bold"), (f", agents {names}", ""))
    if choice is not None:
        at = f" at {choice.where}" if choice.where else ""
        screen.wrapped(f"{choice.model.name}{at}; {choice.why}", indent="  ", first="model: ")
        for note in choice.notes:
            screen.wrapped(note, "dim", indent="  ")
        if isinstance(choice.model, DemoModel):
            screen.wrapped(DEMO_HINT, "dim", indent="  ")
    if arguments.store == IN_MEMORY:
        screen.line("store: memory, gone when this ends; --store FILE keeps it")
    elif arguments.store.startswith(DATABASES):
        at = urlsplit(arguments.store)  # a password is not shown
        where = f"{at.hostname or '(default host)'}{'' if at.port is None else f':{at.port}'}{at.path}"
        screen.line(f"store: PostgreSQL at {where}; more servers may share it")
    else:
        screen.line(f"store: {os.path.abspath(arguments.store)}")
    if config.wants_tokens:
        more = () if config.token_file is None else _server_room().read_token_file(config.token_file)
        who = ", ".join(sorted({token.principal for token in (*config.tokens, *more)}))
        screen.line(f"entry: with a token ({who})")
    elif config.insecure:
        screen.line("entry: everybody who can reach it (--insecure)", "yellow")
    else:
        screen.line("entry: everybody on this machine; --token-file asks for tokens")
    screen.spans(("open:  ", ""), (running.url, "bold"), ("   (Ctrl-C ends it)", "dim"))
