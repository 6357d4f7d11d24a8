"""Evaluation: asks with what must come of them, run several times, and a report.

Uses the front door alone to run asks, as an application would; nothing in the library uses it.
"""

# Why each attempt has a runtime of its own: a conversation remembers, a model may be degraded for a session, an
# extension may count. An attempt that saw what another left behind would not measure the agent.

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final, get_args

import attrs
import trio

from goliath_actors import Agent, RunResult, open_runtime

from ._frozen import freeze
from .errors import ConfigError
from .events import Escalate
from .stores import InMemoryStore
from .values import FallbackAnswer, FallbackRequest, Route

__all__ = ["Attempt", "Evaluated", "Fixture", "Report", "acknowledge", "evaluate"]

Escalation: TypeAlias = Literal["forbidden", "allowed", "expected"]

_ROUTES: Final = get_args(Route)
_ESCALATIONS: Final = get_args(Escalation)


# With a name, since type checkers do not see what a class may be made from behind `converter=tuple`.
def _texts(value: Iterable[str]) -> tuple[str, ...]:
    # A single string is a sequence of its letters, so that every check of it would mean something else.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"a fixture's tools, mentions and forbids are lists of strings, not {value!r}")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"a fixture's tools, mentions and forbids are strings with text in them, not {text!r}")
    return texts


@final
@attrs.frozen
class Fixture:
    """An ask, and what must come of it.

    Arguments:
      id: names the fixture in the report; unique within an evaluation.
      ask: what the user says.
      tools: the tools of the step log, exactly these in this order; calls that were answered from an earlier step,
        skipped or failed count like others.
      handled_by: `device` or `cloud`, as in the result.
      escalation: whether the loop may give up on the device: `forbidden`, `allowed` or `expected`. None means
        `expected` for a fixture that the cloud handles, `allowed` for one with an `expected_reason`, else `forbidden`.
      expected_reason: the result's reason, exactly. Only with it may an answer be empty.
      mentions: pieces of text that the answer has, in whatever case.
      forbids: pieces of text that it has not, in whatever case.

    Raises: `ConfigError`, also for the cloud without an escalation, which cannot be.
    """

    id: str
    ask: str
    tools: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    handled_by: Route = "device"
    escalation: Escalation | None = None
    expected_reason: str | None = None
    mentions: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    forbids: tuple[str, ...] = attrs.field(default=(), converter=_texts)

    def __attrs_post_init__(self) -> None:
        texts = {"id": self.id, "ask": self.ask}
        if self.expected_reason is not None:
            texts["expected_reason"] = self.expected_reason
        for name, text in texts.items():
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(f"Fixture({name}=...) must be a string with text in it, not {text!r}")
        if self.handled_by not in _ROUTES:
            raise ConfigError(f"fixture {self.id!r}: handled_by is one of {_ROUTES}, not {self.handled_by!r}")
        if self.escalation is not None and self.escalation not in _ESCALATIONS:
            raise ConfigError(f"fixture {self.id!r}: escalation is one of {_ESCALATIONS}, not {self.escalation!r}")
        if self.handled_by == "cloud" and self.escalation == "forbidden":
            raise ConfigError(f"fixture {self.id!r}: the cloud handles only what was escalated, which it forbids")

    @property
    def escalates(self) -> Escalation:
        """`escalation`, or what it means if it is None."""
        if self.escalation is not None:
            return self.escalation
        if self.handled_by == "cloud":
            return "expected"
        return "forbidden" if self.expected_reason is None else "allowed"


@final
@attrs.frozen
class Attempt:
    """One run of a fixture's ask.

    Fields:
      fixture_id: the fixture's id.
      run: counts from 1.
      result: as the runtime returned it; None if something was raised.
      error: what was raised, the same object; None if nothing was.
      problems: what is wrong with it, one line each.
    """

    fixture_id: str
    run: int
    result: RunResult | None = None
    error: Exception | None = None
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Nothing is wrong with it."""
        return not self.problems

    @property
    def text(self) -> str:
        """The answer; empty if something was raised."""
        return "" if self.result is None else self.result.text

    @property
    def handled_by(self) -> Route | None:
        """Who answered; None if something was raised."""
        return None if self.result is None else self.result.handled_by

    @property
    def reason(self) -> str | None:
        """The result's reason."""
        return None if self.result is None else self.result.reason

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools in the step log, in order."""
        return () if self.result is None else _tools(self.result)

    @property
    def steps(self) -> int:
        """How many steps the log has; 0 if something was raised."""
        return 0 if self.result is None else len(self.result.steps)

    @property
    def escalated(self) -> bool:
        """The loop gave up on the device, whoever answered then."""
        return self.result is not None and _escalated(self.result)


@final
@attrs.frozen
class Evaluated:
    """What came of a fixture.

    Fields:
      fixture: the fixture.
      attempts: every attempt, in order.
    """

    fixture: Fixture
    attempts: tuple[Attempt, ...]

    @property
    def passed(self) -> bool:
        """Every attempt passed: one that did is luck as long as another did not."""
        return all(attempt.passed for attempt in self.attempts)

    @property
    def passes(self) -> int:
        """How many attempts passed."""
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def last(self) -> Attempt:
        """The last attempt."""
        return self.attempts[-1]

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of all attempts in order; with several attempts each says `Run 1: `, `Run 2: `, …"""
        several = len(self.attempts) > 1
        return tuple(
            f"Run {attempt.run}: {problem}" if several else problem
            for attempt in self.attempts
            for problem in attempt.problems
        )


