"""A chat as its user sees it: steps, answers, questions, commands and Ctrl-C."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunResult, Stop, ToolContext, ToolLoop, tool
from goliath_actors._cli.assistant import Notebook, make_assistant
from goliath_actors._cli.demo_model import DemoModel
from goliath_actors._cli.screen import Screen
from goliath_actors._cli.view import View
from goliath_actors.errors import ModelUnavailable
from goliath_actors.events import ToolProgress
from goliath_actors.hooks import AfterAnswer, BeforeRun, HookContext, OnFinish
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.tools import ask_client
from goliath_actors.values import Waiting

from .cli_stage import PLAIN, Tty, sitting


def assistant(notebook: Notebook | None = None) -> Agent[Any]:
    return make_assistant(DemoModel(), notebook, lambda: datetime(2026, 3, 4, 5, 6, 7))


def answering(*replies: Any, extensions: tuple[Extension[Any], ...] = (), **options: Any) -> Agent[Any]:
    """An agent without tools: one reply a run."""
    return Agent(model=ScriptedModel(list(replies), **options), extensions=extensions)


# --- steps and answers ----------------------------------------------------------------------------------------------


async def test_steps_are_shown_as_they_happen_and_then_the_whole_answer() -> None:
    async with sitting(assistant()) as user:
        assert user.out.getvalue() == "you> "
        assert await user.types("what time is it?") == (
            "  plan    use clock: its words are in the request\n"
            "  call    clock {}\n"
            "  result  Wednesday, 04 March 2026, 05:06:07\n"
            "  plan    answer: nothing is left to do\n"
            "Demo model: clock says: Wednesday, 04 March 2026, 05:06:07.\n"
            "\nyou> "
        )
    assert user.codes == [0]


async def test_a_quiet_chat_shows_answers_alone() -> None:
    async with sitting(assistant(), quiet=True) as user:
        assert await user.types("2 * 21") == "Demo model: calculate says: 2 * 21 = 42.\n\nyou> "


async def test_blank_lines_ask_nothing() -> None:
    async with sitting(answering()) as user:
        assert await user.types("", "   ") == "you> you> "
        assert user.runtime.statistics().accepted == 0


async def test_a_streamed_answer_that_a_hook_changes_is_withdrawn_and_shown_anew() -> None:
    class Polite(Extension[Any]):
        name = "polite"

        def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> str:
            return question.text + ", please"

    async with sitting(answering("go away", extensions=(Polite(),), chunk=3)) as user:
        shown = await user.types("hello")
    assert shown.endswith("go away\n  (the answer was changed to)\ngo away, please\n\nyou> ")


async def test_the_text_of_a_stop_is_shown_with_who_stopped_it() -> None:
    class Guard(Extension[Any]):
        name = "guard"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop:
            return Stop("Not today.", "it is Sunday")

    async with sitting(answering(extensions=(Guard(),))) as user:
        shown = await user.types("hello")
    assert shown == (
        "  hook    guard in before_run: stop: it is Sunday\n"
        "Not today.\n"
        "  stopped guard in before_run: it is Sunday\n"
        "\nyou> "
    )


async def test_escape_sequences_of_a_model_never_reach_the_terminal() -> None:
    async with sitting(answering("\x1b[2Jwiped\x07")) as user:
        shown = await user.types("hello")
    assert "\x1b" not in shown
    assert "␛[2Jwiped␇\n" in shown


async def test_the_second_brain_shows_why_it_was_asked() -> None:
    agent = Agent(
        model=ScriptedModel([{"kind": "escalate", "brief": "too hard"}]),
        tools=assistant().tools[:1],
        fallback=lambda request: "the cloud says so",
    )
    async with sitting(agent) as user:
        shown = await user.types("prove it")
    assert shown == ("  plan    escalate: too hard\n  gave up conductor-asked: too hard\nthe cloud says so\n\nyou> ")


def test_the_progress_of_a_tool_stands_in_the_status_line() -> None:
    out = Tty()
    screen = Screen.on(out, {"COLUMNS": "60"})
    view = View(screen, screen)
    view.on_event(ToolProgress("run-1", None, 1, 0.0, call_id="c", tool="dig", progress=3, total=10, message="a\nhole"))
    assert "dig runs: 3 of 10, a hole …" in out.getvalue()
    view.on_event(ToolProgress("run-1", None, 2, 0.0, call_id="c", tool="dig", progress=0.5))
    assert "dig runs: 0.5 …" in out.getvalue()


async def test_calls_that_wait_for_an_answer_are_named() -> None:
    out = io.StringIO()
    screen = Screen.on(out, PLAIN)
    waiting = Waiting("call-1", "book", {}, "which day?")
    View(screen, screen).finish(RunResult("run-1", None, text="Soon.", waiting=(waiting,)))
    assert out.getvalue() == "Soon.\n  waits   book waits for an answer (question, call-1): which day?\n"


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_an_unreachable_model_is_one_line_after_its_retries(autojump_clock: MockClock) -> None:
    down = ModelUnavailable("cannot connect to http://127.0.0.1:9/v1: refused; is the server running?")
    agent = answering(down, down, retries=1)
    async with sitting(agent, where="http://127.0.0.1:9/v1") as user:
        await user.types("hello")
        await trio.sleep(60)  # the pause before the retry
        await wait_all_tasks_blocked()
        shown = user.out.getvalue()
    # The ask itself is on the screen because the terminal echoes it.
    assert shown == (
        "you>   plan    answer: reply\n"
        "  model   cannot connect to http://127.0.0.1:9/v1: refused; is the server runni…\n"
        "  again   attempt 2\n"
        "  model   the same\n"
        "  gave up model-unavailable\n"
        "error: cannot connect to http://127.0.0.1:9/v1: refused; start its server, name\n"
        "  another with --model-url, or use --model demo\n"
        "\nyou> "
    )
    assert user.codes == [0]


async def test_an_error_is_one_line_and_the_chat_goes_on() -> None:
    class Broken(Extension[Any]):
        name = "broken"
        asked = 0

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
            self.asked += 1
            if self.asked == 1:
                raise LookupError("no user 7")

    async with sitting(answering("fine", extensions=(Broken(),))) as user:
        assert await user.types("one") == "error: extension 'broken' in before_run: no user 7\n\nyou> "
        assert (await user.types("two")).endswith("fine\n\nyou> ")


async def test_a_traceback_is_shown_on_request() -> None:
    class Broken(Extension[Any]):
        name = "broken"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
            raise LookupError("no user 7")

    async with sitting(answering(extensions=(Broken(),)), traceback=True) as user:
        shown = await user.types("one")
    assert "Traceback (most recent call last):" in shown
    assert "LookupError: no user 7" in shown


async def test_what_a_tool_of_ones_own_raised_is_shown_and_its_traceback_on_request() -> None:
    @tool
    async def price(book: str) -> str:
        """Say what a book costs."""
        return {"emma": "9"}[book]

    def shop() -> Agent[Any]:
        model = ScriptedModel([tool_calls(("price", {"book": "dune"})), "I do not know."])
        return Agent(model=model, tools=[price], loop=ToolLoop())  # it tells the model nothing of such an error

    async with sitting(shop()) as user:
        shown = await user.types("one")
    assert "error   KeyError: 'dune'" in shown
    assert "Traceback" not in shown
    async with sitting(shop(), traceback=True) as user:
        shown = await user.types("one")
    assert 'return {"emma": "9"}[book]' in shown
    assert "I do not know." in shown


async def test_a_run_that_takes_too_long_is_aborted_and_says_so(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with sitting(answering(gate.then("late"), "fine"), timeout=5.0) as user:
        await user.types("one")
        await trio.sleep(6)
        await wait_all_tasks_blocked()
        assert user.out.getvalue().endswith(
            "error: the run was aborted (deadline) in answer; raise --timeout, or leave it\n  out\n\nyou> "
        )
        assert (await user.types("two")).endswith("fine\n\nyou> ")


# --- confirmations --------------------------------------------------------------------------------------------------


async def test_a_write_waits_until_the_user_says_yes() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook)) as user:
        asked = await user.types("add a note: buy milk")
        assert asked == (
            "  plan    use add_note: its words are in the request\n"
            "  confirm add_note wants to change data\n"
            '          text: "buy milk"\n'
            "          go ahead? [y]es, [n]o, or why not: "
        )
        assert notebook.of(None) == []
        shown = await user.types("y")
        assert "result  noted as number 1: buy milk\n" in shown
    assert notebook.of(None) == ["buy milk"]


async def test_a_refusal_with_its_reason_reaches_the_model_and_nothing_is_done() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook)) as user:
        await user.types("add a note: buy milk")
        shown = await user.types("we have milk")
    assert "result  [skipped] Declined by the user: we have milk." in shown
    assert notebook.of(None) == []


async def test_no_is_a_refusal_without_a_reason_and_an_empty_line_asks_again() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook)) as user:
        await user.types("add a note: buy milk")
        assert await user.types("  ") == "          go ahead? [y]es, [n]o, or why not: "
        shown = await user.types("No")
    assert '  refused add_note {"text": "buy milk"}\n' in shown
    assert "  call    add_note" not in shown
    assert "[skipped] Declined by the user. " in shown
    assert notebook.of(None) == []


async def test_a_sub_agents_call_is_asked_about_with_its_name() -> None:
    @tool(writes=True)
    async def order(book: str) -> str:
        """Order a book."""
        await trio.lowlevel.checkpoint()
        return f"ordered {book}"

    script = [tool_calls(("order", {"book": "Trees"})), "Ordered."]
    librarian = Agent(name="librarian", model=ScriptedModel(script), tools=[order], loop=ToolLoop(), confirm=ask_client)
    script = [tool_calls(("librarian", {"ask": "Trees?"})), "It is on its way."]
    desk = Agent(name="desk", model=ScriptedModel(script), tools=[librarian.as_tool()], loop=ToolLoop())
    async with sitting(desk) as user:
        shown = await user.types("Trees?")
        assert '  confirm librarian: order wants to change data\n          book: "Trees"\n' in shown
        assert "It is on its way." in await user.types("y")
    assert librarian.model.requests[-1].messages[-1].text == "ordered Trees"  # type: ignore[attr-defined]


async def test_the_end_of_the_input_refuses_an_open_question() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook)) as user:
        await user.types("add a note: buy milk")
        shown = await user.ends_input()
        assert "Declined by the user: the input ended before" in shown
    assert notebook.of(None) == []
    assert user.codes == [0]


async def test_a_question_after_the_end_of_the_input_is_refused_too() -> None:
    gate, notebook = Gate(), Notebook()
    plan = {"kind": "tool", "tool": "add_note", "brief": "note it"}
    script = ScriptedModel([gate.then(plan), {"text": "milk"}, {"kind": "answer", "brief": "end"}, "not noted"])
    async with sitting(make_assistant(script, notebook)) as user:
        await user.types("note milk")
        await user.ends_input()
        shown = await user.presses(gate.open)
    assert "Declined by the user: the input ended before" in shown
    assert shown.endswith("not noted\n\n")
    assert notebook.of(None) == []


async def test_yes_approves_everything_and_says_so() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook), yes=True) as user:
        assert "approved, as --yes says\n" in await user.types("add a note: buy milk")
    assert notebook.of(None) == ["buy milk"]


async def test_all_of_what_would_be_executed_is_shown_however_long_it_is() -> None:
    text = "x" * 300 + " and \x1b[2K\u202eend"
    async with sitting(assistant()) as user:
        shown = await user.types(f'add a note: "{text}"')
    assert "x" * 300 in shown
    assert "\\u001b" not in shown  # a typed escape sequence never got that far
    assert "\u202e" not in shown


async def test_commands_work_while_a_question_is_open_and_it_is_shown_again() -> None:
    async with sitting(assistant()) as user:
        await user.types("add a note: buy milk")
        shown = await user.types("/status")
        # However long the run's id is, the phase and its seconds stand together on a line of their own.
        assert re.search(r"^  phase         confirm for \d+\.\d s$", shown, re.MULTILINE)
        assert shown.endswith("          go ahead? [y]es, [n]o, or why not: ")


# --- Ctrl-C and the ways out ----------------------------------------------------------------------------------------


async def test_ctrl_c_aborts_the_run_and_not_the_chat() -> None:
    gate, journal = Gate(), Journal()
    async with sitting(answering(gate.then("never"), "second", extensions=(journal,))) as user:
        await user.types("one")
        assert await user.presses(user.session.interrupt) == "\n  aborted in answer\n\nyou> "
        assert (await user.types("two")).endswith("second\n\nyou> ")
    assert journal.heard("on_finish") == [("one", "aborted"), ("two", "completed")]
    assert user.codes == [0]


async def test_ctrl_c_at_a_question_aborts_the_run() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook)) as user:
        await user.types("add a note: buy milk")
        assert (await user.presses(user.session.interrupt)).endswith("\n  aborted in confirm\n\nyou> ")
    assert notebook.of(None) == []


async def test_the_second_ctrl_c_at_the_prompt_leaves() -> None:
    async with sitting(answering()) as user:
        assert await user.presses(user.session.interrupt) == "\n  Ctrl-C again, Ctrl-D or /quit leaves\nyou> "
        await user.presses(user.session.interrupt)
        assert user.codes == [130]


async def test_a_typed_line_forgets_the_first_ctrl_c() -> None:
    async with sitting(answering("fine")) as user:
        await user.presses(user.session.interrupt)
        await user.types("hello")
        await user.presses(user.session.interrupt)
        assert user.codes == []
    assert user.codes == [0]


async def test_ctrl_c_while_observers_run_says_so_and_the_third_one_ends_everything() -> None:
    gate, stuck = Gate(), Gate()

    class Slow(Extension[Any]):
        name = "slow"

        async def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
            await stuck.pass_through()

    async with sitting(answering(gate.then("never"), extensions=(Slow(),))) as user:
        await user.types("one")
        await user.presses(user.session.interrupt)
        shown = await user.presses(user.session.interrupt)
        assert shown == "\n  still ending; Ctrl-C again leaves without waiting\n"
        assert user.shut_down == []
        await user.presses(user.session.interrupt)
        assert (user.codes, user.shut_down) == ([130], ["now"])
        await user.presses(user.session.interrupt)
        assert user.shut_down == ["now", "now"]
        stuck.open()


async def test_quit_leaves_and_aborts_what_runs() -> None:
    gate, journal = Gate(), Journal()
    async with sitting(answering(gate.then("never"), extensions=(journal,))) as user:
        await user.types("one")
        await user.types("/quit")
        assert user.codes == [0]
    assert journal.heard("on_finish") == [("one", "aborted")]


async def test_ctrl_d_during_a_run_lets_it_end() -> None:
    gate = Gate()
    async with sitting(answering(gate.then("at last"))) as user:
        await user.types("one")
        await user.ends_input()
        assert user.codes == []
        shown = await user.presses(gate.open)
        assert shown.endswith("at last\n\n")
        assert user.codes == [0]


# --- commands -------------------------------------------------------------------------------------------------------


async def test_help_lists_every_command() -> None:
    async with sitting(answering()) as user:
        shown = await user.types("/help")
    for name in ("help", "abort", "status", "memory", "history", "tools", "forget", "new", "quit"):
        assert f"\n  /{name}" in f"\n{shown}"


async def test_status_and_abort_work_during_a_run_and_other_lines_wait_for_its_end() -> None:
    gate = Gate()
    async with sitting(answering(gate.then("never"), "second")) as user:
        await user.types("one", "two")
        shown = await user.types("/status")
        assert "conversation  the default conversation: run-" in shown
        assert "typed ahead   1\n" in shown
        assert "1 accepted: 0 completed, 0 stopped, 0 failed, 0 aborted, 1 running" in " ".join(shown.split())
        assert await user.types("/abort") == (
            "  aborted in answer\n\nyou> two\n  plan    answer: reply\nsecond\n\nyou> "
        )


async def test_abort_with_nothing_running_says_so() -> None:
    async with sitting(answering()) as user:
        assert await user.types("/abort") == "  nothing is running\nyou> "
        assert "idle\n" in await user.types("/status")


async def test_memory_and_history_show_what_was_said_and_forget_deletes_it() -> None:
    async with sitting(answering("first answer", "second answer")) as user:
        assert await user.types("/memory") == "  nothing is remembered yet\nyou> "
        assert await user.types("/history") == "  nothing was said yet\nyou> "
        await user.types("first ask")
        await user.types("second ask")
        assert await user.types("/memory") == (
            "  you     first ask\n  answer  first answer\n  you     second ask\n  answer  second answer\nyou> "
        )
        rows = (await user.types("/history")).splitlines()
        assert [row[16:].split(maxsplit=1) for row in rows[:-1]] == [
            ["you", "first ask"],
            ["assistant", "first answer"],
            ["you", "second ask"],
            ["assistant", "second answer"],
        ]
        assert "… there is more before that: /history 4\n" in await user.types("/history 2")
        user.session.notes._columns = 36
        lines = (await user.types("/history 2")).splitlines()
        assert [lines[0][16:], *lines[1:2], lines[2][16:], *lines[3:4]] == [
            "you",
            "    second ask",
            "assistant",
            "    second answer",
        ]
        user.session.notes._columns = 80
        assert await user.types("/forget") == "          delete the default conversation? [y]es, [n]o: "
        assert await user.types("n") == "  nothing was deleted\nyou> "
        await user.types("/forget")
        assert await user.types("y") == "  the default conversation is forgotten\nyou> "
        assert await user.types("/memory") == "  nothing is remembered yet\nyou> "


async def test_ctrl_c_at_the_question_of_forget_deletes_nothing() -> None:
    async with sitting(answering("an answer")) as user:
        await user.types("hello", "/forget")
        assert (await user.presses(user.session.interrupt)).endswith("  nothing was deleted\nyou> ")
        assert "an answer" in await user.types("/memory")


async def test_a_new_conversation_has_its_own_memory_and_prompt() -> None:
    async with sitting(answering("one", "two")) as user:
        await user.types("hello")
        assert await user.types("/new shopping") == "  now in conversation 'shopping'\nyou [shopping]> "
        assert "nothing is remembered yet" in await user.types("/memory")
        assert (await user.types("hello")).endswith("two\n\nyou [shopping]> ")
        assert "/new needs an id" in await user.types("/new")
        assert "error: conversation_id has 600 characters" in await user.types("/new " + "x" * 600)


async def test_a_stored_conversation_goes_on_where_it_was() -> None:
    store = InMemoryStore()
    async with sitting(answering("noted"), store=store, conversation_id="u1") as user:
        await user.types("my name is Ada")
    async with sitting(answering(), store=store, conversation_id="u1") as user:
        assert "  you     my name is Ada\n  answer  noted\n" in await user.types("/memory")


async def test_unknown_commands_and_bad_arguments_are_one_line() -> None:
    async with sitting(answering()) as user:
        assert await user.types("/nonsense") == (
            "error: there is no command /nonsense; /help lists them, and // begins an ask\n  with a slash\nyou> "
        )
        assert await user.types("/history x") == "error: /history takes a number of entries, not 'x'\nyou> "


async def test_a_path_is_an_ask_and_two_slashes_begin_one() -> None:
    asks: list[str] = []
    model: Callable[[Any], str] = lambda request: asks.append(request.text.rpartition("Request: ")[2]) or "ok"  # noqa: E731
    async with sitting(answering(model, model)) as user:
        await user.types("/etc/hosts is what?", "//help me")
    assert asks == ["/etc/hosts is what?", "/help me"]


async def test_tools_lists_what_the_agent_may_do() -> None:
    async with sitting(assistant()) as user:
        assert "add_note(text: string)\n    Add a note to this conversation.\n" in await user.types("/tools")


async def test_a_failing_command_is_one_line() -> None:
    store = FailingStore(InMemoryStore(), {"load": OSError("the disk is gone")})
    async with sitting(answering(), store=store) as user:
        assert await user.types("/memory") == "error: OSError: the disk is gone\nyou> "


# --- one ask for each line of a pipe --------------------------------------------------------------------------------


async def test_a_pipe_gets_answers_alone_and_steps_go_to_standard_error() -> None:
    async with sitting(assistant(), interactive=False) as user:
        await user.types("what time is it?", "2 * 21")
        await user.ends_input()
    assert user.out.getvalue() == (
        "Demo model: clock says: Wednesday, 04 March 2026, 05:06:07.\nDemo model: calculate says: 2 * 21 = 42.\n"
    )
    assert user.err.getvalue().startswith("  ask     what time is it?\n  plan    use clock: ")
    assert user.codes == [0]


async def test_in_a_pipe_nobody_can_be_asked() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook), interactive=False) as user:
        await user.types("add a note: buy milk", "y")
        await user.ends_input()
    assert notebook.of(None) == []
    assert "confirm refused: nobody can be asked here; --yes approves" in user.err.getvalue()


async def test_in_a_pipe_yes_approves() -> None:
    notebook = Notebook()
    async with sitting(assistant(notebook), interactive=False, yes=True) as user:
        await user.types("add a note: buy milk", "/new other", "add a note: buy bread", "/forget")
        await user.ends_input()
    assert (notebook.of(None), notebook.of("other")) == (["buy milk"], ["buy bread"])
    assert "conversation 'other' is forgotten" in user.err.getvalue()


async def test_in_a_pipe_one_failed_ask_makes_the_exit_code_1_and_the_rest_is_answered() -> None:
    down = ModelUnavailable("refused")
    async with sitting(answering(down, "fine"), interactive=False) as user:
        await user.types("one", "two")
        await user.ends_input()
    assert user.out.getvalue() == "fine\n"
    assert "error: the model is unavailable: refused; start its server" in user.err.getvalue()
    assert user.codes == [1]


async def test_in_a_pipe_ctrl_c_leaves_with_130_and_tells_the_observers() -> None:
    gate, journal = Gate(), Journal()
    async with sitting(answering(gate.then("never"), extensions=(journal,)), interactive=False) as user:
        await user.types("one", "two")
        await user.presses(user.session.interrupt)
        assert user.codes == [130]
    assert journal.heard("on_finish") == [("one", "aborted")]


async def test_a_pipe_is_read_no_faster_than_it_is_answered() -> None:
    gate = Gate()
    async with sitting(answering(gate.then("one"), *["more"] * 20), interactive=False) as user:
        await user.types(*(f"ask {number}" for number in range(10)))
        waiting = user.session.lines.statistics().current_buffer_used
        assert waiting == 8  # one is asked, one is held out to be asked next
        await user.presses(gate.open)
        await user.ends_input()
    assert user.out.getvalue().count("more\n") == 9


# --- outputs that are gone ------------------------------------------------------------------------------------------


async def test_an_output_that_is_gone_ends_the_chat_and_not_the_run() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    lost: list[str] = []
    screen = Screen.on(Closed(), PLAIN)
    view = View(screen, screen, lost=lambda: lost.append("lost"))
    async with sitting(answering("hello")) as user:
        result = await user.runtime.run("hi", on_event=view.on_event)
    assert result.text == "hello"
    assert set(lost) == {"lost"}


async def test_parallel_questions_are_asked_one_after_the_other() -> None:
    async with sitting(assistant()) as user:
        answers: list[bool] = []

        async def ask(name: str) -> None:
            answers.append(await user.session.approve(name))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one?")
            nursery.start_soon(ask, "two?")
            await wait_all_tasks_blocked()
            assert user.out.getvalue().count("[y]es, [n]o: ") == 1
            await user.types("y")
            assert user.out.getvalue().count("[y]es, [n]o: ") == 2
            await user.types("n")
    assert sorted(answers) == [False, True]


async def test_a_sync_tool_of_an_agent_can_be_used_in_a_chat() -> None:
    @tool
    def shout(ctx: ToolContext[Any], text: str) -> str:
        """Shout a text."""
        return text.upper()

    over = trio.Event()

    class Watch(Extension[Any]):
        name = "watch"

        def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
            over.set()

    async with sitting(Agent(model=DemoModel(), tools=[shout], extensions=[Watch()])) as user:
        await user.types("shout: hello")
        await over.wait()
        await wait_all_tasks_blocked()
        assert user.out.getvalue().endswith("Demo model: shout says: HELLO.\n\nyou> ")
