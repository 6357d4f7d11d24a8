"""The documents hold: examples print what they say, blocks run, links lead somewhere, names exist."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import trio

from .test_floors import FLOORS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PRINTED = DOCS / "reference"
WRITTEN = [page for page in PAGES if PRINTED not in page.parents]

PUBLIC = (
    "goliath_actors",
    "goliath_actors.hooks",
    "goliath_actors.threads",
    "goliath_actors.tools",
    "goliath_actors.values",
    "goliath_actors.events",
    "goliath_actors.errors",
    "goliath_actors.abc",
    "goliath_actors.models",
    "goliath_actors.models.local",
    "goliath_actors.stores",
    "goliath_actors.policies",
    "goliath_actors.evals",
    "goliath_actors.loadtest",
    "goliath_actors.bridge",
    "goliath_actors.metrics",
    "goliath_actors.files",
    "goliath_actors.logs",
    "goliath_actors.mcp",
    "goliath_actors.otel",
    "goliath_actors.server",
    "goliath_actors.testing",
    "goliath_actors.tokens",
)


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- examples -------------------------------------------------------------------------------------------------------

PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))


def promised_output(source: str) -> list[str]:
    """Return the lines below `# Prints:`; a line that ends in a backslash goes on in the next."""
    _, marker, below = source.partition("\n# Prints:\n")
    assert marker, "an example ends with what it prints, below the comment `# Prints:`"
    lines: list[str] = []
    joined = False
    for line in below.splitlines():
        assert line.startswith("#"), f"nothing but comments may follow `# Prints:`, not {line!r}"
        text = line.removeprefix("#   ") if line.startswith("#   ") else line.removeprefix("#")
        if joined:
            lines[-1] += text.strip()
        else:
            lines.append(text)
        joined = text.endswith(" \\")
        lines[-1] = lines[-1].removesuffix("\\")
    return lines


@pytest.mark.parametrize("path", PROGRAMS, ids=by_path)
def test_an_example_prints_what_it_says(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == promised_output(path.read_text(encoding="utf-8"))


def test_the_example_of_a_test_file_passes_as_a_reader_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n", encoding="utf-8")
    source = (EXAMPLES / "test_assistant.py").read_text(encoding="utf-8")
    (tmp_path / "test_assistant.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{source.count('async def test_')} passed" in done.stdout


def test_every_goliath_hook_has_an_example_of_its_own() -> None:
    hooks = """before_run after_recall before_plan after_plan before_tool after_tool before_fallback after_answer
        before_remember on_error on_finish"""
    for hook in hooks.split():
        assert f"def {hook}(" in (EXAMPLES / f"hooks_{hook}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=by_path)
def test_every_example_is_shown_by_some_page(path: Path) -> None:
    assert any(path.name in page.read_text(encoding="utf-8") for page in WRITTEN)


# --- blocks in pages ------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"(?:<!-- (?P<note>[^>]*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(page: Path, language: str = "python") -> Iterator[tuple[int, str, str]]:
    """Yield line, note and code of each block in a language."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        if match["language"] == language:
            yield text.count("\n", 0, match.start("code")) + 1, match["note"] or "", match["code"]


def run_block(code: str, namespace: dict[str, Any], name: str, line: int) -> None:
    """Run one block; an `await` outside of a function is as if the block stood in an async one."""
    tree = ast.parse(code)
    ast.increment_lineno(tree, line - 1)
    compiled = compile(tree, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, namespace)
        return

    async def body() -> None:
        await eval(compiled, namespace)

    trio.run(body)


@pytest.mark.parametrize("page", [page for page in WRITTEN if list(blocks(page))], ids=by_path)
def test_every_python_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one page share their names, in order. Those taken from an example are run there."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for line, note, code in blocks(page):
        if not note.startswith("from "):
            with contextlib.redirect_stdout(io.StringIO()):
                run_block(code, namespace, by_path(page), line)


def test_every_python_block_of_the_readme_and_of_the_tutorial_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for page in (ROOT / "README.md", DOCS / "tutorial.md"):
        for line, note, code in blocks(page):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                run_block(code, {"__name__": "__main__"}, by_path(page), line)
            if note:
                source = (ROOT / note.removeprefix("from ")).read_text(encoding="utf-8")
                assert printed.getvalue().splitlines() == promised_output(source), f"{by_path(page)}:{line}"


