"""A real PostgreSQL server for tests: made in a temporary directory, stopped, restarted and killed by them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest


def programs() -> Path | None:
    """Return the folder of the newest server that is installed, if one is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


@attrs.define(eq=False)
class Server:
    """One server, reachable over loopback and by a socket file."""

    home: Path
    bin: Path
    port: int

    @property
    def address(self) -> str:
        """A connection string."""
        return f"postgresql://tester:s3cret@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-k {self.home} -h 127.0.0.1 -p {self.port} -F -c max_connections=60"
        self.control("start", "-o", options, "-l", str(self.home / "log"))

    def stop(self, mode: str = "fast") -> None:
        self.control("stop", "-m", mode)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server at once, as a crash does."""
        pid = int((self.home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        self.control("stop", "-m", "immediate", check=False)

    def control(self, *words: str, check: bool = True) -> None:
        command = [str(self.bin / "pg_ctl"), "-D", str(self.home / "data"), "-w", "-t", "60", *words]
        run_as_postgres(command, check=check)


def run_as_postgres(command: list[str], *, check: bool = True) -> None:
    """PostgreSQL refuses to run as root: give it the user that its package made."""
    if os.getuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
    assert not check or done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running_server() -> Iterator[Server]:
    """Make and start a server; skip the test where none is installed, unless CI is set."""
    bin = programs()
    if bin is None:
        if os.environ.get("CI"):
            pytest.fail("no PostgreSQL server is installed; run scripts/services")
        pytest.skip("no PostgreSQL server is installed; scripts/services installs one")
    home = Path(tempfile.mkdtemp(prefix="goliath-postgres-"))
    try:
        if os.getuid() == 0:
            shutil.chown(home, "postgres", "postgres")
        password = home / "password"
        password.write_text("s3cret")
        password.chmod(0o644)
        initdb = [str(bin / "initdb"), "-D", str(home / "data"), "-U", "tester", "-A", "scram-sha-256", "-E", "UTF8"]
        run_as_postgres([*initdb, "--locale=C", "-N", f"--pwfile={password}"])
        server = Server(home, bin, free_port())
        server.start()
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate", check=False)
    finally:
        shutil.rmtree(home, ignore_errors=True)
