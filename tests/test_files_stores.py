"""Places for virtual files: in memory, in SQLite, fixed, and put together. The FS lines of the catalogue."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors.errors import ConfigError, StoreConflict, StoreError, StoreTooNew
from goliath_actors.files import (
    CompositeFiles,
    File,
    Files,
    MemoryFiles,
    ReadOnlyFiles,
    SqliteFiles,
    StaticFiles,
    WritableFiles,
    normalise,
)
from goliath_actors.files._paths import Glob


@pytest.fixture(params=["memory", "sqlite"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> WritableFiles:
    return MemoryFiles() if request.param == "memory" else SqliteFiles(tmp_path / "files.db", "one")


async def paths(place: Files, under: str = "/", limit: int = 64) -> list[str]:
    """All paths below one, page by page."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = await place.list(under, after, limit)
        assert len(page.entries) <= limit
        found += [entry.path for entry in page.entries]
        if page.next is None:
            return found
        after = page.next


async def filled(place: WritableFiles, *names: str) -> WritableFiles:
    for name in names:
        await place.write(name, f"text of {name}")
    return place


async def test_fs_01_a_write_without_a_revision_creates_and_never_replaces(files: WritableFiles) -> None:
    made = await files.write("/a", "one")
    with pytest.raises(StoreConflict, match="exists already"):
        await files.write("/a", "two")
    assert await files.read("/a") == File("/a", "one", made.revision)


async def test_fs_01_a_write_with_the_current_revision_replaces(files: WritableFiles) -> None:
    first = await files.write("/a", "one")
    second = await files.write("/a", "two", first.revision)
    assert second.revision != first.revision
    assert await files.read("/a") == File("/a", "two", second.revision)


async def test_fs_01_stale_writes_and_deletes_are_rejected_and_change_nothing(files: WritableFiles) -> None:
    first = await files.write("/a", "one")
    second = await files.write("/a", "two", first.revision)
    with pytest.raises(StoreConflict, match="has changed"):
        await files.write("/a", "three", first.revision)
    with pytest.raises(StoreConflict, match="has changed"):
        await files.delete("/a", first.revision)
    assert await files.read("/a") == second


async def test_fs_01_a_revision_is_not_given_out_again_after_a_delete(files: WritableFiles) -> None:
    first = await files.write("/a", "one")
    await files.delete("/a", first.revision)
    assert await files.read("/a") is None
    with pytest.raises(StoreConflict, match="does not exist"):
        await files.delete("/a", first.revision)
    with pytest.raises(StoreConflict, match="does not exist"):
        await files.write("/a", "two", first.revision)
    assert (await files.write("/a", "two")).revision != first.revision


async def test_fs_02_a_listing_ends_at_the_boundary_of_a_directory(files: WritableFiles) -> None:
    await filled(files, "/notes", "/notes/a", "/notes/b/c", "/notes2", "/notes2/a", "/notes!")
    assert await paths(files, "/notes") == ["/notes", "/notes/a", "/notes/b/c"]


@pytest.mark.parametrize("limit", [1, 2, 256])
async def test_fs_02_a_listing_is_in_the_order_of_code_points_and_in_pages(files: WritableFiles, limit: int) -> None:
    names = ["/b", "/B", "/ä", "/a/b", "/a", "/\U0001f600", "/\uffee"]
    await filled(files, *names)
    assert await paths(files, "/", limit) == sorted(names)


async def test_fs_02_sizes_are_bytes_and_texts_come_back_as_they_were(files: WritableFiles) -> None:
    text = "ä\0\r\n\ud800"
    made = await files.write("/a", text)
    assert await files.read("/a") == made
    assert [entry.size for entry in (await files.list()).entries] == [8]


async def test_fs_02_a_cancelled_read_is_cancelled(files: WritableFiles) -> None:
    await files.write("/a", "one")
    with trio.CancelScope() as scope:
        scope.cancel()
        await files.read("/a")
    assert scope.cancelled_caught


