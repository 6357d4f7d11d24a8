"""The tools of the native loop: what users of such runtimes report, and every raw argument text that was collected."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import goliath_actors
from goliath_actors import Extension, RunAborted, Tool, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelDone, ModelRequest, ModelText, ModelToolCall
from goliath_actors.errors import ConfigError, GoliathExtensionError, ModelError, ModelUnavailable, Refused
from goliath_actors.events import ToolFinished, ToolStarted
from goliath_actors.hooks import AfterTools
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import Gate, ScriptedModel, check_events, tool_calls
from goliath_actors.tools import Confirmed

from .native import check_closed, check_requests, check_valid, history, native, said
from .planned import end, requests, run, told


def results(entries: Any) -> list[str]:
    return [entry.message.text for entry in entries if entry.role == "tool"]


class Raw:
    """A scripted reply of model events as they are; only `Native` plays it."""

    def __init__(self, *events: Any) -> None:
        self.events = events

    def __call__(self, request: ModelRequest) -> Any:
        raise AssertionError("played by Native")


class Native(ScriptedModel):
    """A scripted model whose replies may also be `Raw`. It refuses what a strict provider would."""

    async def _play(self, request: ModelRequest) -> Any:
        check_valid(request.messages)
        if self._left and isinstance(self._left[-1], Raw):
            raw: Any = self._left.pop()
            for event in raw.events:
                await trio.lowlevel.checkpoint()
                yield event
            return
        async for event in super()._play(request):
            yield event


def noting(noted: list[str], name: str = "note_add") -> Tool:
    @tool(name=name)
    async def note_add(text: str) -> str:
        """Add a note."""
        await trio.lowlevel.checkpoint()
        noted.append(text)
        return f"noted {text}"

    return note_add


# --- history that stays closed --------------------------------------------------------------------------------------


async def test_a_call_that_an_abort_interrupted_has_a_result_that_says_so(autojump_clock: MockClock) -> None:
    """S06."""

    @tool
    async def wait_long() -> str:
        """Wait."""
        await trio.sleep_forever()
        return ""

    store = InMemoryStore()
    agent = native(Native([tool_calls(("wait_long", {})), "hello"]), tools=[wait_long])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("go", timeout=0.05)
        assert (await runtime.run("hello again")).text == "hello"
    entries = await history(store, agent)
    check_closed(entries)
    assert results(entries) == ["Execution did not complete."]


KILLED = """
import os, signal, sys, trio
from goliath_actors import Agent, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import ScriptedModel, tool_calls

@tool(writes=True)
async def charge(amount: int) -> str:
    '''Charge a card.'''
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"

async def main():
    agent = Agent(model=ScriptedModel([tool_calls(("charge", {"amount": 5}))]), tools=[charge],
                  loop=ToolLoop(), confirm=approve_all)
    async with open_runtime(agent, store=SqliteStore(sys.argv[1])) as runtime:
        await runtime.run("go")