def _frozen_metadata(value: Mapping[str, Any]) -> Mapping[str, Any]:
    frozen: Mapping[str, Any] = freeze(value)
    return frozen


@final
@attrs.frozen
class Report:
    """What an evaluation found: counts of fixtures, and counts of attempts.

    Fields:
      fixtures: what came of each fixture, in the order in which they were given.
      runs: how many attempts each had, the k of pass^k.
      metadata: a read-only copy of what the caller said about the evaluation.
    """

    fixtures: tuple[Evaluated, ...]
    runs: int = 1
    # Any: the caller's own words, such as the model's name or a date.
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_metadata)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts of all fixtures, in order."""
        return tuple(attempt for each in self.fixtures for attempt in each.attempts)

    @property
    def total(self) -> int:
        """How many fixtures there are."""
        return len(self.fixtures)

    @property
    def passed(self) -> int:
        """How many fixtures passed, each in every attempt."""
        return sum(each.passed for each in self.fixtures)

    @property
    def total_runs(self) -> int:
        """How many attempts there were."""
        return len(self.attempts)

    @property
    def on_device(self) -> int:
        """How many attempts the agent's own model answered."""
        return sum(attempt.handled_by == "device" for attempt in self.attempts)

    @property
    def escalated(self) -> int:
        """How many attempts were escalated. A refusal or a best effort also counts as answered on the device."""
        return sum(attempt.escalated for attempt in self.attempts)

    @property
    def errors(self) -> int:
        """How many attempts raised."""
        return sum(attempt.error is not None for attempt in self.attempts)

    @property
    def mean_steps(self) -> float:
        """Steps for each attempt on average, rounded to 2 decimals; an attempt that raised counts with 0."""
        return round(sum(attempt.steps for attempt in self.attempts) / max(1, self.total_runs), 2)

    def text(self) -> str:
        """Return the report for a terminal: the total, a line for each fixture with its problems, counts, metadata."""
        lines = [f"pass^{self.runs}: {self.passed} of {_count(self.total, 'fixture')}"]
        for each in self.fixtures:
            runs = f" ({each.passes} of {self.runs} runs)" if self.runs > 1 else ""
            lines.append(f"  {'pass' if each.passed else 'FAIL'}  {_line(each.fixture.id)}{runs}")
            lines += [f"        {problem}" for problem in each.problems]
        lines.append(
            f"{_count(self.total_runs, 'run')}: {self.on_device} on device, {self.escalated} escalated, "
            f"{_count(self.errors, 'error')}, {self.mean_steps:.2f} steps on average"
        )
        lines += [f"{_line(str(key))}: {_line(str(value))}" for key, value in self.metadata.items()]
        return "\n".join(lines)


def acknowledge(request: FallbackRequest) -> FallbackAnswer:
    """Answer in place of a second brain: `Agent(..., fallback=acknowledge)` shows what escalates, and costs nothing."""
    return FallbackAnswer(f"Handed over ({request.reason}).")