@pytest.mark.parametrize("page", WRITTEN, ids=by_path)
def test_what_a_page_quotes_from_an_example_stands_there(page: Path) -> None:
    for line, note, code in blocks(page):
        if not note.startswith("from "):
            continue
        source = (ROOT / note.removeprefix("from ")).read_text(encoding="utf-8")
        wanted = code.rstrip("\n").splitlines()
        lines = source.splitlines()
        indents = {len(have) - len(have.lstrip()) for have in lines if have.strip()}
        found = any(
            [want and " " * indent + want for want in wanted] == lines[start : start + len(wanted)]
            for indent in indents
            for start in range(len(lines) - len(wanted) + 1)
        )
        assert found, f"{by_path(page)}:{line} is no piece of {note.removeprefix('from ')}"


# --- the reference --------------------------------------------------------------------------------------------------


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["api.md", "hooks.md", "errors.md", "events.md"])
def test_the_reference_is_what_the_code_says(name: str) -> None:
    printed = reference().PRINTERS[name]()
    assert (PRINTED / name).read_text(encoding="utf-8") == printed, "run scripts/reference and commit what it wrote"


def test_the_reference_describes_every_public_name_once() -> None:
    text = "\n".join((PRINTED / name).read_text(encoding="utf-8") for name in reference().PRINTERS)
    headings = Counter(re.findall(r"^#{2,3} (\w+)$", text, re.M))
    for module in PUBLIC:
        if module == "goliath_actors.policies":  # their guide describes them, with an example each
            continue
        for name in importlib.import_module(module).__all__:
            if name in ("__version__", "HOOKS", "EVENTS", "Event", "Question", "RunEvent", "TransformStream"):
                continue
            assert headings[name] == 1 or f"`{name}` has:" in text, (
                f"{module}.{name} is described {headings[name]} times"
            )


# --- links ----------------------------------------------------------------------------------------------------------