async def test_fs_02_a_cancelled_write_writes_nothing(files: WritableFiles) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await files.write("/a", "one")
    assert scope.cancelled_caught
    assert await files.read("/a") is None


@pytest.mark.parametrize("path", ["/../a", "/a/..", "a", "", "/", "/a\\b", "/a\0", "/\ud800", "/" + "x" * 512])
async def test_fs_02_what_is_no_path_of_a_file_is_rejected(files: WritableFiles, path: str) -> None:
    with pytest.raises(ConfigError):
        await files.write(path, "one")
    with pytest.raises(ConfigError):
        await files.read(path)
    assert await paths(files) == []


async def test_fs_02_a_file_holds_one_mebibyte_and_no_more(files: WritableFiles) -> None:
    made = await files.write("/a", "x" * 1024 * 1024)
    with pytest.raises(ConfigError, match="1048577 bytes"):
        await files.write("/a", "x" * (1024 * 1024 + 1), made.revision)
    with pytest.raises(ConfigError):
        await files.write("/b", "ä" * (512 * 1024 + 1))
    assert await paths(files) == ["/a"]


@pytest.mark.parametrize("limit", [0, 257, True])
async def test_a_page_of_a_listing_has_1_to_256_files(files: WritableFiles, limit: int) -> None:
    with pytest.raises(ConfigError):
        await files.list("/", None, limit)


def test_a_path_has_one_form() -> None:
    assert [normalise(path) for path in ("/", "//a/./b/", "/a.b/..c")] == ["/", "/a/b", "/a.b/..c"]
    assert normalise("/" + "x" * 511) == "/" + "x" * 511


async def test_fs_03_files_in_sqlite_outlive_the_object_and_namespaces_are_apart(tmp_path: Path) -> None:
    made = await SqliteFiles(tmp_path / "f.db", "one").write("/a", "text")
    assert await SqliteFiles(tmp_path / "f.db", "one").read("/a") == made
    other = SqliteFiles(tmp_path / "f.db", "two")
    assert await other.read("/a") is None
    await other.write("/b", "text")
    assert await paths(SqliteFiles(tmp_path / "f.db", "one")) == ["/a"]


async def test_fs_03_any_string_names_a_namespace(tmp_path: Path) -> None:
    names = ["", "a", "a\0", "\ud800", "\\ud800"]
    for name in names:
        await SqliteFiles(tmp_path / "f.db", name).write("/a", repr(name))
    held = [await SqliteFiles(tmp_path / "f.db", name).read("/a") for name in names]
    assert [file.text for file in held if file] == [repr(name) for name in names]


