"""The arguments. Light on purpose: `--help` and `--version` import nothing beyond this room."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import NoReturn

from goliath_actors import __version__

__all__ = ["build_parser", "refuse_unknown"]

_TOP = """\
examples:
  goliath-actors serve                    a page to chat in, and an HTTP API, on this machine
  goliath-actors demo                     a guided tour, no network and no model needed
  goliath-actors chat                     talk to a small assistant with whatever model is found
  goliath-actors chat myapp.bot:agent     talk to an agent of your own
  echo "what time is it?" | goliath-actors chat
  goliath-actors tools myapp.bot:agent    what the agent may do
  goliath-actors hooks                    where an extension can look in and decide
  goliath-actors loadtest                 how much of it a machine takes

'goliath-actors COMMAND --help' says more about a command.
"""

_CHAT = """\
examples:
  goliath-actors chat
  goliath-actors chat --model qwen3:4b
  goliath-actors chat --model my-model --model-url http://127.0.0.1:8000/v1
  goliath-actors chat myapp.bot:agent --store chat.db --conversation u1
  printf 'add a note: buy milk\\nlist the notes\\n' | goliath-actors chat --yes

the model, first match wins:
  --model demo            the demo model: fixed rules, no network
  --model local           a small model in a server of our own (needs the extra 'local')
  --model-url URL         that server; --model names the model, else its first one
  a module:agent          brings its own model
  OPENAI_BASE_URL         that server; OPENAI_API_KEY alone: OpenAI, with --model
  127.0.0.1:11434         Ollama, if it answers; then 127.0.0.1:8080, llama.cpp
  otherwise               the demo model

while it runs: Ctrl-C aborts the run, not the program. At the prompt: Ctrl-C twice, Ctrl-D or /quit leaves.
exit codes: 0 ok, 1 an ask failed, 2 wrong usage, 130 interrupted.
"""

_SERVE = """\
examples:
  goliath-actors serve
  goliath-actors serve --model qwen3:4b --port 9000
  goliath-actors serve myapp.bot:agent myapp.bot:helper --store chat.db
  goliath-actors token ada >> tokens.txt
  goliath-actors serve --host 0.0.0.0 --token-file tokens.txt

without an agent: a built-in assistant, once with native tool calling and once planned, on a model that is found as
'goliath-actors chat --help' tells.

SIGTERM, Ctrl-C or a terminal that closes: takes no more, lets runs go on for the grace, aborts the rest, exit
code 0. Again: aborts at once. A third time: ends. What was accepted and had not begun is run when it is started again.

GOLIATH_ACTORS_TOKENS has lines as a token file's, separated by semicolons.
"""

_TOKEN = """\
examples:
  goliath-actors token ada >> tokens.txt
  goliath-actors token ops --scopes read,admin >> tokens.txt

The token itself is shown once, on standard error; the line for the file, which holds only its hash, on standard output.
"""

_DEMO = """\
examples:
  goliath-actors demo
  NO_COLOR=1 goliath-actors demo > tour.txt

exit code 0 only if everything shown held, and every accepted run was told to its observers.
"""

_TOOLS = """\
examples:
  goliath-actors tools
  goliath-actors tools myapp.bot:agent
  goliath-actors tools myapp.bot:agent --json
"""

_LOADTEST = """\
examples:
  goliath-actors loadtest                                     a runtime in this process, a simulated model
  goliath-actors loadtest --show-scenario > evening.toml      a file to start from
  goliath-actors loadtest --scenario evening.toml --html report.html
  goliath-actors loadtest myapp.bot:agent --rate 50 --duration 1min
  goliath-actors loadtest --model-url http://127.0.0.1:8000/v1 --model qwen3:4b --conversations 200
  goliath-actors loadtest --backend http://127.0.0.1:8765 --conversations 500 --agent planner --fail-if 'p99>2s'

open loop (--rate): asks come at that rate whatever the answers do, and latency counts from the intended start.
closed loop (--conversations alone): each client asks, waits, thinks and asks again.
conditions: p50, p75, p90, p95, p99, p99.9, mean, max of the latency (or first.p99: first words, queued.p99: wait for
the turn, lag.p99: sent late) against a time; errors, refused, aborted, completed, not_sent against a count or a share
such as 1%; rate against answers a second.
Ctrl-C ends it early, with its reports, and a second one at once. It ends by itself: --duration, --max-asks, and a
minute for the last answers.
A backend's bearer token (scope admin) is read from GOLIATH_TOKEN, a model server's key from OPENAI_API_KEY.
exit codes: 0 ok, 1 a check failed or a threshold is broken, 2 wrong usage, 130 interrupted.
"""

_HOOKS = """\
examples:
  goliath-actors hooks
  goliath-actors hooks --json