def prose_of(text: str) -> str:
    """Return a text without its blocks of code."""
    return _FENCE.sub("", text)


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return prose_of(page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings have, as they are made by the usual renderers."""
    seen: Counter[str] = Counter()
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace("\\", "")
        slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    return re.findall(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=by_path)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                todo.append(target)
    assert [by_path(page) for page in PAGES if page not in seen] == []


# --- names in code font ---------------------------------------------------------------------------------------------

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# Not ours, or no names of code.
_OTHERS = {
    *("Annotated", "AsyncClient", "BaseModel", "CancelScope", "Cancelled", "CapacityLimiter", "ContextVar", "Literal"),
    *("EventSource", "Mount"),
    *("MockClock", "Struct", "TypedDict"),
}
# Words of tools and of other libraries.
_WORDS = {"autojump_clock", "move_on_after", "open_nursery", "set_threshold", "start_soon", "trio_mode"}


def known_names() -> dict[str, Any]:
    names: dict[str, Any] = dict(vars(builtins))
    for module in PUBLIC:
        namespace = importlib.import_module(module)
        names.update({name: getattr(namespace, name) for name in namespace.__all__})
    return names


def our_words() -> set[str]:
    """Every word of the code and of the examples, and the names of their files. Not of the tests: they misspell names
    on purpose."""
    words: set[str] = set()
    for folder in ("goliath_actors", "docs/examples"):
        for path in (ROOT / folder).rglob("*.py"):
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            words.add(path.stem)
    return words


NAMES, WORDS = known_names(), our_words()


def has_attribute(value: Any, name: str) -> bool:
    if hasattr(value, name):
        return True
    if inspect.isclass(value):
        fields = attrs.fields_dict(value) if attrs.has(value) else {}
        hints = getattr(value, "__annotations__", {})
        assigned = re.search(rf"self\.{name}\b", inspect.getsource(value)) is not None
        return name in fields or name in hints or assigned
    return False


def problem(span: str) -> str | None:
    """Say what is wrong with a span of code, None if nothing is, or if it is none of our business."""
    test = re.fullmatch(r"(tests/[\w/]+\.py)::(\w+)", span)
    if test is not None:
        path = ROOT / test[1]
        if not path.exists() or not re.search(rf"^(?:async )?def {test[2]}\(", path.read_text(encoding="utf-8"), re.M):
            return "no such test"
        return None
    if re.fullmatch(r"(?:docs|tests|scripts|goliath_actors)/[\w./*{},-]*", span):
        return None if list(ROOT.glob(span.rstrip("/"))) else "no such file"
    if span.startswith("scripts/"):
        return None if (ROOT / span.split()[0]).exists() else "no such script"
    dotted = re.fullmatch(r"(goliath_actors(?:\.\w+)+)(?:\(.*\))?", span)
    if dotted is not None:
        return None if resolves(dotted[1]) else "cannot be imported"
    name = re.fullmatch(r"@?([A-Za-z_]\w*)((?:\.\w+)*)(?:\(.*\)|\[.*\])?", span)
    if name is None:
        return None
    first, rest = name[1], name[2].lstrip(".").split(".") if name[2] else []
    if re.match(r"[A-Z][a-z]\w*$|[A-Z][a-zA-Z]*[a-z][A-Z]\w*$", first):
        if first in _OTHERS:
            return None
        if first not in NAMES:
            return None if first in WORDS and not first[0].isupper() else "no such name"
        if rest and not has_attribute(NAMES[first], rest[0]):
            return f"{first} has no {rest[0]}"
        return None
    if "_" in first.strip("_") and first not in WORDS | _WORDS:
        return "nothing of ours is called so"
    return None


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not has_attribute(value, name):
                return False
            value = getattr(value, name, None)
        return True
    return False


@pytest.mark.parametrize("page", WRITTEN, ids=by_path)
def test_names_in_code_font_exist(page: Path) -> None:
    wrong = {span: said for span in _SPAN.findall(prose(page)) if (said := problem(span)) is not None}
    assert wrong == {}


def test_the_check_of_names_would_notice_a_wrong_one() -> None:
    for span in (
        "MailboxFul",
        "Run.abrot()",
        "before_tol",
        "goliath_actors.stores.OracleStore",
        "tests/test_runtime_waits.py::test_nothing",
        "docs/no_such_page.md",
        "scripts/deploy now",
    ):
        assert problem(span) is not None, span
    for span in (
        "MailboxFull",
        "Run.abort()",
        "before_tool",
        "goliath_actors.stores.SqliteStore",
        "GoliathBudgetError.tokens",
        "ctx.state",
        "timeout=30",
        "Agent(model=...)",
    ):
        assert problem(span) is None, span


# --- what pages promise ---------------------------------------------------------------------------------------------


def test_the_two_commands_of_the_readme_come_first_exist_and_can_be_executed() -> None:
    commands = [
        line
        for _, _, code in blocks(ROOT / "README.md", "sh")
        for line in code.splitlines()
        if line and not line.startswith("#")
    ]
    assert commands[:2] == ["scripts/goliath-actors serve", "scripts/test"]
    for command in commands[:2]:
        script = ROOT / command.split()[0]
        assert os.access(script, os.X_OK)
        assert script.read_text(encoding="utf-8").startswith("#!/bin/sh\n")


def test_the_design_page_shows_every_room_on_its_floor() -> None:
    text = (DOCS / "design.md").read_text(encoding="utf-8")
    table = text.partition("<!-- rooms: printed by scripts/reference -->")[2].partition("<!-- end of rooms -->")[0]
    shown = re.findall(r"^\| (\d+) \| (.+?) \| .+ \|$", table, re.M)
    from_the_roof = [(int(number), tuple(re.findall(r"`(\w+)`", rooms))) for number, rooms in shown]
    assert from_the_roof == list(enumerate(FLOORS))[::-1]
    assert text == reference().design_page(), "run scripts/reference and commit what it wrote"


def test_every_rule_is_numbered_and_names_what_proves_it() -> None:
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    rules = re.findall(r"^(\d+)\. (.+(?:\n {3,4}\S.*)*)", text, re.M)
    assert [int(number) for number, _ in rules] == list(range(1, len(rules) + 1))
    assert len(rules) > 30
    for number, rule in rules:
        proofs = [span for span in _SPAN.findall(rule) if "::" in span or span.startswith("docs/examples/")]
        assert proofs, f"rule {number} names no test and no example"


def test_every_invariant_names_its_test() -> None:
    text = (DOCS / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .+ \| .+ \| (.*`tests/\w+\.py.*) \|$", text, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 16))


def test_the_version_stands_in_the_changelog() -> None:
    version = importlib.import_module("goliath_actors").__version__
    text = (DOCS / "changelog.md").read_text(encoding="utf-8")
    assert f"## {version}" in text


def test_the_page_of_hooks_tells_of_every_row_that_is_asked() -> None:
    hooks = importlib.import_module("goliath_actors.hooks").HOOKS
    guide = (DOCS / "guides" / "hooks.md").read_text(encoding="utf-8")
    asked = [row.name for row in hooks.values() if "Conductor" in row.asked_by]
    assert [name for name in asked if re.search(rf"\b{name}\b", prose_of(guide)) is None] == []
    assert f"There are {len(hooks)} hooks" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_typed_use_is_checked_by_the_type_checkers_of_the_project() -> None:
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert configuration.count('"tests/typing"') == 2
    tree = ast.parse((ROOT / "tests" / "typing" / "api.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    front = set(importlib.import_module("goliath_actors").__all__)
    assert front - imported <= {"Compaction", "GoliathError", "ToolLoop", "__version__"}
