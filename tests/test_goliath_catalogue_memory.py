"""Catalogue of the planned loop's behaviour: the scribe (SCR), result summaries (STR), adapters (ADP), structured
answers (OUT).

Where a rule of ours overrules a line of the catalogue, the test holds our rule and its comment names it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
import trio

from goliath_actors import Conductor, Extension, Stop, open_runtime, tool
from goliath_actors._text import summarise
from goliath_actors.errors import FallbackError, GoliathBudgetError, ModelError, StoreCorrupt
from goliath_actors.events import Answer, Budget, MemoryError
from goliath_actors.hooks import RunPatch
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, ScriptedModel
from goliath_actors.values import Exchange, FallbackRequest

from .planned import (
    ANSWER,
    end,
    labels,
    memory_of,
    planned,
    prompt,
    reasons,
    requests,
    roles,
    run,
    stored,
    system,
    told,
    use,
)


class Cloud:
    """A fallback that counts."""

    def __init__(self) -> None:
        self.requests: list[FallbackRequest] = []

    async def __call__(self, request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return "cloud"


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


# --- SCR ------------------------------------------------------------------------------------------------------------


async def test_scr_01_a_first_exchange_is_kept_verbatim_without_a_call() -> None:
    store = InMemoryStore()
    agent = planned(["Hello."])
    await run(agent, "Hi!", store=store)
    memory = await memory_of(store, agent)
    assert memory.summary == ""
    assert [(exchange.ask, exchange.answer) for exchange in memory.recent] == [("Hi!", "Hello.")]
    assert roles(agent) == ["answer"]


async def test_scr_02_a_fourth_exchange_folds_the_oldest_into_the_summary() -> None:
    store = await stored(("oldest ask", "1"), ("b", "2"), ("c", "3"), summary="Goal: old")
    agent = planned(["done", "Goal: new"])
    await run(agent, store=store)
    memory = await memory_of(store, agent)
    assert memory.summary == "Goal: new"
    assert [exchange.ask for exchange in memory.recent] == ["b", "c", "hello"]
    assert "oldest ask" in prompt(agent, 1)
    assert "Goal: old" in prompt(agent, 1)
    assert len(requests(agent)) == 2


async def test_scr_02_several_evictions_are_several_calls() -> None:
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"))
    agent = planned(["done", "Goal: one", "Goal: two"])
    await run(agent, store=store)
    assert roles(agent) == ["answer", "scribe", "scribe"]
    assert "Goal: one" in prompt(agent, 2)
    assert (await memory_of(store, agent)).summary == "Goal: two"


async def test_scr_03_a_blank_summary_keeps_the_old_one() -> None:
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), summary="before")
    agent = planned(["done", "  "])
    await run(agent, store=store)
    assert (await memory_of(store, agent)).summary == "before"


# --- STR ------------------------------------------------------------------------------------------------------------


def test_str_01_records_are_numbered_lines_without_what_is_nested() -> None:
    lines = summarise([{"title": "milk", "tags": ["a"]}, {"title": "eggs", "none": None}]).splitlines()
    assert len(lines) == 2
    assert ["title: milk" in lines[0], "title: eggs" in lines[1]] == [True, True]
    assert "tags" not in "".join(lines)
    assert "none" not in "".join(lines)


def test_str_02_a_long_list_shows_five_and_the_last_two() -> None:
    lines = summarise([f"item {number}" for number in range(1, 13)]).splitlines()
    assert len(lines) == 8
    assert [f"item {n}" in line for n, line in zip((1, 2, 3, 4, 5), lines, strict=False)] == [True] * 5
    assert "5" in lines[5]
    assert "omitted" in lines[5]
    assert lines[6].startswith("11")
    assert "item 12" in lines[7]


def test_str_04_a_record_has_a_line_for_each_field() -> None:
    lines = summarise({"title": "t" * 200, "size": 3}).splitlines()
    assert lines[1] == "size: 3"
    assert lines[0].startswith("title: ttt")
    assert len(lines[0]) <= 80 + len("title: ")


def test_str_05_nothing_is_said_in_a_word() -> None:
    assert summarise([]) == "none"
    assert summarise(None) == "done"


def test_str_06_the_cap_holds() -> None:
    assert len(summarise("x" * 5000, 100)) == 100


# --- ADP ------------------------------------------------------------------------------------------------------------


async def test_adp_01_and_03_memory_survives_a_round_trip_through_a_file(tmp_path: Any) -> None:
    # S3 overrules: a record is a row with a version, where the catalogue has one JSON string under a key; and C2:
    # raw outputs are not kept.
    agent = planned([use("read"), ANSWER, "done"], tools=[read])
    path = tmp_path / "chat.db"
    result = await run(agent, store=SqliteStore(path))
    later = planned(["later"])
    async with open_runtime(later, store=SqliteStore(path)) as runtime:
        memory = await runtime.conversation().memory()
        await runtime.run("and?")
    (exchange,) = memory.recent
    assert (exchange.ask, exchange.answer) == ("hello", "done")
    assert [(step.tool, step.result, step.output) for step in exchange.steps] == [
        ("read", "milk", None),
        (None, None, None),
    ]
    assert result.steps[0].output == "milk"
    assert "milk" in prompt(later, 0)


async def test_adp_02_a_corrupt_record_is_reported_and_not_taken_for_an_empty_one() -> None:
    # S3 overrules: the catalogue loads what it cannot read as empty memory, silently.
    error = StoreCorrupt("the record cannot be read")
    ending = await end(planned([]), store=FailingStore(InMemoryStore(), {"load": error}))
    assert ending.error is error
    assert ending.origin == "memory"


async def test_adp_04_and_05_a_fallback_over_http_is_a_callable_like_any_other() -> None:
    # The adapter's own tests hold the wire; here, that what it raises is the run's error, as any fallback's.
    error = FallbackError("status 500")

    async def http(request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        raise error

    ending = await end(planned([], loop=Conductor(max_steps=0), fallback=http))
    assert ending.error is error
    assert ending.origin == "fallback"


# --- OUT ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Reply:
    reply: str


@attrs.frozen
class Mood:
    mood: Literal["good", "bad"]


async def test_out_01_a_structured_answer_is_typed_and_its_text_is_told_everywhere() -> None:
    store = InMemoryStore()
    agent = planned([use("read"), ANSWER, {"reply": "milk"}], tools=[read], output=Reply)
    result = await run(agent, store=store)
    assert result.output == Reply("milk")
    assert json.loads(result.text) == {"reply": "milk"}
    assert result.steps[-1].text == result.text
    assert [event.text for event in told(result, Answer)] == [result.text]
    assert (await memory_of(store, agent)).recent[0].answer == result.text
    last = requests(agent)[-1]
    assert len(requests(agent)) == 3
    assert last.max_output_tokens == 384
    assert last.schema is not None
    assert last.schema["properties"]["reply"]["type"] == "string"
    assert "JSON schema" in system(last)
    assert "two or three short sentences" not in system(last)


async def test_out_02_and_03_a_runs_own_schema_does_not_affect_a_later_run() -> None:
    agent = planned([{"reply": "a"}, {"mood": "good"}, "plain words", {"reply": "c"}], output=Reply)
    async with open_runtime(agent, store=InMemoryStore()) as runtime:
        first = await runtime.run("1", conversation_id="x")
        second = await runtime.run("2", conversation_id="y", output=Mood)
    assert [first.output, second.output] == [Reply("a"), Mood("good")]

    prose = planned([{"reply": "a"}, "plain words"])
    async with open_runtime(prose) as runtime:
        first = await runtime.run("1", output=Reply)
        second = await runtime.run("2")
    assert (first.output, second.output, second.text) == (Reply("a"), None, "plain words")
    assert requests(prose)[1].schema is None


@pytest.mark.parametrize("bad", ["no json", {"mood": "so-so"}])
async def test_out_04_an_invalid_answer_is_asked_for_again_with_guidance(bad: Any) -> None:
    agent = planned([bad, {"mood": "good"}], output=Mood)
    result = await run(agent)
    assert result.output == Mood("good")
    assert labels(result) == ["answer", "answer"]
    assert "was not valid" in prompt(agent, 1)


async def test_out_05_two_invalid_answers_go_to_the_fallback_which_answers_in_text() -> None:
    cloud = Cloud()
    result = await run(planned(["no", "no"], output=Mood, fallback=cloud))
    assert (result.reason, result.text, result.output) == ("answer-invalid", "cloud", None)
    assert cloud.requests[0].reason == "answer-invalid"


async def test_out_05_without_a_fallback_two_invalid_answers_end_empty() -> None:
    agent = planned(["no", "no"], output=Mood)
    result = await run(agent)
    assert (result.text, result.reason, result.best_effort) == ("", "answer-invalid", False)
    assert len(requests(agent)) == 2


async def test_out_07_a_structured_best_effort_claims_nothing_unfinished() -> None:
    agent = planned(["no", {"mood": "bad"}], output=Mood, loop=Conductor(max_steps=0))
    result = await run(agent)
    assert (result.best_effort, result.output, result.reason) == (True, Mood("bad"), "too-many-steps")
    assert "Do not claim that unfinished actions succeeded" in system(requests(agent)[0])


async def test_out_07_a_best_effort_that_stays_invalid_is_empty_and_says_so() -> None:
    result = await run(planned(["no", "no"], output=Mood, loop=Conductor(max_steps=0)))
    assert (result.text, result.best_effort, result.reason) == ("", True, "too-many-steps")
    assert reasons(result) == ["too-many-steps", "answer-invalid"]


async def test_out_09_a_schema_that_does_not_fit_goes_to_the_cloud() -> None:
    cloud = Cloud()
    agent = planned([], output=Mood, fallback=cloud, token_counter=lambda text: 5000 if '"mood"' in text else 10)
    result = await run(agent)
    assert (result.reason, result.handled_by, result.output) == ("context-budget", "cloud", None)
    assert requests(agent) == []


async def test_out_10_a_schema_that_does_not_fit_is_an_error_where_there_are_extensions() -> None:
    heard: list[str] = []

    class Listen(Extension[Any]):
        name = "listen"

        def on_error(self, ctx: Any, question: Any) -> None:
            heard.append(question.origin)

        def on_finish(self, ctx: Any, question: Any) -> None:
            heard.append(question.outcome.status)

    huge = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * 30_000}}}
    agent = planned([], output=huge, extensions=[Listen()])
    ending = await end(agent)
    assert isinstance(ending.error, GoliathBudgetError)
    assert heard == ["budget", "error"]
    assert requests(agent) == []


async def test_out_11_a_transforming_schema_transforms_once_and_the_text_stays() -> None:
    pydantic = pytest.importorskip("pydantic")
    runs: list[int] = []

    def add(value: int) -> int:
        runs.append(value)
        return value + 1

    class Counted(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # imported above, where it is there
        count: Annotated[int, pydantic.AfterValidator(add)]

    result = await run(planned([{"count": 1}], output=Counted))
    assert result.output == Counted.model_construct(count=2)
    assert runs == [1]
    assert json.loads(result.text) == {"count": 1}


async def test_out_12a_a_rewritten_text_leaves_the_value_and_a_failing_save_leaves_both() -> None:
    class Rewrite(Extension[Any]):
        name = "rewrite"

        def after_answer(self, ctx: Any, question: Any) -> str:
            return "rewritten"

    store = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    result = await run(planned([{"mood": "good"}], output=Mood, extensions=[Rewrite()]), store=store)
    assert (result.text, result.output, result.diagnostics) == ("rewritten", Mood("good"), ())
    assert len(told(result, MemoryError)) == 1


async def test_out_12b_a_stop_after_the_answer_has_no_value() -> None:
    class Halt(Extension[Any]):
        name = "halt"

        def after_answer(self, ctx: Any, question: Any) -> Stop:
            return Stop("stopped text", "policy")

    store = InMemoryStore()
    result = await run(planned([{"mood": "good"}], output=Mood, extensions=[Halt()]), store=store)
    assert (result.status, result.text, result.output) == ("stopped", "stopped text", None)
    assert result.stopped is not None
    assert (result.stopped.extension, result.stopped.phase, result.stopped.reason) == ("halt", "after_answer", "policy")
    assert (await store.load("agent")).version == 0


async def test_out_13_a_model_that_cannot_even_open_is_a_failing_device() -> None:
    class Broken:
        name = "broken"

        def __init__(self) -> None:
            self.opened = 0

        def stream(self, request: Any) -> Any:
            self.opened += 1
            raise OSError("no model here")

    cloud = Cloud()
    model = Broken()
    store = InMemoryStore()
    agent = planned([], fallback=cloud)
    agent = attrs.evolve(agent, model=model)
    async with open_runtime(agent, store=store) as runtime:
        for _ in range(4):
            result = await runtime.run("hello")
            assert (result.handled_by, result.reason) == ("cloud", "model-error")
    assert model.opened == 3
    assert (await store.load("agent")).failures == 3


async def test_out_14_an_abort_on_the_second_answers_budget_uses_no_fallback() -> None:
    cloud = Cloud()
    agent = planned(["no"], output=Mood, fallback=cloud)
    async with open_runtime(agent) as runtime:
        budgets = 0

        def on_event(event: Any) -> None:
            nonlocal budgets
            if isinstance(event, Budget):
                budgets += 1
                if budgets == 2:
                    runtime.conversation().abort("enough")

        envelope = runtime.submit("hello", on_event=on_event)
        await envelope.wait_ended()
    assert envelope.outcome is not None
    assert envelope.outcome.status == "aborted"
    assert cloud.requests == []
    assert len(requests(agent)) == 1


# --- rules of ours on the same ground -------------------------------------------------------------------------------


async def test_a_reply_cut_off_by_its_cap_is_no_structured_answer() -> None:
    from goliath_actors.abc import ModelDone, ModelText

    class Cut:
        name = "cut"
        finish = "length"

        def stream(self, request: Any) -> Any:
            from contextlib import asynccontextmanager

            @asynccontextmanager
            async def opened() -> Any:
                async def events() -> Any:
                    await trio.lowlevel.checkpoint()
                    yield ModelText('{"mood": "good"}')
                    yield ModelDone("length")

                yield events()

            return opened()

    agent = attrs.evolve(planned([], output=Mood), model=Cut())
    assert (await run(agent)).reason == "answer-invalid"
    prose = attrs.evolve(planned([]), model=Cut())
    assert (await run(prose)).text == '{"mood": "good"}'


async def test_structured_answers_may_be_any_type_with_a_schema() -> None:
    class Point(msgspec.Struct):
        x: int

    result = await run(planned([{"x": 3}], output=Point))
    assert result.output == Point(3)
    raw = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert (await run(planned([{"x": 3}], output=raw))).output == {"x": 3}


async def test_a_before_run_patch_reaches_memory_and_prompts() -> None:
    class Patch(Extension[Any]):
        name = "patch"

        def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(model=ScriptedModel(["from another model"]))

    agent = planned([ModelError("not this one")], extensions=[Patch()])
    assert (await run(agent)).text == "from another model"
    assert requests(agent) == []


async def test_ask_and_answer_are_entries_of_the_history_and_no_part_of_prompts() -> None:
    agent = planned(["done", "again"])
    async with open_runtime(agent) as runtime:
        await runtime.run("first", conversation_id="c")
        await runtime.run("second", conversation_id="c")
        page = await runtime.conversation("c").history()
    assert [(e.role, e.message.text, e.transcript_visible, e.context_visible) for e in page.entries] == [
        ("user", "first", True, False),
        ("assistant", "done", True, False),
        ("user", "second", True, False),
        ("assistant", "again", True, False),
    ]
    assert len({entry.id for entry in page.entries}) == 4


async def test_exchanges_that_were_cut_short_are_shown_as_partial() -> None:
    store = await stored(Exchange("do it", "half", 1.0, best_effort=True))
    agent = planned(["done"])
    await run(agent, store=store)
    assert "Assistant (partial reply): half" in prompt(agent, 0)