async def test_fs_03_exactly_one_of_two_edits_of_one_revision_wins(tmp_path: Path) -> None:
    first = await SqliteFiles(tmp_path / "f.db").write("/a", "start")
    ended: list[str] = []

    async def edit(text: str) -> None:
        try:
            await SqliteFiles(tmp_path / "f.db").write("/a", text, first.revision)
        except StoreConflict:
            ended.append("conflict")
        else:
            ended.append(text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(edit, "left")
        nursery.start_soon(edit, "right")
    held = await SqliteFiles(tmp_path / "f.db").read("/a")
    assert held is not None
    assert sorted(ended) == ["conflict", held.text]


async def test_fs_03_a_database_of_another_program_or_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    for name, sql in [("other.db", "CREATE TABLE theirs (x)"), ("newer.db", "PRAGMA user_version = 2")]:
        with closing(sqlite3.connect(tmp_path / name)) as db:
            db.execute(sql)
            db.commit()
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at as one" * 20)
    with pytest.raises(StoreError, match="no file of SqliteFiles"):
        await SqliteFiles(tmp_path / "other.db").write("/a", "x")
    with pytest.raises(StoreTooNew):
        await SqliteFiles(tmp_path / "newer.db").write("/a", "x")
    with pytest.raises(StoreError, match="not a database"):
        await SqliteFiles(tmp_path / "text.db").read("/a")
    with pytest.raises(ConfigError):
        SqliteFiles(":memory:")


async def test_fs_04_static_files_are_a_snapshot_without_methods_to_write() -> None:
    given = {"/b": "two", "//a/": "one"}
    static = StaticFiles(given)
    given["/c"] = "three"
    held = await static.read("/a")
    assert held is not None
    assert (held.text, await paths(static), isinstance(static, Files)) == ("one", ["/a", "/b"], True)
    assert not isinstance(static, WritableFiles)
    same = await StaticFiles({"/x": "one"}).read("/x")
    assert same is not None
    assert same.revision == held.revision


async def composite() -> CompositeFiles:
    default = await filled(MemoryFiles(), "/a", "/docs/hidden", "/docs2", "/docs", "/z")
    inner = await filled(MemoryFiles(), "/deep")
    return CompositeFiles(default, {"/docs": StaticFiles({"/b": "b", "/in/x": "x"}), "/docs/in": inner})


async def test_fs_05_a_mount_shadows_what_the_default_has_there_and_inner_mounts_shadow_outer_ones() -> None:
    files = await composite()
    assert await paths(files) == ["/a", "/docs/b", "/docs/in/deep", "/docs2", "/z"]
    assert await files.read("/docs/hidden") is None
    assert await files.read("/docs/in/x") is None


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_fs_05_pages_go_through_all_places_in_one_order(limit: int) -> None:
    assert await paths(await composite(), "/", limit) == ["/a", "/docs/b", "/docs/in/deep", "/docs2", "/z"]


async def test_fs_05_a_path_is_routed_at_the_boundary_of_a_mount() -> None:
    files = await composite()
    assert await paths(files, "/docs") == ["/docs/b", "/docs/in/deep"]
    assert await paths(files, "/docs/in") == ["/docs/in/deep"]
    held = [await files.read(path) for path in ("/docs2", "/docs/b", "/docs/in/deep")]
    assert [(file.path, file.text) for file in held if file] == [
        ("/docs2", "text of /docs2"),
        ("/docs/b", "b"),
        ("/docs/in/deep", "text of /deep"),
    ]
    with pytest.raises(ConfigError, match="mounted"):
        await files.read("/docs")


async def test_fs_05_a_mount_without_methods_to_write_is_read_only_and_others_are_written() -> None:
    files = await composite()
    with pytest.raises(ReadOnlyFiles, match="/docs/b is read-only"):
        await files.write("/docs/b", "x")
    with pytest.raises(ReadOnlyFiles):
        await files.delete("/docs/b", "1")
    made = await files.write("/docs/in/new", "x")
    assert made.path == "/docs/in/new"
    await files.delete("/docs/in/new", made.revision)
    assert await files.read("/docs/in/new") is None


def test_a_mount_at_the_root_or_twice_at_one_path_is_refused() -> None:
    for mounts in ({"/": MemoryFiles()}, {"/a": MemoryFiles(), "/a/": MemoryFiles()}):
        with pytest.raises(ConfigError):
            CompositeFiles(MemoryFiles(), mounts)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.md", "/r/a.md", True),
        ("*.md", "/r/b/a.md", False),
        ("**/*.md", "/r/a.md", True),
        ("**/*.md", "/r/b/c/a.md", True),
        ("/r/?.md", "/r/a.md", True),
        ("/other/**", "/r/a.md", False),
        ("**", "/r/a.md", True),
        ("[ab].md", "/r/a.md", False),
        ("*" * 300 + "b", "/r/" + "a" * 400, False),
    ],
)
def test_a_pattern_matches_by_parts(pattern: str, path: str, expected: bool) -> None:
    assert Glob(pattern, "/r").matches(path) is expected


def naive(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return naive(pattern[1:], name) or (bool(name) and naive(pattern, name[1:]))
    return bool(name) and pattern[0] in ("?", name[0]) and naive(pattern[1:], name[1:])


@given(st.text("ab*?", min_size=1, max_size=7).filter(lambda text: text != "**"), st.text("ab", min_size=1, max_size=7))
def test_a_part_of_a_pattern_matches_as_the_definition_says(pattern: str, name: str) -> None:
    assert Glob(pattern).matches("/" + name) is naive(pattern, name)
