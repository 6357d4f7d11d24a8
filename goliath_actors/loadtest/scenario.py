"""What a load test does: a frozen value, written in Python or read from a small TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from goliath_actors.errors import ConfigError

from ._dice import Dice, read_dice, read_seconds

__all__ = [
    "NO_BOUND",
    "Burst",
    "Clients",
    "Provider",
    "RuntimeShape",
    "Scenario",
    "Turn",
    "read_scenario",
    "read_trace",
    "scenario_of",
]

T = TypeVar("T")

NO_BOUND = "none"  # in a file, for what may be None: TOML has no word for it


def _share(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{attribute.name} is {value!r}; it is a share between 0 and 1")


def _whole(least: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    def check(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{attribute.name} is {value!r}; it is a whole number of at least {least}")

    return check


def _integer(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{attribute.name} is {value!r}; it is a whole number")


def _above_zero(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{attribute.name} is {value!r}; it is a number above 0")


def _whole_or_none(least: int) -> Callable[[object, attrs.Attribute[int | None], int | None], None]:
    def check(instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(f"{attribute.name} is {value!r}; it is a whole number of at least {least}, or none")

    return check


def _time(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, str):
        raise ConfigError(f"{attribute.name} is {value!r}; it is a number of seconds (only a file has texts for times)")
    read_seconds(attribute.name, value)


def _time_or_none(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        _time(instance, attribute, value)


def _dice(instance: object, attribute: attrs.Attribute[Dice], value: Dice) -> None:
    if not isinstance(value, Dice):
        raise ConfigError(f'{attribute.name} is {value!r}; it is a Dice, such as Dice("fixed", 0.5)')


def _words(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{attribute.name} is {value!r}; it is a text that is not blank")


def _check_shares(value: object, *names: str) -> None:
    """Refuse shares of one whole that are more than it; what floats make of a sum of 1 is no more."""
    total = sum([getattr(value, name) for name in names])
    if total > 1 + 1e-9:
        raise ConfigError(f"{', '.join(names)} are shares of one whole; together they are {total:g}")


@attrs.frozen
class Turn:
    """One kind of ask. `weight`: how often, against the other kinds. `tools`: calls that the simulated model makes
    before it answers. `ask` may hold `{n}`, the number of the ask."""

    ask: str = attrs.field(default="What is on today?", validator=_words)
    weight: float = attrs.field(default=1.0, validator=_above_zero)
    tools: int = attrs.field(default=0, validator=_whole(0))


@attrs.frozen
class Burst:
    """`asks` more, all at once, `at` seconds after the start (open loop)."""

    at: float = attrs.field(validator=_time)
    asks: int = attrs.field(validator=_whole(1))


@attrs.frozen
class Clients:
    """Shares of clients that misbehave: `abandon` leave in the middle of the stream, `abort` ask for the run to be
    aborted, `slow` pause `slow_pause` seconds after every event that they read."""

    abandon: float = attrs.field(default=0.0, validator=_share)
    abort: float = attrs.field(default=0.0, validator=_share)
    slow: float = attrs.field(default=0.0, validator=_share)
    slow_pause: float = attrs.field(default=0.05, validator=_time)

    def __attrs_post_init__(self) -> None:
        """Check what takes more than one field."""
        _check_shares(self, "abandon", "abort", "slow")


@attrs.frozen
class Provider:
    """The simulated model. Seconds to the first token, tokens of an answer, tokens a second; shares of calls that end
    in an error, in a refusal for rate (with `retry_after` seconds), or that stall for `stall` seconds."""

    first_token: Dice = attrs.field(default=Dice("lognormal", 0.2, 0.4), validator=_dice)
    tokens: Dice = attrs.field(default=Dice("uniform", 20, 80), validator=_dice)
    tokens_per_second: float = attrs.field(default=100.0, validator=_above_zero)
    tool_time: Dice = attrs.field(default=Dice("fixed", 0.01), validator=_dice)
    errors: float = attrs.field(default=0.0, validator=_share)
    rate_limited: float = attrs.field(default=0.0, validator=_share)
    retry_after: float = attrs.field(default=0.5, validator=_time)
    stalls: float = attrs.field(default=0.0, validator=_share)
    stall: float = attrs.field(default=30.0, validator=_time)
    retries: int = attrs.field(default=2, validator=_whole(0))

    def __attrs_post_init__(self) -> None:
        """Check what takes more than one field."""
        _check_shares(self, "errors", "rate_limited", "stalls")


@attrs.frozen
class RuntimeShape:
    """The runtime in this process. `store` is `memory` or a path; `store_errors` is the share of commits that fail;
    `idle_timeout`, after how many seconds it forgets an idle conversation."""

    loop: Literal["toolloop", "conductor"] = "toolloop"
    store: str = attrs.field(default="memory", validator=_words)
    store_errors: float = attrs.field(default=0.0, validator=_share)
    max_running: int | None = attrs.field(default=None, validator=_whole_or_none(1))
    max_waiting: int | None = attrs.field(default=None, validator=_whole_or_none(0))
    mailbox_capacity: int = attrs.field(default=64, validator=_whole(0))
    observers: int = attrs.field(default=2, validator=_whole(1))
    idle_timeout: float = attrs.field(default=300.0, validator=_above_zero)


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


def _bursts(values: Iterable[Burst]) -> tuple[Burst, ...]:
    return tuple(values)


def _turns(values: Iterable[Turn]) -> tuple[Turn, ...]:
    return tuple(values)


def _as_long_as_the_trace(scenario: Scenario) -> float:
    # An ask at the very end would come too late.
    traced = scenario.mode == "open" and scenario.arrivals == "trace" and scenario.trace
    return scenario.trace[-1] + 1.0 if traced else 10.0


def _enough_for_the_rate(scenario: Scenario) -> int:
    # Defaults come before validators: the rate may be anything yet.
    if scenario.mode != "open" or not isinstance(scenario.rate, (int, float)) or not math.isfinite(scenario.rate):
        return 20
    return max(20, math.ceil(10 * scenario.rate))


@attrs.frozen(kw_only=True)
class Scenario:
    """A load test.

    Arguments: `mode`, `open` (asks come at `rate` a second whatever the answers do; latency counts from the intended
    start) or `closed` (`conversations` clients ask, wait, think and ask again); `arrivals`, `fixed`, `poisson` or
    `trace` (with `trace`, the seconds after the start); `duration` in seconds (10, or as long as the trace) and
    `max_asks`, whichever comes first; `conversations` (20, or ten for each ask a second of an open loop, since each
    takes one ask at a time: with few, their turns would be measured and not the target); `turns`, how many asks a
    conversation gets before a new one takes its place (None: no end); `timeout` of an ask and `settle`, how long the
    last ones may take after the end, in seconds; `seed` of everything that is drawn.

    Raises: `ConfigError` for what can't be run.
    """

    name: str = "load"
    seed: int = attrs.field(default=1, validator=_integer)
    mode: Literal["open", "closed"] = "closed"
    rate: float = attrs.field(default=20.0, validator=_above_zero)
    arrivals: Literal["fixed", "poisson", "trace"] = "poisson"
    trace: Sequence[float] = attrs.field(default=(), converter=_numbers)
    duration: float = attrs.field(default=attrs.Factory(_as_long_as_the_trace, takes_self=True), validator=_above_zero)
    max_asks: int = attrs.field(default=1_000_000, validator=_whole(1))
    conversations: int = attrs.field(default=attrs.Factory(_enough_for_the_rate, takes_self=True), validator=_whole(1))
    turns: int | None = attrs.field(default=None, validator=_whole_or_none(1))
    think: Dice = attrs.field(default=Dice("exponential", 0.5), validator=_dice)
    timeout: float | None = attrs.field(default=60.0, validator=_time_or_none)
    settle: float = attrs.field(default=60.0, validator=_time)
    bursts: Sequence[Burst] = attrs.field(default=(), converter=_bursts)
    mix: Sequence[Turn] = attrs.field(default=(Turn(),), converter=_turns)
    clients: Clients = Clients()
    provider: Provider = Provider()
    runtime: RuntimeShape = RuntimeShape()

    def __attrs_post_init__(self) -> None:
        """Check what takes more than one field."""
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(words)}")
        if not isinstance(self.name, str):
            raise ConfigError(f"name is {self.name!r}; it is a text")
        if self.runtime.loop not in ("toolloop", "conductor"):
            raise ConfigError(f"runtime.loop is {self.runtime.loop!r}; it is toolloop or conductor")
        if not self.mix:
            raise ConfigError("the mix is empty; a load test needs at least one [[turn]]")
        if self.arrivals == "trace" and not self.trace and self.mode == "open":
            raise ConfigError(
                "arrivals is trace, and the trace is empty; name a file with one start a line, in seconds"
            )
        for start in self.trace:
            read_seconds("a start in the trace", start)
        if any(later < earlier for earlier, later in zip(self.trace, self.trace[1:], strict=False)):
            raise ConfigError("the trace goes back in time; its starts are seconds in rising order")


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("open", "closed"),
    "arrivals": ("fixed", "poisson", "trace"),
}
_SECONDS = {"duration", "timeout", "settle", "slow_pause", "stall", "retry_after", "at", "idle_timeout"}
_MAY_BE_NONE = {"turns", "timeout", "max_running", "max_waiting"}
_DICE = {"think", "first_token", "tokens", "tool_time"}
_TABLES: Mapping[str, type[Any]] = {"clients": Clients, "provider": Provider, "runtime": RuntimeShape}


def _fields(kind: type[T], where: str, table: object, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the table as keyword arguments for `kind`, with times and shapes read."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is a table, such as [{where}]; it is {table!r}")
    unknown = [key for key in table if key not in allowed]
    if unknown:
        raise ConfigError(f"{where} has no {unknown[0]!r}; there are {', '.join(allowed)}")
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}"
        if key in _MAY_BE_NONE and value == NO_BOUND:
            found[key] = None
        elif key in _SECONDS and value is not None:
            found[key] = read_seconds(name, value)
        elif key in _DICE:
            found[key] = read_dice(name, value)
        else:
            found[key] = value
    return found


def _make(kind: type[T], where: str, table: object) -> T:
    allowed = [field.name for field in attrs.fields(kind)]  # type: ignore[arg-type]  # attrs classes, all of them
    try:
        return kind(**_fields(kind, where, table, allowed))
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def scenario_of(data: Mapping[str, Any], folder: Path, change: Mapping[str, Any] | None = None) -> Scenario:
    """Return the scenario that parsed TOML describes; a trace file is looked for in `folder`.

    Arguments: `change`, fields of `Scenario` that stand in place of what the file says; a `rate` among them in place of
    the file's trace, too.

    Raises: `ConfigError` naming the table and the key.
    """
    top = {key: value for key, value in data.items() if key in ("name", "seed", "load", "turn", *_TABLES)}
    unknown = [key for key in data if key not in top]
    if unknown:
        raise ConfigError(
            f"a scenario has no {unknown[0]!r}; there are name, seed, [load], [[turn]], "
            + (", ".join(f"[{table}]" for table in _TABLES))
        )
    made: dict[str, Any] = {key: top[key] for key in ("name", "seed") if key in top}
    ours = ("name", "seed", "mix", *_TABLES)
    load = [field.name for field in attrs.fields(Scenario) if field.name not in ours]
    made |= _fields(Scenario, "load", top.get("load", {}), load)
    if "bursts" in made:
        if not isinstance(made["bursts"], list):
            raise ConfigError(f'load.bursts is {made["bursts"]!r}; it is a list such as [{{at = "30s", asks = 300}}]')
        made["bursts"] = [_make(Burst, "load.bursts", burst) for burst in made["bursts"]]
    if isinstance(made.get("trace"), str):
        made["trace"] = read_trace(folder / made["trace"])
    elif not isinstance(made.get("trace", []), list):
        raise ConfigError(f"load.trace is {made['trace']!r}; it is a file, or a list of seconds")
    if "turn" in top:
        turns = top["turn"] if isinstance(top["turn"], list) else [top["turn"]]
        made["mix"] = [_make(Turn, "turn", turn) for turn in turns]
    for key, kind in _TABLES.items():
        if key in top:
            made[key] = _make(kind, key, top[key])
    change = change or {}
    if "rate" in change and made.get("arrivals") == "trace":
        made["arrivals"] = "poisson"
    try:
        return Scenario(**{**made, **change})
    except TypeError as error:
        raise ConfigError(f"the scenario cannot be read: {error}") from error


def read_trace(path: Path) -> list[float]:
    """Return the starts in a file, one a line, as seconds or texts such as `1.5s`.

    Raises: `ConfigError` if the file can't be read or a line is no time.
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error.strerror}") from error
    return [read_seconds(f"{path.name}, entry {number}", line) for number, line in enumerate(lines, 1)]


def read_scenario(path: Path, change: Mapping[str, Any] | None = None) -> Scenario:
    """Return the scenario in a TOML file, with the fields in `change` in place of what it says (see `scenario_of`).

    Raises: `ConfigError` if the file can't be read, is no TOML, or says something that can't be run.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the scenario {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the scenario {path} is no TOML: {error}") from error
    data.setdefault("name", path.stem)
    try:
        return scenario_of(data, path.parent, change)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