"""


_WRONG_COMMAND = re.compile(r"argument COMMAND: invalid choice: (.+) \(choose from (.+)\)")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        wrong = _WRONG_COMMAND.match(message)
        if wrong is not None:
            commands = wrong[2].replace("'", "")
            message = f"there is no command {wrong[1]} (there are {commands})"
        self.exit(2, f"goliath-actors: {message}; see '{self.prog} --help'\n")


def refuse_unknown(arguments: Sequence[str], command: str | None) -> NoReturn:
    """End the program, as argparse does, but point to the help of the command in whose line they stand."""
    prog = "goliath-actors" if command is None else f"goliath-actors {command}"
    _Parser(prog=prog).error(f"unrecognized arguments: {' '.join(arguments)}")


def _positive(text: str, of: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of {of}")
    return value


def _seconds(text: str) -> float:
    return _positive(text, "seconds")


def _rate(text: str) -> float:
    return _positive(text, "asks a second")


def _not_negative(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0") else _seconds(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is no count of at least 1")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port, which is a number from 0 to 65535")
    return int(text)


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is blank")
    return text


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line. Its namespace has `command` and the options of that command."""
    common = _Parser(add_help=False)
    common.add_argument("--traceback", action="store_true", help="show where an error comes from")
    raw = argparse.RawDescriptionHelpFormatter
    top = _Parser(
        prog="goliath-actors",
        description="Language-model conversations as actors on trio.",
        epilog=_TOP,
        formatter_class=raw,
    )
    top.add_argument("--version", action="version", version=f"goliath-actors {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    chat = commands.add_parser(
        "chat",
        parents=[common],
        help="talk to an agent in the terminal",
        description="Talk to an agent in the terminal, or ask it one line of standard input at a time.",
        epilog=_CHAT,
        formatter_class=raw,
    )
    _agent(chat)
    chat.add_argument("--model", type=_text, metavar="NAME", help="name of the model, or 'demo', or 'local'")
    chat.add_argument("--model-url", type=_text, metavar="URL", help="an OpenAI-compatible server, up to /v1")
    chat.add_argument("--conversation", type=_text, metavar="ID", help="which conversation (default: the agent's own)")
    chat.add_argument("--store", type=_text, metavar="FILE", help="keep conversations in this file (default: memory)")
    chat.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="abort a run that takes longer")
    chat.add_argument("--yes", action="store_true", help="approve whatever asks for confirmation")
    chat.add_argument("-q", "--quiet", action="store_true", help="show answers and errors, not the steps")

    serve = commands.add_parser(
        "serve",
        parents=[common],
        help="serve agents over HTTP, with a page to chat in",
        description="Serve agents over HTTP, with a page to chat in. Only this machine can reach it, unless told so.",
        epilog=_SERVE,
        formatter_class=raw,
    )
    serve.add_argument("agents", nargs="*", metavar="module:agent", help="Agents in your code")
    serve.add_argument("--host", type=_text, default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    serve.add_argument("--port", type=_port, default=8765, metavar="PORT", help="default: 8765; 0: any free one")
    serve.add_argument("--model", type=_text, metavar="NAME", help="of the assistant: a name, or 'demo', or 'local'")
    serve.add_argument("--model-url", type=_text, metavar="URL", help="an OpenAI-compatible server, up to /v1")
    serve.add_argument(
        "--store",
        type=_text,
        default="goliath-chat.db",
        metavar="FILE",
        help="default: goliath-chat.db; or 'memory'; or postgresql://user@host/name, for several servers",
    )
    serve.add_argument("--token-file", type=_text, metavar="FILE", help="who may enter; see 'goliath-actors token'")
    serve.add_argument("--insecure", action="store_true", help="take other addresses than loopback without tokens")
    serve.add_argument(
        "--allow-host", type=_text, action="append", default=[], metavar="NAME", help="a name of this host"
    )
    serve.add_argument(
        "--cors-origin", type=_text, action="append", default=[], metavar="ORIGIN", help="pages that may call"
    )
    serve.add_argument("--max-running", type=_count, default=1000, metavar="N", help="runs at once (default: 1000)")
    serve.add_argument(
        "--max-waiting", type=_count, default=1000, metavar="N", help="asks that may wait (default: 1000)"
    )
    serve.add_argument(
        "--mailbox", type=_count, default=16, metavar="N", help="of them in one conversation (default: 16)"
    )
    serve.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="abort a run that takes longer")
    serve.add_argument(
        "--drain-grace", type=_not_negative, default=20.0, metavar="SECONDS", help="for runs at the end (default: 20)"
    )
    serve.add_argument(
        "--idle-timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="keep idle ones in memory (default: 300)",
    )
    serve.add_argument("--yes", action="store_true", help="approve whatever asks for confirmation")

    token = commands.add_parser(
        "token",
        parents=[common],
        help="make a token for 'serve --token-file'",
        description="Make a token: what a client sends, and the line that lets it in.",
        epilog=_TOKEN,
        formatter_class=raw,
    )
    token.add_argument("name", type=_text, metavar="NAME", help="whose conversations it opens")
    token.add_argument(
        "--scopes", type=_text, default="chat", metavar="SCOPES", help="of read, chat, admin (default: chat)"
    )

    commands.add_parser(
        "demo",
        parents=[common],
        help="a guided tour of what a runtime promises",
        description="A guided tour with a labelled demo model: in this process, without network, in seconds.",
        epilog=_DEMO,
        formatter_class=raw,
    )

    tools = commands.add_parser(
        "tools",
        parents=[common],
        help="list an agent's tools",
        description="List an agent's tools: names, arguments, and whether they change anything.",
        epilog=_TOOLS,
        formatter_class=raw,
    )
    _agent(tools)
    tools.add_argument("--json", action="store_true", help="print JSON, schemas included")

    hooks = commands.add_parser(
        "hooks",
        parents=[common],
        help="list the hooks an extension may have",
        description="List the hooks an extension may have: when they are asked, and what they may answer.",
        epilog=_HOOKS,
        formatter_class=raw,
    )
    hooks.add_argument("--json", action="store_true", help="print JSON")
    _loadtest(
        commands.add_parser(
            "loadtest",
            parents=[common],
            help="put load on a runtime, a model server or a chat backend",
            description="Drive whole conversations, measure them, and check that nothing accepted was lost.",
            epilog=_LOADTEST,
            formatter_class=raw,
        )
    )
    return top


