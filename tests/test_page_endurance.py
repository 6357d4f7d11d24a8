"""The chat page when the connection breaks, the server ends, the history is long, or an answer does not end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from goliath_actors.server import Token, hash_token
from goliath_actors.stores import SqliteStore

from .browser import (
    Call,
    Hold,
    Site,
    Watched,
    needs_browser,
    open_browser,
    open_page,
    open_proxy,
    open_site,
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


def test_a_cut_connection_comes_back_by_itself_without_a_gap_or_a_repeat(browser: Browser, site: Site) -> None:
    holds = [Hold(f"hold-{n}") for n in range(4)]
    words = [part for n, hold in enumerate(holds) for part in (f"word-{n} ", hold)]
    site.answer("Tell", [*words, "end"])
    with open_proxy(site) as proxy, open_page(browser, proxy.url, quiet=False) as page:
        page.send("Tell")
        for n, hold in enumerate(holds):
            page.wait_text(f"word-{n}")
            proxy.cut()
            site.wait_reached(hold.name)
            site.open(hold.name)
        page.wait_text("end")
        page.wait_idle()
        assert page.answers() == ["word-0 word-1 word-2 word-3 end"]
        assert proxy.accepted > 4
        expect(page.page.locator("#lost")).to_be_hidden()
        assert site.model.asks == ["Tell"]


def test_a_lost_server_is_said_and_what_was_written_meanwhile_is_sent_once_when_it_is_back(
    browser: Browser, site: Site
) -> None:
    site.answer("Tell", ["one ", Hold("half"), "two"])
    with open_proxy(site) as proxy, open_page(browser, proxy.url, quiet=False) as page:
        page.send("Tell")
        page.wait_text("one")
        proxy.cut(refuse=True)
        expect(page.page.locator("#lost")).to_be_visible()
        expect(page.page.locator("#live")).to_contain_text("Connection lost")
        site.open("half")
        proxy.refuses = False
        page.wait_text("one two")
        expect(page.page.locator("#lost")).to_be_hidden()
        page.wait_idle()
        proxy.cut(refuse=True)
        page.send("Again")
        page.wait_text("Sending", ".doing")
        expect(page.page.locator("#lost")).to_be_visible()
        proxy.refuses = False
        page.wait_text("You said: Again")
        page.wait_idle()
        assert site.model.asks == ["Tell", "Again"]
        assert page.asks() == ["Tell", "Again"]


def test_an_answer_to_a_question_is_not_lost_with_the_connection(browser: Browser, site: Site) -> None:
    site.answer("Write", [Call("write_file", {"path": "a", "text": "b"})], ["Written."])
    with open_proxy(site) as proxy, open_page(browser, proxy.url, quiet=False) as page:
        page.send("Write")
        approve = page.page.get_by_role("button", name="Approve")
        approve.wait_for()
        proxy.cut(refuse=True)
        expect(page.page.locator("#lost")).to_be_visible()
        approve.click()
        expect(page.page.locator(".card .card-error")).to_contain_text("cannot be reached")
        proxy.refuses = False
        expect(page.page.locator("#lost")).to_be_hidden()
        expect(page.page.locator(".card-ask[role=group]")).to_have_count(1)  # told again, and shown once
        approve.click()
        page.wait_text("Written.")
        assert written_files == [("a", "b")]


def test_a_server_that_ends_in_the_middle_is_said_and_the_next_one_goes_on(browser: Browser, tmp_path: Path) -> None:
    with open_site(store=SqliteStore(tmp_path / "chat.db")) as site:
        site.answer("Tell", ["one ", Hold("half"), "two"], ["At last."])
        with open_page(browser, site.url, quiet=False) as page:
            page.send("Tell")
            site.wait_reached("half")
            page.wait_text("one")
            site.stop()
            notice = page.page.locator(".notice.warn")
            site.start()
            expect(notice).to_contain_text("shut down before this was finished")
            expect(page.page.locator("#lost")).to_be_hidden()
            page.wait_idle()
            notice.get_by_role("button", name="Retry").click()
            page.wait_text("At last.")
            page.wait_idle()
            before = [text for kind, text in page.shown() if kind != "notice"]
            page.page.reload()
            page.wait_text("At last.")
            assert [text for kind, text in page.shown() if kind != "notice"] == before


def test_an_answer_in_ten_thousand_pieces_is_shown_whole_and_the_page_stays_quick(browser: Browser, site: Site) -> None:
    pieces = [f"w{n} " if n % 40 else f"w{n}\n\n" for n in range(10_000)]
    site.answer("Long", pieces)
    with open_page(browser, site.url) as page:
        page.page.evaluate(
            """() => {
                window.changes = 0;
                const all = { subtree: true, childList: true, characterData: true };
                new MutationObserver(() => window.changes++).observe(document.getElementById("thread"), all);
            }"""
        )
        page.send("Long")
        page.wait_text("w9999")
        page.wait_idle()
        words = page.page.locator(".text").inner_text().split()
        assert words == [f"w{n}" for n in range(10_000)]
        # Drawn by the frame, not by the piece.
        assert page.page.evaluate("window.changes") < 2_000
        assert page.page.evaluate("document.querySelectorAll('.text > p').length") == 251
        # At its end, since nobody scrolled away.
        assert page.page.evaluate("(s => s.scrollHeight - s.scrollTop - s.clientHeight)(scroller)") < 2


def test_a_reader_who_scrolled_up_is_left_there_and_can_jump_back(browser: Browser, site: Site) -> None:
    lines = [f"line {n}\n\n" for n in range(60)]
    site.answer("Long", [*lines, Hold("half"), *lines, "the end"])
    gap = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(scroller)"
    with open_page(browser, site.url) as page:
        page.send("Long")
        page.wait_text("line 59")
        latest = page.page.locator("#latest")
        expect(latest).to_be_hidden()
        page.page.mouse.move(700, 400)
        page.page.mouse.wheel(0, -600)
        expect(latest).to_be_visible()
        at = page.page.evaluate("scroller.scrollTop")
        site.open("half")
        page.wait_text("the end")
        page.wait_idle()
        assert page.page.evaluate("scroller.scrollTop") == at
        latest.click()
        expect(latest).to_be_hidden()
        page.page.wait_for_timeout(100)
        assert page.page.evaluate(gap) < 2


CONVERSATION = "a-long-one"


def fill(site: Site, asks: int) -> None:
    """Make a history, as somebody would have."""
    with httpx.Client(base_url=site.url, trust_env=False, timeout=20) as client:
        for n in range(asks):
            client.post(f"/v1/conversations/{CONVERSATION}/runs", json={"ask": f"message {n}"}).raise_for_status()


def test_a_history_of_five_hundred_messages_is_loaded_as_it_is_read(browser: Browser, site: Site) -> None:
    fill(site, 250)
    with open_page(browser, f"{site.url}#/assistant/{CONVERSATION}") as page:
        page.wait_text("message 249")
        expect(page.page.locator("#title")).to_have_text("message 0")
        first = page.page.locator(".turn").count()
        assert first < 50
        gap = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(scroller)"
        assert page.page.evaluate(gap) < 2
        for _ in range(30):
            if page.page.locator(".turn").count() == 250:
                break
            seen = page.page.locator(".turn").count()
            top = """() => {
                scroller.scrollTop = 0;
                return document.querySelector(".turn").getBoundingClientRect().top;
            }"""
            page.page.evaluate("window.first = document.querySelector('.turn')")
            before = page.page.evaluate(top)
            page.page.locator(".turn").nth(seen).wait_for(state="attached")
            # What was being read stays where it was.
            after = page.page.evaluate("window.first.isConnected ? window.first.getBoundingClientRect().top : null")
            assert after is None or abs(after - before) < 3
        assert page.asks() == [f"message {n}" for n in range(250)]
        assert page.answers() == [f"You said: message {n}" for n in range(250)]
        expect(page.page.get_by_role("button", name="Earlier messages")).to_have_count(0)


def test_a_page_of_the_history_that_begins_in_an_answer_is_joined_to_its_ask(browser: Browser, site: Site) -> None:
    site.answer("message 30", [RuntimeError("no answer")])  # so that a page of sixty entries begins with one
    fill(site, 31)
    with open_page(browser, f"{site.url}#/assistant/{CONVERSATION}") as page:
        page.wait_text("There is no answer to this", ".notice")
        page.page.evaluate("scroller.scrollTop = 0")
        page.page.locator(".bubble", has_text="message 0").first.wait_for(state="attached")
        assert page.asks() == [f"message {n}" for n in range(31)]
        assert page.answers()[:30] == [f"You said: message {n}" for n in range(30)]
        assert page.page.locator(".turn").count() == 31


SECRET = "a-token-that-nobody-guesses"


def test_a_server_with_tokens_asks_for_one_and_remembers_it_for_the_tab(browser: Browser) -> None:
    token = Token("ada", ["chat"], hash_token(SECRET))
    with open_site(tokens=[token]) as site, open_page(browser, site.url, quiet=False) as page:
        dialog = page.page.get_by_role("dialog", name="Access token")
        dialog.get_by_label("Token", exact=True).fill("wrong")
        page.page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not accepted")
        dialog.get_by_label("Token", exact=True).fill(SECRET)
        page.page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        page.send("Hello")
        page.wait_text("You said: Hello")
        page.wait_idle()
        page.page.reload()
        page.wait_text("You said: Hello")
        assert page.page.evaluate("localStorage.length") == 0
        page.page.get_by_role("button", name="Forget token").click()
        expect(dialog).to_be_visible()


def hold(page: Watched, address: str, times: int | None = None) -> list[Route]:
    """Hold requests back, at most `times` of them; they come into the list that is returned."""
    held: list[Route] = []
    page.context.route(address, lambda route: held.append(route), times=times)
    return held


def test_what_is_sent_before_the_page_is_ready_is_sent_once_it_is(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        held = hold(page, "**/v1/agents")
        with page.page.expect_request("**/v1/agents"):
            page.page.reload()
        page.send("Hello")
        assert page.asks() == []
        held.pop().continue_()
        page.wait_text("You said: Hello")
        page.wait_idle()
        with page.page.expect_request("**/v1/agents"):
            page.page.reload()  # the same where a conversation is read first
        page.send("And again")
        held.pop().continue_()
        page.wait_text("You said: And again")
        assert page.asks() == ["Hello", "And again"]


def test_what_is_sent_while_a_message_is_on_its_way_follows_it(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        held = hold(page, "**/runs?*", times=1)
        with page.page.expect_request("**/runs?*"):
            page.send("Hello")
        page.send("And again")
        assert page.asks() == ["Hello"]
        held.pop().continue_()
        page.wait_text("You said: And again")
        page.wait_idle()
        assert page.asks() == ["Hello", "And again"]
        assert page.page.input_value("#ask") == ""


def test_what_is_sent_after_a_message_that_does_not_arrive_stays_written(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url, quiet=False) as page:
        held = hold(page, "**/runs?*", times=1)
        with page.page.expect_request("**/runs?*"):
            page.send("Hello")
        page.send("And again")
        problem = '{"title": "No", "status": 422, "detail": "not this one"}'
        held.pop().fulfill(status=422, content_type="application/problem+json", body=problem)
        page.page.locator(".notice.error").wait_for()
        page.wait_idle()
        assert page.asks() == ["Hello"]
        assert page.page.input_value("#ask") == "And again"
        page.page.press("#ask", "Enter")
        page.wait_text("You said: And again")


def test_a_message_that_is_too_long_stays_on_the_page_with_what_to_do(browser: Browser) -> None:
    with open_site(max_body=2_000) as site, open_page(browser, site.url, quiet=False) as page:
        page.send("x" * 3_000)
        notice = page.page.locator(".notice.error")
        expect(notice).to_contain_text("too long for this server")
        assert page.asks() == ["x" * 3_000]
        notice.get_by_role("button", name="Retry").click()
        expect(notice).to_contain_text("too long for this server")
        page.send("shorter")
        page.wait_text("You said: shorter")


def test_what_a_restarting_server_refuses_is_sent_again(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url, quiet=False) as page:
        refusals: list[str] = []

        def refuse(route: Route) -> None:
            if len(refusals) >= 2 or route.request.method != "POST":
                route.continue_()
                return
            refusals.append(route.request.headers["idempotency-key"])
            problem = '{"title": "The server is ending", "status": 503, "detail": "try again in a moment"}'
            route.fulfill(status=503, content_type="application/problem+json", body=problem)

        page.context.route("**/runs?*", refuse)
        page.send("Hello")
        page.wait_text("You said: Hello")
        assert len(refusals) == 2
        assert len(set(refusals)) == 1
        expect(page.page.locator("#lost")).to_be_hidden()  # it was there


def test_an_answer_that_another_process_makes_is_shown_when_it_is_done(browser: Browser, site: Site) -> None:
    site.answer("Tell", ["one ", Hold("half"), "two"])
    asked: list[str] = []
    with open_page(browser, site.url, quiet=False) as page:

        def elsewhere(route: Route) -> None:
            asked.append(route.request.url)
            if len(asked) == 3:
                site.open("half")
            if "/events" not in route.request.url and len(asked) > 3:
                route.continue_()
                return
            problem = '{"title": "not possible now", "status": 409, "detail": "it goes on in another process"}'
            route.fulfill(status=409, content_type="application/problem+json", body=problem)

        page.context.route(re.compile(r"/runs/[^/]+(/events)?\?"), elsewhere)
        page.send("Tell")
        page.wait_text("one two")
        page.wait_idle()
        assert page.answers() == ["one two"]
        assert "/events" in asked[0]
        assert len(asked) > 3


def test_a_page_that_nobody_sees_lets_its_connection_go_and_takes_it_up_again(browser: Browser, site: Site) -> None:
    site.answer("Tell", ["one ", Hold("half"), "two ", Hold("rest"), "three"])
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with open_page(browser, site.url) as page:
        page.page.clock.install()
        page.send("Tell")
        page.wait_text("one")
        page.page.evaluate(hide, True)
        page.page.clock.fast_forward(25_000)
        site.open("half")
        site.wait_reached("rest")
        page.page.clock.fast_forward(5_000)
        assert page.answers() == ["one"]
        page.page.evaluate(hide, False)
        page.wait_text("one two")
        site.open("rest")
        page.page.clock.resume()
        page.wait_text("one two three")
        page.wait_idle()
        assert page.answers() == ["one two three"]
        assert len([one for one in page.requests if "/events" in one]) == 2


def test_a_full_mailbox_is_said_and_the_message_can_be_sent_again(browser: Browser) -> None:
    with open_site(mailbox_capacity=1) as site, open_page(browser, site.url, quiet=False) as page:
        site.answer("Wait", [Hold("half"), "done"])
        page.send("Wait")
        site.wait_reached("half")
        other = "fetch('/v1/conversations/' + location.hash.split('/')[2] + '/runs', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({ask: 'from elsewhere', wait: false, detach: true})})"  # noqa: E501
        page.page.wait_for_url(re.compile("#/[^/]*/."))
        page.page.evaluate(other)
        page.wait_text("from elsewhere", ".bubble")
        page.send("One too many")
        notice = page.page.locator(".notice.error")
        expect(notice).to_contain_text("Too many messages are waiting")
        site.open("half")
        page.wait_text("You said: from elsewhere")
        page.wait_idle()
        notice.get_by_role("button", name="Retry").click()
        page.wait_text("You said: One too many")
        assert page.asks() == ["Wait", "from elsewhere", "One too many"]


def test_a_text_that_the_running_answer_cannot_take_comes_back_into_the_field(browser: Browser, site: Site) -> None:
    site.answer("Wait", [Hold("half"), "done"])

    def full(route: Route) -> None:
        problem = '{"title": "too many asks are waiting", "status": 429, "detail": "try again later"}'
        route.fulfill(status=429, content_type="application/problem+json", body=problem, headers={"retry-after": "1"})

    with open_page(browser, site.url, quiet=False) as page:
        page.context.route("**/steer?*", full)
        page.send("Wait")
        site.wait_reached("half")
        page.page.locator("#main[data-busy=true] .doing:visible").wait_for()
        page.send("One too many")
        expect(page.page.locator("#toasts")).to_contain_text("Too many messages are waiting")
        expect(page.page.locator("#ask")).to_have_value("One too many")  # it is not lost
        site.open("half")
        page.wait_text("done")


AGENT = """
import trio
from goliath_actors import Agent, ToolLoop
from goliath_actors.testing import ScriptedModel

