"""The chat page in a real browser: what somebody does who talks to an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from playwright.sync_api import Browser, expect

from goliath_actors import Agent, Conductor, Extension, ToolLoop
from goliath_actors._cli.assistant import Notebook, make_assistant
from goliath_actors._cli.demo_model import DemoModel
from goliath_actors.tools import ask_client

from .browser import (
    Call,
    Hold,
    Puppet,
    Site,
    needs_browser,
    open_browser,
    open_page,
    open_site,
    watch,
    write_file,
    written_files,
)

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as found:
        yield found


def test_a_message_is_answered_word_by_word_and_the_list_names_it(browser: Browser, site: Site) -> None:
    site.answer("Hello there", ["Good ", Hold("half"), "morning."])
    with open_page(browser, site.url) as page:
        expect(page.page.locator("#welcome")).to_be_visible()
        page.send("Hello there")
        site.wait_reached("half")
        page.wait_text("Good")
        assert page.answers() == ["Good"]
        site.open("half")
        page.wait_idle()
        assert page.asks() == ["Hello there"]
        assert page.answers() == ["Good morning."]
        expect(page.page.locator("#rows .row-title")).to_have_text(["Hello there"])
        expect(page.page.locator("#welcome")).to_be_hidden()


def test_stopping_in_the_middle_keeps_what_was_said_and_the_next_message_is_answered(
    browser: Browser, site: Site
) -> None:
    site.answer("Count", ["one two ", Hold("never")])
    with open_page(browser, site.url) as page:
        page.send("Count")
        page.wait_text("one two")
        page.page.get_by_role("button", name="Stop the answer").click()
        page.wait_idle()
        assert page.answers() == ["one two You stopped this answer."]
        page.send("Go on")
        page.wait_text("You said: Go on")
        page.wait_idle()
        page.page.reload()
        page.wait_text("You said: Go on")
        assert page.answers() == ["one two This answer was stopped before its end.", "You said: Go on"]
        assert page.asks() == ["Count", "Go on"]


def test_a_tool_is_a_card_that_opens(browser: Browser, site: Site) -> None:
    site.answer("Read it", ["Let me look.", Call("read_file", {"path": "notes.txt"})], ["It says hello."])
    with open_page(browser, site.url) as page:
        page.send("Read it")
        page.wait_text("It says hello.")
        card = page.page.locator(".card")
        expect(card).to_have_count(1)
        expect(card.locator(".card-name")).to_have_text("read_file")
        expect(card).to_have_attribute("data-state", "executed")
        expect(card.locator(".card-body")).to_be_hidden()
        card.locator("summary").click()
        expect(card.locator("pre")).to_have_text(['{\n  "path": "notes.txt"\n}', "contents of notes.txt"])
        assert [kind for kind, _ in page.shown()] == ["bubble", "text", "card", "text"]


def test_a_tool_that_takes_long_shows_how_far_it_is(browser: Browser, site: Site) -> None:
    site.answer("Dig", [Call("dig", {"metres": 8})], ["Deep."])
    with open_page(browser, site.url) as page:
        page.send("Dig")
        bar = page.page.get_by_role("progressbar", name="Progress of dig")
        expect(bar).to_have_attribute("max", "8")
        expect(bar).to_have_attribute("value", "2")
        expect(page.page.locator(".card-progress")).to_have_text("through clay")
        site.open("digging")
        page.wait_text("Deep.")
        expect(page.page.locator(".card-progress")).to_be_hidden()


def test_a_tool_that_fails_says_so(browser: Browser, site: Site) -> None:
    site.answer("Try", [Call("break_down", {})], ["It did not work."])
    with open_page(browser, site.url) as page:
        page.send("Try")
        page.wait_text("It did not work.")
        card = page.page.locator(".card")
        expect(card).to_have_attribute("data-state", "failed")
        expect(card.locator(".card-state")).to_contain_text("Failed")
        card.locator("summary").click()
        expect(card.locator(".card-body")).to_contain_text("the disk is full")


INPUT = {"path": "a.txt", "text": "pay \u202e100 \u200bnow"}


def test_approving_runs_exactly_what_was_shown(browser: Browser, site: Site) -> None:
    site.answer("Write", [Call("write_file", INPUT)], ["Done."])
    with open_page(browser, site.url) as page:
        page.send("Write")
        ask = page.page.locator(".card-ask[role=group]")
        # What cannot be seen, or turns the text around it, is spelled out.
        expect(ask.locator("pre")).to_have_text('{\n  "path": "a.txt",\n  "text": "pay \\u{202e}100 \\u{200b}now"\n}')
        expect(ask).to_contain_text("Write a file.")
        expect(page.page.locator(".doing:visible")).to_have_count(0)  # nobody thinks: it waits for a person
        assert written_files == []
        ask.get_by_role("button", name="Approve").click()
        page.wait_text("Done.")
        assert written_files == [("a.txt", INPUT["text"])]
        expect(page.page.locator(".card")).to_have_attribute("data-state", "executed")
        expect(page.page.locator(".ask-said")).to_have_text("You approved this.")


def test_denying_runs_nothing_and_the_model_is_told_why(browser: Browser, site: Site) -> None:
    site.answer("Write", [Call("write_file", INPUT)], ["Then I will not."])
    with open_page(browser, site.url) as page:
        page.send("Write")
        ask = page.page.locator(".card-ask[role=group]")
        ask.get_by_role("textbox").fill("not on a Friday")
        ask.get_by_role("button", name="Deny").click()
        page.wait_text("Then I will not.")
        card = page.page.locator(".card")
        expect(card).to_have_attribute("data-state", "skipped")
        card.locator("summary").click()
        expect(card.locator(".card-body")).to_contain_text("not on a Friday")
        assert written_files == []


def _with_a_clerk(puppet: Puppet) -> Agent[Any]:
    """An agent that has another one write for it, which asks whoever is at the page."""
    clerk = Agent(name="clerk", model=puppet, tools=[write_file], loop=ToolLoop(), confirm=ask_client)
    return Agent(name="desk", model=puppet, tools=[clerk.as_tool()], loop=ToolLoop())


@pytest.mark.parametrize(("answer", "state"), [("Approve", "allowed"), ("Deny", "skipped")])
def test_what_a_sub_agent_wants_to_do_is_asked_here_with_its_name(browser: Browser, answer: str, state: str) -> None:
    with open_site(_with_a_clerk) as site, open_page(browser, site.url) as page:
        site.answer("Write", [Call("clerk", {"ask": "Write it"})], ["All done."])
        site.answer("Write it", [Call("write_file", INPUT)], ["Yes."])
        page.page.locator("#agent").select_option("desk")
        page.send("Write")
        ask = page.page.locator(".card-ask[role=group]")
        expect(ask.locator(".ask-title")).to_have_text("Allow clerk to use write_file?")
        page.page.reload()
        expect(ask.locator(".ask-title")).to_have_text("Allow clerk to use write_file?")
        ask.get_by_role("button", name=answer).click()
        page.wait_text("All done.")
        page.wait_idle()
        assert len(written_files) == (1 if answer == "Approve" else 0)
        cards = page.page.locator(".card")
        expect(cards.nth(0)).to_have_attribute("data-state", "executed")
        expect(cards.nth(1)).to_have_attribute("data-state", state)


def test_a_reload_finds_an_open_approval_and_it_can_be_given(browser: Browser, site: Site) -> None:
    first = [Call("read_file", {"path": "x"})]
    site.answer("Write", first, ["So: ", Call("write_file", INPUT)], ["Done."])
    with open_page(browser, site.url) as page:
        page.send("Write")
        page.page.locator(".card-ask[role=group]").wait_for()
        page.wait_text("So:")
        before = page.shown()
        assert [kind for kind, _ in before] == ["bubble", "card", "text", "card"]
        page.page.reload()
        page.page.locator(".card-ask[role=group]").wait_for()
        page.wait_text("So:")
        assert page.shown() == before
        page.page.get_by_role("button", name="Approve").click()
        page.wait_text("Done.")
        page.wait_idle()
        assert len(written_files) == 1


def test_a_question_is_answered_in_the_card_and_the_answer_goes_on_in_its_place(browser: Browser, site: Site) -> None:
    site.answer("Plan", ["One question.", Call("ask_time", {"what": "lunch"})], ["Lunch is planned."])
    with open_page(browser, site.url) as page:
        page.send("Plan")
        ask = page.page.locator(".card-ask[role=group]")
        expect(ask.locator(".ask-title")).to_have_text("When is lunch?")
        page.wait_idle()
        page.page.reload()  # nothing runs, and the question is still there
        expect(ask.get_by_role("button", name="today")).to_be_visible()
        ask.get_by_role("textbox").fill("at noon")
        ask.get_by_role("textbox").press("Enter")
        page.wait_text("Lunch is planned.")
        page.wait_idle()
        card = page.page.locator(".card")
        expect(card).to_have_count(1)
        expect(card).to_have_attribute("data-state", "executed")
        card.locator("summary").click()
        expect(card.locator(".card-body")).to_contain_text("lunch is at noon")
        assert page.asks() == ["Plan"]


def test_a_choice_answers_a_question(browser: Browser, site: Site) -> None:
    site.answer("Plan", [Call("ask_time", {"what": "lunch"})], ["Planned."])
    with open_page(browser, site.url) as page:
        page.send("Plan")
        page.page.get_by_role("button", name="tomorrow").click()
        page.wait_text("Planned.")
        page.page.locator(".card summary").click()
        expect(page.page.locator(".card-body")).to_contain_text("lunch is tomorrow")


def test_a_message_instead_of_an_answer_refuses_the_question(browser: Browser, site: Site) -> None:
    site.answer("Plan", [Call("ask_time", {"what": "lunch"})])
    with open_page(browser, site.url) as page:
        page.send("Plan")
        page.page.locator(".card-ask[role=group]").wait_for()
        page.wait_idle()
        page.page.fill("#ask", "Never mind")
        expect(page.page.locator("#hint")).to_have_text("Sending a message instead of deciding counts as a refusal")
        page.page.press("#ask", "Enter")
        page.wait_text("You said: Never mind")
        expect(page.page.locator(".card-ask[role=group]")).to_have_count(0)
        expect(page.page.locator(".ask-said")).to_have_text("Refused: a new message was sent instead.")


def test_a_reload_shows_the_same(browser: Browser, site: Site) -> None:
    site.answer("Read it", ["Let me *look*.", Call("read_file", {"path": "notes.txt"})], ["# Result\n\n- one\n- two"])
    with open_page(browser, site.url) as page:
        page.send("Read it")
        page.wait_text("two")
        page.wait_idle()
        page.send("And now?")
        page.wait_text("You said: And now?")
        page.wait_idle()
        before = page.shown()
        states = page.page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.state)")
        page.page.reload()
        page.wait_text("You said: And now?")
        assert page.shown() == before
        assert page.page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.state)") == states
        assert len(before) == 6


def planned(model: Puppet) -> Agent[Any]:
    assistant = make_assistant(DemoModel(), Notebook())
    return attrs.evolve(assistant, name="planner", loop=Conductor())


def test_a_planned_answer_shows_its_steps_also_after_a_reload(browser: Browser) -> None:
    with open_site(planned) as site, open_page(browser, site.url) as page:
        page.page.locator("#agent").select_option("planner")
        expect(page.page.locator("#demo")).to_be_visible()
        page.send("add a note: buy milk")
        page.page.get_by_role("button", name="Approve").click()
        page.wait_text("noted as number 1")
        page.wait_idle()
        page.send("calculate 2 * 21")
        page.wait_text("= 42")
        page.wait_idle()
        before = page.shown()
        assert [kind for kind, _ in before] == ["bubble", "card", "text"] * 2
        page.page.reload()
        page.wait_text("= 42")
        assert page.shown() == before
        page.page.locator(".card summary").last.click()
        expect(page.page.locator(".card-body").last).to_contain_text("2 * 21 = 42")


def test_a_message_for_a_planned_agent_that_is_busy_waits_for_its_turn(browser: Browser) -> None:
    def slow(model: Puppet) -> Agent[Any]:
        return attrs.evolve(planned(model), model=DemoModel(pace=0.02), name="slow")

    with open_site(slow) as site, open_page(browser, site.url) as page:
        page.page.locator("#agent").select_option("slow")
        page.send("calculate 1 + 1")
        page.page.locator("#main[data-busy=true] .doing:visible, .text").first.wait_for()
        page.page.fill("#ask", "calculate 2 + 2")
        page.page.press("#ask", "Enter")
        page.wait_text("1 + 1 = 2")
        page.wait_text("2 + 2 = 4")
        page.wait_idle()
        assert page.asks() == ["calculate 1 + 1", "calculate 2 + 2"]
        expect(page.page.get_by_role("button", name="Answer again")).to_have_count(0)  # it cannot


def test_a_reload_in_the_middle_goes_on_without_a_gap_or_a_repeat(browser: Browser, site: Site) -> None:
    site.answer("Tell", ["Looking. ", Call("read_file", {"path": "x"})], ["alpha ", Hold("half"), "beta ", "gamma"])
    with open_page(browser, site.url) as page:
        page.send("Tell")
        site.wait_reached("half")
        page.wait_text("alpha")
        page.page.reload()
        page.wait_text("alpha")
        page.send("a word in between")
        page.wait_text("a word in between", ".bubble")
        site.open("half")
        page.wait_text("You said: a word in between")
        page.wait_idle()
        assert [text for kind, text in page.shown() if kind == "text"][:2] == ["Looking.", "alpha beta gamma"]
        assert page.asks() == ["Tell", "a word in between"]


def test_a_message_while_it_runs_reaches_the_running_answer(browser: Browser, site: Site) -> None:
    site.answer("Tell", ["Looking. ", Hold("half"), Call("read_file", {"path": "x"})])
    site.answer("shorter please", ["Short."])
    with open_page(browser, site.url) as page:
        page.send("Tell")
        site.wait_reached("half")
        page.page.fill("#ask", "shorter please")
        expect(page.page.locator("#hint")).to_have_text("Enter adds this to the answer that is being written")
        page.page.press("#ask", "Enter")
        expect(page.page.locator(".said.pending")).to_have_text("Youshorter please")
        site.open("half")
        page.wait_text("Short.")
        page.wait_idle()
        assert page.asks() == ["Tell", "shorter please"]
        expect(page.page.locator(".said.pending")).to_have_count(0)
        expect(page.page.locator(".turn")).to_have_count(1)
        assert [kind for kind, _ in page.shown()] == ["bubble", "text", "card", "bubble", "text"]


def test_answering_again_replaces_the_answer(browser: Browser, site: Site) -> None:
    site.answer("Joke", ["A bad one."], ["A ", Hold("half"), "better one."])
    with open_page(browser, site.url) as page:
        page.send("Joke")
        page.wait_text("A bad one.")
        page.wait_idle()
        page.page.get_by_role("button", name="Answer again").click()
        site.wait_reached("half")
        expect(page.page.locator(".turn")).to_have_count(1)
        page.page.reload()  # in the middle of it
        page.wait_text("A")
        site.open("half")
        page.wait_text("A better one.")
        page.wait_idle()
        assert (page.asks(), page.answers()) == (["Joke"], ["A better one."])
        page.page.reload()
        page.wait_text("A better one.")
        assert (page.asks(), page.answers()) == (["Joke"], ["A better one."])


def test_an_error_says_what_to_do_and_retry_asks_again(browser: Browser, site: Site) -> None:
    site.answer("Hm", [RuntimeError("out of cheese")])
    with open_page(browser, site.url) as page:
        page.send("Hm")
        notice = page.page.locator(".notice.error")
        expect(notice).to_contain_text("out of cheese")
        expect(notice).to_contain_text("Retry")
        site.answer("Hm", ["Better now."])
        notice.get_by_role("button", name="Retry").click()
        page.wait_text("Better now.")
        page.wait_idle()


def test_a_reload_shows_what_failed_and_how_with_both_loops(browser: Browser) -> None:
    def failing(model: Puppet) -> Agent[Any]:
        return Agent(name="planner", model=model, loop=Conductor(), extensions=[Refuses()])

    class Refuses(Extension[Any]):
        name = "refuses"

        def before_run(self, ctx: Any, question: Any) -> None:
            if "fail" in question.ask:
                raise RuntimeError("out of cheese")

    with open_site(failing) as site, open_page(browser, site.url) as page:
        site.answer("please fail", [RuntimeError("out of cheese")])
        for agent in ("assistant", "planner"):
            page.page.locator("#agent").select_option(agent)
            page.page.get_by_role("link", name="New conversation").click()
            page.send("please fail")
            expect(page.page.locator(".notice.error")).to_contain_text("out of cheese")
            page.wait_idle()
            before = page.shown()
            assert [kind for kind, _ in before] == ["bubble", "notice"]
            page.page.reload()
            page.page.locator(".notice.error").wait_for()
            assert page.shown() == before


def test_two_tabs_show_the_same_run_as_it_happens(browser: Browser, site: Site) -> None:
    site.answer("Tell", ["alpha ", Hold("half"), "beta"])
    with open_page(browser, site.url) as page:
        page.send("Hello")
        page.wait_text("You said: Hello")
        page.wait_idle()
        other = watch(page.context, page.page.url)
        other.wait_text("You said: Hello")
        page.send("Tell")
        site.wait_reached("half")
        other.wait_text("alpha")
        assert other.asks() == ["Hello", "Tell"]
        site.open("half")
        for tab in (page, other):
            tab.wait_text("alpha beta")
            tab.wait_idle()
        other.send("Back")
        page.wait_text("You said: Back")
        page.wait_idle()
        assert page.shown() == other.shown()
        assert other.complaints == []


def test_a_conversation_is_deleted_after_a_question(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        page.send("Secret")
        page.wait_text("You said: Secret")
        page.wait_idle()
        page.page.get_by_role("link", name="New conversation").click()
        page.send("Harmless")
        page.wait_text("You said: Harmless")
        page.wait_idle()
        titles = page.page.locator("#rows .row-title")
        expect(titles).to_have_text(["Harmless", "Secret"])
        remove = page.page.get_by_role("button", name="Delete “Secret”")
        remove.focus()
        remove.press("Enter")
        dialog = page.page.get_by_role("dialog")
        expect(dialog).to_contain_text("“Secret” and everything in it will be gone for good.")
        dialog.get_by_role("button", name="Cancel").click()
        expect(titles).to_have_count(2)
        remove.focus()
        remove.press("Enter")
        dialog.get_by_role("button", name="Delete").click()
        expect(titles).to_have_text(["Harmless"])
        page.page.reload()
        expect(titles).to_have_text(["Harmless"])


def test_a_conversation_that_is_deleted_in_another_tab_is_left(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        page.send("Secret")
        page.wait_text("You said: Secret")
        page.wait_idle()
        other = watch(page.context, page.page.url)
        other.wait_text("You said: Secret")
        page.page.get_by_role("button", name="Delete “Secret”").click()
        page.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(other.page.locator("#welcome")).to_be_visible()
        expect(other.page.locator("#toasts")).to_have_text("This conversation was deleted in another tab.")
        assert other.asks() == []
        expect(other.page.locator("#rows .row-title")).to_have_count(0)


def test_a_row_of_the_list_stays_the_same_while_things_happen(browser: Browser, site: Site) -> None:
    """Else a click that begins on one element and ends on its successor would be lost."""
    with open_page(browser, site.url) as page:
        page.send("First")
        page.wait_text("You said: First")
        page.wait_idle()
        page.page.evaluate("window.row = document.querySelector('#rows li a')")
        page.page.locator("#rows li a").focus()
        other = watch(page.context, page.page.url)
        other.wait_text("You said: First")
        other.send("Second")
        page.wait_text("You said: Second")
        page.wait_idle()
        assert page.page.evaluate("window.row.isConnected && document.activeElement === window.row")


def test_conversations_are_kept_apart_and_a_draft_stays_with_its_own(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        page.send("First")
        page.wait_text("You said: First")
        page.wait_idle()
        page.page.fill("#ask", "half a thought")
        page.page.get_by_role("link", name="New conversation").click()
        expect(page.page.locator("#ask")).to_have_value("")
        page.send("Second")
        page.wait_text("You said: Second")
        assert page.asks() == ["Second"]
        page.page.get_by_role("link", name="First").click()
        page.wait_text("You said: First")
        assert page.asks() == ["First"]
        expect(page.page.locator("#ask")).to_have_value("half a thought")
        page.page.go_back()
        page.wait_text("You said: Second")
