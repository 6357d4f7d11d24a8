"""Errors as one clear line with what to do next, and the exit codes."""

from __future__ import annotations

import re

from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    GoliathError,
    ModelUnavailable,
    RateLimited,
    Refused,
    RunAborted,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
)

from .screen import one_line

__all__ = [
    "EXIT_ERROR",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_SIGNAL",
    "EXIT_USAGE",
    "exit_code",
    "explain",
    "explain_reason",
    "without_type",
]

_TYPE = re.compile(r"^[A-Z]\w*(?:Error|Unavailable|Limited|Overflow|Refused|Request|Failure|Timeout|Exhausted): ")
# The library's own advice, which is said here with the address.
_RUNNING = "; is the server running?"

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2  # argparse's own, and that of most command lines
EXIT_SIGNAL = 128  # plus the signal's number, as shells count
EXIT_INTERRUPTED = 130  # SIGINT


def exit_code(error: Exception) -> int:
    """Return the exit code for an error that ends the command: 2 if the user's input or set-up is wrong, else 1."""
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR


def explain(error: BaseException, where: str | None = None) -> str:
    """Return one line: what went wrong and what to do. `where` is the address of the model, if it has one."""
    text = one_line(str(error)).removesuffix(_RUNNING) or type(error).__name__
    advice = _advice(error, where)
    if not isinstance(error, GoliathError):
        text = f"{type(error).__name__}: {text}" if text != type(error).__name__ else text
    return f"{text.rstrip('.')}{advice}" if advice else text


def _advice(error: BaseException, where: str | None) -> str:
    at = f" at {where}" if where else ""
    if isinstance(error, RunAborted):
        return "; raise --timeout, or leave it out" if error.cause == "deadline" else ""
    if isinstance(error, ModelUnavailable):
        return f"; is the server{at} running? Start it, name another with --model-url, or use --model demo"
    if isinstance(error, RateLimited):
        return "; wait a little and ask again" if error.retryable else "; look at the account's quota"
    if isinstance(error, ContextOverflow):
        return "; start afresh with /new, or serve the model with a larger context"
    if isinstance(error, Refused):
        return "; ask differently"
    if isinstance(error, BadRequest):
        if error.status in (401, 403):
            return "; check OPENAI_API_KEY"
        return "; check --model and --model-url" if error.status == 404 else ""
    if isinstance(error, StoreConflict):
        return "; somebody else uses this conversation, ask again"
    if isinstance(error, StoreCorrupt) or (isinstance(error, StoreError) and "; " in str(error)):
        return ""  # it says itself where the record went, or what to do
    if isinstance(error, StoreTooNew):
        return "; update goliath_actors, or name another file with --store"
    if isinstance(error, StoreError):
        return "; name another file with --store"
    return ""


def explain_reason(reason: str, error: str | None, where: str | None = None) -> str:
    """Return one line for a run that ended without an answer: the loop's reason, its error, and what to do."""
    at = f" at {where}" if where else ""
    text = without_type(error or "").removesuffix(_RUNNING)
    detail = f": {text}" if text else ""
    known = {
        "model-unavailable": (
            text if where and where in text else f"the model{at} is unavailable{detail}",
            "start its server, name another with --model-url, or use --model demo",
        ),
        "model-error": (f"the model{at} failed{detail}", "check --model and --model-url"),
        "context-budget": (
            f"the ask does not fit the model's window{detail}",
            "ask with fewer words, or start afresh with /new",
        ),
        "guardrail": (f"the model's provider refused the ask{detail}", "ask differently"),
        "answer-invalid": (f"the model gave no answer of the wanted shape{detail}", "ask again, or use a larger model"),
    }
    told, advice = known.get(reason, (f"no answer ({reason}){detail}", "ask again in other words"))
    return f"{told.rstrip('.?')}; {advice}"


def without_type(text: str) -> str:
    """Return an event's error text on one line without the name of the exception's type in front."""
    return _TYPE.sub("", one_line(text))
