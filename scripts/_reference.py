"""Prints the reference pages, and the design page's table of rooms, from the code. Run by `scripts/reference`.

Nothing here is typed by hand but the names of the modules, and which methods of the live classes are promised.
"""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from goliath_actors import errors, events, hooks

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ROOT / "docs" / "reference"
NOTE: Final = "<!-- Printed from the code by scripts/reference. Do not edit. -->"

# In this order; a name that several modules export is described where it comes first.
MODULES: Final = {
    "goliath_actors": "The front door: what most programs need.",
    "goliath_actors.tools": "Tools, confirmations, and what tools get.",
    "goliath_actors.values": "The frozen words of the domain.",
    "goliath_actors.threads": "A conversation's record and history, for applications and hooks.",
    "goliath_actors.abc": "What an application may bring: models, stores, token counters.",
    "goliath_actors.models": "Models over HTTP, and a second brain over HTTP.",
    "goliath_actors.models.local": "A real model on this machine, for tests and demonstrations (extra `local`).",
    "goliath_actors.stores": "Where conversations live between runs.",
    "goliath_actors.logs": "Log records of runs; see [the guide](../guides/observing.md).",
    "goliath_actors.otel": "Spans of runs; see [the guide](../guides/observing.md).",
    "goliath_actors.mcp": "Tools of MCP servers; see [the guide](../guides/mcp.md).",
    "goliath_actors.files": "Virtual files for conversations, and tools for them; see [the guide](../guides/files.md).",
    "goliath_actors.tokens": "Token counters.",
    "goliath_actors.testing": "Fakes and checkers for tests.",
    "goliath_actors.server": "Conversations over HTTP (extra `web`); see [the guide](../guides/chat-backend.md).",
    "goliath_actors.bridge": "A runtime for asyncio programs; see [the guide](../guides/asyncio.md).",
    "goliath_actors.metrics": "Metrics for Prometheus (extra `web`); see [the guide](../guides/operating.md).",
    "goliath_actors.evals": "Evaluation: fixtures, attempts and a report.",
    "goliath_actors.loadtest": "Load tests (extra `loadtest`); see [the guide](../guides/load-testing.md).",
}
# Described on pages of their own.
ELSEWHERE: Final = {"hooks.md": hooks.__all__, "errors.md": errors.__all__, "events.md": events.__all__}

# Live classes also have methods for the floors above them; only these are promised. Of fakes that repeat a protocol or
# the hook table, only what they add is worth reading.
PROMISED: Final[Mapping[str, tuple[str, ...]]] = {
    "Agent": ("as_tool",),
    "Conductor": (),
    "FailingStore": ("calls",),
    "Journal": ("rows", "heard", "clear"),
    "Ledger": (),
    "Run": ("abort", "wait", "wait_ended", "events"),
    "Runtime": ("run", "submit", "stream", "conversation", "invoke_tool", "drain", "statistics"),
}
# What may be read of them, where that is no method.
READABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "Run": {
        "id": "the run's id",
        "conversation_id": "None in the default conversation",
        "ask": "as it was accepted",
        "state": "`queued`, `running`, `finishing` or `done`",
        "outcome": "the `Outcome` once the run is `done`, None before",
        "followed_by": "the run that took over what this one was not told in time (needs a `ToolLoop`)",
    },
    "BridgeConversation": {"id": "the conversation's id, None for the default one"},
    "Server": {"runtime": "its `Runtime`", "host": "the address it listens on", "port": "its port"},
    "Conversation": {"id": "the conversation's id, None for the default one"},
    "Runtime": {
        "agents": "the agents whose conversations it holds, in the order given; behind them those that are their tools",
        "store": "where the conversations live between runs",
    },
}
# Made without arguments, or by something else than their constructors, which therefore say nothing.
MADE_ELSEWHERE: Final = frozenset(
    {
        "Bridge",
        "BridgeConversation",
        "BridgeRun",
        "BridgeStream",
        "Conversation",
        "EventStream",
        "Gate",
        "Ledger",
        "LocalServer",
        "Run",
        "Runtime",
        "Server",
        "StoreCheck",
        "StoreConformance",
        "TiktokenCounter",
        "ToolCalls",
    }
)


# --- docstrings -----------------------------------------------------------------------------------------------------

_SECTION = re.compile(r"^(Arguments|Fields|Returns|Raises|Cancellation|Checks)(, [^:]*)?:(?: (.*))?$")
_ITEM = re.compile(r"^  (\S[^:]*): (.*)$")


# Names of design rules are for readers of the code.
_CODES = re.compile(r" \((?:rule )?[RHCTSMEP]\d{0,2}[ab]?(?:, [RHCTSMEP]\d{1,2}[ab]?)*\)")


