"""What tests of the chat page share: a real Chromium, a server in a thread of its own whose model does as it is told,
and a proxy that can cut connections.

The browser is driven by its synchronous API, from the test's own thread; the server has an event loop in another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import attrs
import pytest
import trio
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from goliath_actors import Agent, ToolContext, ToolFailure, ToolLoop, tool
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, Store
from goliath_actors.server import Server, ServerConfig, serve
from goliath_actors.stores import InMemoryStore
from goliath_actors.tools import ConfirmRequest

CHROMIUM: Final = shutil.which("chromium")
PATIENCE: Final = 20_000  # milliseconds that nothing in a test may take
_FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="there is no /usr/bin/chromium"),
]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium."""
    assert CHROMIUM is not None, "these tests need Debian's package chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


# --- a model that does as it is told --------------------------------------------------------------------------------


@attrs.frozen
class Hold:
    """In a reply: wait until the test says `site.open(name)`."""

    name: str


@attrs.frozen
class Call:
    """In a reply: a tool call."""

    tool: str
    input: Mapping[str, Any]


Reply = Sequence[str | Hold | Call | Exception]


@attrs.define(eq=False)
class Puppet:
    """A model that says of each ask what the test laid down for it: one reply for each model call, in order.

    An ask that nothing was laid down for gets "You said: …".
    """

    name: str = "puppet"
    retries: int = 0
    _replies: dict[str, list[Reply]] = attrs.Factory(dict)
    reached: dict[str, trio.Event] = attrs.Factory(dict)
    opened: dict[str, trio.Event] = attrs.Factory(dict)
    asks: list[str] = attrs.Factory(list)

    def answer(self, ask: str, *replies: Reply) -> None:
        """Lay down what is said to `ask`, from now on."""
        self._replies[ask] = list(replies)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play a reply."""
        yield self._play(request)

    async def _play(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        texts = [message.text for message in request.messages if message.role == "user"]
        ask = texts[-1].split("\n\n")[-1]  # asks without an answer between them come as one message
        self.asks.append(ask)
        replies = self._replies.get(ask)
        reply: Reply = replies.pop(0) if replies else [f"You said: {ask}"]
        calls = 0
        for part in reply:
            if isinstance(part, Hold):
                self.reached.setdefault(part.name, trio.Event()).set()
                await self.opened.setdefault(part.name, trio.Event()).wait()
            elif isinstance(part, Call):
                name = f"call-{len(request.messages)}-{calls}"
                yield ModelToolCall(calls, name, part.tool, json.dumps(part.input, ensure_ascii=False))
                calls += 1
            elif isinstance(part, Exception):
                raise part
            else:
                yield ModelText(part)
                await trio.lowlevel.checkpoint()
        yield ModelDone("tool_calls" if calls else "stop")


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    await trio.lowlevel.checkpoint()
    return f"contents of {path}"


@tool(writes=True)
async def write_file(path: str, text: str) -> str:
    """Write a file."""
    await trio.lowlevel.checkpoint()
    written_files.append((path, text))
    return "written"


@tool
async def ask_time(ctx: ToolContext[Any], what: str) -> str:
    """Ask when something is to be."""
    when = await ctx.suspend({"question": f"When is {what}?", "options": ["today", "tomorrow"]})
    return f"{what} is {when}"


@tool
async def dig(ctx: ToolContext[Any], metres: int) -> str:
    """Dig, and say how far it is."""
    site = DIGGING[-1]
    ctx.report(2, metres, "through clay")
    site.reached.setdefault("digging", trio.Event()).set()
    await site.opened.setdefault("digging", trio.Event()).wait()
    return f"{metres} m deep"


# The model of the site that is up: `dig` waits for what its test opens.
DIGGING: list[Puppet] = []


@tool
async def break_down() -> str:
    """Fail."""
    await trio.lowlevel.checkpoint()
    raise ToolFailure("the disk is full")


written_files: list[tuple[str, str]] = []


async def _never(request: ConfirmRequest) -> bool:
    await trio.lowlevel.checkpoint()
    return False


# --- a server that a test can talk to from its own thread -----------------------------------------------------------


@attrs.define(eq=False)
class Site:
    """A running server with the page, and its model."""

    model: Puppet
    _store: Store
    _agents: Sequence[Agent[Any]]
    _config: Mapping[str, Any]
    port: int = 0
    _token: trio.lowlevel.TrioToken | None = None
    _thread: threading.Thread | None = None
    _stop: trio.CancelScope | None = None
    server: Server | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Begin to listen, on the same port as before if there was one."""
        started = threading.Event()
        errors: list[Exception] = []

        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as nursery:
                self._stop = nursery.cancel_scope

                async def begin(task_status: trio.TaskStatus[Server]) -> None:
                    config = ServerConfig(port=self.port, **self._config)
                    await serve(*self._agents, store=self._store, config=config, task_status=task_status)

                self.server = await nursery.start(begin)
                self.port = self.server.port
                started.set()

        def run() -> None:
            try:
                trio.run(main)
            except Exception as error:  # told to the test in its own thread
                errors.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE / 1000)
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """End it as a crash of its event loop would: nothing is drained."""
        if self._thread is None or self._token is None or self._stop is None:
            return
        self._call(self._stop.cancel)
        self._thread.join(PATIENCE / 1000)
        assert not self._thread.is_alive()
        self._thread = None

    def _call(self, fn: Callable[[], Any]) -> Any:
        assert self._token is not None
        return trio.from_thread.run_sync(fn, trio_token=self._token)

    def answer(self, ask: str, *replies: Reply) -> None:
        """Lay down what the model says to `ask`."""
        self._call(lambda: self.model.answer(ask, *replies))

    def wait_reached(self, name: str) -> None:
        """Wait until a reply has come to `Hold(name)`."""
        event = self._call(lambda: self.model.reached.setdefault(name, trio.Event()))

        async def wait() -> None:
            with trio.fail_after(PATIENCE / 1000):
                await event.wait()

        assert self._token is not None
        trio.from_thread.run(wait, trio_token=self._token)

    def open(self, name: str) -> None:
        """Let a reply go on behind `Hold(name)`."""
        self._call(lambda: self.model.opened.setdefault(name, trio.Event()).set())


