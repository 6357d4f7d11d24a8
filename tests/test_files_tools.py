"""Tools for virtual files: pages, budgets, cursors, edits, and how they do in runs. The FS lines of the catalogue."""

from __future__ import annotations

import re
from typing import Any

import pytest
import regex

from goliath_actors import Conductor, Extension, ToolContext, ToolFailure, approve_all
from goliath_actors._text import estimate
from goliath_actors.errors import ConfigError, ToolInputError
from goliath_actors.files import CompositeFiles, Files, MemoryFiles, StaticFiles, file_tools
from goliath_actors.tools import ConfirmRequest, Tool

from .planned import ANSWER, planned, prompt, roles, run, use

HEAD = re.compile(r"\[revision (\S+), lines (\d+)-(\d+) of (\d+)\]\n")
MORE = re.compile(r"\n?\[more: cursor (\S+)\]$")


def kit(place: Any, **options: Any) -> dict[str, Tool]:
    return {tool.name: tool for tool in file_tools(place, **options)}


async def call(tool: Tool, budget: int = 512, conversation_id: str | None = None, **arguments: Any) -> str:
    """Call a tool as a run does: arguments are checked first."""
    ctx: ToolContext[Any] = ToolContext(result_budget=budget, conversation_id=conversation_id)
    result = await tool.start(tool.check(arguments), ctx)
    assert isinstance(result, str)
    return result


