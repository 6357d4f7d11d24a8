"""The catalogue of covonaut: its tests, and its rough edges, which must not be ours. Each line has a test, or a rule.

`V` lines are rough edges, by number; the others are what its own tests assert, by name. A proof is "file::test" without
"test_"; "here" is a test below; in brackets stands the rule of ours that overrules a line, and what holds instead.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Extension, RunAborted, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError, ModelError
from goliath_actors.events import ModelFinished, ToolFinished
from goliath_actors.hooks import BeforeRun, Retry, Stop
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.values import Usage

from .native import check_closed, check_requests, history, native, said
from .planned import requests

# ruff: noqa: E501  # a line of the catalogue is a line here, whatever its test is called

HERE = Path(__file__).parent

EDGES: dict[str, str] = {
    # Policies and lifecycle.
    "V-01": "tools_room::no_path_bypasses_the_gate",
    "V-02": "here",
    "V-03": "journal::a_callback_is_told_after_the_event_is_in_the_log_and_its_error_has_origin_event",
    "V-04": "request::messages_may_be_replaced_for_this_request_only",
    "V-05": "policies_guardrail::the_model_is_given_all_objections_at_once_and_answers_again",
    "V-06": "policies_rate::the_count_outlives_runs_and_runtimes",
    "V-07": "policies_audit::failures_of_models_and_tools_are_outcomes",
    "V-08": "panel::a_hook_that_raises_is_named_and_no_later_hook_is_asked",
    "V-09": "tools_room::the_first_denial_ends_the_chain",
    # Extensions.
    "V-10": "runtime_lifespans::one_extension_object_lives_in_one_runtime_at_a_time",
    "V-11": "runtime_lifespans::every_lifespan_is_left_and_errors_are_collected",
    "V-12": "runtime_lifespans::a_lifespan_that_cannot_start_leaves_those_before_it_and_opening_fails_bare",
    "V-13": "here",
    "V-14": "(H11: contributions are data, and nothing is asked for them under a lock)",
    "V-15": "live_tools::a_run_keeps_the_tools_that_it_began_with",
    "V-16": "toolloop::instructions_facts_and_contributions_are_composed_for_each_request_and_never_stored",
    "V-17": "scenarios::a_late_subscriber_alone_first_gets_what_extensions_want_it_to_see",
    "V-18": "panel::containers_are_copies_per_hook_and_mutating_one_changes_nothing",
    # Tools.
    "V-19": "toolloop_waiting::several_calls_may_be_answered_one_after_the_other",
    "V-20": "here",
    "V-21": "toolloop_tools::every_started_tool_is_told_once_with_ids_of_its_own",
    "V-22": "toolloop_tools::at_most_so_many_tools_run_side_by_side_and_sequential_ones_alone",
    "V-23": "toolloop_tools::a_made_up_name_is_answered_with_the_real_ones",
    "V-24": "toolloop_tools::an_input_that_a_hook_replaced_is_recorded_beside_the_result",
    "V-25": "tools_room::an_output_of_any_kind_leaves_the_run_well",
    "V-26": "toolloop_tools::at_most_so_many_tools_run_side_by_side_and_sequential_ones_alone",
    "V-27": "scenarios_toolloop::what_can_pass_is_tried_again_as_often_as_was_said_and_nothing_else_is",
    "V-28": "tools::check_names_every_problem_and_the_tool",
    "V-29": "here",
    # Runs, steering, abort.
    "V-30": "runtime_ending::abort_by_request_raises_run_aborted_with_reason_and_phase",
    "V-31": "toolloop_steering::a_text_that_comes_with_the_answer_lets_the_run_go_on",
    "V-32": "here",
    "V-33": "runtime_order::runs_of_one_conversation_never_overlap_and_keep_their_order",
    "V-34": "bad_input::a_second_resume_of_a_call_is_refused_whether_others_wait_or_not",
    "V-35": "toolloop_tools::an_abort_starts_no_further_tool_and_no_further_model_call",
    "V-36": "here",
    # Events.
    "V-37": "journal::whatever_a_reader_does_it_gets_all_text_and_all_events_in_order",
    "V-38": "scenarios_toolloop::whatever_becomes_of_a_run_everything_that_was_begun_is_ended_and_says_why",
    "V-39": "journal::every_callback_is_told_even_if_an_earlier_one_raises",
    # Sub-agents.
    "V-40": "(T14: an agent is asked and answers; no conversation is handed over to another one)",
    "V-41": "subagents::a_child_that_waits_lets_its_parent_wait_and_is_taken_up_with_it",
    "V-42": "subagents::it_is_aborted_with_its_parent_and_its_observers_are_told",
    "V-43": "runtime_idling::an_idle_conversation_is_forgotten_whatever_its_outcome_was",
    "V-44": "runtime_ending::a_timeout_is_the_cause_deadline_and_counts_from_acceptance",
    # Compaction, storage, providers.
    "V-45": "toolloop_compaction::a_summary_that_fails_leaves_the_history_as_it_was",
    "V-46": "toolloop_compaction::a_round_that_does_not_shrink_is_not_repeated",
    "V-47": "toolloop::a_compaction_that_could_not_work_is_refused_at_once",
    "V-48": "toolloop_history::names_and_arguments_that_a_provider_would_refuse_are_put_into_words",
    "V-49": "stores_files::migrations_run_once_each_in_order_and_keep_what_is_there",
    "V-50": "models_fallbacks::only_one_request_probes_while_the_others_pass_the_model_over",
    "V-51": "request::a_pause_that_the_provider_asks_for_is_kept",
    "V-52": "scenarios::leaving_a_loop_over_events_early_two_hundred_times_leaves_nothing_behind",
    "V-53": "otel::contents_are_left_out_unless_asked_for",
    "V-54": "docs::an_example_prints_what_it_says",
}

TESTS: dict[str, str] = {
    "extension execution hooks reach the executor": "tools_room::a_tool_may_be_invoked_outside_a_run_through_the_same_gate",
    "an extension's start-up error is surfaced": "runtime_lifespans::a_lifespan_that_cannot_start_leaves_those_before_it_and_opening_fails_bare",
    "a rejected response is followed by another one": "toolloop_hooks::a_rejected_reply_is_withdrawn_kept_out_of_history_and_asked_for_again",
    "a rate limit within its limit": "policies_rate::asks_over_the_limit_wait_for_the_window_to_slide",
    "a rate limit beyond its limit": "policies_rate::a_refused_model_call_stops_the_run_whatever_it_was_for",
    "closing twice is harmless": "runtime_lifespans::models_and_fallbacks_that_can_be_closed_are_closed_once_at_the_end",
    "a stream that never sends is cancelled": "here",
    "a tool runs and its id and name are right": "toolloop_tools::every_started_tool_is_told_once_with_ids_of_its_own",
    "a tool is not found": "toolloop_tools::a_made_up_name_is_answered_with_the_real_ones",
    "a tool fails": "toolloop_tools::a_failure_that_a_tool_declares_reaches_the_model_word_for_word",
    "a result that is a map": "toolloop_tools::any_result_is_put_into_words_and_can_be_stored",
    "a before hook rejects": "policies_tools::a_denied_call_is_not_executed_and_the_model_is_told_why",
    "an after hook runs": "goliath_catalogue_tools::after_tools_hears_every_round",
    "middleware runs": "goliath_catalogue_tools::an_extension_may_replace_a_tools_output",
    "arguments are validated": "toolloop_tools::one_broken_call_is_answered_and_its_sibling_runs",
    "a batch in series": "toolloop_tools::at_most_so_many_tools_run_side_by_side_and_sequential_ones_alone",
    "a batch side by side": "toolloop_tools::a_failed_sibling_cancels_nobody_and_results_come_in_call_order",
    "broken arguments are repaired": "toolloop_tools::a_repair_is_recorded_beside_the_result",
    "a repair that fails": "toolloop_tools::nothing_is_invented_for_arguments_that_are_none",
    "a time limit of a tool": "goliath_catalogue_tools::a_tool_that_takes_too_long_fails_a_read_and_leaves_a_write_unknown",
    "a retry of a tool": "tools_room::a_hook_may_run_a_tool_twice_and_both_times_count",
    "schemas": "tools::argument_texts_have_an_accepted_outcome",
    "a large result": "scenarios_toolloop::a_result_of_megabytes_is_shown_by_its_beginning_and_its_end",
    "texts for a run keep their order": "toolloop_steering::several_texts_keep_their_order_and_count_for_the_capacity",
    "cancelled during a tool": "toolloop_tools::a_call_that_an_abort_interrupted_has_a_result_that_says_so",
    "cancelled during a sub-agent": "subagents::it_is_aborted_with_its_parent_and_its_observers_are_told",
    "cancelled, then asked again": "here",
    "a sub-agent finishes": "subagents::an_agent_is_asked_like_any_tool_and_its_answer_is_the_result",
    "a sub-agent fails": "subagents::an_error_of_the_child_is_told_by_its_type_and_kept_as_the_same_object",
    "a checkpoint is restored": "toolloop_waiting::what_waits_is_taken_up_by_another_process",
    "a tool interrupts and is taken up": "toolloop_waiting::a_tool_that_suspends_is_entered_again_with_the_answer",
    "a resume where nothing waits": "bad_input::a_resume_where_nothing_ever_waited_says_where",
    "what a tool asks reaches the caller": "subagents::a_child_that_waits_lets_its_parent_wait_and_is_taken_up_with_it",
    "cancelled while it is taken up": "toolloop_waiting::an_abort_of_a_resumed_run_leaves_what_was_not_answered_waiting",
    "the same call again and again": "(T6: max_steps bounds a model that goes in a circle; the planned loop refuses the repeat)",
    "a late reader of events": "journal::a_late_reader_gets_the_run_so_far_with_deltas_merged_and_nothing_else_dropped",
    "a callback that fails stops no other": "journal::every_callback_is_told_even_if_an_earlier_one_raises",
    "structured output": "toolloop::a_structured_answer_is_typed_and_asked_for_once_more",
    "a missing result is made up": "toolloop_history::a_result_is_moved_behind_its_call_and_a_missing_one_is_made_up",
    "overlapping asks": "runtime_accepting::when_busy_refuse_raises_and_leaves_no_trace",
    "copies of state are deep": "stores_conformance::the_store_passes",
    "delays of retries": "request::backoff_grows_and_is_bounded",
    "another model takes over": "models_fallbacks::an_outage_lets_the_next_model_be_asked",
}  # fmt: skip


def test_every_line_of_the_catalogue_has_a_proof_that_exists() -> None:
    assert list(EDGES) == [f"V-{number:02}" for number in range(1, 55)]
    own = Path(__file__).read_text(encoding="utf-8")
    for line, proof in (EDGES | TESTS).items():
        if proof.startswith("("):
            assert re.match(r"\([A-Z]\d+: \w", proof), line
        elif proof == "here":
            name = re.sub(r"\W+", "_", line.lower())
            assert re.search(rf"def test_(?:\w+_)?{name}(?:_|\()", own), f"no test of {line}"
        else:
            file, _, name = proof.partition("::")
            text = (HERE / f"test_{file}.py").read_text(encoding="utf-8")
            assert re.search(rf"def test_{name}\(", text), f"{line}: no such test"


@tool
async def look(text: str = "a") -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


async def test_v_02_an_ask_that_is_refused_before_the_run_is_not_in_the_history() -> None:
    class Guard(Extension[Any]):
        name = "guard"

        def before_run(self, ctx: Any, question: BeforeRun, /) -> Any:
            return Stop("No.", "forbidden") if question.ask == "forbidden" else None

    store, journal = InMemoryStore(), Journal()
    agent = native(["fine"], extensions=[Guard(), journal])
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("forbidden")
        assert (await run.wait()).status == "stopped"
        check_events([event async for event in run.events()])
        assert said(await history(store, agent)) == []
        await runtime.run("hello")
    assert "forbidden" not in requests(agent)[0].text
    assert journal.heard("on_finish") == [("forbidden", "stopped"), ("hello", "completed")]


async def test_v_13_names_that_are_taken_are_refused_with_both_owners() -> None:
    class Brings(Extension[Any]):
        name = "brings"
        tools = (look,)

    with pytest.raises(ConfigError, match=r"two tools are named 'look' \(Agent\(tools=...\) and extension 'brings'\)"):
        native([], tools=[look], extensions=[Brings()])
    with pytest.raises(ConfigError, match="two extensions are named 'journal'"):
        native([], extensions=[Journal(), Journal()])


async def test_v_20_of_a_round_in_which_one_call_waits_every_other_result_is_kept() -> None:
    done: list[str] = []

    @tool(writes=True)
    async def act(text: str) -> str:
        """Act."""
        done.append(text)
        return f"did {text}"

    @tool
    async def ask(ctx: ToolContext[Any]) -> str:
        """Ask a person."""
        return f"they said {await ctx.suspend()}"

    store = InMemoryStore()
    agent = native([tool_calls(("act", {"text": "a"}), ("ask", {}), ("act", {"text": "b"})), "done"], tools=[act, ask])
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        await runtime.conversation().resume({first.waiting[0].call_id: "yes"})
        results = {entry.message.text for entry in await history(store, agent) if entry.role == "tool"}
    assert sorted(done) == ["a", "b"]
    assert results == {"did a", "did b", "they said yes"}
    check_requests(requests(agent))


async def test_v_29_what_events_say_of_a_result_is_what_the_model_is_told() -> None:
    class Shortens(Extension[Any]):
        name = "shortens"

        def after_tool(self, ctx: Any, question: Any, /) -> str:
            return str(question.result[:3])

    agent = native([tool_calls(("look", {})), "done"], tools=[look], extensions=[Shortens()])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await run.wait()
        told = [event.result async for event in run.events() if isinstance(event, ToolFinished)]
    assert told == ["saw"]
    assert [message.text for message in requests(agent)[1].messages if message.role == "tool"] == ["saw"]


async def test_v_32_the_word_that_it_is_the_last_step_is_in_that_request_alone() -> None:
    store = InMemoryStore()
    agent = native([tool_calls(("look", {})), "done", "next"], tools=[look], loop=ToolLoop(max_steps=2))
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("go")
        await runtime.run("and?")
    assert ["last step" in request.text for request in requests(agent)] == [False, True, False]
    assert all("last step" not in text for _, text in said(await history(store, agent)))


async def test_v_36_a_text_that_becomes_the_next_run_has_all_steps_of_its_own(autojump_clock: MockClock) -> None:
    gate = Gate()
    agent = native([gate.then("one"), tool_calls(("look", {})), "two"], tools=[look], loop=ToolLoop(max_steps=2))
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        run = talk.submit("go")
        await gate.wait_reached()
        talk.steer("and this")
        run.abort()
        gate.open()
        with pytest.raises(RunAborted):
            await run.wait()
        await run.wait_ended()
        assert run.followed_by is not None
        assert (await run.followed_by.wait()).text == "two"


async def test_a_stream_that_never_sends_is_cancelled_at_once(autojump_clock: MockClock) -> None:
    agent = native([Gate().then("never")])
    async with open_runtime(agent) as runtime:
        start = trio.current_time()
        with trio.move_on_after(2) as scope:
            await runtime.run("go")
    assert scope.cancelled_caught
    assert trio.current_time() - start == 2


async def test_cancelled_then_asked_again_a_conversation_goes_on(autojump_clock: MockClock) -> None:
    gate, store = Gate(), InMemoryStore()
    agent = native([gate.then("never"), "here I am"])
    async with open_runtime(agent, store=store) as runtime:
        with trio.move_on_after(1):
            await runtime.run("one")
        assert (await runtime.run("two")).text == "here I am"
    check_closed(await history(store, agent))
    check_requests(requests(agent))


async def test_a_rejected_reply_is_paid_for_and_has_a_budget_of_its_own() -> None:
    class Rejects(Extension[Any]):
        name = "rejects"

        def after_plan(self, ctx: Any, question: Any, /) -> Any:
            return Retry("shorter") if question.attempt < 2 else None

    model = ScriptedModel(["long", "long", "ok"], usage=Usage(10, 1))
    async with open_runtime(native(model, extensions=[Rejects()])) as runtime:
        result = await runtime.run("go")
    assert (result.text, result.usage) == ("ok", Usage(30, 3))


async def test_usage_of_a_step_that_was_aborted_is_added_once_and_marked_if_it_is_an_estimate(
    autojump_clock: MockClock,
) -> None:
    journal = Journal()
    stuck = Gate()

    class Hangs(Extension[Any]):
        name = "hangs"

        async def transform_stream(self, ctx: Any, events: Any, control: Any, /) -> AsyncIterator[Any]:
            async for event in events:
                yield event
                await stuck.pass_through()

    agent = native(["some words"], extensions=[Hangs(), journal])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await stuck.wait_reached()
        run.abort()
        with pytest.raises(RunAborted):
            await run.wait()
        await run.wait_ended()
        (finished,) = [event async for event in run.events() if isinstance(event, ModelFinished)]
    assert run.outcome is not None
    assert finished.usage is not None
    assert (run.outcome.usage, finished.usage.estimated) == (finished.usage, True)
    assert finished.usage.output_tokens > 0


async def test_a_failed_run_books_what_its_calls_had_used() -> None:
    model = ScriptedModel([tool_calls(("look", {})), ModelError("no")], usage=Usage(10, 1))
    async with open_runtime(native(model, tools=[look])) as runtime:
        run = runtime.submit("go")
        with pytest.raises(ModelError):
            await run.wait()
        await run.wait_ended()
    assert run.outcome is not None
    assert run.outcome.usage.input_tokens >= 10