async def evaluate(
    make_agent: Callable[[], Agent[Any] | Awaitable[Agent[Any]]],
    fixtures: Sequence[Fixture],
    *,
    runs: int = 1,
    metadata: Mapping[str, Any] | None = None,
    conversation_id: str | None = None,
    on_progress: Callable[[Attempt], object] | None = None,
) -> Report:
    """Run every fixture `runs` times, one attempt after the other, and report what came of them.

    Arguments:
      make_agent: returns, or awaits, a new agent; called for each attempt, which gets a runtime and a store in memory
        of its own. What it shares between agents, such as tools that write, attempts share.
      fixtures: with different ids, at least one.
      runs: attempts of each fixture, at least 1. A fixture passes only if every attempt passes (pass^k).
      metadata: what the report is to keep about the evaluation; copied before the first attempt.
      conversation_id: of every attempt's run; None is the agent's default conversation.
      on_progress: called with each attempt once it is over, sync or async. What it raises ends the evaluation.

    Returns: the report. An attempt that raised is in it, as one that failed.

    Raises: `ConfigError` before the first attempt.

    Cancellation: aborts the attempt's run, tells its observers, and passes; nothing is reported.
    """
    if not callable(make_agent):
        raise ConfigError(
            f"evaluate needs a callable that makes an agent, not {make_agent!r}; write lambda: Agent(...)"
        )
    if on_progress is not None and not callable(on_progress):
        raise ConfigError(f"evaluate(on_progress=...) must be callable, not {on_progress!r}")
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise ConfigError(f"evaluate(runs=...) must be a positive integer, not {runs!r}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"evaluate(metadata=...) must be a mapping, not {type(metadata).__name__}")
    asked = _checked(fixtures)
    about = _frozen_metadata(metadata or {})
    await trio.lowlevel.checkpoint()
    done: list[Evaluated] = []
    for fixture in asked:
        attempts: list[Attempt] = []
        for run in range(1, runs + 1):
            attempt = await _attempt(make_agent, fixture, run, conversation_id)
            attempts.append(attempt)
            if on_progress is not None:
                told = on_progress(attempt)
                if inspect.isawaitable(told):
                    await told
        done.append(Evaluated(fixture, tuple(attempts)))
    return Report(tuple(done), runs, about)


def _checked(fixtures: Sequence[Fixture]) -> tuple[Fixture, ...]:
    if isinstance(fixtures, str | bytes | Mapping) or not isinstance(fixtures, Iterable):
        raise ConfigError(f"evaluate takes a list of fixtures, not {type(fixtures).__name__}")
    asked = tuple(fixtures)
    ids: set[str] = set()
    for fixture in asked:
        if not isinstance(fixture, Fixture):
            raise ConfigError(f"evaluate takes fixtures, not {type(fixture).__name__}; make a Fixture(id=..., ask=...)")
        if fixture.id in ids:
            raise ConfigError(f"two fixtures have the id {fixture.id!r}; give each its own")
        ids.add(fixture.id)
    if not asked:
        raise ConfigError("evaluate needs at least one fixture; nothing would pass, and nothing fail")
    return asked


async def _attempt(
    make_agent: Callable[[], Agent[Any] | Awaitable[Agent[Any]]],
    fixture: Fixture,
    run: int,
    conversation_id: str | None,
) -> Attempt:
    try:
        made = make_agent()
        agent = await made if inspect.isawaitable(made) else made
        async with open_runtime(agent, store=InMemoryStore()) as runtime:
            result = await runtime.run(fixture.ask, conversation_id=conversation_id)
    except Exception as error:  # noqa: BLE001  # whatever an attempt raises is what is being measured
        return Attempt(fixture.id, run, error=error, problems=(_line(f"raised {type(error).__name__}: {error}"),))
    return Attempt(fixture.id, run, result=result, problems=tuple(_problems(fixture, result)))


def _problems(fixture: Fixture, result: RunResult) -> list[str]:
    """Say everything that is wrong with a result, not only the first."""
    found: list[str] = []
    reason, tools = result.reason, _tools(result)
    if tools != fixture.tools:
        found.append(f"tools: {_names(tools)}; expected {_names(fixture.tools)}")
    if result.handled_by != fixture.handled_by:
        found.append(f"handled by {result.handled_by}; expected {fixture.handled_by}")
    escalated = _escalated(result)
    if escalated and fixture.escalates == "forbidden":
        found.append(f"escalated ({reason}), which is forbidden")
    elif not escalated and fixture.escalates == "expected":
        found.append("not escalated, which was expected")
    if fixture.expected_reason is not None:
        if reason != fixture.expected_reason:
            found.append(f"reason: {reason or 'none'}; expected {fixture.expected_reason}")
    else:
        if reason is not None and not escalated:  # it waits for a person, or was ended by an extension
            found.append(f"reason: {reason}; expected none")
        if not result.text.strip():
            found.append("no text")
    text = result.text.casefold()
    found += [f"does not mention {piece!r}" for piece in fixture.mentions if piece.casefold() not in text]
    found += [f"mentions {piece!r}, which is forbidden" for piece in fixture.forbids if piece.casefold() in text]
    return [_line(problem) for problem in found]


def _tools(result: RunResult) -> tuple[str, ...]:
    return tuple(step.tool for step in result.steps if step.kind == "tool" and step.tool is not None)


def _escalated(result: RunResult) -> bool:
    # A ToolLoop has nobody to escalate to: it gives up without the event.
    return result.best_effort or any(isinstance(event, Escalate) for event in result.trace)


def _names(tools: Sequence[str]) -> str:
    return ", ".join(tools) or "none"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line(text: str) -> str:
    """Return a text on one line; errors of providers have many, and bytes that a terminal would obey."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
