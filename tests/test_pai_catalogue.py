"""The catalogue of what PAI and effective-harness promise: each line has a test, or a rule that overrules it.

`P` lines are of an agent runtime with lifecycle phases over a stored thread, `E` lines of a harness of typed questions,
`X` lines settle where they meet, `R` lines are of their relatives. Lines without a test elsewhere have one below.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import (
    Agent,
    Compaction,
    Deny,
    Extension,
    RunAborted,
    ToolContext,
    ToolFailure,
    ToolLoop,
    open_runtime,
    tool,
)
from goliath_actors.abc import ModelRequest
from goliath_actors.errors import GoliathExtensionError, ModelUnavailable
from goliath_actors.events import ModelStarted
from goliath_actors.hooks import Complete, ModelPatch, NextStep, PlanPatch, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.values import Message

from .native import check_closed, check_requests, history, native, said
from .planned import requests

HERE = Path(__file__).parent

# What proves a line: tests, as "file::test" without "test_"; "here" for one below, named after the line; or, in
# brackets, the rule that overrules it and what holds instead.
CATALOGUE: dict[str, str] = {
    "P-001": "here",
    "P-002": "panel::a_chain_asks_in_registration_order_and_a_later_hook_sees_the_earlier_answer",
    "P-003": "panel::a_chain_asks_in_registration_order_and_a_later_hook_sees_the_earlier_answer",
    "P-005": "hook_table::an_extension_without_overrides_answers_nothing_anywhere",
    "P-006": "panel::a_bad_answer_is_the_extensions_error_and_says_what_is_wrong",
    "P-007": "thread_facade::no_facade_leads_to_the_store",
    "P-009": "panel::the_context_carries_what_was_promised",
    "P-010": "here",
    "P-011": "here",
    "P-013": "here",
    "P-014": "here",
    "P-015": "toolloop::a_respond_before_the_run_is_transformed_answered_and_stored",
    "P-017": "here",
    "P-018": "(R2: every run has an ask; one that is taken up has the ask that led to it)",
    "P-019": "panel::a_verdict_that_ends_the_row_keeps_rewrites_made_before_it_and_asks_nobody_else",
    "P-021": "toolloop_hooks::a_patch_with_a_model_routes_one_step",
    "P-022": "here",
    "P-023": "request::a_patch_with_a_model_starts_afresh_and_one_without_merges",
    "P-025": "here",
    "P-026": "toolloop_tools::a_filter_narrows_what_is_offered_and_what_may_be_called",
    "P-027": "request::a_patch_with_a_model_starts_afresh_and_one_without_merges",
    "P-029": "(T10: options of a provider, its own tools among them, are merged by key)",
    "P-030": "panel::a_patch_with_a_model_starts_a_fresh_route",
    "P-035": "here",
    "P-037": "here",
    "P-038": "request::requests_are_read_only",
    "P-039": "request::a_patch_that_cannot_be_used_is_the_extensions_error",
    "P-041": "request::a_hook_may_recover_from_a_failed_call",
    "P-042": "request::a_patched_time_limit_makes_the_model_unavailable",
    "P-043": "here",
    "P-045": "here",
    "P-050": "toolloop_hooks::what_a_transform_lets_through_is_shown_stored_returned_and_sent",
    "P-051": "policies_redact::no_secret_comes_through_whatever_the_pieces",
    "P-053": "toolloop_hooks::a_stream_that_is_aborted_is_replaced_retracted_and_stored",
    "P-054": "policies_redact::never_more_than_the_longest_secret_is_held_back",
    "P-055": "(E4: who reads events cannot affect what is stored)",
    "P-060": "here",
    "P-061": "here",
    "P-062": "(T8: a call that is answered from outside waits, once every gate of its message was passed)",
    "P-064": "toolloop_tools::an_input_that_a_hook_replaced_is_recorded_beside_the_result",
    "P-065": "here",
    "P-066": "here",
    "P-067": "here",
    "P-068": "here",
    "P-069": "here",
    "P-070": "(T3: what was cancelled has a result of our own words, which no tool has written)",
    "P-071": "here",
    "P-073": "here",
    "P-074": "goliath_catalogue_tools::on_output_hears_the_output_and_its_failure_is_a_diagnostic",
    "P-075": "here",
    "P-077": "here",
    "P-080": "here",
    "P-081": "here",
    "P-083": "toolloop::a_further_step_after_an_answer_leaves_the_word_to_the_model",
    "P-084": "toolloop_waiting::waiting_beats_a_continuation",
    "P-085": "toolloop_steering::users_outrank_hooks",
    "P-087": "toolloop::complete_beats_all_and_ends_a_round_with_the_text_beside_its_calls",
    "P-088": "here",
    "P-089": "here",
    "P-090": "here",
    "P-091": "here",
    "P-092": "here",
    "P-093": "thread_facade::a_step_may_stage_everything_but_visibility",
    "P-101": "toolloop_hooks::a_context_is_composed_once_a_step_and_never_stored",
    "P-102": "here",
    "P-103": "toolloop_hooks::context_layers_nest_and_an_inner_one_may_be_given_another_base",
    "P-105": "thread_facade::a_step_sees_what_was_there_when_it_began_and_hidden_entries_too",
    "P-106": "(values: a message has no values of a provider that could be lost)",
    "P-107": "thread_facade::a_step_sees_what_was_there_when_it_began_and_hidden_entries_too",
    "P-109": "thread_facade::a_step_sees_what_was_there_when_it_began_and_hidden_entries_too",
    "P-110": "thread_facade::a_step_that_reads_a_page_reads_nothing_more",
    "P-111": "thread_facade::a_conversation_that_was_forgotten_meanwhile_is_refused",
    "P-113": "bad_input::a_rewrite_of_a_busy_conversation_waits_or_is_refused",
    "P-114": "thread_facade::a_step_may_stage_everything_but_visibility",
    "P-115": "here",
    "P-120": "here",
    "P-121": "thread_facade::what_is_staged_is_committed_in_one_piece",
    "P-122": "thread_facade::reads_inside_see_what_is_stored_and_nothing_that_is_staged",
    "P-124": "thread_facade::private_data_that_is_expected_is_defeated_by_a_change_of_it_alone",
    "P-125": "thread_facade::private_data_that_is_expected_is_defeated_by_a_change_of_it_alone",
    "P-126": "thread_facade::a_lease_that_was_lost_is_a_conflict_and_a_newer_one_is_none",
    "P-128": "(E1: events are a run's; who keeps an index hears of rewrites through after_rewrite)",
    "P-130": "toolloop_rewrite::what_extensions_want_stored_goes_into_the_same_commit",
    "P-131": "here",
    "P-133": "rewrites::what_one_raises_is_a_diagnostic_of_the_run_and_in_the_log",
    "P-134": "rewrites::they_hear_one_after_the_other_in_order_and_never_side_by_side",
    "P-135": "rewrites::only_a_few_conversations_at_a_time_are_told",
    "P-140": "toolloop_compaction::a_context_that_passed_its_threshold_is_summarised_before_the_step",
    "P-141": "(T12: the originals are hidden from the model, and stay in the transcript)",
    "P-142": "here",
    "P-144": "toolloop_compaction::a_summary_that_cannot_be_stored_leaves_the_history_as_it_was",
    "P-145": "(invariant 1: runs of one conversation never overlap, so no two compactions race)",
    "P-146": "toolloop_rewrite::a_summary_that_was_made_behind_the_ask_stays",
    "P-150": "policies_redact::stored_messages_are_redacted_but_for_the_users_own",
    "P-151": "goliath_catalogue_runs::conv_02_no_conversation_sees_anothers_memory_or_its_own_id",
    "P-152": "(E4: who reads events cannot affect what is stored)",
    "E-002": "subagents::the_parents_gates_hold_for_the_call_and_the_childs_for_what_it_does",
    "E-003": "here",
    "E-004": "thread_facade::reads_inside_see_what_is_stored_and_nothing_that_is_staged",
    "E-006": "toolloop::no_tool_starts_before_its_call_is_stored",
    "E-007": "hook_table::an_extension_without_overrides_answers_nothing_anywhere",
    "E-008": "panel::cancellation_is_honoured_before_the_first_hook_and_after_each",
    "E-011": "request::messages_may_be_replaced_for_this_request_only",
    "E-012": "here",
    "E-013": "(S7: a run that a crash ended is closed, and none is made again by itself)",
    "E-020": "panel::an_observer_that_raises_or_answers_is_a_diagnostic_and_the_next_is_told",
    "E-021": "request::after_response_hears_every_terminal_message_and_failure",
    "E-022": "here",
    "E-031": "toolloop::an_answer_may_be_continued_with_a_users_text",
    "E-032": "(H2: after_step is asked of every step, and is_final says which one is the answer)",
    "E-033": "panel::a_lenient_extension_is_skipped_and_reported",
    "E-035": "toolloop_steering::users_outrank_hooks",
    "E-040": "toolloop_tools::a_failed_sibling_cancels_nobody_and_results_come_in_call_order",
    "E-041": "here",
    "E-043": "panel::an_observer_that_raises_or_answers_is_a_diagnostic_and_the_next_is_told",
    "E-050": "here",
    "E-051": "panel::a_chain_asks_in_registration_order_and_a_later_hook_sees_the_earlier_answer",
    "E-053": "panel::a_verdict_that_ends_the_row_keeps_rewrites_made_before_it_and_asks_nobody_else",
    "E-054": "panel::a_lenient_extension_that_fails_before_a_tool_denies_the_call",
    "E-055": "(T1: the message with its calls is stored before the gates; its results record what was executed)",
    "E-057": "toolloop_waiting::an_approval_that_waits_is_executed_unchanged_once_it_is_given",
    "E-060": "panel::a_chain_asks_in_registration_order_and_a_later_hook_sees_the_earlier_answer",
    "E-061": "panel::a_lenient_extension_is_skipped_and_reported",
    "E-063": "toolloop::a_run_asks_its_rows_in_the_promised_order",
    "E-070": "toolloop_compaction::an_extension_may_give_the_summary_and_no_model_is_asked",
    "E-071": "toolloop_compaction::an_extension_may_give_the_summary_and_no_model_is_asked",
    "E-073": "toolloop_compaction::an_extension_may_give_the_summary_and_no_model_is_asked",
    "E-074": "toolloop_compaction::a_context_that_passed_its_threshold_is_summarised_before_the_step",
    "E-075": "panel::the_first_answer_wins_and_complete_beats_all",
    "E-077": "toolloop_compaction::a_context_that_passed_its_threshold_is_summarised_before_the_step",
    "E-078": "toolloop_compaction::nothing_is_summarised_below_the_threshold_or_without_compaction",
    "X-01": "panel::a_lenient_extension_is_still_strict_where_skipping_would_leak_or_lose",
    "X-03": "(H3: registration order in every row)",
    "X-04": "toolloop::a_denial_of_the_whole_batch_starts_no_tool",
    "X-05": "toolloop::a_stop_stores_nothing_but_the_ask_and_withdraws_what_was_shown",
    "X-07": "here",
    "X-08": "toolloop_tools::a_call_that_was_running_when_its_process_was_killed_is_closed_on_the_next_load",
    "X-09": "toolloop_steering::a_guard_before_the_run_is_not_bypassed_by_handing_a_text_in",
    "X-11": "toolloop_tools::a_failed_sibling_cancels_nobody_and_results_come_in_call_order",
    "X-12": "toolloop_hooks::what_before_append_makes_of_a_message_is_stored_sent_and_returned",
    "R-01": "(S7: an interrupted call is closed, never made again)",
    "R-02": "toolloop::the_text_of_a_reply_that_broke_off_is_kept_and_marked_partial",
    "R-03": "(R13: a runtime that ends ends its runs, each with its observers)",
    "R-04": "(S2: a store finds an entry by its idempotency key; the chat backend makes the promise)",
    "R-05": "toolloop_compaction::an_overflow_that_the_provider_tells_is_answered_by_one_compaction_and_one_retry",
    "R-06": "(invariant 1: no summary can be stale, since runs of one conversation never overlap)",
    "R-07": "toolloop_tools::an_abort_stores_the_results_of_the_tools_that_had_finished",
    "R-08": "toolloop_tools::a_failed_sibling_cancels_nobody_and_results_come_in_call_order",
    "R-09": "toolloop_waiting::a_tool_that_is_gone_or_no_longer_takes_the_input_is_not_executed",
    "R-10": "toolloop_steering::a_text_that_comes_with_the_answer_lets_the_run_go_on",
}

_P = """001-003 005-007 009-011 013-015 017-019 021-023 025-027 029 030 035 037-039 041-043 045 050 051 053-055
    060-062 064-071 073-075 077 080 081 083-085 087-093 101-103 105-107 109-111 113-115 120-122 124-126 128 130 131
    133-135 140-142 144-146 150-152"""
_E = """002-004 006-008 011-013 020-022 031-033 035 040 041 043 050 051 053-055 057 060 061 063 070 071 073-075
    077 078"""


def _numbers(text: str, letter: str) -> set[str]:
    found: set[str] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found |= {f"{letter}-{number:03}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_every_line_of_the_catalogue_is_here_and_its_proof_exists() -> None:
    rest = {f"X-{n:02}" for n in (1, 3, 4, 5, 7, 8, 9, 11, 12)} | {f"R-{n:02}" for n in range(1, 11)}
    assert set(CATALOGUE) == _numbers(_P, "P") | _numbers(_E, "E") | rest
    own = Path(__file__).read_text(encoding="utf-8")
    for line, proof in CATALOGUE.items():
        if proof.startswith("("):
            assert re.match(r"\((?:[A-Z]\d+|invariant \d+|values): \w", proof), line
        elif proof == "here":
            assert re.search(rf"def test_(?:\w+_)?{line.lower().replace('-', '_')}_", own), f"no test of {line}"
        else:
            file, _, name = proof.partition("::")
            text = (HERE / f"test_{file}.py").read_text(encoding="utf-8")
            assert re.search(rf"def test_{name}\(", text), f"{line}: no such test"


# --- tools for the tests ----------------------------------------------------------------------------------------------


@tool
async def look(text: str = "a") -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


def looking(count: int = 1) -> Any:
    return tool_calls(*(("look", {"text": "abc"[n]}) for n in range(count)))


class Hooks(Extension[Any]):
    """Answers rows with what it is given: a value, or a callable of (ctx, question)."""

    name = "hooks"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def _answer(self, row: str, ctx: Any, question: Any) -> Any:
        self.asked.append((row, question))
        answer = self.answers.get(row)
        return answer(ctx, question) if callable(answer) else answer

    def before_run(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("before_run", ctx, question)

    def before_plan(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("before_plan", ctx, question)

    def before_tool(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("before_tool", ctx, question)

    def after_tool(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("after_tool", ctx, question)

    def after_tools(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("after_tools", ctx, question)

    def after_step(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("after_step", ctx, question)

    def after_response(self, ctx: Any, question: Any, /) -> Any:
        return self._answer("after_response", ctx, question)

    def heard(self, row: str) -> list[Any]:
        return [question for name, question in self.asked if name == row]


def overlay(text: str = "(overlay)") -> RunPatch:
    return RunPatch(messages=[Message("user", text)])


# --- the way into a run -----------------------------------------------------------------------------------------------


async def test_p_001_the_same_hooks_are_asked_whichever_door_was_taken() -> None:
    rows: list[list[str]] = []
    journal = Journal()
    agent = native(["one"] * 4, extensions=[journal])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        for door in range(4):
            journal.clear()
            if door == 0:
                await runtime.run("go", conversation_id="a")
            elif door == 1:
                await runtime.submit("go", conversation_id="b").wait()
            elif door == 2:
                async with runtime.stream("go", conversation_id="c") as run:
                    await run.wait()
            else:
                await talk.steer("go").wait()
            await wait_all_tasks_blocked()
            rows.append(list(journal.rows))
    assert rows[0] == rows[1] == rows[2] == rows[3]


async def test_p_010_p_011_what_is_said_for_one_run_is_in_each_of_its_requests_and_not_stored() -> None:
    hooks = Hooks(before_run=overlay())
    agent = native([looking(), looking(), "done", "next"], tools=[look], extensions=[hooks])
    store = InMemoryStore()
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
    assert len(hooks.heard("before_run")) == 1
    assert [request.text.count("(overlay)") for request in requests(agent)] == [1, 1, 1]
    assert all("(overlay)" not in text for _, text in said(await history(store, agent)))
    check_requests(requests(agent))


async def test_p_011_the_overlay_was_asked_for_once() -> None:
    hooks = Hooks(before_run=overlay())
    agent = native([looking(), "done"], tools=[look], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert [question.entry for question in hooks.heard("before_run")] == ["run"]


@tool
async def ask_them(ctx: ToolContext[Any]) -> str:
    """Ask a person."""
    return f"they said {await ctx.suspend()}"


async def test_p_013_and_p_088_what_was_said_at_the_start_alone_is_gone_when_the_run_is_taken_up() -> None:
    hooks = Hooks(before_run=lambda ctx, question: overlay() if question.entry == "run" else None)
    agent = native([tool_calls(("ask_them", {})), "done"], tools=[ask_them], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        first = await runtime.run("go")
        await runtime.conversation().resume({first.waiting[0].call_id: "yes"})
    assert [question.entry for question in hooks.heard("before_run")] == ["run", "resume"]
    assert ["(overlay)" in request.text for request in requests(agent)] == [True, False]


async def test_p_088_and_p_092_a_hook_may_say_it_again() -> None:
    hooks = Hooks(before_run=overlay())
    agent = native([tool_calls(("ask_them", {})), "done"], tools=[ask_them], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        first = await runtime.run("go")
        await runtime.conversation().resume({first.waiting[0].call_id: "yes"})
    assert [request.text.count("(overlay)") for request in requests(agent)] == [1, 1]


async def test_p_092_what_another_process_takes_up_has_no_overlay_of_the_first() -> None:
    store = InMemoryStore()
    first = native([tool_calls(("ask_them", {}))], tools=[ask_them], extensions=[Hooks(before_run=overlay())])
    async with open_runtime(first, store=store) as runtime:
        result = await runtime.run("go")
    second = native(["done"], tools=[ask_them])
    async with open_runtime(second, store=store) as runtime:
        await runtime.conversation().resume({result.waiting[0].call_id: "yes"})
    assert "(overlay)" not in requests(second)[0].text


async def test_p_014_a_hidden_text_survives_waiting_and_no_reader_lists_it() -> None:
    agent = native([tool_calls(("ask_them", {})), "done"], tools=[ask_them])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.thread.mutate(lambda tx: tx.append("She is a botanist.", transcript=False))
        first = await talk.run("go")
        await talk.resume({first.waiting[0].call_id: "yes"})
        shown = [entry.message.text for entry in (await talk.history()).entries if entry.transcript_visible]
    assert ["She is a botanist." in request.text for request in requests(agent)] == [True, True]
    assert "She is a botanist." not in shown


async def test_p_017_a_hook_that_raises_at_the_start_leaves_no_answer() -> None:
    def fail(ctx: Any, question: Any) -> None:
        raise KeyError("x")

    store = InMemoryStore()
    agent = native([], extensions=[Hooks(before_run=fail)])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(GoliathExtensionError):
            await runtime.run("go")
    assert said(await history(store, agent)) == []


async def steered(before_run: Any, **options: Any) -> Agent[Any]:
    """A run that takes a text while a tool of its first step runs."""
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.pass_through()
        return "waited"

    agent = native(
        [tool_calls(("wait", {})), "done"], tools=[wait], extensions=[Hooks(before_run=before_run)], **options
    )
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go", conversation_id="ada")
        await gate.wait_reached()
        runtime.conversation("ada").steer("and this")
        gate.open()
        await run.wait()
    return agent


async def test_p_089_a_text_that_is_handed_in_ends_what_was_said_for_the_run_so_far(autojump_clock: MockClock) -> None:
    once = await steered(lambda ctx, question: overlay() if question.entry == "run" else None)
    assert [request.text.count("(overlay)") for request in requests(once)] == [1, 0]
    again = await steered(overlay())
    assert [request.text.count("(overlay)") for request in requests(again)] == [1, 1]


async def test_p_089_instructions_that_a_hook_adds_to_are_added_to_once(autojump_clock: MockClock) -> None:
    agent = await steered(
        lambda ctx, question: RunPatch(
            instructions=question.instructions + " (more)", facts={"n": f"{question.facts.get('n', '')}x"}
        )
    )
    assert [request.text.count("(more)") for request in requests(agent)] == [1, 1]
    assert all("xx" not in request.text for request in requests(agent))


async def test_p_090_and_p_091_a_run_that_is_over_leaves_nothing_of_it_to_the_next(autojump_clock: MockClock) -> None:
    gate = Gate()
    once = [overlay(), None, overlay(), None]
    hooks = Hooks(before_run=lambda ctx, question: once.pop(0))
    agent = native(["one", "two", gate.then("never"), "four"], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        await runtime.run("a")
        await runtime.run("b")
        run = runtime.submit("c")
        await gate.wait_reached()
        run.abort()
        with pytest.raises(RunAborted):
            await run.wait()
        await runtime.run("d")
    assert ["(overlay)" in request.text for request in requests(agent)] == [True, False, True, False]


async def test_p_091_an_abort_ends_it() -> None:
    hooks = Hooks(before_run=lambda ctx, question: overlay() if question.ask == "a" else None)
    agent = native([OSError("x"), "two"], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        with pytest.raises(OSError, match="x"):
            await runtime.run("a")
        await runtime.run("b")
    assert ["(overlay)" in request.text for request in requests(agent)] == [True, False]


# --- steps, routes and attempts ---------------------------------------------------------------------------------------


async def test_p_022_what_a_hook_adds_to_one_step_is_sent_and_not_stored() -> None:
    once = [PlanPatch(messages=[Message("user", "(note)")]), None]
    hooks = Hooks(before_plan=lambda ctx, question: once.pop(0))
    agent = native([looking(), "done"], tools=[look], extensions=[hooks])
    store = InMemoryStore()
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
    assert ["(note)" in request.text for request in requests(agent)] == [True, False]
    assert all("(note)" not in text for _, text in said(await history(store, agent)))


class Around(Extension[Any]):
    """Calls the model through a function of (question, call_next)."""

    name = "around"

    def __init__(self, call: Any) -> None:
        self.call = call
        self.seen: list[Any] = []

    async def around_model(self, ctx: Any, question: Any, call_next: Any, /) -> Any:
        self.seen.append(question.request)
        return await self.call(question, call_next)


async def test_p_025_p_035_and_p_037_a_route_is_fresh_and_keeps_the_tools() -> None:
    other, third = ScriptedModel([looking()], name="other"), ScriptedModel(["done"], name="third")
    plan = [PlanPatch(model=other, settings={"top_p": 1}), PlanPatch(settings={"temperature": 2})]
    hooks = Hooks(
        before_run=RunPatch(settings={"temperature": 1}, provider_options={"a": 1}),
        before_plan=lambda ctx, question: plan.pop(0),
    )

    async def call(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(model=third) if question.request.settings.get("temperature") == 2 else None)

    around = Around(call)
    agent = native([], tools=[look], extensions=[hooks, around])
    async with open_runtime(agent) as runtime:
        assert (await runtime.run("go")).text == "done"
    assert [(dict(seen.settings), dict(seen.provider_options)) for seen in around.seen] == [
        ({"top_p": 1}, {}),
        ({"temperature": 2}, {"a": 1}),
    ]
    for model, settings in ((other, {"top_p": 1}), (third, {})):
        (request,) = model.requests
        assert (dict(request.settings), dict(request.provider_options)) == (settings, {})
        assert [spec.name for spec in request.tools] == ["look"]


async def test_p_043_a_longer_limit_of_an_attempt_does_not_keep_an_abort_waiting(autojump_clock: MockClock) -> None:
    gate = Gate()

    async def call(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(timeout=1000))

    agent = native([gate.then("never")], extensions=[Around(call)])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        start = trio.current_time()
        run.abort()
        with pytest.raises(RunAborted):
            await run.wait()
        assert trio.current_time() == start


async def test_p_045_a_patch_of_one_attempt_is_not_seen_by_the_next_step() -> None:
    patches = [ModelPatch(settings={"n": 1}, messages=[Message("user", "(other)")]), None]

    async def call(question: Any, call_next: Any) -> Any:
        return await call_next(patches.pop(0))

    agent = native([looking(), "done"], tools=[look], extensions=[Around(call)])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert [dict(request.settings) for request in requests(agent)] == [{"n": 1}, {}]
    assert ["(other)" in request.text for request in requests(agent)] == [True, False]


async def test_x_07_and_e_012_one_step_with_two_attempts_is_planned_once_and_tried_twice(
    autojump_clock: MockClock,
) -> None:
    journal = Journal()
    model = ScriptedModel([ModelUnavailable("busy"), "done"], retries=1)
    agent = native(model, extensions=[journal])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    counts = {
        row: journal.rows.count(row) for row in ("before_plan", "before_request", "around_model", "after_response")
    }
    assert counts == {"before_plan": 1, "before_request": 2, "around_model": 2, "after_response": 2}


async def test_e_012_each_attempt_is_told_its_number(autojump_clock: MockClock) -> None:
    journal = Journal()
    agent = native(ScriptedModel([ModelUnavailable("busy"), "done"], retries=1), extensions=[journal])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    attempts = [question.attempt for row, _, question in journal.questions if row == "before_request"]
    assert attempts == [0, 1]


async def test_e_022_a_response_that_calls_tools_is_heard() -> None:
    hooks = Hooks()
    agent = native([looking(), "done"], tools=[look], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert [len(question.message.tool_calls) for question in hooks.heard("after_response")] == [1, 0]


# --- tools ------------------------------------------------------------------------------------------------------------


async def test_p_060_and_e_050_every_gate_is_passed_before_a_tool_starts_and_one_denied_call_is_alone() -> None:
    order: list[str] = []

    @tool
    async def act(text: str) -> str:
        """Act."""
        order.append(f"act {text}")
        return text

    def gate(ctx: Any, question: Any) -> Any:
        order.append(f"gate {question.input['text']}")
        return Deny("not b") if question.input["text"] == "b" else None

    agent = native([tool_calls(("act", {"text": "a"}), ("act", {"text": "b"})), "done"], tools=[act],
                   extensions=[Hooks(before_tool=gate)])  # fmt: skip
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert order == ["gate a", "gate b", "act a"]
    results = [message.text for message in requests(agent)[1].messages if message.role == "tool"]
    assert results[0] == "a"
    assert "not b" in results[1]


async def test_e_050_a_tool_that_nobody_denies_runs() -> None:
    hooks = Hooks(before_tool=lambda ctx, question: Deny("no") if question.tool.name == "bash" else None)
    agent = native([looking(), "done"], tools=[look], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].status == "executed"


async def test_p_061_and_e_041_tools_that_wait_for_each_other_finish_and_the_round_is_told_once(
    autojump_clock: MockClock,
) -> None:
    first, second = trio.Event(), trio.Event()

    @tool
    async def one() -> str:
        """One."""
        first.set()
        await second.wait()
        await trio.sleep(5)
        return "one"

    @tool
    async def two() -> str:
        """Two."""
        second.set()
        await first.wait()
        return "two"

    heard: list[Any] = []
    start = trio.current_time()
    hooks = Hooks(after_tools=lambda ctx, question: heard.append((trio.current_time() - start, question.results)))
    agent = native([tool_calls(("one", {}), ("two", {})), "done"], tools=[one, two], extensions=[hooks])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    assert heard == [(5.0, ("one", "two"))]


async def test_e_041_the_round_is_told_after_every_result() -> None:
    journal = Journal()
    agent = native([looking(2), "done"], tools=[look], extensions=[journal])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    rows = [row for row in journal.rows if row in ("after_tool", "after_tools")]
    assert rows == ["after_tool", "after_tool", "after_tools"]


async def test_p_065_a_result_that_a_hook_replaced_is_what_is_sent_and_stored() -> None:
    agent = native([looking(), "done"], tools=[look], extensions=[Hooks(after_tool="seen, but not said")])
    store = InMemoryStore()
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
    assert ("tool", "seen, but not said") in said(await history(store, agent))
    assert "saw a" not in requests(agent)[1].text


async def test_p_066_p_067_p_068_p_069_p_071_p_073_p_075_after_tool_hears_of_results_of_every_kind() -> None:
    @tool
    async def fails() -> str:
        """Fail."""
        raise ToolFailure("on purpose")

    @tool
    async def breaks() -> str:
        """Break."""
        raise OSError("secret")

    @tool
    async def forbidden() -> str:
        """Nobody may."""
        raise AssertionError

    hooks = Hooks(before_tool=lambda ctx, question: Deny("no") if question.tool.name == "forbidden" else None)
    calls = tool_calls(
        ("look", {}), ("forbidden", {}), ("fails", {}), ("breaks", {}), ("ask_them", {}), ("no_such", {})
    )
    agent = native([calls, "done"], tools=[look, forbidden, fails, breaks, ask_them], extensions=[hooks])
    store = InMemoryStore()
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        await runtime.conversation().resume({first.waiting[0].call_id: "yes"})
    heard = {question.tool.name: question for question in hooks.heard("after_tool")}
    assert {name: question.outcome.status for name, question in heard.items()} == {
        "look": "executed",
        "forbidden": "skipped",
        "fails": "failed",
        "breaks": "failed",
        "no_such": "failed",
        "ask_them": "executed",
    }
    assert (heard["look"].outcome.output, heard["ask_them"].outcome.output) == ("saw a", "they said yes")
    # P-073: a failure on purpose is told word for word and is told apart from one that was not meant.
    assert isinstance(heard["fails"].outcome.error, ToolFailure)
    assert isinstance(heard["breaks"].outcome.error, OSError)
    assert heard["fails"].result == "on purpose"
    assert "secret" not in heard["breaks"].result


async def test_p_077_a_gate_that_raises_starts_no_tool_of_its_message() -> None:
    done: list[str] = []

    @tool
    async def act(text: str) -> str:
        """Act."""
        done.append(text)
        return text

    def gate(ctx: Any, question: Any) -> None:
        if question.input["text"] == "b":
            raise KeyError("b")

    store = InMemoryStore()
    agent = native([tool_calls(("act", {"text": "a"}), ("act", {"text": "b"}))], tools=[act],
                   extensions=[Hooks(before_tool=gate)])  # fmt: skip
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(GoliathExtensionError):
            await runtime.run("go")
        check_closed(await history(store, agent))
    assert done == []


# --- after a step -----------------------------------------------------------------------------------------------------


async def test_p_080_and_p_081_a_step_is_whole_and_its_transition_not_made_when_it_is_asked_about() -> None:
    store = InMemoryStore()
    seen: list[Any] = []

    class After(Extension[Any]):
        name = "after"

        async def after_step(self, ctx: Any, question: Any, /) -> None:
            entries = await history(store, agent)
            seen.append((question.step.kind, question.step.text, len(entries)))
            with pytest.raises(AttributeError):
                question.step.text = "mine"

    agent = native([looking(), "done"], tools=[look], extensions=[After()])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
    # The ask, the message with its call and its result; the answer is not stored yet.
    assert seen == [("tools", "", 3), ("answer", "done", 3)]
    assert said(await history(store, agent))[-1] == ("assistant", "done")


async def test_p_081_the_message_that_was_assembled_is_what_is_stored() -> None:
    hooks = Hooks(after_step=lambda ctx, question: NextStep() if question.step.text == "draft" else Complete())
    store = InMemoryStore()
    agent = native(["draft", "done"], extensions=[hooks])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
    assert said(await history(store, agent)) == [("user", "go"), ("assistant", "draft"), ("assistant", "done")]


# --- context, threads, compaction -------------------------------------------------------------------------------------


async def test_p_102_the_layers_inside_run_once_however_often_they_are_called() -> None:
    runs = 0

    class Outer(Extension[Any]):
        name = "outer"

        async def resolve_context(self, ctx: Any, question: Any, call_next: Any, /) -> Any:
            first = await call_next()
            assert await call_next() is first
            return first

    class Inner(Extension[Any]):
        name = "inner"

        async def resolve_context(self, ctx: Any, question: Any, call_next: Any, /) -> Any:
            nonlocal runs
            runs += 1
            return await call_next()

    async with open_runtime(native(["done"], extensions=[Outer(), Inner()])) as runtime:
        await runtime.run("go")
    assert runs == 1


async def test_p_115_what_is_said_for_one_run_comes_behind_the_resolved_context_and_cannot_be_dropped_there() -> None:
    class Drops(Hooks):
        async def resolve_context(self, ctx: Any, question: Any, call_next: Any, /) -> Any:
            assert all("(overlay)" not in message.text for message in await call_next())
            return [Message("user", "nothing else")]

    agent = native(["done"], extensions=[Drops(before_run=overlay())], instructions="")
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    (request,) = requests(agent)
    assert request.text.index("nothing else") < request.text.index("(overlay)")
    assert "go" not in request.text.split()


async def test_p_120_metadata_is_for_clients_and_private_data_is_in_no_event_and_no_prompt() -> None:
    agent = native(["done"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")

        def change(tx: Any) -> None:
            tx.merge_metadata({"title": "shown"})
            tx.merge_private({"cursor": "kept back"})

        await talk.thread.mutate(change)
        run = talk.submit("go")
        await run.wait()
        events = [event async for event in run.events()]
        record = await talk.thread.load()
    assert (record.metadata, record.private) == ({"title": "shown"}, {"cursor": "kept back"})
    assert "kept back" not in repr(events)
    assert "kept back" not in requests(agent)[0].text


async def test_p_131_a_change_of_several_entries_is_told_with_what_was_and_what_will_be() -> None:
    seen: list[Any] = []

    class Before(Extension[Any]):
        name = "before"

        def before_rewrite(self, ctx: Any, question: Any, /) -> None:
            seen.append((question.kind, question.changes))

    async with open_runtime(native(["one", "two"], extensions=[Before()])) as runtime:
        talk = runtime.conversation()
        await talk.run("a")
        await talk.run("b")
        ids = [entry.id for entry in (await talk.history()).entries]
        await talk.set_visibility({ids[0]: (True, False), ids[1]: (False, True), ids[2]: (False, False)})
    assert seen == [
        (
            "visibility",
            {
                ids[0]: {"before": [True, True], "after": [True, False]},
                ids[1]: {"before": [True, True], "after": [False, True]},
                ids[2]: {"before": [True, True], "after": [False, False]},
            },
        )
    ]


async def test_p_142_a_compaction_is_seen_by_whoever_watches_the_run() -> None:
    def reply(request: ModelRequest) -> str:
        return "summary" if request.role == "compact" else "said"

    loop = ToolLoop(window=2000, compaction=Compaction(at=0.1, keep_turns=1))
    async with open_runtime(native([reply] * 9, loop=loop)) as runtime:
        await runtime.run("long " * 200)
        run = runtime.submit("and now?")
        await run.wait()
        watched = [event.role async for event in run.events() if isinstance(event, ModelStarted)]
    assert watched == ["compact", "step"]


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("answer", ["replaced", None])
async def test_e_003_a_value_nothing_and_both_later_come_to_the_same(wait: bool, answer: str | None) -> None:
    class Answers(Extension[Any]):
        name = "answers"

        def after_answer(self, ctx: Any, question: Any, /) -> Any:
            return later() if wait else answer

    async def later() -> str | None:
        await trio.lowlevel.checkpoint()
        return answer

    async with open_runtime(native(["said"], extensions=[Answers()])) as runtime:
        assert (await runtime.run("go")).text == (answer or "said")