@contextmanager
def open_site(
    *more: Callable[[Puppet], Agent[Any]], store: Store | None = None, model: Puppet | None = None, **config: Any
) -> Iterator[Site]:
    """A server with an agent of native tool calling and one tool of each kind; `more` make further agents."""
    puppet = Puppet() if model is None else model
    tools = [read_file, write_file, ask_time, dig, break_down]
    DIGGING[:] = [puppet]
    first = Agent(name="assistant", model=puppet, tools=tools, loop=ToolLoop(), confirm=_never)
    agents = [first, *[make(puppet) for make in more]]
    written_files.clear()
    site = Site(puppet, InMemoryStore() if store is None else store, agents, config)
    site.start()
    try:
        yield site
    finally:
        site.stop()


# --- a proxy that can cut -------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Proxy:
    """Hands on connections to a server, until it is told to cut them all."""

    target: int
    _listener: socket.socket = attrs.Factory(lambda: socket.create_server(("127.0.0.1", 0)))
    _open: set[socket.socket] = attrs.Factory(set)
    _lock: threading.Lock = attrs.Factory(threading.Lock)
    refuses: bool = False
    accepted: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def start(self) -> None:
        """Begin to hand on."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            self.accepted += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            _shut(end)
        with self._lock:
            self._open -= {source}
        source.close()

    def cut(self, refuse: bool = False) -> None:
        """Cut every connection in the middle of whatever it carries; with `refuse`, let nobody in until `refuses` is
        set back."""
        self.refuses = refuse
        with self._lock:
            for end in self._open:
                _shut(end)

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self.cut(refuse=True)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@contextmanager
def open_proxy(site: Site) -> Iterator[Proxy]:
    """A proxy in front of a site."""
    proxy = Proxy(site.port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()


# --- a page that is watched -----------------------------------------------------------------------------------------


_SHOWN: Final = """() => {
    const line = (card) => [".card-name", ".card-hint"].map((name) => card.querySelector(name).textContent).join(" ");
    const pieces = ".thread :is(.bubble, .text, .card, .notice)";
    return [...document.querySelectorAll(pieces)].map((el) =>
        [el.className.split(" ")[0], el.classList.contains("card") ? line(el) : el.textContent]);
}"""


@attrs.define(eq=False)
class Watched:
    """A page, and everything that it must not do."""

    page: Page
    context: BrowserContext
    # What the browser said that it should not have had to: errors, violations of the policy, dialogs.
    complaints: list[str] = attrs.Factory(list)
    requests: list[str] = attrs.Factory(list)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.page.fill("#ask", text)
        self.page.press("#ask", "Enter")

    def wait_idle(self) -> None:
        """Wait until nothing runs."""
        self.page.wait_for_selector("#main[data-busy=false]")

    def wait_text(self, text: str, selector: str = ".answer") -> None:
        """Wait until a text is shown."""
        self.page.locator(selector, has_text=text).first.wait_for()

    def answers(self) -> list[str]:
        """Return the texts of all answers, with white space as one space."""
        return [_one_line(text) for text in self.page.locator(".answer .parts").all_inner_texts()]

    def asks(self) -> list[str]:
        """Return the texts of all asks."""
        return self.page.locator(".bubble").all_inner_texts()

    def shown(self) -> list[tuple[str, str]]:
        """Return what a reader reads of a conversation, piece by piece, without times."""
        return [(kind, _one_line(text)) for kind, text in self.page.evaluate(_SHOWN)]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@contextmanager
def open_page(
    browser: Browser, url: str, *, width: int = 1200, height: int = 800, quiet: bool = True, **options: Any
) -> Iterator[Watched]:
    """Open the page. At the end it must have had nothing to complain about, unless `quiet` is False."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE)
    try:
        watched = watch(context, url)
        yield watched
        assert not quiet or watched.complaints == []
    finally:
        context.close()


def watch(context: BrowserContext, url: str) -> Watched:
    """Open a page in a context; note what it complains about and asks for."""
    page = context.new_page()
    watched = Watched(page, context)

    def dialog(one: Any) -> None:
        watched.complaints.append(f"dialog: {one.message}")
        one.dismiss()

    page.on("console", lambda one: one.type in ("error", "warning") and watched.complaints.append(one.text))
    page.on("pageerror", lambda error: watched.complaints.append(f"error: {error}"))
    page.on("dialog", dialog)
    page.on("request", lambda request: watched.requests.append(request.url))
    page.goto(url)
    page.wait_for_selector("#main[data-busy], dialog[open]")
    return watched
