"""Load tests: what they send, what they count, and that a fault in the counts fails them."""

from __future__ import annotations

import itertools
import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Agent, Extension, ToolLoop, open_runtime
from goliath_actors.errors import ConfigError
from goliath_actors.events import RunFinished, RunQueued
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.loadtest import (
    Burst,
    Clients,
    Dice,
    InProcess,
    Provider,
    RuntimeShape,
    Scenario,
    Turn,
    as_page,
    as_toml,
    read_dice,
    read_scenario,
    read_seconds,
    read_threshold,
    run_load,
    scenario_of,
)
from goliath_actors.loadtest._drive import starts
from goliath_actors.loadtest._ledger import Belongings, Ledger
from goliath_actors.loadtest._measure import Observation, Recorder, Track
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import RuntimeStatistics

NONE = RuntimeStatistics(0, 0, 0, 0, 0, 0, 0, 0)
QUICK = Provider(first_token=Dice("fixed", 0.2), tokens=Dice("fixed", 20), tokens_per_second=100)


# --- what a scenario says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("1.5s", 1.5),
        ("10min", 600.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("30us", 3e-5),
        (".5s", 0.5),
        (3, 3.0),
    ],
)
def test_times_are_read_as_people_write_them(text: object, seconds: float) -> None:
    assert read_seconds("x", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1 day", None, True, float("nan"), float("inf"), [1]])
def test_what_is_no_time_is_refused_by_name(text: object) -> None:
    with pytest.raises(ConfigError, match=r"^load\.duration is "):
        read_seconds("load.duration", text)


@pytest.mark.parametrize(
    "text", ["uniform(1s)", "uniform(2s, 1s)", "zipf(1s)", "normal(a, b)", "exponential()", "lognormal(1s, 1s, 1s)"]
)
def test_what_is_no_shape_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="think"):
        read_dice("think", text)


@given(
    st.sampled_from(["fixed", "uniform", "normal", "exponential", "lognormal"]),
    st.floats(0, 100),
    st.floats(0, 3),
    st.integers(),
)
def test_no_amount_is_ever_below_zero(shape: str, first: float, second: float, seed: int) -> None:
    dice = Dice(shape, first, first + second if shape == "uniform" else second)
    assert all(dice.draw(random.Random(seed)) >= 0 for _ in range(5))


