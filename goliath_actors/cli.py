"""The command `goliath-actors`: `serve`, `chat`, `demo`, `loadtest`, `tools`, `hooks` and `token`.

Uses only the public API; what a command needs is imported when that command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from ._cli.parser import build_parser, refuse_unknown

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Arguments: `argv`, the arguments without the program's name; None takes those of the process.

    Returns: the exit code: 0 ok, 1 an error, 2 wrong usage or set-up, 130 interrupted.
    """
    parser = build_parser()
    try:
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            refuse_unknown(unknown, arguments.command)
    except SystemExit as end:  # argparse has printed help, a version, or what is wrong
        return end.code if isinstance(end.code, int) else 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        from ._cli.command import Terminal, run_command
    except KeyboardInterrupt:  # importing takes a second or two; behind it, the command itself hears Ctrl-C
        if sys.stderr is not None:
            print("interrupted", file=sys.stderr)
        return 130

    with ExitStack() as opened:
        # Python has None for a stream that the caller closed. The next file opened gets its number: hence in order.
        stdin = sys.stdin or opened.enter_context(open(os.devnull))
        stdout = sys.stdout or opened.enter_context(open(os.devnull, "w"))
        stderr = sys.stderr or opened.enter_context(open(os.devnull, "w"))
        return run_command(arguments, Terminal(stdin, stdout, stderr, os.environ, os.getcwd()))
