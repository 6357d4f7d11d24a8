"""The house: a module imports only from floors below its own (docs/design.md shows the same table)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "goliath_actors"

# From the ground up. Rooms on one line are on one floor and do not import each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("_version", "_frozen", "errors"),
    ("values", "_json", "_callables", "_numbers", "_leaves"),
    ("abc", "events", "_text", "_tool_words"),
    ("_schema", "_grammar", "_client"),
    ("tools", "tokens"),
    ("_staging", "_verdicts"),
    ("threads",),
    ("_questions",),
    ("_answers",),
    ("_table",),
    ("hooks",),
    ("_roster", "_budget", "_composition"),
    ("_journal", "_threads", "_history", "_standing"),
    ("_envelope", "_decisions"),
    ("_face", "_mailbox", "_waits", "_nest", "_pipe", "_witness"),
    ("_panel",),
    ("files", "logs", "mcp", "models", "otel", "policies", "stores"),
    ("_conformance", "_work", "_observers"),
    ("testing",),
    ("_prompts", "_provider", "_stream", "_session", "_subagent", "_waiting"),
    ("_call", "_entrance", "_final", "_rewrites", "_drafts"),
    ("_generation", "_kept", "_records"),
    ("_request", "_judge", "_tools"),
    ("_memory", "_roles", "_transcript", "_reading"),
    ("_endings", "_compact", "_step_thread", "_batch"),
    ("_thinking",),
    ("_native",),
    ("_conductor", "_toolloop"),
    ("_agent",),
    ("_run",),
    ("_supervisor", "_arguments"),
    ("_conversation", "_lifespans"),
    ("_directory", "_life", "_admission"),
    ("_engine",),
    ("_refusals",),
    ("_acceptance",),
    ("_doors",),
    ("_facade",),
    ("_runtime",),
    ("_open",),
    ("__init__",),
    ("evals", "bridge", "loadtest", "metrics"),
    ("server",),
    ("_cli",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the rooms of this package that a file imports, those for type checking included."""
    inside = path.relative_to(PACKAGE).parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = inside[: len(inside) - node.level]
                parts = (*base, *(node.module or "").split(".")) if node.module else base
                names = [parts[0]] if parts else [alias.name for alias in node.names]
            elif node.module and node.module.split(".")[0] == "goliath_actors":
                rest = node.module.split(".")[1:]
                names = rest[:1] or ["__init__"]
            else:
                continue
            found.update(names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "goliath_actors":
                    found.add([*alias.name.split("."), "__init__"][1])
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms - set(FLOOR) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_floors_below_its_own(path: Path) -> None:
    here = room_of(path)
    for other in imports(path):
        same_room = other == here  # a room may be a folder
        assert same_room or FLOOR[other] < FLOOR[here], f"{here} (floor {FLOOR[here]}) imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_floors_are_numbered_in_one_place(path: Path) -> None:
    """The table above is printed with its numbers in docs/design.md; a number in a docstring would soon be another."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert not re.search(r"^Floor \d", docstring, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_room_catches_what_only_the_supervisor_may_name(path: Path) -> None:
    """`BaseException` and `Cancelled` never; `KeyboardInterrupt` and `SystemExit` by the supervisor alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"{path.name}:{node.lineno} catches everything"
        names = {
            name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "") for name in ast.walk(node.type)
        }
        forbidden = {"BaseException", "Cancelled"}
        if room_of(path) not in ("_supervisor", "_cli", "cli"):
            forbidden |= {"KeyboardInterrupt", "SystemExit"}
        assert not names & forbidden, f"{path.name}:{node.lineno} catches {sorted(names & forbidden)}"
