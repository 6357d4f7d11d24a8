"""The chat page for everybody: by keyboard, with a screen reader, in both themes, on a phone, in any script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from goliath_actors import Agent, Conductor

from .browser import (
    Call,
    Hold,
    Puppet,
    Site,
    Watched,
    needs_browser,
    open_browser,
    open_page,
    open_site,
    written_files,
)

pytestmark = needs_browser

LONG_WORD = "wonderful" * 40
RICH = f"""# Title

Some *text* with `code` and [a link](https://ok.example), and {LONG_WORD}.

- [x] done
- [ ] open

> quoted

| a | b |
|---|---|
| {LONG_WORD} | 2 |

```python
print("{LONG_WORD}")
```
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


def planner(model: Puppet) -> Agent[Any]:
    return Agent(name="planner", model=model, loop=Conductor())


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site(planner, mailbox_capacity=4) as found:
        yield found


def show_everything(site: Site, page: Watched) -> None:
    """Bring up one of each thing that the page can show."""
    site.answer("Rich", [RICH, Call("read_file", {"path": LONG_WORD})], [RICH])
    site.answer("Break", [Call("break_down", {})], [RuntimeError(LONG_WORD)])
    site.answer("Plan", [Call("ask_time", {"what": "lunch"})])
    for ask in ("Rich", "Break", "Plan"):
        page.send(ask)
        page.wait_idle()
    page.page.locator(".card-ask[role=group]").wait_for()
    for card in page.page.locator(".card summary").all():
        card.click()


# Own checks in the manner of axe: each returns what is wrong, in words.
_CHECKS = """() => {
    const wrong = [];
    const shown = (el) => el.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
    const name = (el) => (el.getAttribute("aria-label")
        ?? (el.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean).map((id) => document.getElementById(id)?.textContent).join(" ")).trim()
        || [...(el.labels ?? [])].map((label) => label.textContent).join(" ").trim()
        || (el.matches("input, textarea, select") ? "" : el.textContent.trim()) || (el.getAttribute("title") ?? "");
    const all = [...document.querySelectorAll("body *")];
    for (const el of all.filter(shown)) {
        const what = el.outerHTML.slice(0, 120);
        if (el.matches("a[href], button, input, textarea, select, summary, [role=button], [role=region], dialog, nav") && !name(el)) wrong.push(`no name: ${what}`);
        if (el.matches("nav, main, article, [role=region], [role=group]") && !name(el) && el.tagName !== "MAIN") wrong.push(`landmark without a name: ${what}`);
        if (el.matches("svg") && el.getAttribute("aria-hidden") !== "true") wrong.push(`picture that is read out: ${what}`);
        if (el.matches("img:not([alt])")) wrong.push(`no alt: ${what}`);
        if (el.tabIndex > 0) wrong.push(`order of its own: ${what}`);
        for (const id of ["aria-labelledby", "aria-describedby", "aria-controls"].flatMap((a) => (el.getAttribute(a) ?? "").split(" ").filter(Boolean)))
            if (!document.getElementById(id)) wrong.push(`names ${id}, which is not there: ${what}`);
        if (el.closest("[aria-hidden=true]") && el.matches("a, button, input, textarea, [tabindex]")) wrong.push(`hidden but reached: ${what}`);
        if (el.matches("button, a.button, summary, .rows a") && (el.getBoundingClientRect().height < 24 || el.getBoundingClientRect().width < 24)) wrong.push(`too small: ${what}`);
        if (el.scrollWidth > el.clientWidth + 1 && getComputedStyle(el).overflowX === "auto" && el.tabIndex < 0 && !el.querySelector("a, button") && !el.closest("textarea")) wrong.push(`scrolls, but not by keyboard: ${what}`);
    }
    const ids = all.map((el) => el.id).filter(Boolean);
    for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push(`two of ${id}`);
    if (document.querySelectorAll("main").length !== 1 || document.querySelectorAll("h1").length !== 1) wrong.push("one main and one h1");
    let level = 1;
    for (const heading of all.filter((el) => /^H[1-6]$/.test(el.tagName) && shown(el))) {
        const next = Number(heading.tagName[1]);
        if (next > level + 1 && !heading.closest(".text")) wrong.push(`a heading of level ${next} under ${level}: ${heading.textContent}`);
        level = next;
    }
    if (!document.documentElement.lang) wrong.push("no language");
    return wrong;
}"""  # noqa: E501  # a script, one check a line

_CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
    const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (el) => {
        const layers = [];
        for (let at = el; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    };
    const poor = [];
    for (const el of document.querySelectorAll("body *")) {
        const own = [...el.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!own || !el.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || el.closest(".sr-only, :disabled, .skip")) continue;
        const style = getComputedStyle(el);
        const under = ground(el);
        const [a, b] = [light(over(rgba(style.color), under)), light(under)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
        if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)} ${el.className || el.tagName}: ${el.textContent.slice(0, 40)}`);
    }
    return poor;
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_everything_has_a_name_a_role_and_enough_contrast(
    browser: Browser, site: Site, scheme: str, width: int
) -> None:
    with open_page(browser, site.url, width=width, color_scheme=scheme, reduced_motion="reduce") as page:
        assert page.page.evaluate(_CHECKS) == []
        assert page.page.evaluate(_CONTRAST) == []
        show_everything(site, page)
        assert page.page.evaluate(_CHECKS) == []
        assert page.page.evaluate(_CONTRAST) == []
        if width < 800:
            page.page.click("#menu")
            expect(page.page.get_by_role("button", name="Close the list")).to_be_focused()
        remove = page.page.locator(".rows .remove").first
        remove.focus()
        expect(remove).to_be_focused()
        page.page.keyboard.press("Enter")
        expect(page.page.get_by_role("dialog")).to_be_visible()
        assert page.page.evaluate(_CHECKS) == []
        assert page.page.evaluate(_CONTRAST) == []


def test_colours_follow_the_system_and_the_switch_is_remembered(browser: Browser, site: Site) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, site.url, color_scheme="dark") as page:
        dark = page.page.evaluate(ground)
        page.page.emulate_media(color_scheme="light")
        light = page.page.evaluate(ground)
        assert light != dark
        switch = page.page.locator("#theme")
        expect(switch).to_have_text("System theme")
        switch.click()
        expect(switch).to_have_text("Light theme")
        switch.click()
        expect(switch).to_have_text("Dark theme")
        assert page.page.evaluate(ground) == dark
        page.page.reload()
        expect(switch).to_have_text("Dark theme")
        assert page.page.evaluate(ground) == dark
        switch.click()
        expect(switch).to_have_text("System theme")
        assert page.page.evaluate(ground) == light


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_no_width_makes_the_page_scroll_sideways(browser: Browser, site: Site, width: int) -> None:
    with open_page(browser, site.url, width=width, height=640) as page:
        show_everything(site, page)
        page.send(LONG_WORD)
        page.wait_idle()
        wide = """() => [...document.querySelectorAll("html, body, .main, .scroller, .thread, .turn, .answer, .side")]
            .filter((el) => el.scrollWidth > el.clientWidth + 1).map((el) => el.className || el.tagName)"""
        assert page.page.evaluate(wide) == []
        box = page.page.locator("#composer").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 640


def test_on_a_phone_the_list_is_a_drawer(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url, width=390, height=760, has_touch=True, is_mobile=True) as page:
        page.send("Hello")
        page.wait_text("You said: Hello")
        link = page.page.get_by_role("link", name="Hello")
        expect(link).to_be_hidden()
        page.page.get_by_role("button", name="Conversations").tap()
        expect(link).to_be_visible()
        expect(page.page.get_by_role("button", name="Close the list")).to_be_focused()
        assert page.page.evaluate("document.getElementById('main').inert")
        page.page.keyboard.press("Escape")
        expect(link).to_be_hidden()
        expect(page.page.locator("#menu")).to_be_focused()
        page.page.locator("#menu").tap()
        link.tap()
        expect(link).to_be_hidden()


def test_everything_can_be_done_by_keyboard(browser: Browser, site: Site) -> None:
    site.answer("Write", [Call("write_file", {"path": "a", "text": "b"})], ["Written."])
    site.answer("Wait", [Hold("never")])
    with open_page(browser, site.url) as page:
        keys = page.page.keyboard
        expect(page.page.locator("#ask")).to_be_focused()  # ready to be written into
        keys.type("line one")
        keys.press("Shift+Enter")
        keys.type("line two")
        keys.press("Enter")
        page.wait_text("line two")
        assert page.asks() == ["line one\nline two"]
        page.wait_idle()
        expect(page.page.locator("#ask")).to_be_focused()
        keys.type("Write")
        keys.press("Enter")
        approve = page.page.get_by_role("button", name="Approve")
        approve.wait_for()
        for _ in range(8):  # backwards from the message field
            keys.press("Shift+Tab")
            if approve.evaluate("el => el === document.activeElement"):
                break
        expect(approve).to_be_focused()
        keys.press("Enter")
        page.wait_text("Written.")
        assert written_files == [("a", "b")]
        expect(page.page.locator("#ask")).to_be_focused()  # where one goes on
        page.wait_idle()
        keys.type("Wait")
        keys.press("Enter")
        keys.press("Escape")  # before it is even under way
        page.wait_text("You stopped this answer.")
        keys.press("Alt+n")
        expect(page.page.locator("#welcome")).to_be_visible()
        expect(page.page.locator("#ask")).to_be_focused()


def test_the_first_tab_stop_skips_to_the_message_field(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url, width=390) as page:  # a narrow page does not begin in the message field
        page.page.keyboard.press("Tab")
        expect(page.page.locator("#skip")).to_be_focused()
        expect(page.page.locator("#skip")).to_be_in_viewport()
        page.page.keyboard.press("Enter")
        expect(page.page.locator("#ask")).to_be_focused()


def test_a_dialog_holds_the_focus_and_gives_it_back(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        page.send("Hello")
        page.wait_text("You said: Hello")
        page.wait_idle()
        remove = page.page.get_by_role("button", name="Delete “Hello”")
        remove.focus()
        page.page.keyboard.press("Enter")
        dialog = page.page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        for _ in range(5):
            page.page.keyboard.press("Tab")
            outside = "!document.querySelector('dialog[open]').contains(document.activeElement) && document.activeElement !== document.body"  # noqa: E501
            assert not page.page.evaluate(outside)
        page.page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(remove).to_be_focused()


def test_a_screen_reader_hears_sentences_and_not_pieces(browser: Browser, site: Site) -> None:
    pieces = ["The ", "first ", "sentence", ". ", "A **second", "** one", "! ", Hold("half"), "The end"]
    site.answer("Tell", pieces)
    with open_page(browser, site.url) as page:
        page.page.evaluate(
            """() => {
                window.heard = [];
                new MutationObserver(() => window.heard.push(document.getElementById("live").textContent))
                    .observe(document.getElementById("live"), { childList: true });
            }"""
        )
        live = page.page.locator("#live")
        assert live.get_attribute("aria-live") == "polite"
        page.send("Tell")
        expect(live).to_contain_text("A second one!")
        site.open("half")
        expect(live).to_contain_text("The end")
        heard = " ".join(page.page.evaluate("window.heard"))
        assert heard == "The first sentence. A second one! The end"
        # The conversation itself is no live region: each of its pieces would be read out.
        assert page.page.evaluate("document.getElementById('thread').closest('[aria-live], [role=log]')") is None


def test_a_screen_reader_is_told_of_a_question(browser: Browser, site: Site) -> None:
    site.answer("Write", [Call("write_file", {"path": "a", "text": "b"})], ["Written."])
    with open_page(browser, site.url) as page:
        page.send("Write")
        expect(page.page.locator("#live")).to_contain_text("Approval needed: write_file")
        group = page.page.get_by_role("group", name="Allow write_file?")
        expect(group).to_be_visible()


def test_right_to_left_text_runs_from_the_right(browser: Browser, site: Site) -> None:
    site.answer("שלום עולם", ["שלום! **מה שלומך**?\n\n- ראשון\n- second\n\n`code` אחרי"])
    with open_page(browser, site.url) as page:
        page.send("שלום עולם")
        page.wait_text("ראשון")
        page.wait_idle()
        direction = "els => els.map((el) => getComputedStyle(el).direction)"
        assert page.page.locator(".bubble").evaluate_all(direction) == ["rtl"]
        assert page.page.locator(".text > p").evaluate_all(direction) == ["rtl", "rtl"]
        assert page.page.locator(".text li").evaluate_all(direction) == ["rtl", "ltr"]
        assert page.page.locator(".text code").evaluate_all(direction) == ["ltr"]
        page.page.fill("#ask", "עוד")
        assert page.page.locator("#ask").evaluate_all(direction) == ["rtl"]


def test_nothing_moves_for_those_who_do_not_want_it(browser: Browser, site: Site) -> None:
    site.answer("Wait", [Hold("never")])
    moving = """() => document.getAnimations().filter((one) => one.playState === "running"
        && one.effect.getComputedTiming().iterations === Infinity).length"""
    with open_page(browser, site.url) as page:
        page.send("Wait")
        site.wait_reached("never")
        page.page.locator(".dots").wait_for()
        assert page.page.evaluate(moving) > 0
        page.page.emulate_media(reduced_motion="reduce")
        assert page.page.evaluate(moving) == 0
        page.page.keyboard.press("Escape")
        page.wait_idle()


def test_enter_in_an_input_method_takes_its_suggestion_and_sends_nothing(browser: Browser, site: Site) -> None:
    with open_page(browser, site.url) as page:
        page.page.fill("#ask", "に")
        sent = """() => {
            const ask = document.getElementById("ask");
            return ask.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true }));
        }"""  # noqa: E501
        assert page.page.evaluate(sent) is True  # not prevented
        expect(page.page.locator(".bubble")).to_have_count(0)
        expect(page.page.locator("#ask")).to_have_value("に")


def test_an_agent_is_chosen_for_a_new_conversation_and_named_where_there_are_several(
    browser: Browser, site: Site
) -> None:
    with open_page(browser, site.url) as page:
        page.send("Hello")
        page.wait_text("You said: Hello")
        page.wait_idle()
        page.page.locator("#agent").select_option("planner")
        expect(page.page.locator("#welcome")).to_be_visible()
        expect(page.page.locator("#bar-agent")).to_have_text("planner")
        page.send("And you?")
        expect(page.page.locator("#rows .row-agent")).to_have_text(["planner", "assistant"])
        page.wait_idle()
        page.page.get_by_role("link", name="Hello").click()
        expect(page.page.locator("#bar-agent")).to_have_text("assistant")
        page.wait_text("You said: Hello")