async def wait(request):
    await trio.Path("asked").touch()
    await trio.sleep_forever()

def reply(request):
    return wait(request) if request.messages[-1].text.endswith("wait") else "Here again."

agent = Agent(name="assistant", model=ScriptedModel([reply] * 50), loop=ToolLoop())
"""


@contextmanager
def process(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, as the command starts it."""
    command = [sys.executable, "-m", "goliath_actors", "serve", "bot:agent", "--port", str(port), "--store", "chat.db"]
    root = Path(__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(folder)])}
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as running:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                for _ in range(200):
                    try:
                        client.get("/readyz").raise_for_status()
                        break
                    except httpx.HTTPError:
                        assert running.poll() is None
                        threading.Event().wait(0.1)
            yield running
        finally:
            running.kill()


def test_a_killed_server_loses_nothing_that_was_sent(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(AGENT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with process(tmp_path, port) as first, open_page(browser, f"http://127.0.0.1:{port}/", quiet=False) as page:
        page.send("Hello")
        page.wait_text("Here again.")
        page.wait_idle()
        page.send("please wait")
        for _ in range(200):  # it is asked once the message is on record
            if (tmp_path / "asked").exists():
                break
            threading.Event().wait(0.05)
        first.kill()
        first.wait()
        expect(page.page.locator("#lost")).to_be_visible()
        with process(tmp_path, port):
            page.wait_text("shut down before this was finished", ".notice")
            expect(page.page.locator("#lost")).to_be_hidden()
            page.wait_idle()
            page.send("Still there?")
            page.page.locator(".answer", has_text="Here again.").nth(1).wait_for()
            page.wait_idle()
            page.page.reload()
            page.page.locator(".answer", has_text="Here again.").nth(1).wait_for()
            assert page.asks() == ["Hello", "please wait", "Still there?"]
