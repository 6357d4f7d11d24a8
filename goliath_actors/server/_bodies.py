"""What requests may say: bodies and queries, checked before anything happens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import unquote

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request

from ._problems import Problem

__all__ = [
    "AbortBody",
    "AnswerBody",
    "AskBody",
    "RegenerateBody",
    "ResumeBody",
    "SteerBody",
    "check_conversation_id",
    "check_query",
    "conversation_id",
    "header_text",
    "idempotency_key",
    "last_event_id",
    "query_int",
    "query_text",
    "read_body",
    "read_json",
]

MAX_ID: Final = 256  # characters of a conversation's id; the runtime's own holds the principal's name as well
MAX_TIMEOUT: Final = 86_400.0
MAX_KEY: Final = 200
MAX_INT: Final = 2**53 - 1

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]  # how long it may be, `max_body` says
_BLANK: Final = r"Expected `str` matching regex '\\S'"  # msgspec's words for a `Text` without any
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT)]
Reason = Annotated[str, msgspec.Meta(max_length=1000)]
WhenBusy = Literal["queue", "refuse", "replace"]


class AskBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An ask.

    `agent` is its name (the first agent, where none is named); `timeout` in seconds; `when_busy` what to do if the
    conversation has a run; `detach` whether the run goes on when the client leaves; `wait` whether a JSON answer waits
    for the run's end.
    """

    ask: Text
    agent: Name | None = None
    timeout: Seconds | None = None
    when_busy: WhenBusy = "queue"
    detach: bool = False
    wait: bool = True


class RegenerateBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The wish for another answer to the last ask."""

    agent: Name | None = None
    timeout: Seconds | None = None
    when_busy: WhenBusy = "queue"
    detach: bool = False
    wait: bool = True


class ResumeBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Answers to calls that wait, by call id: true or false to an approval, any JSON to a question."""

    # Any: JSON data, for a tool.
    answers: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
    agent: Name | None = None
    timeout: Seconds | None = None
    detach: bool = False
    wait: bool = True


class SteerBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A text for the run that is going on; without one it is an ask."""

    text: Text
    agent: Name | None = None
    timeout: Seconds | None = None


class AbortBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Why a run is to end."""

    reason: Reason = ""


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The answer to an open question."""

    approve: bool
    reason: Reason = ""


B = TypeVar("B", bound=msgspec.Struct)

_KEY = re.compile(r"[!-~]+")
_WHERE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return a request's body.

    Raises: `Problem` if it has more than `limit` bytes, or does not arrive in time.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise Problem("too-large", f"a body may have {limit} bytes")
    pieces: list[bytes] = []
    size = 0
    with trio.move_on_after(seconds):
        try:
            async with aclosing(request.stream()) as stream:
                async for piece in stream:
                    size += len(piece)
                    if size > limit:
                        raise Problem("too-large", f"a body may have {limit} bytes")
                    pieces.append(piece)
        except ClientDisconnect:
            raise Problem("timeout", "the client left before the body was complete") from None
        return b"".join(pieces)
    raise Problem("timeout", f"the body did not arrive within {seconds:g} s")


async def read_json(request: Request, kind: type[B], limit: int, seconds: float, *, strict: bool = True) -> B:
    """Return a request's body as a value of `kind`; an empty body is an empty object.

    Raises: `Problem`.
    """
    body = await read_body(request, limit, seconds)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and (body or content_type):
        raise Problem("wrong-content-type", f"send Content-Type: application/json, not {content_type or 'none'!r}")
    try:
        return msgspec.json.decode(body or b"{}", type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem("bad-json", str(error)) from None
    except RecursionError:
        raise Problem("bad-json", "it is nested too deeply") from None


def _invalid(words: str) -> Problem:
    words = words.replace(_BLANK, "it is blank; it needs at least one character")
    found = _WHERE.search(words)
    field = found[1] if found else None
    unknown = re.search(r"unknown field `(.*?)`", words)
    missing = re.search(r"required field `(.*?)`", words)
    name = (unknown or missing or [None, None])[1]
    if name is not None:
        field = f"{field}.{name}" if field else name
    return Problem("invalid", _WHERE.sub("", words), field=field or None)


def conversation_id(request: Request) -> str:
    """Return the id in a request's path.

    Raises: `Problem` for one that may not be.
    """
    # Servers put one character for whatever is no UTF-8, so that different ids would name one conversation.
    try:
        unquote((request.scope.get("raw_path") or b"").decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise Problem("invalid", "a conversation's id is UTF-8, percent-encoded", field="id") from None
    return check_conversation_id(request.path_params["id"])


def header_text(request: Request, name: str) -> str | None:
    """Return a header that may hold any character, which is UTF-8.

    Raises: `Problem` for what is none.
    """
    found = request.headers.get(name)
    if found is None:
        return None
    try:
        return found.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise Problem("invalid", "it is UTF-8", field=name) from None


def check_conversation_id(found: str) -> str:
    """Return a conversation's id.

    Raises: `Problem` for one that may not be.
    """
    if "/" in found:
        raise Problem("invalid", "a conversation's id has no slash", field="id")
    if not found.strip() or len(found) > MAX_ID:
        raise Problem("invalid", f"a conversation's id has 1 to {MAX_ID} characters, not all blank", field="id")
    if any(ord(character) < 32 or character == "\x7f" for character in found):
        raise Problem("invalid", "a conversation's id has no control characters", field="id")
    return found


def idempotency_key(request: Request) -> str | None:
    """Return the `Idempotency-Key` header.

    Raises: `Problem` for one that is blank or too long.
    """
    found = request.headers.get("idempotency-key")
    if found is not None and not (_KEY.fullmatch(found) and len(found) <= MAX_KEY):
        words = f"an Idempotency-Key has 1 to {MAX_KEY} visible characters of ASCII"
        raise Problem("invalid", words, field="Idempotency-Key")
    return found


def last_event_id(request: Request) -> int:
    """Return the `Last-Event-ID` header as a number, 0 without one.

    Raises: `Problem` for what was never an event's id.
    """
    found = request.headers.get("last-event-id", "").strip()
    if not found:
        return 0
    if not (found.isascii() and found.isdecimal() and len(found) <= 15):
        raise Problem("invalid", "it is the id of the last event that was read", field="Last-Event-ID")
    return int(found)


def check_query(query: Mapping[str, str], *names: str) -> None:
    """Refuse a query with a name that means nothing here: it is misspelt, or meant for something else.

    Raises: `Problem`.
    """
    for name in query:
        if name not in names:
            known = ", ".join(names)
            raise Problem("invalid", f"there is no such parameter here (there are {known})", field=name or "query")


def query_int(query: Mapping[str, str], name: str, least: int, most: int = MAX_INT) -> int | None:
    """Return a whole number of a query, None without one.

    Raises: `Problem`.
    """
    found = query.get(name)
    if found is None:
        return None
    if not (found.isascii() and found.isdecimal() and len(found) <= 16 and least <= int(found) <= most):
        raise Problem("invalid", f"it must be a whole number from {least} to {most}", field=name)
    return int(found)


def query_text(query: Mapping[str, str], name: str, longest: int) -> str | None:
    """Return a text of a query, None without one.

    Raises: `Problem`.
    """
    found = query.get(name)
    if found is not None and not 0 < len(found) <= longest:
        raise Problem("invalid", f"it has 1 to {longest} characters", field=name)
    return found
