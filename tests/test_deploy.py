"""What is shown for deploying is right: options exist, files are what their programs take, pages quote them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors._cli.parser import build_parser
from goliath_actors.server import ServerConfig
from goliath_actors.testing import Gate, Journal, ScriptedModel

from .postgres_server import free_port
from .web import Raw, open_web

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
UNIT = DEPLOY / "goliath-actors@.service"
NGINX = DEPLOY / "nginx.conf"
DOCKERFILE = DEPLOY / "Dockerfile"
GUIDE = (ROOT / "docs" / "guides" / "deploying.md").read_text(encoding="utf-8")


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def serve_line(words: list[str]) -> list[str]:
    """The arguments behind the program of a command that serves."""
    assert words[0].endswith("goliath-actors")
    return words[1:]


def commands() -> list[list[str]]:
    unit = settings(UNIT.read_text(encoding="utf-8"))["ExecStart"].replace("%i", "8765")
    container = re.search(r"^CMD (\[.*\])$", DOCKERFILE.read_text(encoding="utf-8"), re.M)
    assert container is not None
    found = [serve_line(shlex.split(unit)), serve_line(re.findall(r'"([^"]*)"', container[1]))]
    return found + [serve_line(shlex.split(line)) for line in re.findall(r"^goliath-actors serve .*$", GUIDE, re.M)]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_the_commands_have_only_options_that_there_are(arguments: list[str]) -> None:
    parsed = build_parser().parse_args(arguments)
    assert parsed.store.startswith("postgresql://")
    assert parsed.agents == ["myapp.bot:agent"]


def test_there_is_time_for_the_grace_before_the_service_is_killed() -> None:
    unit = settings(UNIT.read_text(encoding="utf-8"))
    grace = build_parser().parse_args(commands()[0]).drain_grace
    assert float(unit["TimeoutStopSec"]) > grace + 10  # see LEAVE in the server: seconds for the last bytes
    assert unit["KillSignal"] == "SIGTERM"


def test_the_guide_quotes_the_files() -> None:
    wanted = {"ini": UNIT, "nginx": NGINX, "text": DOCKERFILE}
    for language, path in wanted.items():
        block = re.search(rf"^```{language}\n(.*?)^```$", GUIDE, re.M | re.S)
        assert block is not None, language
        lines = {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
        assert [line for line in block[1].splitlines() if line.strip() and line.strip() not in lines] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # The program that it starts has to be there.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/chat/.venv/bin/goliath-actors", sys.executable)
    (tmp_path / "goliath-actors@8765.service").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "goliath-actors@8765.service")],
        capture_output=True, text=True,
    )  # fmt: skip
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "goliath-actors@8765" in line]
    assert ours == []


def nginx_of(folder: Path, text: str) -> list[str]:
    """Write a whole configuration around ours that keeps to a folder; return the command."""
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    around = f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{places}"
    (folder / "nginx.conf").write_text(f"{around}{text}\n}}\n", encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


@pytest.mark.skipif(shutil.which("nginx") is None and "CI" not in os.environ, reason="nginx is not installed")
async def test_text_reaches_a_reader_behind_nginx_as_it_comes_and_leaving_ends_the_run(tmp_path: Path) -> None:
    more, journal = Gate(), Journal()

    class Slow(Extension[Any]):
        name = "slow"

        async def transform_stream(self, ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
            async for event in events:
                yield event
                if more.reached or "first" in getattr(event, "text", ""):
                    await more.pass_through()

    agent = Agent(
        name="assistant",
        model=ScriptedModel(["first second"], chunk=6),
        extensions=[Slow(), journal],
        loop=ToolLoop(),
    )
    port = free_port()
    async with open_web(agent, config=ServerConfig(insecure=True)) as web:
        text = NGINX.read_text(encoding="utf-8").replace("listen 8080", f"listen 127.0.0.1:{port}")
        text = text.replace("server 127.0.0.1:8765;", f"server 127.0.0.1:{web.server.port};")
        command = nginx_of(tmp_path, text.replace("    server 127.0.0.1:8766;\n", ""))
        async with trio.open_nursery() as nursery:
            process = await nursery.start(trio.run_process, command)
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:
                while True:  # nginx says nothing when it listens
                    try:
                        assert (await client.get("/healthz")).status_code == 200
                        break
                    except httpx.TransportError:
                        await trio.sleep(0.01)
                assert (await client.get("/metrics")).status_code == 403
            reader = Raw(await trio.open_tcp_stream("127.0.0.1", port))
            await reader.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
            assert b"second" not in await reader.read_until(b'"text":"first "')
            await reader.stream.aclose()
            while not journal.heard("on_finish"):  # noqa: ASYNC110
                await trio.sleep(0.01)
            process.terminate()
    assert journal.heard("on_finish") == [("Hi.", "aborted")]