def _loadtest(load: argparse.ArgumentParser) -> None:
    target = load.add_argument_group("what is driven (default: a runtime in this process, with a simulated model)")
    target.add_argument("agent", nargs="?", metavar="module:agent", help="an Agent in your code, in this process")
    target.add_argument("--model-url", type=_text, metavar="URL", help="an OpenAI-compatible server, up to /v1")
    target.add_argument("--model", type=_text, metavar="NAME", help="the model's name there")
    target.add_argument("--backend", type=_text, metavar="URL", help="a running chat backend")
    target.add_argument("--agent", dest="served", type=_text, metavar="NAME", help="its agent (default: its first)")
    target.add_argument("--allow-host", action="append", default=[], metavar="HOST", help="a host that may be loaded")
    what = load.add_argument_group("what happens (overrules the scenario)")
    what.add_argument("--scenario", type=_text, metavar="FILE", help="a TOML file, or module:scenario in your code")
    what.add_argument("--duration", type=_text, metavar="TIME", help="how long, such as 30s or 5min (default: 10s)")
    what.add_argument("--rate", type=_rate, metavar="N", help="open loop: asks a second")
    what.add_argument("--arrivals", choices=("poisson", "fixed"), help="open loop: at random (default), or evenly")
    what.add_argument("--trace", type=_text, metavar="FILE", help="open loop: starts in seconds, one a line")
    what.add_argument(
        "--conversations", type=_count, metavar="N", help="how many (default: 20; open loop: 10 for each ask a second)"
    )
    what.add_argument("--max-asks", type=_count, metavar="N", help="stop sending after so many")
    what.add_argument("--seed", type=int, metavar="N", help="of everything that is drawn (default: 1)")
    what.add_argument(
        "--show-scenario", action="store_true", help="print all that would happen, as a scenario file, and end"
    )
    told = load.add_argument_group("what is told")
    told.add_argument(
        "--fail-if", action="append", default=[], metavar="COND", help="such as 'p99>2s'; may be repeated"
    )
    told.add_argument(
        "--json", type=_text, metavar="FILE", help="write the report as data; -: print it instead of the table"
    )
    told.add_argument("--html", type=_text, metavar="FILE", help="write the report as a page with plots")


def _agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agent",
        nargs="?",
        metavar="module:agent",
        help="an Agent in your code (default: a built-in assistant with harmless tools)",
    )