FULL = """
name = "evening"
seed = 7
[load]
mode = "open"
rate = 50
arrivals = "fixed"
duration = "30s"
conversations = 100
turns = 3
timeout = "20s"
bursts = [{at = "10s", asks = 200}]
[[turn]]
ask = "number {n}"
weight = 3
tools = 2
[[turn]]
ask = "bye"
[clients]
abandon = 0.05
slow = 0.1
slow_pause = "20ms"
[provider]
first_token = "lognormal(300ms, 0.4)"
tokens = "uniform(20, 120)"
errors = 0.01
stall = "1min"
[runtime]
loop = "conductor"
max_running = 10
"""


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "evening.toml"
    file.write_text(FULL)
    assert read_scenario(file) == Scenario(
        name="evening",
        seed=7,
        mode="open",
        rate=50,
        arrivals="fixed",
        duration=30.0,
        conversations=100,
        turns=3,
        timeout=20.0,
        bursts=[Burst(10.0, 200)],
        mix=[Turn("number {n}", 3, 2), Turn("bye")],
        clients=Clients(abandon=0.05, slow=0.1, slow_pause=0.02),
        provider=Provider(
            first_token=Dice("lognormal", 0.3, 0.4), tokens=Dice("uniform", 20, 120), errors=0.01, stall=60.0
        ),
        runtime=RuntimeShape(loop="conductor", max_running=10),
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"laod": {}}, "no 'laod'; there are name, seed"),
        ({"load": {"rat": 3}}, "load has no 'rat'"),
        ({"load": {"mode": "ajar"}}, "mode is 'ajar'; it is one of open, closed"),
        ({"load": {"rate": 0}}, "rate is 0"),
        ({"load": {"conversations": 1.5}}, "conversations is 1.5"),
        ({"load": {"mode": "open", "arrivals": "trace"}}, "the trace is empty"),
        ({"load": {"arrivals": "trace", "trace": [2, 1]}}, "back in time"),
        ({"clients": {"abandon": 2}}, "clients: abandon is 2"),
        ({"clients": []}, "clients is a table"),
        ({"runtime": {"loop": "figure eight"}}, "runtime.loop is 'figure eight'"),
        ({"turn": []}, "the mix is empty"),
        ({"turn": {"weight": -1}}, "turn: weight is -1"),
        ({"load": {"bursts": [{"at": "1s"}]}}, "load.bursts"),
        ({"load": {"trace": "nowhere.txt"}}, "nowhere.txt cannot be read"),
        ({"load": {"trace": 3}}, "load.trace is 3; it is a file, or a list of seconds"),
        ({"load": {"trace": [-1]}}, "a start in the trace is -1; it is a time of 0 or more"),
        ({"load": {"bursts": 3}}, "load.bursts is 3; it is a list such as"),
        ({"load": {"turns": 0}}, "turns is 0; it is a whole number of at least 1, or none"),
        ({"seed": "x"}, "seed is 'x'; it is a whole number"),
        ({"name": 3}, "name is 3; it is a text"),
        ({"turn": {"ask": " "}}, "turn: ask is ' '; it is a text that is not blank"),
        ({"clients": {"abandon": 0.6, "abort": 0.6}}, "clients: abandon, abort, slow are shares of one whole"),
        (
            {"provider": {"errors": 0.7, "stalls": 0.7}},
            "provider: errors, rate_limited, stalls are shares",
        ),
        ({"provider": {"tokens": "uniform(3, 1)"}}, "provider.tokens is 'uniform(3, 1)'; the first of a uniform's two"),
        ({"runtime": {"max_running": 0}}, "runtime: max_running is 0; it is a whole number of at least 1, or none"),
        ({"runtime": {"store": 3}}, "runtime: store is 3; it is a text that is not blank"),
    ],
)
def test_a_scenario_that_cannot_be_says_where_and_what(data: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        scenario_of(data, tmp_path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Scenario(think=3), "think is 3; it is a Dice"),
        (lambda: Scenario(timeout=-1), "timeout is -1; it is a time of 0 or more"),
        (lambda: Scenario(settle="1"), "settle is '1'"),
        (lambda: Dice("loaded", 3), "there is no shape 'loaded'; there are fixed, uniform"),
        (lambda: Dice("uniform", -1, 2), "takes numbers of 0 or more, not -1"),
        (lambda: Burst(-1, 3), "at is -1"),
    ],
)
def test_a_scenario_in_python_that_cannot_be_says_what(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


def test_a_file_that_is_missing_or_no_toml_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_scenario(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[load")
    with pytest.raises(ConfigError, match="is no TOML"):
        read_scenario(tmp_path / "bad.toml")


def test_a_trace_is_read_from_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "starts.txt").write_text("0\n0.5\n500ms\n2\n")
    (tmp_path / "s.toml").write_text('[load]\nmode = "open"\narrivals = "trace"\ntrace = "starts.txt"\n')
    scenario = read_scenario(tmp_path / "s.toml")
    assert (scenario.name, list(starts(scenario))) == ("s", [0, 0.5, 0.5, 2])


def test_a_trace_is_as_long_as_it_says_unless_the_scenario_says_otherwise() -> None:
    trace = [0.0, 2.0, 70.0]
    assert list(starts(Scenario(mode="open", arrivals="trace", trace=trace))) == trace
    assert list(starts(Scenario(mode="open", arrivals="trace", trace=trace, duration=5))) == trace[:2]


def test_an_open_loop_has_conversations_enough_for_its_rate() -> None:
    assert [Scenario(mode="open", rate=rate).conversations for rate in (0.5, 2, 7.01, 100)] == [20, 20, 71, 1000]
    assert (Scenario().conversations, Scenario(mode="open", rate=100, conversations=3).conversations) == (20, 3)


def test_what_may_be_without_a_bound_is_said_so_in_a_file(tmp_path: Path) -> None:
    data = {"load": {"timeout": "none", "turns": "none"}, "runtime": {"max_running": "none", "idle_timeout": "20s"}}
    scenario = scenario_of(data, tmp_path)
    assert (scenario.timeout, scenario.turns) == (None, None)
    assert (scenario.runtime.max_running, scenario.runtime.idle_timeout) == (None, 20.0)


AMOUNTS = st.builds(Dice, st.sampled_from(["normal", "lognormal"]), st.floats(0, 1e6), st.floats(0, 9)) | st.builds(
    Dice, st.sampled_from(["fixed", "exponential"]), st.floats(0, 1e6)
)
SHARES = st.floats(0, 0.33)  # of one whole, three of them
ASKS = st.text(min_size=1).filter(str.strip)
SCENARIOS = st.builds(
    Scenario,
    name=st.text(),
    seed=st.integers(-(2**40), 2**40),
    mode=st.sampled_from(["open", "closed"]),
    rate=st.floats(0.01, 1e4),
    arrivals=st.sampled_from(["poisson", "fixed"]),
    trace=st.lists(st.floats(0, 1e4), max_size=4).map(sorted),
    turns=st.none() | st.integers(1, 9),
    timeout=st.none() | st.floats(0, 100),
    think=AMOUNTS,
    bursts=st.lists(st.builds(Burst, st.floats(0, 100), st.integers(1, 9)), max_size=2),
    mix=st.lists(st.builds(Turn, ASKS, st.floats(0.1, 9), st.integers(0, 3)), min_size=1, max_size=3),
    clients=st.builds(Clients, SHARES, SHARES, SHARES, st.floats(0, 9)),
    provider=st.builds(Provider, tokens=AMOUNTS, errors=SHARES, retries=st.integers(0, 9)),
    runtime=st.builds(RuntimeShape, store=ASKS, max_running=st.none() | st.integers(1, 9)),
)


@given(SCENARIOS)
def test_a_scenario_written_as_a_file_is_read_as_the_same_scenario(scenario: Scenario) -> None:
    assert scenario_of(tomllib.loads(as_toml(scenario)), Path()) == scenario


# --- when asks are sent ---------------------------------------------------------------------------------------------


def test_a_fixed_rate_has_even_starts_and_bursts_lie_among_them() -> None:
    scenario = Scenario(mode="open", arrivals="fixed", rate=2, duration=2, bursts=[Burst(0.7, 2)])
    assert list(starts(scenario)) == [0, 0.5, 0.7, 0.7, 1.0, 1.5]


def test_poisson_arrivals_have_the_rate_and_depend_on_the_seed_alone() -> None:
    scenario = Scenario(mode="open", rate=100, duration=100)
    first = list(starts(scenario))
    assert first == list(starts(scenario))
    assert first != list(starts(attrs.evolve(scenario, seed=2)))
    assert len(first) == pytest.approx(10_000, rel=0.05)
    assert all(a <= b for a, b in itertools.pairwise(first))


async def test_latency_counts_from_the_intended_start_so_that_a_jam_is_seen(autojump_clock: object) -> None:
    """One run at a time takes 0.4 s, two asks a second more than fit: each next one waits 0.15 s longer."""
    scenario = Scenario(
        mode="open",
        arrivals="fixed",
        rate=4,
        duration=5,
        conversations=1000,
        provider=QUICK,
        runtime=RuntimeShape(max_running=1),
    )
    report = await run_load(scenario)
    assert report.ok, report.as_text()
    assert report.figures["counts"]["completed"] == 20
    assert report.figures["latency"]["max"] == pytest.approx(0.4 + 19 * 0.15, rel=0.02)
    assert report.figures["queued"]["max"] == pytest.approx(19 * 0.15, rel=0.02)


# --- what is counted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["toolloop", "conductor"])
@pytest.mark.parametrize("mode", ["open", "closed"])
async def test_every_account_is_settled_whatever_clients_provider_and_store_do(
    loop: Any, mode: Any, autojump_clock: object
) -> None:
    scenario = Scenario(
        mode=mode,
        rate=40,
        duration=8,
        conversations=30,
        turns=4,
        timeout=5,
        think=Dice("exponential", 0.2),
        mix=[Turn(), Turn("more of {n}", tools=2)],
        clients=Clients(abandon=0.15, abort=0.15, slow=0.1),
        provider=Provider(errors=0.1, rate_limited=0.1, stalls=0.05, retries=1),
        runtime=RuntimeShape(loop=loop, store_errors=0.02, observers=3, max_running=20),
        bursts=[Burst(2, 50)],
    )
    report = await run_load(scenario)
    assert report.ok, report.as_text()
    counts = report.figures["counts"]
    assert counts["sent"] > 80
    assert counts["completed"] > 30
    assert counts["aborted"] > 10
    assert sum(counts[name] for name in ("completed", "stopped", "error", "aborted", "refused")) == counts["sent"]
    assert {"aborted: caller", "aborted: requested"} <= set(report.reasons)
    json.loads(report.as_json())


async def test_a_full_mailbox_is_a_refusal_and_no_error(autojump_clock: object) -> None:
    scenario = Scenario(
        mode="open",
        arrivals="fixed",
        rate=20,
        duration=2,
        conversations=1,
        provider=QUICK,
        runtime=RuntimeShape(mailbox_capacity=2),
    )
    report = await run_load(scenario)
    assert report.ok, report.as_text()
    counts = report.figures["counts"]
    assert (counts["error"], report.reasons["refused: MailboxFull"]) == (0, counts["refused"])
    assert counts["refused"] > counts["completed"] > 0


async def test_a_load_test_is_bounded_by_its_number_of_asks(autojump_clock: object) -> None:
    for mode in ("open", "closed"):
        report = await run_load(Scenario(mode=mode, max_asks=7, duration=1e6, provider=QUICK))
        assert report.figures["counts"]["sent"] == 7


async def test_clients_that_wait_when_the_time_is_over_are_ended(autojump_clock: object) -> None:
    provider = Provider(first_token=Dice("fixed", 1000.0))
    report = await run_load(Scenario(max_asks=3, think=Dice("fixed", 0), timeout=None, settle=5, provider=provider))
    assert [(check.name, check.detail) for check in report.checks if not check.ok] == [
        ("an ask was answered", "all 3 failed or were refused, or were aborted")
    ]
    assert report.figures["counts"]["aborted"] == 3
    assert report.seconds == pytest.approx(15)


async def test_a_load_test_that_is_over_before_it_has_sent_anything_has_failed(autojump_clock: object) -> None:
    report = await run_load(Scenario(duration=1, think=Dice("fixed", 2)))
    assert [(check.name, check.detail) for check in report.checks if not check.ok] == [
        ("an ask was answered", "none was sent in this time")
    ]
    assert report.verdict.startswith("FAILED")


@pytest.mark.parametrize("mode", ["open", "closed"])
async def test_a_load_that_is_told_to_stop_sends_nothing_more_and_waits_for_what_is_in_flight(
    mode: Any, autojump_clock: object
) -> None:
    stop = trio.Event()
    provider = Provider(first_token=Dice("fixed", 3.0), tokens=Dice("fixed", 1))
    scenario = Scenario(
        mode=mode, arrivals="fixed", rate=1, duration=100, conversations=50, think=Dice("fixed", 9.0), provider=provider
    )

    def between_two(record: Recorder) -> None:
        if trio.current_time() - record.start > 9.4:
            stop.set()

    report = await run_load(scenario, on_progress=between_two, stop=stop)
    counts = report.figures["counts"]
    assert counts["sent"] == counts["completed"] == (10 if mode == "open" else 50)
    assert all(check.ok for check in report.checks)
    assert (report.interrupted, report.ok) == (True, False)
    assert 12 <= report.seconds < 14
    assert report.verdict == f"INTERRUPTED after {report.seconds:.1f} s of 100 s"


async def test_what_is_in_flight_when_a_load_is_told_to_stop_has_ten_seconds(autojump_clock: object) -> None:
    stop = trio.Event()
    stop.set()
    assert (await run_load(Scenario(max_asks=3), stop=stop)).figures["counts"]["sent"] == 0
    stop = trio.Event()
    provider = Provider(first_token=Dice("fixed", 1000.0))

    def once_sent(record: Recorder) -> None:
        if record.in_flight == 3:
            stop.set()

    scenario = Scenario(conversations=3, think=Dice("fixed", 0), timeout=None, duration=1e6, provider=provider)
    report = await run_load(scenario, on_progress=once_sent, stop=stop, thresholds=[read_threshold("p50>1ms")])
    assert report.figures["counts"]["aborted"] == 3
    assert report.seconds < 12
    json.loads(report.as_json())


async def test_the_users_own_agent_is_driven_with_the_observers_added(autojump_clock: object) -> None:
    agent = Agent(name="mine", model=ScriptedModel(["hello"] * 5), loop=ToolLoop())
    scenario = Scenario(max_asks=5, conversations=1)
    report = await run_load(scenario, InProcess(scenario, agent=agent))
    assert report.ok, report.as_text()
    assert report.figures["counts"]["completed"] == 5


# --- a fault is found -----------------------------------------------------------------------------------------------


@attrs.frozen
class Accepted:
    id: str


def failed(ledger: Ledger, after: RuntimeStatistics = NONE) -> list[str]:
    return [check.name for check in ledger.checks(NONE, after) if not check.ok]


def one(ledger: Ledger, times: int) -> Ledger:
    ledger.accept(Accepted("r1"))  # type: ignore[arg-type]  # only the id is looked at
    for _ in range(times):
        ledger.hear("r1")
    return ledger


ENDED = attrs.evolve(NONE, accepted=1, completed=1)


def test_an_observer_that_was_not_told_is_found() -> None:
    assert failed(one(Ledger(2), 2), ENDED) == []
    ledger = one(Ledger(2), 1)
    assert failed(ledger, ENDED) == ["every observer heard every end"]
    assert ledger.checks(NONE, ENDED)[2].evidence == ("r1: 1 not told",)


def test_an_observer_that_was_told_twice_is_found() -> None:
    assert failed(one(Ledger(2), 3), ENDED) == ["every observer heard every end"]


def test_an_observer_that_was_told_before_the_asker_went_on_is_no_fault() -> None:
    ledger = Ledger(1)
    ledger.hear("r1")
    assert failed(one(ledger, 0), ENDED) == []


def test_a_run_that_nobody_asked_for_is_found() -> None:
    ledger = Ledger(1)
    ledger.hear("r9")
    assert "every observer heard every end" in failed(ledger)


def test_a_run_without_an_end_is_found() -> None:
    after = attrs.evolve(NONE, accepted=1, running=1)
    assert failed(one(Ledger(1), 1), after) == ["every accepted ask ended once", "nothing runs or waits any more"]


def test_a_run_that_the_runtime_does_not_know_is_found() -> None:
    assert "the runtime and its askers count the same" in failed(one(Ledger(1), 1))


def test_events_that_break_the_grammar_are_found() -> None:
    ledger = Ledger(0)
    ledger.read((RunQueued("r1", None, 1, 0.0), RunFinished("r1", None, 2, 0.0, status="completed")))
    assert failed(ledger) == []
    ledger.read((RunQueued("r1", None, 1, 0.0),))
    assert failed(ledger) == ["events keep their grammar"]


async def test_what_is_left_behind_is_named(tmp_path: Path) -> None:
    before = Belongings.now()
    assert before.check(Belongings.now()).ok
    with (tmp_path / "file").open("w"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            check = before.check(Belongings.now())
            nursery.cancel_scope.cancel()
    assert check.detail == "1 tasks, 1 files or sockets"
    assert check.evidence == ("trio.sleep_forever, 1 more", f"{tmp_path / 'file'}, 1 more")


class Untidy(Extension[Any]):
    """Leaves a file open at every end, and raises where it changes nothing."""

    name = "untidy"

    def __init__(self, folder: Path) -> None:
        self.left: list[Any] = []
        self._folder = folder

    def on_finish(self, ctx: HookContext[Any], question: OnFinish, /) -> None:
        self.left.append((self._folder / "log").open("a"))
        raise RuntimeError("not tidy")


async def test_an_extension_that_leaves_files_open_fails_the_load_test_with_their_names(
    tmp_path: Path, autojump_clock: object
) -> None:
    untidy = Untidy(tmp_path)
    agent = Agent(name="mine", model=ScriptedModel(["hello"] * 3), loop=ToolLoop(), extensions=[untidy])
    scenario = Scenario(max_asks=3, conversations=1)
    report = await run_load(scenario, InProcess(scenario, agent=agent))
    for file in untidy.left:
        file.close()
    checks = {check.name: check for check in report.checks}
    assert (report.ok, report.verdict) == (False, "FAILED: 1 check")
    assert checks["nothing is left behind"].detail == "3 files or sockets"
    assert checks["nothing is left behind"].evidence == (f"{tmp_path / 'log'}, 3 more",)
    noted = checks["what extensions raised changed nothing"]
    assert (noted.ok, noted.evidence) == (True, ("3 times untidy in on_finish: RuntimeError: not tidy",))
    assert f"          {tmp_path / 'log'}, 3 more\n" in report.as_text()
    assert "<h2>What broke</h2>" in as_page(report)


async def test_a_conversation_that_somebody_keeps_is_found(autojump_clock: object) -> None:
    before = Belongings.now()
    agent = Agent(name="kept", model=ScriptedModel(["hello"]), loop=ToolLoop())
    async with open_runtime(agent) as runtime:
        await runtime.run("hi", conversation_id="c7")
        check = before.check(Belongings.now())
    assert check.detail.startswith("1 conversations")
    assert check.evidence[0] == "'c7', 1 more"
    del runtime
    assert before.check(Belongings.now()).ok


async def test_a_load_test_without_a_single_answer_has_failed_and_says_why(autojump_clock: object) -> None:
    provider = attrs.evolve(QUICK, errors=1.0, retries=0)
    report = await run_load(Scenario(max_asks=3, provider=provider))
    assert [check.name for check in report.checks if not check.ok] == ["an ask was answered"]
    words = "the simulated provider failed, as the scenario says"
    assert report.examples == {"error: ModelUnavailable": words}
    assert f"        3  error: ModelUnavailable\n           such as: {words}\n" in report.as_text()
    page = as_page(report)
    assert words in page
    # What was never measured has no row and no plot.
    assert "answer, from the intended start" not in page
    assert page.count("<svg") == 2


# --- what is told ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 3000), min_size=1, max_size=300))
def test_percentiles_are_within_three_digits_of_the_sorted_list(values: list[float]) -> None:
    track = Track()
    for value in values:
        track.add(value)
    ordered = sorted(values)
    assert track.at(100) == ordered[-1]
    exact = ordered[max(-(-len(values) * 50 // 100) - 1, 0)]
    assert track.at(50) == pytest.approx(exact, rel=2e-3, abs=2e-6)


def test_a_recorder_stays_small_however_much_it_is_told() -> None:
    recorder = Recorder.over(0.0, 10.0)
    for number in range(20_000):
        seen = Observation(number / 2000, number / 2000, first=number / 2000, ended=number / 2000, status="completed")
        recorder.began(seen)
        recorder.over_with(seen)
    assert len(recorder.buckets) == 20
    assert max(len(bucket.latencies) for bucket in recorder.buckets.values()) == 400
    assert recorder.latency.count == 20_000


def test_where_nothing_ended_there_is_no_time_in_place_of_a_fast_one() -> None:
    recorder = Recorder.over(0.0, 10.0)
    for at in (0.1, 2.1):
        seen = Observation(at - 0.1, at - 0.1, ended=at, status="completed")
        recorder.began(seen)
        recorder.over_with(seen)
    recorder.bucket(1.2).waiting = 3
    assert [(point["at"], point["p50"], point["waiting"]) for point in recorder.timeline()] == [
        (0.0, pytest.approx(0.1), 0),
        (1.0, None, 3),
        (2.0, pytest.approx(0.1), 0),
    ]


@pytest.mark.parametrize(
    ("text", "broken", "wanted"),
    [
        ("p99>300ms", True, "p99 <= 300ms"),
        ("p99 > 2s", False, "p99 <= 2s"),
        ("first.p50>100ms", True, "first.p50 <= 100ms"),
        ("mean<1s", True, "mean >= 1s"),
        ("max>=10s", False, "max < 10s"),
        ("errors>0", False, "errors <= 0"),
        ("completed<=5", True, "completed > 5"),
        ("refused>1%", False, "refused <= 1%"),
        ("completed>99%", True, "completed <= 99%"),
        ("rate<1", False, "rate >= 1"),
    ],
)
async def test_a_threshold_that_is_broken_fails_the_load_test(
    text: str, broken: bool, wanted: str, autojump_clock: object
) -> None:
    scenario = Scenario(max_asks=5, provider=QUICK, think=Dice("fixed", 0.1))
    report = await run_load(scenario, thresholds=[read_threshold(text)])
    assert report.ok is not broken
    assert [line.split(":")[0] for line in report.broken] == ([text] if broken else [])
    (judged,) = report.thresholds
    assert (judged.text, judged.held, judged.wanted) == (text, not broken, wanted)
    mark = "FAIL" if broken else "ok  "
    assert f"  {mark}  {judged.wanted}: it is {judged.shown}\n" in report.as_text()
    assert report.as_text().endswith("  FAILED: 1 threshold\n" if broken else "  passed\n")
    assert json.loads(report.as_json())["thresholds"] == [attrs.asdict(judged)]


@pytest.mark.parametrize(
    "text",
    [
        "p99",
        "p98>1s",
        "errors>many",
        "speed>3",
        "first.errors>1",
        "rate>3%",
        "p99>fast",
        "",
        "errors>nan",
        "aborted>-1",
    ],
)
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_threshold(text)


async def test_the_page_holds_everything_and_asks_nobody_for_anything(autojump_clock: object) -> None:
    scenario = Scenario(name="<b>bold</b>", max_asks=30, provider=QUICK)
    report = await run_load(scenario, thresholds=[read_threshold("p50>1ms")])
    page = as_page(report)
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>" not in page
    assert page.count("<svg") == 5
    assert "FAILED: 1 threshold" in page
    assert "p50 &lt;= 1ms" in page
    links = set(re.findall(r"""(?:href|src|url)\s*[=(]\s*["']?([^"'\s)>]+)""", page))
    assert not [link for link in links if not link.startswith("#")]
    assert not re.search(r"<(script|link|iframe|img)\b", page)


async def test_progress_is_told_while_it_goes(autojump_clock: object) -> None:
    told: list[int] = []
    scenario = Scenario(duration=3, provider=QUICK)
    await run_load(scenario, on_progress=lambda record: told.append(record.sent))
    assert len(told) >= 6
    assert told == sorted(told)
