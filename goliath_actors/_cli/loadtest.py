"""`goliath-actors loadtest`: a scenario from a file and options, driven with progress, told as table, data and page."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import trio

from goliath_actors import Agent
from goliath_actors.errors import ConfigError

from .keyboard import listen_for_interrupts
from .loading import load_agent, load_value
from .screen import Screen
from .trouble import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_SIGNAL

if TYPE_CHECKING:
    from goliath_actors.loadtest import LoadReport, Recorder, Scenario, Target

__all__ = ["check_host", "run_loadtest"]

_PLAIN_EVERY = 5.0  # seconds between two lines of progress where nobody watches


def run_loadtest(
    arguments: argparse.Namespace, screen: Screen, notes: Screen, environ: Mapping[str, str], folder: str
) -> int:
    """Run a load test and show what came of it. `screen` gets the table, `notes` the progress.

    The first Ctrl-C ends the load early: what is in flight is waited for, and the reports are written. The second one
    ends it without them, and so does a signal that asks the process to end.

    Returns: 0 if every check holds and no threshold is broken, else 1; 130 for an interrupted one.

    Raises: `ConfigError` for options that cannot be, and when the extra `loadtest` is missing.
    """
    try:
        from goliath_actors import loadtest
    except ModuleNotFoundError as error:
        if error.name not in ("hdrh", "rich", "matplotlib"):
            raise
        raise ConfigError(
            f"a load test needs {error.name}, which is not installed: pip install '/path/to/clone[loadtest]'"
        ) from error
    thresholds = [loadtest.read_threshold(text) for text in arguments.fail_if]
    printed = arguments.json == "-"
    for path in (arguments.json, arguments.html):
        if path is not None and not Path(folder, path).parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no such folder")
    scenario = _scenario(arguments, folder)
    if arguments.show_scenario:
        screen.line(loadtest.as_toml(scenario).rstrip("\n"))
        return EXIT_OK
    agent = None if arguments.agent is None else load_agent(arguments.agent, folder)
    target = _target(arguments, scenario, agent, environ)
    notes.line(f"load test {scenario.name!r}: {_words(scenario)} on {target.name}", "dim")
    with _progress(notes, scenario) as tell:

        async def drive() -> LoadReport | int:
            stops = _Stops(notes)
            with stops.scope, listen_for_interrupts(stops.heard, stops.ended):
                return await loadtest.run_load(
                    scenario, target, thresholds=thresholds, on_progress=tell, stop=stops.stop
                )
            return stops.code

        report = trio.run(drive)
    if isinstance(report, int):
        notes.line("interrupted", "yellow")
        return report
    screen.line((report.as_json() if printed else report.as_text()).rstrip("\n"))
    if arguments.json is not None and not printed:
        Path(folder, arguments.json).write_text(report.as_json(), encoding="utf-8")
        notes.line(f"data: {arguments.json}", "dim")
    if arguments.html is not None:
        Path(folder, arguments.html).write_text(loadtest.as_page(report), encoding="utf-8")
        notes.line(f"page: {arguments.html}", "dim")
    if report.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if report.ok else EXIT_ERROR


@attrs.define(eq=False)
class _Stops:
    """Who hears Ctrl-C: the load, which ends early, then the whole test."""

    notes: Screen
    stop: trio.Event = attrs.Factory(trio.Event)
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    code: int = EXIT_INTERRUPTED

    def heard(self) -> None:
        if self.stop.is_set():
            self.scope.cancel()
            return
        self.stop.set()
        words = "stopped: waiting for what is in flight; Ctrl-C again leaves without a report"
        self.notes.line(f"\n{words}" if self.notes.terminal else words, "yellow")  # behind the bar and the ^C

    def ended(self, number: int) -> None:
        """The process is asked to end: what runs is aborted, its observers are told."""
        self.code = EXIT_SIGNAL + number
        self.scope.cancel()


def _scenario(arguments: argparse.Namespace, folder: str) -> Scenario:
    """Return the file's scenario, or the default one, with what the options say instead."""
    from goliath_actors.loadtest import Scenario, read_scenario, read_seconds, read_trace

    change: dict[str, Any] = {
        name: value
        for name in ("rate", "arrivals", "conversations", "max_asks", "seed")
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.duration is not None:
        change["duration"] = read_seconds("--duration", arguments.duration)
    if arguments.trace is not None:
        if "rate" in change or "arrivals" in change:
            raise ConfigError("--trace says when every ask is sent; leave out --rate and --arrivals")
        change |= {"arrivals": "trace", "trace": read_trace(Path(folder, arguments.trace))}
    if "rate" in change or "arrivals" in change:
        change["mode"] = "open"
    if arguments.scenario is None:
        return Scenario(**change)
    if ":" not in arguments.scenario or Path(folder, arguments.scenario).is_file():
        return read_scenario(Path(folder, arguments.scenario), change)
    scenario = load_value(arguments.scenario, folder, Scenario, "scenario")
    if "rate" in change and scenario.arrivals == "trace":
        change.setdefault("arrivals", "poisson")
    return attrs.evolve(scenario, **change)


def _target(
    arguments: argparse.Namespace, scenario: Scenario, agent: Agent[Any] | None, environ: Mapping[str, str]
) -> Target:
    from goliath_actors.loadtest import BackendTarget, InProcess

    if arguments.backend is not None:
        if agent is not None or arguments.model_url is not None:
            raise ConfigError("--backend drives a server, which has its agent and model; leave the others out")
        check_host("--backend", arguments.backend, arguments.allow_host)
        token = environ.get("GOLIATH_TOKEN", "").strip() or None
        return BackendTarget(arguments.backend, token=token, agent=arguments.served)
    if arguments.served is not None:
        raise ConfigError("--agent names an agent of a server; name the server with --backend")
    if arguments.model_url is None:
        if arguments.model is not None:
            raise ConfigError("--model names a model of the server at --model-url, which is missing")
        where = "in-process runtime, " + ("simulated model" if agent is None else f"agent {agent.name!r}")
        return InProcess(scenario, agent=agent, name=where)
    if arguments.model is None:
        raise ConfigError("--model-url needs --model, the name of a model there")
    check_host("--model-url", arguments.model_url, arguments.allow_host)
    from goliath_actors.models import OpenAIChat

    model = OpenAIChat(arguments.model, base_url=arguments.model_url, api_key=environ.get("OPENAI_API_KEY"))
    if agent is not None:
        agent = agent.replace(model=model)
    return InProcess(scenario, model=model, agent=agent, name=f"{arguments.model} at {arguments.model_url}")


def check_host(option: str, url: str, allowed: Sequence[str]) -> None:
    """Refuse an address that is not on this machine, unless its host was named: load on others' servers is no accident.

    Raises: `ConfigError` naming the option that allows it.
    """
    host = urlsplit(url).hostname
    if not host:
        raise ConfigError(f"{option} is {url!r}; write an address such as http://127.0.0.1:8000")
    if host in allowed or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(f"{host} is not this machine; if you may put load on it, say --allow-host {host}")


def _words(scenario: Scenario) -> str:
    if scenario.mode == "open" and scenario.arrivals == "trace":
        return f"{len(scenario.trace)} asks of a trace over {scenario.duration:g} s"
    if scenario.mode == "open":
        return f"{scenario.rate:g} asks a second for {scenario.duration:g} s"
    return f"{scenario.conversations} conversations for {scenario.duration:g} s"


def _counts(record: Recorder) -> str:
    ended = record.statuses
    failed = ended["error"] + ended["refused"]
    p99 = record.latency.at(99) * 1e3
    return (
        f"{record.sent} sent, {record.in_flight} in flight, {ended['completed'] + ended['stopped']} answered, "
        f"{ended['aborted']} aborted, {failed} failed, p99 {p99:.0f} ms"
    )


class _progress:
    """Live progress: a bar where somebody watches, else a line every few seconds."""

    def __init__(self, notes: Screen, scenario: Scenario) -> None:
        self._notes, self._scenario = notes, scenario
        self._bar: Any = None  # Any: rich's, imported only where there is a terminal
        self._next = _PLAIN_EVERY

    def __enter__(self) -> Callable[[Recorder], None]:
        if not self._notes.terminal:
            return self._line
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(file=self._notes.stream, no_color=not self._notes.colour)
        columns = (BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._bar.start()
        self._task = self._bar.add_task("", total=self._scenario.duration)
        return self._draw

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, record: Recorder) -> None:
        passed = trio.current_time() - record.start
        self._bar.update(self._task, completed=passed, description=_counts(record), refresh=True)

    def _line(self, record: Recorder) -> None:
        passed = trio.current_time() - record.start
        if passed >= self._next:
            self._next = passed + _PLAIN_EVERY
            self._notes.line(f"{passed:5.0f} s: {_counts(record)}", "dim")