def markdown(docstring: str | None) -> str:
    """Return a docstring as Markdown: its sections in bold, their items as lists."""
    out: list[str] = []
    in_items = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        section = _SECTION.match(line)
        item = _ITEM.match(line)
        if section is not None:
            name, more, text = section.groups()
            out += ["", f"**{name}{more or ''}:** {text or ''}".rstrip()]
            in_items = not text
            if in_items:
                out.append("")
        elif in_items and item is not None:
            names = ", ".join(f"`{name}`" for name in item.group(1).split(", "))
            out.append(f"- {names}: {item.group(2)}")
        elif in_items and line.startswith("   "):
            out.append(f"  {line.strip()}")
        else:
            in_items = in_items and bool(line.strip())
            out.append(line if line.startswith("    ") else line.strip())
    return _escaped(_CODES.sub("", re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()))


def _escaped(text: str) -> str:
    """Escape what Markdown would take for a tag, outside of code."""
    parts = re.split(r"(`[^`]*`|^    .*$)", text, flags=re.MULTILINE)
    return "".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


# --- signatures -----------------------------------------------------------------------------------------------------


def signature(name: str, function: Any, *, method: bool = False) -> str:
    """Return a signature in a code block, over several lines if it is long."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return f"```text\n{name}(...)\n```"
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    parts = list(_parameters(list(found.parameters.values())[1 if method else 0 :]))
    returns = "" if found.return_annotation in (found.empty, "None", None) else f" -> {_type(found.return_annotation)}"
    if inspect.isasyncgenfunction(inspect.unwrap(function)) and hasattr(function, "__wrapped__"):
        returns = re.sub(
            r"-> Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]$", r"-> AbstractAsyncContextManager[\1]", returns
        )
    line = f"{prefix}{name}({', '.join(parts)}){returns}"
    if len(line) > 110:
        line = f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"```text\n{line}\n```"


def _parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    keyword_only = False
    for parameter in parameters:
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        stars = "*" * (1 if parameter.kind is parameter.VAR_POSITIONAL else 2) if _is_rest(parameter) else ""
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        yield text


def _is_rest(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _default(value: Any) -> str:
    if value is attrs.NOTHING:
        return "..."
    if isinstance(value, type):
        return value.__name__
    if attrs.has(type(value)) and _is_plain(value):
        return f"{type(value).__name__}()"
    if callable(value):
        return getattr(value, "__name__", "...")
    text = repr(value)
    return "..." if " at 0x" in text else text


def _is_plain(value: Any) -> bool:
    """Return whether a value is what its type makes of no arguments."""
    needed = [field for field in attrs.fields(type(value)) if field.init and field.default is attrs.NOTHING]
    return not needed and bool(value == type(value)())


def _type(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation.strip("\"'")
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation.__name__
    return re.sub(r"\b(?:typing|collections\.abc|goliath_actors(?:\.\w+)*)\.", "", str(annotation))


# --- entries --------------------------------------------------------------------------------------------------------


def entry(name: str, value: Any, level: str = "###") -> str:
    """Return the description of one exported name."""
    if inspect.isclass(value):
        return _class(name, value, level)
    if callable(value) and hasattr(value, "__wrapped__"):  # a decorated function, such as a context manager
        return _joined(f"{level} {name}", signature(name, value), markdown(value.__doc__))
    if inspect.isroutine(value):
        return _joined(f"{level} {name}", signature(name, value), markdown(value.__doc__))
    if callable(value) and not typing.get_origin(value) and not isinstance(value, types.UnionType):
        return _joined(f"{level} {name}", signature(name, type(value).__call__, method=True), markdown(value.__doc__))
    return _joined(f"{level} {name}", f"```text\n{name} = {_type(value)}\n```")


def _class(name: str, cls: type[Any], level: str) -> str:
    parts = [f"{level} {name}"]
    if issubclass(cls, Exception):
        if "__init__" in vars(cls):
            parts.append(signature(name, cls.__init__, method=True))
    elif issubclass(cls, enum.Enum):
        parts.append("\n".join(f"- `{name}.{member.name}`" for member in cls))
    elif not getattr(cls, "_is_protocol", False) and name not in MADE_ELSEWHERE:
        parts.append(signature(name, cls))
    parts.append(markdown(cls.__doc__))
    readable = READABLE.get(name)
    if readable:
        parts.append("\n".join(f"- `{attribute}`: {text}" for attribute, text in readable.items()))
    for method, function in _methods(name, cls):
        described = markdown(function.__doc__)
        if isinstance(function, property):
            parts.append(_joined(f"{level}# {name}.{method}", described))
        else:
            parts.append(_joined(f"{level}# {name}.{method}", signature(method, function, method=True), described))
    return _joined(*parts)


def _methods(name: str, cls: type[Any]) -> Iterator[tuple[str, Any]]:
    # What comes from an abstract base in a room of ours is told here, since it has no entry of its own.
    own = [base for base in cls.__mro__ if base is cls or (inspect.isabstract(base) and _is_ours(base))]
    for method, value in {name: value for base in reversed(own) for name, value in vars(base).items()}.items():
        if method == "__call__" and value.__doc__:
            yield method, value
        if method.startswith("_") or method not in PROMISED.get(name, (method,)):
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if (isinstance(value, property) or inspect.isfunction(value)) and value.__doc__:
            yield method, value


def _is_ours(cls: type[Any]) -> bool:
    return cls.__module__.startswith("goliath_actors.") and cls.__module__.rpartition(".")[2].startswith("_")


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


# --- pages ----------------------------------------------------------------------------------------------------------


def api_page() -> str:
    """Every public name but hooks, errors and events, module by module."""
    told: dict[str, tuple[str, Any]] = {}  # anchor and value by name
    headings: Counter[str] = Counter()
    elsewhere = {name: page for page, names in ELSEWHERE.items() for name in names}
    parts = [
        NOTE,
        "# API",
        "Every public name, printed from the code. "
        "Hooks, errors and events have pages of their own: [hooks](hooks.md), [errors](errors.md), "
        "[events](events.md). `...` stands for a default that is made for each object.",
    ]
    for module_name, words in MODULES.items():
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}", words]
        others: list[str] = []
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            if name == "__version__":
                parts.append("### \\_\\_version\\_\\_\n\nThe version of the library, a string.")
            elif name in elsewhere:
                others.append(f"[`{name}`]({elsewhere[name]}#{name.lower()})")
            elif name in told and told[name][1] is value:
                others.append(f"[`{name}`](#{told[name][0]})")
            else:
                slug, before = name.lower(), headings[name.lower()]
                told[name] = f"{slug}-{before}" if before else slug, value
                headings[slug] += 1
                parts.append(entry(name, value))
        if others:
            parts.append(f"Also here: {', '.join(others)}.")
    return _joined(*parts) + "\n"


def hooks_page() -> str:
    """The hook table, each row, then verdicts, patches and contexts."""
    rows = hooks.HOOKS.values()
    table = ["| row | asked | may answer | composition | lenient | loops |", "|---|---|---|---|---|---|"]
    for row in rows:
        answers = row.words or " · ".join(kind.__name__ for kind in row.answers)
        answers = answers.replace("|", "\\|") or "nothing"
        lenient = row.lenient or ("observes" if row.composition is hooks.Composition.OBSERVE else "no")
        loops = ", ".join(sorted(row.asked_by))
        table.append(
            f"| [`{row.name}`](#{row.name}) | {row.when} | {answers} | {row.composition.value} | {lenient} | {loops} |"
        )
    parts = [
        NOTE,
        "# Hooks",
        "The hook table, printed from `goliath_actors.hooks.HOOKS`. How to write hooks is told in "
        "[the guide](../guides/hooks.md).",
        "\n".join(table),
        "`lenient` says what becomes of a failing hook of an extension with `lenient = True`: it is skipped, the call "
        "is denied, or there is no leniency.",
        "## Rows",
    ]
    questions: set[str] = set()
    for row in rows:
        method = getattr(hooks.Extension, row.name)
        questions.add(row.question.__name__)
        parts += [f"### {row.name}", markdown(method.__doc__), signature(row.name, method, method=True)]
        if row.composition is not hooks.Composition.PIPE:  # a pipe gets its events instead of a question
            parts += [f"{markdown(row.question.__doc__)} `{row.question.__name__}` has:", _fields(row.question)]
    parts.append("## Extensions")
    for name in ("Extension", "HookContext", "StreamControl"):
        value = getattr(hooks, name)
        shown = _class(name, value, "###")
        if name == "Extension":
            shown = _joined(
                "### Extension",
                markdown(value.__doc__),
                *(
                    _joined(f"#### Extension.{method}", signature(method, function, method=True), markdown(doc))
                    for method, function in vars(value).items()
                    if inspect.isfunction(function) and method not in hooks.HOOKS and (doc := function.__doc__)
                ),
            )
        parts.append(shown)
    parts.append("## Verdicts and patches")
    rest = [name for name in sorted(hooks.__all__) if name not in questions | {"Extension", "HookContext", "HOOKS"}]
    parts += [entry(name, getattr(hooks, name)) for name in rest if name not in ("StreamControl", "Question")]
    return _joined(*parts) + "\n"


def _fields(question: type[Any]) -> str:
    lines = []
    for field in attrs.fields(question):
        name = field.name.lstrip("_")
        if name == "own" or (field.name.startswith("_") and not hasattr(question, name)):
            continue
        lines.append(f"- `{name}: {_type(field.type)}`")
    return "\n".join(lines)


def errors_page() -> str:
    """The tree of errors, then each with what it carries."""
    parts = [
        NOTE,
        "# Errors",
        "Every exception of the library, printed from `goliath_actors.errors`. What your own `confirm`, `fallback`, "
        "`facts` or store raises reaches the caller as the same object, never wrapped in one of these. What a deciding "
        "hook raises comes as a `GoliathExtensionError`, with the hook's error as its cause. What a tool raises is "
        "told to the model.",
        "```text\n" + "\n".join(_tree(errors.GoliathError, "")) + "\n```",
    ]
    parts += [_class(cls.__name__, cls, "##") for cls in _walk(errors.GoliathError)]
    return _joined(*parts) + "\n"


def _children(cls: type[Exception]) -> list[type[Exception]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [value for value in found if cls in value.__bases__]


def _walk(cls: type[Exception]) -> Iterator[type[Exception]]:
    yield cls
    for child in _children(cls):
        yield from _walk(child)


def _tree(cls: type[Exception], indent: str) -> Iterator[str]:
    yield f"{indent}{cls.__name__}"
    for child in _children(cls):
        yield from _tree(child, indent + "  ")


def events_page() -> str:
    """Each event with its fields."""
    parts = [
        NOTE,
        "# Events",
        markdown(events.__doc__.partition("\n\n")[0] if events.__doc__ else ""),
        "All of them are in the module `goliath_actors.events`: `from goliath_actors.events import TextDelta`. "
        "`run.events()`, an [`EventStream`](api.md#eventstream), and `on_event` give every event of a run; "
        "`result.trace` has them all but each `TextDelta`, "
        "whose texts together are in `Answer`.",
        "Every event has `run_id: str`, `conversation_id: str | None`, `seq: int` (1, 2, 3 … within the run), "
        "`at: float` (seconds since the epoch) and `kind: str`, its name on the wire. Durations are on trio's clock.",
    ]
    base = {field.name for field in attrs.fields(events.Event)}
    for kind, cls in events.EVENTS.items():
        fields = [field for field in attrs.fields(cls) if field.name not in base]
        listed = "\n".join(f"- `{field.name}: {_type(field.type)}`" for field in fields)
        parts += [f"## {cls.__name__}", f"`{kind}`. {markdown(cls.__doc__)}", listed]
    return _joined(*parts) + "\n"


# --- the house ------------------------------------------------------------------------------------------------------

DESIGN: Final = PAGES.parent / "design.md"
ROOMS: Final = re.compile(r"(<!-- rooms: printed by scripts/reference -->\n).*?(<!-- end of rooms -->)", re.DOTALL)


def design_page() -> str:
    """The design page as it stands, its table of rooms printed anew from the test that guards the floors."""
    page = DESIGN.read_text(encoding="utf-8")
    return ROOMS.sub(lambda match: f"{match[1]}\n{_rooms()}\n\n{match[2]}", page, count=1)


def _rooms() -> str:
    place = ROOT / "tests" / "test_floors.py"
    found = importlib.util.spec_from_file_location("floors", place)
    assert found is not None
    assert found.loader is not None
    test = importlib.util.module_from_spec(found)
    found.loader.exec_module(test)
    lines = ["| floor | rooms | what they are |", "|---|---|---|"]
    for number, rooms in reversed(list(enumerate(test.FLOORS))):
        names = ", ".join(f"`{room}`" for room in rooms)
        words = "<br>".join(_first_sentence(room) for room in rooms)
        lines.append(f"| {number} | {names} | {words} |")
    return "\n".join(lines)


def _first_sentence(room: str) -> str:
    """Return what a room's docstring says first, "(empty)" for a folder that is kept for later."""
    package = ROOT / "goliath_actors"
    paths = [package / f"{room}.py", package / room / "__init__.py"]
    path = next((path for path in paths if path.exists()), None)
    docstring = None if path is None else ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        return "the version, one line" if room == "_version" else "(empty)"
    paragraph = _CODES.sub("", " ".join(docstring.partition("\n\n")[0].split()))
    return _escaped(re.split(r"(?<=[^.])\. (?=[A-Z`])", paragraph)[0].rstrip(".")).replace("|", "\\|")


PRINTERS: Final[Mapping[str, Callable[[], str]]] = {
    "api.md": api_page,
    "hooks.md": hooks_page,
    "errors.md": errors_page,
    "events.md": events_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say which are out of date."""
    stale = []
    for path, printer in [*((PAGES / name, printer) for name, printer in PRINTERS.items()), (DESIGN, design_page)]:
        text, name = printer(), path.name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if stale:
        print(("out of date: " if "--check" in arguments else "written: ") + ", ".join(stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