trio.run(main)
"""


async def test_a_call_that_was_running_when_its_process_was_killed_is_closed_on_the_next_load(tmp_path: Path) -> None:
    """S06, S7."""
    path = tmp_path / "chat.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(goliath_actors.__file__).parent.parent)}
    done = await trio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False)
    )
    assert done.returncode == -signal.SIGKILL

    @tool(writes=True)
    async def charge(amount: int) -> str:
        """Charge a card."""
        return "charged"

    store = SqliteStore(path)
    agent = native(Native(["it may have been charged"]), tools=[charge])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("did it work?")
        entries = await history(store, agent)
    check_closed(entries)
    assert [role for role, _ in said(entries)] == ["user", "assistant", "tool", "user", "assistant"]
    assert results(entries)[0].startswith("Interrupted: ")


async def test_a_failed_sibling_cancels_nobody_and_results_come_in_call_order(autojump_clock: MockClock) -> None:
    """S07."""
    finished: list[str] = []

    @tool
    async def work(name: str, seconds: float) -> str:
        """Work."""
        await trio.sleep(seconds)
        finished.append(name)
        if name == "c2":
            raise OSError()
        return name

    heard: list[AfterTools] = []

    class Listener(Extension[Any]):
        name = "listener"

        def after_tools(self, ctx: Any, question: Any) -> None:
            heard.append(question)

    calls = [
        ("work", {"name": name, "seconds": seconds}) for name, seconds in [("c1", 0.05), ("c2", 0.02), ("c3", 0.01)]
    ]
    store = InMemoryStore()
    agent = native(Native([tool_calls(*calls), "done"]), tools=[work], extensions=[Listener()])
    result = await run(agent, store=store)
    assert finished == ["c3", "c2", "c1"]
    texts = results(await history(store, agent))
    assert (texts[0], texts[2]) == ("c1", "c3")
    assert "work failed with an internal error (OSError, error id run-" in texts[1]
    assert [step.status for step in result.steps] == ["executed", "failed", "executed", "executed"]
    assert len(requests(agent)) == 2
    assert heard[0].results == tuple(texts)
    assert [call.input for call in heard[0].calls] == [dict(arguments) for _, arguments in calls]


async def test_an_abort_starts_no_further_tool_and_no_further_model_call(autojump_clock: MockClock) -> None:
    """S08."""
    sent: list[int] = []

    @tool(sequential=True)
    async def send_alert(number: int) -> str:
        """Send."""
        sent.append(number)
        await trio.sleep(0.1)
        return "sent"

    store = InMemoryStore()
    agent = native(Native([tool_calls(*[("send_alert", {"number": n}) for n in range(5)])]), tools=[send_alert])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("go", timeout=0.05)
    entries = await history(store, agent)
    check_closed(entries)
    assert (sent, len(requests(agent))) == ([0], 1)
    assert results(entries)[1:] == ["Not executed: the run ended first."] * 4


async def test_an_abort_stores_the_results_of_the_tools_that_had_finished(autojump_clock: MockClock) -> None:
    """T3, and what is stored of them has passed `after_tool` and `before_append`."""

    @tool
    async def work(seconds: float) -> str:
        """Work."""
        await trio.sleep(seconds)
        return f"secret {seconds:g}"

    class Redact(Extension[Any]):
        name = "redact"

        async def after_tool(self, ctx: Any, question: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return question.result.replace("secret", "public")

    store = InMemoryStore()
    calls = [("work", {"seconds": 9}), ("work", {"seconds": 1})]
    agent = native(Native([tool_calls(*calls)]), tools=[work], extensions=[Redact()])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("go", timeout=5)
    assert results(await history(store, agent)) == [
        "Execution did not complete.",
        "public 1",
    ]


async def test_what_a_failing_hook_would_have_seen_is_not_stored_without_it() -> None:
    class Redact(Extension[Any]):
        name = "redact"

        def after_tool(self, ctx: Any, question: Any) -> Any:
            raise ValueError("broken")

    store = InMemoryStore()
    agent = native(
        [tool_calls(("note_add", {"text": "secret"}), ("note_add", {"text": "other secret"}))],
        tools=[noting([])],
        extensions=[Redact()],
    )
    ending = await end(agent, store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    entries = await history(store, agent)
    check_closed(entries)
    assert results(entries) == ["Executed; its output was not processed."] * 2


# --- execution ------------------------------------------------------------------------------------------------------


async def test_at_most_so_many_tools_run_side_by_side_and_sequential_ones_alone(autojump_clock: MockClock) -> None:
    active, most, alone = 0, 0, []

    async def busy() -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await trio.sleep(1)
        active -= 1

    @tool
    async def beside(n: int) -> str:
        """Run beside others."""
        await busy()
        return str(n)

    @tool(sequential=True)
    async def single() -> str:
        """Run alone."""
        alone.append(active)
        await busy()
        return "single"

    calls = [("beside", {"n": 1}), ("beside", {"n": 2}), ("beside", {"n": 3}), ("single", {}), ("beside", {"n": 4})]
    agent = native([tool_calls(*calls), "done"], tools=[beside, single], loop=ToolLoop(max_parallel_tools=2))
    start = trio.current_time()
    result = await run(agent)
    assert (most, alone, trio.current_time() - start) == (2, [0], 4.0)
    assert [step.result for step in result.steps[:5]] == ["1", "2", "3", "single", "4"]


async def test_a_tool_that_succeeded_is_never_run_again(autojump_clock: MockClock) -> None:
    """S31."""
    charged: list[int] = []
    odd: list[int] = []

    @tool(writes=True)
    async def charge() -> str:
        """Charge."""
        charged.append(1)
        return "ok"

    @tool(name="odd")
    async def strange() -> str:
        """Fail inside."""
        odd.append(1)
        raise TypeError("inner")

    model = Native([tool_calls(("charge", {})), ModelUnavailable("500"), tool_calls(("odd", {})), "done"], retries=1)
    result = await run(native(model, tools=[charge, strange]))
    assert (charged, odd, result.text) == ([1], [1], "done")
    assert "TypeError" in (result.steps[1].result or "")
    assert "inner" not in (result.steps[1].result or "")
    assert [event.error for event in told(result, ToolFinished)] == [None, "TypeError: inner"]
    assert [str(diagnostic.error) for diagnostic in result.diagnostics] == ["inner"]


async def test_a_failure_that_a_tool_declares_reaches_the_model_word_for_word() -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ToolFailure("the room is taken until 5")

    store = InMemoryStore()
    agent = native([tool_calls(("fail", {})), "done"], tools=[fail])
    result = await run(agent, store=store)
    assert results(await history(store, agent)) == ["the room is taken until 5"]
    assert result.diagnostics == ()


async def test_several_errors_that_must_escape_raise_the_first_in_call_order(autojump_clock: MockClock) -> None:
    """R10."""

    class Broken(Extension[Any]):
        name = "broken"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            await trio.sleep(question.input["n"])
            raise ValueError(f"number {question.input['n']}")

    @tool
    async def count(n: int) -> str:
        """Count."""
        return str(n)

    store = InMemoryStore()
    agent = native([tool_calls(("count", {"n": 2}), ("count", {"n": 1}))], tools=[count], extensions=[Broken()])
    ending = await end(agent, store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    assert str(ending.error.__cause__) == "number 2"
    assert "number 1" in ending.error.__notes__[0]
    check_closed(await history(store, agent))


async def test_confirmations_are_asked_in_call_order_before_anything_starts() -> None:
    log: list[str] = []

    def writer(name: str) -> Tool:
        @tool(name=name, writes=True)
        async def write() -> str:
            """Write."""
            log.append(f"ran {name}")
            return "ok"

        return write

    async def confirm(request: Any) -> Any:
        log.append(f"asked {request.tool.name}")
        return Confirmed(request.tool.name != "b", "not b")

    names = ["a", "b", "c"]
    agent = native(
        [tool_calls(*[(name, {}) for name in names]), "done"], tools=[writer(name) for name in names], confirm=confirm
    )
    result = await run(agent)
    assert log[:3] == ["asked a", "asked b", "asked c"]
    assert sorted(log[3:]) == ["ran a", "ran c"]
    assert (result.steps[1].status, result.steps[1].skip_reason) == ("skipped", "confirmation")


async def test_a_tool_that_needs_another_ones_result_says_so_to_the_model() -> None:
    @tool(requires=("note_add",))
    async def send() -> str:
        """Send."""
        return "sent"

    agent = native(
        [tool_calls(("send", {})), tool_calls(("note_add", {"text": "x"})), tool_calls(("send", {})), "done"],
        tools=[noting([]), send],
    )
    result = await run(agent)
    assert [step.status for step in result.steps] == ["skipped", "executed", "executed", "executed"]
    assert result.steps[0].result == "Not done: send needs a result of note_add first."


async def test_a_plain_tool_runs_in_a_thread_beside_the_others() -> None:
    @tool
    def plain(n: int) -> int:
        """Compute."""
        return n * 2

    result = await run(native([tool_calls(("plain", {"n": 1}), ("plain", {"n": 2})), "done"], tools=[plain]))
    assert [step.result for step in result.steps[:2]] == ["2", "4"]


async def test_a_filter_narrows_what_is_offered_and_what_may_be_called() -> None:
    from goliath_actors.hooks import PlanPatch

    class Filter(Extension[Any]):
        name = "filter"

        def before_plan(self, ctx: Any, question: Any) -> Any:
            return PlanPatch(tools=["b"])

    noted: list[str] = []
    agent = native(
        [tool_calls(("a", {"text": "x"})), "done"],
        tools=[noting(noted, "a"), noting(noted, "b")],
        extensions=[Filter()],
    )
    result = await run(agent)
    assert [spec.name for spec in requests(agent)[0].tools] == ["b"]
    assert (noted, result.steps[0].result) == ([], "There is no tool named 'a'. The tools are: b.")


# --- what models write ----------------------------------------------------------------------------------------------


async def test_one_broken_call_is_answered_and_its_sibling_runs() -> None:
    """S32."""
    noted: list[str] = []
    store = InMemoryStore()
    broken = '{"text": "milk"' + "x" * 1000
    agent = native(
        Native([tool_calls(("note_add", broken), ("note_add", {"text": "eggs"})), "done"]), tools=[noting(noted)]
    )
    result = await run(agent, store=store)
    entries = await history(store, agent)
    check_closed(entries)
    assert (noted, result.text) == (["eggs"], "done")
    assert results(entries)[0].startswith("Not executed: arguments of 'note_add' are not valid")
    assert len(results(entries)[0]) <= 600


@pytest.mark.parametrize("name", ["list_rooms", "set_level"])
@pytest.mark.parametrize("text", ["", "null", "[1]", '"attic"', "7", "{oops", "{}"])
async def test_nothing_is_invented_for_arguments_that_are_none(name: str, text: str) -> None:
    """S33."""
    ran: list[str] = []

    @tool
    async def list_rooms() -> str:
        """List."""
        ran.append("list_rooms")
        return "attic"

    @tool
    async def set_level(room: str, level: int) -> str:
        """Set."""
        ran.append("set_level")
        return "set"

    store = InMemoryStore()
    agent = native(Native([tool_calls((name, text)), "done"]), tools=[list_rooms, set_level])
    await run(agent, store=store)
    assert ran == (["list_rooms"] if name == "list_rooms" and text in ("", "null", "{}") else [])
    if name == "set_level" and text in ("", "null", "{}"):
        assert "room" in results(await history(store, agent))[0]
        assert "level" in results(await history(store, agent))[0]


@pytest.mark.parametrize(
    ("value", "readable"),
    [
        (datetime.datetime(2026, 1, 2), True),
        (decimal.Decimal("1.5"), True),
        ({1, 2}, True),
        (b"\xff\x00", True),
        ({1: "a"}, True),
        ({"mean": float("nan")}, True),
    ],
)
async def test_any_result_is_put_into_words_and_can_be_stored(value: Any, readable: bool) -> None:
    """S35, S36."""

    @tool
    async def give() -> Any:
        """Give."""
        return value

    store = InMemoryStore()
    agent = native(Native([tool_calls(("give", {})), "done"]), tools=[give])
    assert (await run(agent, store=store)).text == "done"
    entries = await history(store, agent)
    check_closed(entries)
    assert bool(results(entries)[0].strip()) is readable


async def test_a_result_whose_conversion_fails_affects_its_own_call_only() -> None:
    """S36."""

    class Nasty:
        def __repr__(self) -> str:
            raise ValueError("no")

    loop: list[Any] = []
    loop.append(loop)

    @tool
    async def give(what: str) -> Any:
        """Give."""
        return Nasty() if what == "nasty" else loop if what == "loop" else "fine"

    store = InMemoryStore()
    calls = [("give", {"what": what}) for what in ("nasty", "loop", "fine")]
    agent = native(Native([tool_calls(*calls), "done"]), tools=[give])
    await run(agent, store=store)
    entries = await history(store, agent)
    check_closed(entries)
    assert results(entries)[2] == "fine"


async def test_a_made_up_name_is_answered_with_the_real_ones() -> None:
    """S37."""
    noted: list[str] = []
    store = InMemoryStore()
    agent = native(
        Native([tool_calls(("add_note", {})), tool_calls(("note_add", {"text": "x"})), "done"]),
        tools=[noting(noted), noting([], "note_list")],
    )
    result = await run(agent, store=store)
    assert (noted, result.text) == (["x"], "done")
    assert results(await history(store, agent))[0] == (
        "There is no tool named 'add_note'. The tools are: note_add, note_list."
    )
    assert [(step.tool, step.status) for step in result.steps[:2]] == [("add_note", "failed"), ("note_add", "executed")]


async def test_calls_without_ids_or_with_the_same_are_told_apart() -> None:
    """S38."""
    noted: list[str] = []
    store = InMemoryStore()

    def call(index: int, id: str, text: str) -> ModelToolCall:
        return ModelToolCall(index, id, "note_add", json.dumps({"text": text}))

    turn = Raw(call(0, "", "a"), call(1, "", "b"), call(2, "x", "c"), call(3, "x", "d"), ModelDone("tool_calls"))
    agent = native(
        Native([turn, "ok", Raw(call(0, "x", "e"), ModelDone("tool_calls")), "ok"]),
        tools=[noting(noted)],
        loop=ToolLoop(max_parallel_tools=1),
    )
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("one")
        await runtime.run("two")
    entries = await history(store, agent)
    check_closed(entries)
    assert noted == ["a", "b", "c", "d", "e"]
    ids = [call.id for entry in entries for call in entry.message.tool_calls]
    assert len(set(ids)) == 5


async def test_streamed_pieces_of_two_calls_stay_two_calls() -> None:
    """S39: pieces come with a slot of their own, and make two calls in order."""
    noted: list[str] = []
    pieces = Raw(
        ModelToolCall(0, "a", "note_add", '{"text":'),
        ModelToolCall(1, "b", "note_add", '{"text": "2"}'),
        ModelToolCall(0, None, None, ' "1"}'),
        ModelDone("tool_calls"),
    )
    agent = native(Native([pieces, "done"]), tools=[noting(noted)], loop=ToolLoop(max_parallel_tools=1))
    await run(agent)
    assert noted == ["1", "2"]


@pytest.mark.parametrize("finish", ["stop", "end_turn", "function_call", "", "unknown", "tool_calls"])
async def test_calls_are_run_whatever_the_finish_reason_says(finish: str) -> None:
    """S40."""
    noted: list[str] = []
    reply = Raw(ModelToolCall(0, "a", "note_add", '{"text": "x"}'), ModelDone(finish))
    assert (await run(native(Native([reply, "done"]), tools=[noting(noted)]))).text == "done"
    assert noted == ["x"]


async def test_calls_of_a_reply_that_was_cut_off_are_never_executed() -> None:
    """T4."""
    noted: list[str] = []
    store = InMemoryStore()
    reply = Raw(ModelToolCall(0, "a", "note_add", '{"text": "x"}'), ModelDone("length"))
    agent = native(Native([reply, "done"]), tools=[noting(noted)])
    result = await run(agent, store=store)
    assert (noted, result.steps[0].status) == ([], "failed")
    assert results(await history(store, agent))[0].startswith("Not executed: the message was cut off")


async def test_a_filtered_reply_is_a_refusal_and_no_answer() -> None:
    """S41."""
    store = InMemoryStore()
    agent = native(Native([Raw(ModelDone("content_filter"))], retries=3))
    ending = await end(agent, store=store)
    assert isinstance(ending.error, Refused)
    assert (len(requests(agent)), said(await history(store, agent))) == (1, [("user", "hello")])


async def test_nothing_blank_is_stored_and_a_blank_reply_is_asked_for_once_more() -> None:
    """S42."""

    @tool
    async def nothing() -> str:
        """Print nothing."""
        return ""

    store = InMemoryStore()
    agent = native(Native(["", "better", "", " ", tool_calls(("nothing", {})), "yes"]), tools=[nothing])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("one")).text == "better"
        with pytest.raises(ModelError) as raised:
            await runtime.run("two")
        assert raised.value.code == "empty"
        with pytest.raises(ConfigError):
            await runtime.run("   ")
        assert (await runtime.run("are you there?")).text == "yes"
    entries = await history(store, agent)
    check_closed(entries)
    assert [text for role, text in said(entries) if role == "user"] == ["one", "two", "are you there?"]


async def test_a_repair_is_recorded_beside_the_result() -> None:
    noted: list[str] = []
    store = InMemoryStore()
    agent = native(Native([tool_calls(("note_add", "```json\n{'text': 'x'}\n```")), "done"]), tools=[noting(noted)])
    await run(agent, store=store)
    entry = next(entry for entry in await history(store, agent) if entry.role == "tool")
    assert (noted, entry.private["repairs"]) == (["x"], ["code-fence", "single-quotes"])


async def test_an_input_that_a_hook_replaced_is_recorded_beside_the_result() -> None:
    class Replace(Extension[Any]):
        name = "replace"

        def before_tool(self, ctx: Any, question: Any) -> Any:
            return {"text": "y"}

    noted: list[str] = []
    store = InMemoryStore()
    agent = native([tool_calls(("note_add", {"text": "x"})), "done"], tools=[noting(noted)], extensions=[Replace()])
    await run(agent, store=store)
    entry = next(entry for entry in await history(store, agent) if entry.role == "tool")
    assert (noted, entry.private["input"]) == (["y"], {"text": "y"})


LINES = [
    json.loads(line)
    for name in ("argument_quirks", "tool_name_quirks")
    for line in (Path(__file__).parent / "data" / f"{name}.jsonl").read_text("utf-8").splitlines()
]
SCHEMAS = LINES[0]["input"]["tools"]
CASES = LINES[1:]


def _outcome(ran: list[tuple[str, Any]], texts: list[str]) -> dict[str, Any]:
    if not ran:
        return {"outcome": "model_error", "text": texts[0]}
    if len(ran) == 1:
        return {"outcome": "call", "tool": ran[0][0], "args": ran[0][1], "times": 1}
    return {"outcome": "calls", "calls": [args for _, args in ran]}


def _matches(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    text = found.get("text", "")
    if any(word not in text for word in wanted.get("mentions", ())) or len(text) > wanted.get("max_chars", len(text)):
        return False
    return all(found.get(key) == value for key, value in wanted.items() if key not in ("mentions", "max_chars"))


@pytest.mark.parametrize("line", CASES, ids=lambda line: f"{line['id']} {line['title']}")
async def test_an_argument_text_that_was_met_in_the_wild_comes_out_right(line: dict[str, Any]) -> None:
    ran: list[tuple[str, Any]] = []

    def make(name: str, schema: dict[str, Any]) -> Tool:
        def execute(input: dict[str, Any]) -> str:
            ran.append((name, input))
            return "ok"

        confirm = bool(schema.pop("x-confirm", False))
        return Tool(name=name, description=name, parameters=schema, execute=execute, confirm=confirm or None)

    tools = [make(name, json.loads(json.dumps(schema))) for name, schema in SCHEMAS.items()]
    raw = line["input"]
    reply = Raw(
        ModelText("calling"),
        ModelToolCall(0, "c", raw["name"], raw.get("arguments") or ""),
        ModelDone("tool_calls"),
    )
    store = InMemoryStore()
    agent = native(Native([reply, "done"]), tools=tools)
    result = await run(agent, store=store)
    entries = await history(store, agent)
    check_closed(entries)
    check_requests(requests(agent))
    assert result.text == "done"
    found = _outcome(ran, results(entries))
    assert any(_matches(wanted, found) for wanted in line["expect"]["accept"]), found
    assert not any(_matches(wanted, found) for wanted in line["expect"]["never"]), found


async def test_every_started_tool_is_told_once_with_ids_of_its_own() -> None:
    gate = Gate()
    gate.open()
    agent = native([tool_calls(("note_add", {"text": "a"}), ("nope", {})), "done"], tools=[noting([])])
    result = await run(agent)
    check_events(result.trace)
    started = [event.call_id for event in told(result, ToolStarted)]
    assert started == [event.call_id for event in told(result, ToolFinished)]
    assert len(set(started)) == 2