async def refused(tool: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        await call(tool, **arguments)
    return caught.value.text


async def pages(tool: Tool, budget: int = 512, **arguments: Any) -> list[str]:
    """All pages, following the cursors; each fits the budget."""
    found = [await call(tool, budget, **arguments)]
    while more := MORE.search(found[-1]):
        assert len(found) < 2000
        found.append(await call(tool, budget, **arguments, cursor=more[1]))
    assert max(map(estimate, found)) <= budget
    return found


def body(page: str) -> str:
    return HEAD.sub("", MORE.sub("", page).removesuffix("\n[end of file]"), count=1)


def test_fs_06_tools_only_read_unless_they_are_asked_to_write() -> None:
    assert [(tool.name, tool.writes) for tool in file_tools(MemoryFiles())] == [
        ("glob", False),
        ("grep", False),
        ("read_file", False),
    ]
    writing = [tool.name for tool in file_tools(MemoryFiles(), read_only=False) if tool.writes]
    assert writing == ["write_file", "edit_file", "delete_file"]


def test_fs_06_a_place_that_cannot_be_written_gets_no_tools_to_write() -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        file_tools(StaticFiles({}), read_only=False)
    with pytest.raises(ConfigError, match="needs a place"):
        file_tools("nothing")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/secret", "/notes2/a", "../secret", "/notes/../secret", "/", "/notes\\..\\secret"])
async def test_fs_06_traversal_and_escape_from_the_root_are_rejected(path: str) -> None:
    place = MemoryFiles()
    secret = await place.write("/secret", "x")
    await place.write("/notes2/a", "x")
    tools = kit(place, root="/notes", read_only=False)
    await refused(tools["read_file"], path=path)
    await refused(tools["write_file"], path=path, text="y", revision=secret.revision)
    await refused(tools["edit_file"], path=path, old="x", new="y", revision=secret.revision)
    await refused(tools["delete_file"], path=path, revision=secret.revision)
    assert await place.read("/secret") == secret


async def test_fs_06_nothing_outside_of_the_root_is_found() -> None:
    tools = kit(StaticFiles({"/notes/a": "word", "/notes2/b": "word", "/c": "word"}), root="/notes")
    assert await call(tools["glob"], pattern="/**") == "/notes/a\n[no more files]"
    assert await call(tools["grep"], text="word", files="/**") == "/notes/a:1: word\n[no more matches]"
    assert "'..'" in await refused(tools["glob"], pattern="../**")
    assert body(await call(tools["read_file"], path="a")) == "word"


@pytest.mark.parametrize("unit", ["日本語 ", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "e\u0301a\u0308", "plain words\r\n", "\U0001d11e"])
async def test_fs_07_a_long_file_comes_in_pages_without_loss_and_no_grapheme_is_split(unit: str) -> None:
    text = unit * (9000 // len(unit.encode()))
    tool = kit(StaticFiles({"/a": text}))["read_file"]
    found = await pages(tool, 500, path="/a", lines=200)
    bodies = [body(page) for page in found]
    assert len(found) > 1
    assert "".join(bodies) == text
    whole = regex.findall(r"\X", text)
    assert [cluster for part in bodies for cluster in regex.findall(r"\X", part)] == whole


async def test_fs_08_reading_begins_at_a_line_and_says_where_the_file_ends() -> None:
    place = StaticFiles({"/a": "one\ntwo\nthree\nfour\n", "/empty": ""})
    tool = kit(place)["read_file"]
    held = await place.read("/a")
    assert held is not None
    page = await call(tool, path="/a", line=2, lines=2)
    assert page.startswith(f"[revision {held.revision}, lines 2-3 of 4]\ntwo\nthree\n\n[more: cursor ")
    assert (await call(tool, path="/a", line=4)).endswith("lines 4-4 of 4]\nfour\n\n[end of file]")
    assert await call(tool, path="/a", line=9) == f"[revision {held.revision}, end of file: it has 4 lines]"
    assert (await call(tool, path="/empty")).endswith("[end of file]")
    assert await refused(tool, path="/b") == "there is no file /b"


async def test_fs_08_and_10_a_cursor_is_bound_to_the_revision_that_it_came_from() -> None:
    place = MemoryFiles()
    first = await place.write("/a", "line\n" * 50)
    tool = kit(place)["read_file"]
    more = MORE.search(await call(tool, path="/a"))
    assert more is not None
    assert body(await call(tool, path="/a", cursor=more[1])) == "line\n" * 25
    await place.write("/a", "line\n" * 50, first.revision)
    assert "belongs to another" in await refused(tool, path="/a", cursor=more[1])


async def test_fs_09_glob_lists_in_pages_of_64_paths() -> None:
    names = [f"/n/{number:03}.txt" for number in range(150)]
    tool = kit(StaticFiles(dict.fromkeys(names, "")))["glob"]
    found = await pages(tool, 4000, pattern="n/*.txt")
    assert [len(MORE.sub("", page).splitlines()) for page in found] == [64, 64, 23]
    assert "\n".join(MORE.sub("", page) for page in found) == "\n".join([*names, "[no more files]"])
    assert await call(tool, pattern="*.md") == "[no files]"


async def test_fs_09_grep_is_literal_and_minds_case_unless_told_otherwise() -> None:
    tool = kit(StaticFiles({"/a": "x.y\nxzy\nX.Y x.Y\n", "/b.md": "x.y"}))["grep"]
    assert await call(tool, text="x.y") == "/a:1: x.y\n/b.md:1: x.y\n[no more matches]"
    assert await call(tool, text="x.y", files="*.md") == "/b.md:1: x.y\n[no more matches]"
    assert await call(tool, text="x.y", ignore_case=True, files="/a") == "/a:1: x.y\n/a:3: X.Y x.Y\n[no more matches]"
    assert await call(tool, text="(") == "[no matches]"


async def test_fs_09_grep_pages_by_ten_matches_and_goes_on_within_a_file() -> None:
    tool = kit(StaticFiles({"/a": "hit\n" * 25, "/b": "hit\n" * 5}))["grep"]
    found = await pages(tool, text="hit")
    assert [page.count(": hit") for page in found] == [10, 10, 10]
    lines = [line for page in found for line in page.splitlines() if not line.startswith("[")]
    assert lines == [f"/a:{n}: hit" for n in range(1, 26)] + [f"/b:{n}: hit" for n in range(1, 6)]


async def test_fs_09_a_page_of_grep_may_be_empty_and_a_match_across_its_end_is_found() -> None:
    text = "." * 131_070 + "needle" + "." * 100_000 + "\nneedle"
    tool = kit(StaticFiles({"/a": text, "/b": "needle"}))["grep"]
    found = await pages(tool, text="needle")
    assert found[0].startswith("[no matches yet]\n[more: cursor ")
    assert found[1].startswith("/a:1: …")
    lines = [line for page in found for line in page.splitlines() if not line.startswith("[")]
    assert [line.split(" ")[0] for line in lines] == ["/a:1:", "/a:2:", "/b:1:"]


async def test_fs_09_grep_looks_at_128_files_for_a_page() -> None:
    tool = kit(StaticFiles({f"/{number:03}": "x" for number in range(200)} | {"/999": "needle"}))["grep"]
    found = await pages(tool, text="needle")
    assert [page.splitlines()[0] for page in found] == ["[no matches yet]", "/999:1: needle"]


async def test_fs_10_a_cursor_cannot_leave_the_root_nor_resume_a_changed_search() -> None:
    place = MemoryFiles()
    held = await place.write("/in/a", "hit\n" * 25)
    await place.write("/out", "hit\n" * 25)
    wide, narrow = kit(place), kit(place, root="/in")
    for name, arguments in [("grep", {"text": "hit"}), ("read_file", {"path": "/out"})]:
        more = MORE.search(await call(wide[name], **arguments, **({"lines": 5} if name == "read_file" else {})))
        assert more is not None
        assert await refused(narrow[name], **arguments, cursor=more[1])
    more = MORE.search(await call(narrow["grep"], text="hit"))
    assert more is not None
    await place.write("/in/a", "hit\n" * 30, held.revision)
    assert "has changed" in await refused(narrow["grep"], text="hit", cursor=more[1])


async def test_fs_11_an_edit_needs_a_unique_match_and_the_current_revision() -> None:
    place = MemoryFiles()
    first = await place.write("/a", "aXa aaa")
    edit = kit(place, read_only=False)["edit_file"]
    revision = first.revision
    assert "more than once" in await refused(edit, path="/a", old="aa", new="b", revision=revision)
    assert "does not contain" in await refused(edit, path="/a", old="q", new="b", revision=revision)
    assert "does not contain" in await refused(edit, path="/a", old="", new="b", revision=revision)
    assert "has changed" in await refused(edit, path="/a", old="X", new="b", revision="999")
    assert await place.read("/a") == first
    assert await call(edit, path="/a", old="X", new="\\1", revision=revision) == "/a is changed, revision 2"
    held = await place.read("/a")
    assert held is not None
    assert held.text == "a\\1a aaa"


async def test_fs_11_delete_removes_one_file_and_write_creates_or_replaces_by_revision() -> None:
    place = MemoryFiles()
    tools = kit(place, read_only=False)
    assert await call(tools["write_file"], path="a", text="1") == "/a is written, revision 1"
    assert await call(tools["write_file"], path="/a/b", text="1") == "/a/b is written, revision 2"
    assert "exists already" in await refused(tools["write_file"], path="/a", text="2")
    assert await call(tools["write_file"], path="/a", text="2", revision="1") == "/a is written, revision 3"
    assert "has changed" in await refused(tools["delete_file"], path="/a", revision="1")
    assert await call(tools["delete_file"], path="/a", revision="3") == "/a is deleted"
    assert [entry.path for entry in (await place.list()).entries] == ["/a/b"]


async def test_fs_11_a_read_only_mount_is_told_to_the_model() -> None:
    place = CompositeFiles(MemoryFiles(), {"/docs": StaticFiles({"/a": "x"})})
    write = kit(place, read_only=False)["write_file"]
    assert await refused(write, path="/docs/b", text="x") == "/docs/b is read-only"


@pytest.mark.parametrize("wait", [False, True])
async def test_fs_12_the_factory_gets_the_conversation_id(wait: bool) -> None:
    asked: list[str | None] = []

    def make(conversation_id: str | None) -> Files:
        asked.append(conversation_id)
        return StaticFiles({f"/{conversation_id}": ""})

    async def later(conversation_id: str | None) -> Files:
        return make(conversation_id)

    tools = kit(later if wait else make)
    assert await call(tools["glob"], conversation_id="c1") == "/c1\n[no more files]"
    assert await call(tools["glob"]) == "/None\n[no more files]"
    assert asked == ["c1", None]


async def test_fs_13_an_excerpt_of_more_than_600_characters_reaches_the_answer() -> None:
    text = "word " * 200 + "the end of it"
    agent = planned([use("read_file"), {"path": "/a"}, ANSWER, "done"], tools=file_tools(StaticFiles({"/a": text})))
    result = await run(agent)
    assert result.text == "done"
    assert text in prompt(agent, 3)


async def test_fs_14_tools_that_write_need_somebody_to_confirm() -> None:
    # Ours is stricter than the catalogue: an agent that could never write is refused when it is made.
    with pytest.raises(ConfigError, match="confirm"):
        planned([], tools=file_tools(MemoryFiles(), read_only=False), confirm=None)


async def test_fs_14_the_confirmation_of_a_run_decides_over_a_write() -> None:
    place = MemoryFiles()

    def never(request: ConfirmRequest) -> bool:
        return False

    script = [use("write_file"), {"path": "/a", "text": "x"}, ANSWER, "done"]
    declined = await run(planned(script, tools=file_tools(place, read_only=False), confirm=never))
    assert (declined.steps[0].status, await place.read("/a")) == ("skipped", None)
    agent = planned(script, tools=file_tools(place, read_only=False), confirm=never)
    approved = await run(agent, confirm=approve_all)
    assert (approved.steps[0].status, approved.steps[0].result) == ("executed", "/a is written, revision 1")


async def test_fs_15_older_excerpts_leave_the_prompt_and_stay_in_the_steps() -> None:
    texts = {f"/{name}": f"{name} words " * 150 for name in "abcd"}
    script = [item for path in texts for item in (use("read_file", path), {"path": path})]
    agent = planned([*script, ANSWER, "done"], tools=file_tools(StaticFiles(texts)))
    result = await run(agent)
    # A window of 4096 has room for 1024 tokens of excerpts: two of these, the newest.
    assert [text.strip() in prompt(agent, 9) for text in texts.values()] == [False, False, True, True]
    assert [text in (step.result or "") for step, text in zip(result.steps, texts.values(), strict=False)] == [True] * 4


async def test_fs_16_glob_grep_and_read_make_one_run_that_keeps_its_budget() -> None:
    place = StaticFiles({"/notes/plan.md": "buy milk\n" * 300, "/other": "milk"})
    script = [
        use("glob"), {"pattern": "**/*.md"}, use("grep"), {"text": "milk"}, use("read_file"),
        {"path": "/notes/plan.md"}, ANSWER, "Buy milk.",
    ]  # fmt: skip
    agent = planned(script, tools=file_tools(place), loop=Conductor(strict_budget=True))
    result = await run(agent)
    assert [step.status for step in result.steps[:3]] == ["executed"] * 3
    assert (result.text, result.handled_by) == ("Buy milk.", "device")
    assert roles(agent)[-1] == "answer"


@pytest.mark.parametrize("budget", [60, 100, 512])
async def test_fs_17_an_excerpt_of_dense_unicode_shrinks_until_it_fits(budget: int) -> None:
    place = StaticFiles({f"/{'漢' * 300}": "字" * 50 + "針" + "字" * 500 + "\n", "/龍": "針\n" * 12})
    found = await pages(kit(place)["grep"], budget, text="針")
    assert found[0].startswith("/漢")
    assert sum(page.count("\n/龍:") + page.startswith("/龍:") for page in found) == 12


async def test_fs_18_what_a_hook_puts_in_place_of_content_is_cut_to_the_budget_and_the_output_stays() -> None:
    class Long(Extension[Any]):
        name = "long"

        def after_tool(self, ctx: Any, question: Any) -> str:
            return "x" * 10_000

    script = [use("read_file"), {"path": "/a"}, ANSWER, "done"]
    # A window of 1600 leaves 200 tokens for a result.
    tools = [kit(StaticFiles({"/a": "text"}))["read_file"]]
    agent = planned(script, tools=tools, extensions=[Long()], loop=Conductor(window=1600))
    result = await run(agent)
    step = result.steps[0]
    assert step.result is not None
    assert estimate(step.result) <= 200
    assert "[truncated: " in step.result
    assert "text\n[end of file]" in step.output


async def test_fs_19_a_cursor_of_another_query_or_within_a_character_is_rejected() -> None:
    from goliath_actors.files._pages import digest, make_cursor

    place = StaticFiles({"/a": "e\u0301" * 3000, "/b": "e\u0301" * 3000})
    held = await place.read("/a")
    assert held is not None
    tools = kit(place)
    more = MORE.search(await call(tools["read_file"], path="/a"))
    assert more is not None
    assert "belongs to another" in await refused(tools["read_file"], path="/b", cursor=more[1])
    assert "belongs to another" in await refused(tools["glob"], cursor=more[1])
    assert "no cursor" in await refused(tools["grep"], text="e", cursor="7")
    forged = make_cursor(3, digest("/a"), digest("read", "/a", held.revision))
    assert "within a character" in await refused(tools["read_file"], path="/a", cursor=forged)


async def test_a_character_that_no_page_can_hold_is_told_instead_of_split() -> None:
    tool = kit(StaticFiles({"/a": "e" + "\u0301" * 2000 + "\nnext"}))["read_file"]
    assert "not one character of line 1 fits" in await refused(tool, path="/a")
    assert body(await call(tool, path="/a", line=2)) == "next"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": "/a", "lines": 201}),
        ("read_file", {"path": "/a", "line": 0}),
        ("grep", {"text": ""}),
        ("grep", {"text": "x" * 257}),
        ("glob", {"pattern": "x" * 513}),
        ("glob", {"cursor": "x" * 4097}),
    ],
)
async def test_arguments_have_limits(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolInputError):
        await call(kit(StaticFiles({}))[name], **arguments)


async def test_a_factory_that_returns_no_place_is_the_applications_mistake_and_not_told_to_the_model() -> None:
    with pytest.raises(TypeError, match="no place for files"):
        await call(kit(lambda conversation_id: None)["glob"])
