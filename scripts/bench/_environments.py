"""An environment for each peer, made once in `.bench/` of the checkout: peers and we have no library in common."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _figures import NoFigure, last_word

__all__ = ["PEERS", "python_of"]

PLACE = Path(__file__).parents[2] / ".bench"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
# As they were newest when the figures in docs/performance.md were taken; what they need themselves is in CONSTRAINTS.
PEERS = {
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.68.0"],
    "openai-agents": ["openai-agents==0.24.0"],
    "langgraph": ["langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4"],
    "autogen-agentchat": ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"],
    "autogen-core": ["autogen-core==0.7.5"],
    "pykka": ["pykka==4.5.0"],
    "httpx": ["httpx==0.28.1"],
    "aiohttp": ["aiohttp==3.14.5"],
}


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, made on first use from the package index.

    Raises: `NoFigure` if it cannot be made.
    """
    try:
        return _made(peer, PEERS[peer])
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoFigure(f"its environment could not be made: {last_word(error)}") from error


def _made(name: str, packages: Sequence[str]) -> Path:
    folder = PLACE / name
    python, done = folder / "bin" / "python", folder / "done"
    wanted = "\n".join([*packages, CONSTRAINTS.read_text()])
    if not done.exists() or done.read_text() != wanted:
        print(f"making an environment for {name} (once)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, stderr=subprocess.PIPE, text=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS]
        subprocess.run([*pip, *packages], check=True, stderr=subprocess.PIPE, text=True)
        done.write_text(wanted)
    return python
