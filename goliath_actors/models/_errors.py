"""What went wrong at a provider, as one of our typed errors.

Uses _http; used by _reply, openai_chat. The order of trust: the HTTP status, then the provider's
own code, then, for prompts that are too long only, the words of its message. A message of ours is never empty, has no
markup, no key, and at most 300 characters.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC

import attrs

from goliath_actors.errors import (
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelUnavailable,
    RateLimited,
    Refused,
)

from ._http import httpx
from ._pool import StaleConnection

__all__ = ["MAX_MESSAGE", "MAX_RETRY_AFTER", "Report", "Scrubber", "from_exchange", "from_report", "from_response"]

MAX_MESSAGE = 300
"""Characters of an error message."""

MAX_RETRY_AFTER = 60.0
"""Seconds. A provider that asks for a longer pause is not retried: the run says so at once instead of sleeping."""

_OVERFLOW = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "prompt_too_long",
        "request_too_large",
    }
)
_FILTERED = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_QUOTA = frozenset(
    {
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_credits",
        "insufficient_quota",
    }
)
_RATE = frozenset({"rate_limit_error", "rate_limit_exceeded", "resource_exhausted", "too_many_requests"})
_BAD = frozenset(
    {
        "authentication_error",
        "bad_request",
        "invalid_api_key",
        "invalid_argument",
        "invalid_request",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_denied",
        "permission_error",
        "unauthenticated",
        "unsupported_parameter",
    }
)
_TRANSIENT_STATUS = frozenset({408, 409, 425})

_TOO_LONG = re.compile(
    r"\b(?:prompt|input|request|conversation|messages)(?: (?:is|are|was|text|tokens?|length|body))* too (?:long|large)"
    r"|context (?:length|window|size).{0,60}(?:exceed|too (?:long|large|small)|maximum|limit|overflow)"
    r"|(?:exceed|larger than|longer than|greater than|maximum|beyond|over).{0,60}context (?:length|window|size)"
    r"|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.]*\d)")
_TAG = re.compile(r"<(?:script|style)\b.*?</(?:script|style)\s*>|<[a-zA-Z/!?][^>]*(?:>|$)", re.IGNORECASE | re.DOTALL)
_BEARER = re.compile(r"(?i)bearer\s+[\w.~+/=-]{8,}")
_JOINERS = "\u200c\u200d"  # not printable by themselves, but part of words and of emoji
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?", re.ASCII)


@attrs.frozen
class Scrubber:
    """Makes text of foreign origin fit for an error message. `secrets` never come through."""

    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)

    def __call__(self, text: str, limit: int = MAX_MESSAGE) -> str:
        """Return `text` without secrets, markup and control characters, on one line, of at most `limit` characters."""
        text = self._hide(text[: 64 * limit])
        text = self._hide(_TAG.sub(" ", text))
        text = " ".join("".join(c if c.isprintable() or c in _JOINERS else " " for c in text).split())
        return _clip(text, limit)

    def _hide(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[secret]")
        return _BEARER.sub("[secret]", text)


@attrs.frozen
class Report:
    """What a provider says about an error, wherever it says it: its message, its code words, a status in numbers."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None

    @classmethod
    def find(cls, payload: object) -> Report | None:
        """Return the report in a decoded JSON payload, or None if it is no error."""
        if isinstance(payload, list):
            return cls.find(payload[0]) if payload else None
        if not isinstance(payload, dict):
            return None
        error = payload.get("error")
        if error is None:
            error = payload.get("errors") or None
        if error or error == {}:
            return cls.of(error)
        if payload.get("object") == "error" or payload.get("type") == "error":
            return cls.of(payload)
        return None

    @classmethod
    def of(cls, error: object) -> Report:
        """Return the report in what is known to be an error: an object, a list, a text, anything."""
        if isinstance(error, str):
            return cls(error)
        if isinstance(error, list):
            return cls.of(error[0]) if error else cls()
        if not isinstance(error, dict):
            return cls("" if error is None or isinstance(error, bool) else str(error))
        nested = error.get("error")
        if isinstance(nested, (dict, list)) and nested:
            return cls.of(nested)
        status: int | None = None
        codes: list[str] = []
        for key in ("code", "type", "status", "reason"):
            word = error.get(key)
            if isinstance(word, str) and word.isascii() and word.isdigit():
                word = int(word[:4])
            if isinstance(word, int) and not isinstance(word, bool):
                status = word if status is None and 400 <= word <= 599 else status
            elif isinstance(word, str) and word:
                codes.append(word)
        inner = error.get("innererror")
        if isinstance(inner, dict) and isinstance(inner.get("code"), str):
            codes.append(inner["code"])
        return cls(_message_of(error), tuple(codes), status)


def _message_of(error: Mapping[str, object]) -> str:
    for key in ("message", "detail", "error", "msg", "error_description", "title"):
        said = error.get(key)
        if isinstance(said, str) and said.strip():
            return said
        if isinstance(said, list) and said:
            parts = [item.get("msg") if isinstance(item, dict) else item for item in said]
            return "; ".join(part for part in parts if isinstance(part, str))
    return ""


def from_report(
    report: Report,
    scrub: Scrubber,
    *,
    status: int | None = None,
    retry_after: float | None = None,
    retryable: bool | None = None,
    partial: str = "",
) -> ModelError:
    """Return the typed error for a provider's report.

    Arguments: `status`, the HTTP status if the report came with one that is not 2xx; `retry_after` in seconds;
    `retryable=False` if the provider asked not to be asked again; `partial`, the text that had arrived before.
    """
    seen = status if status is not None else report.status
    words = {code.lower() for code in report.codes}
    code = scrub(report.codes[0], 64) if report.codes else None
    where = f" (HTTP {status})" if status is not None else ""
    if retry_after is not None and retry_after > MAX_RETRY_AFTER:
        retryable = False
        where += f"; it asks for a pause of {retry_after:.0f} s"

    def text(otherwise: str, hint: str = "") -> str:
        tail = where + (f"; {hint}" if hint else "")
        return (scrub(report.message, MAX_MESSAGE - len(tail)) or otherwise) + tail

    if words & _FILTERED:
        return Refused(
            text("the provider's filter refused the request"), status=seen, code="content_filter", partial=partial
        )
    if words & _QUOTA or seen == 402:
        return RateLimited(
            text("the provider's quota is used up"),
            retry_after=retry_after,
            retryable=False,
            status=seen,
            code="insufficient_quota",
            partial=partial,
        )
    if seen == 429 or (status is None and words & _RATE):
        return RateLimited(
            text("too many requests"),
            retry_after=retry_after,
            retryable=retryable,
            status=seen,
            code=code,
            partial=partial,
        )
    if words & _OVERFLOW or seen == 413 or (seen not in (401, 403, 404) and _says_too_long(report.message)):
        return ContextOverflow(
            text("the prompt is larger than the model's window"),
            status=seen,
            code=code or "context_length_exceeded",
            partial=partial,
        )
    if seen in (401, 403):
        return BadRequest(
            text("the provider refused the key", "check api_key"), status=seen, code=code, partial=partial
        )
    if seen == 404:
        return BadRequest(
            text("the provider does not know this address or model", "check base_url and the model's name"),
            status=seen,
            code=code,
            partial=partial,
        )
    if (seen is not None and seen < 500 and seen not in _TRANSIENT_STATUS) or (seen is None and words & _BAD):
        return BadRequest(text("the provider refused the request"), status=seen, code=code, partial=partial)
    return ModelUnavailable(
        text("the provider reported a fault without saying which"),
        retryable=retryable,
        retry_after=retry_after,
        status=seen,
        code=code,
        partial=partial,
    )


def from_response(status: int, headers: Mapping[str, str], body: bytes, scrub: Scrubber, now: float) -> ModelError:
    """Return the typed error for a response whose status is not 2xx.

    Arguments: `body`, as much of it as was read; `now`, the wall clock in seconds since the epoch, against which a
    date in `Retry-After` is read.
    """
    if 300 <= status < 400:
        return BadRequest(
            f"the server redirects (HTTP {status}), and redirects are not followed; set base_url to the final address",
            status=status,
            code="redirect",
        )
    return from_report(
        _report_of(headers.get("content-type", ""), body),
        scrub,
        status=status,
        retry_after=parse_retry_after(headers, now),
        retryable=False if headers.get("x-should-retry", "").strip().lower() == "false" else None,
    )


def _report_of(content_type: str, body: bytes) -> Report:
    charset = re.search(r"charset=\"?([\w-]+)", content_type)
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        return Report(text)
    if isinstance(payload, (dict, list)) and payload:
        return Report.find(payload) or Report.of(payload)
    return Report()


def from_exchange(error: Exception, where: str, scrub: Scrubber, connect_timeout: float) -> ModelError:
    """Return the typed error for an exchange that the network, not the provider, has ended.

    Arguments: `error`, the client library's; `where`, the address without anything secret; `connect_timeout` in
    seconds, for the message.
    """
    said = scrub(str(error), 150)
    if isinstance(error, StaleConnection):
        return ModelUnavailable(said, code="stale-connection")
    if isinstance(error, httpx.ConnectTimeout):
        return ModelUnavailable(
            f"no connection to {where} within {connect_timeout:g} s (connect_timeout)", code="timeout"
        )
    if isinstance(error, httpx.ConnectError):
        return ModelUnavailable(f"cannot connect to {where}: {said}; is the server running?", code="connect")
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return BadRequest(f"the request to {where} cannot be sent: {said}", code="bad-request")
    return ModelUnavailable(f"the exchange with {where} broke off: {said or type(error).__name__}", code="network")


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a response asks to wait, or None if it does not say so in a form that makes sense.

    Arguments: `now`, the wall clock in seconds since the epoch: `Retry-After` may be a date. One gone by is 0.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if _SECONDS.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        seconds = date.timestamp() - now
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _says_too_long(message: str) -> bool:
    if _TOO_LONG.search(message):
        return True
    words = message.lower()
    if "token" not in words or not any(word in words for word in ("window", "context", "prompt")):
        return False
    # "prompt has 5120 tokens, the window is 4096": two sizes, the larger one named first or last.
    return len(set(_NUMBER.findall(message))) >= 2


def _clip(text: str, limit: int) -> str:
    """Cut at a space, where no character can be made of several code points; long words without any are cut behind
    the last code point that nothing joins."""
    if len(text) <= limit:
        return text
    end = text.rfind(" ", max(1, limit - 60), limit)
    if end < 0:
        end = limit - 1
        while end > 1 and (_joins(text[end]) or text[end - 1] == "\u200d"):
            end -= 1
    return text[:end].rstrip() + "…"


def _joins(character: str) -> bool:
    # Marks, joiners, variation selectors and the skin tones of emoji.
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf") or "\U0001f3fb" <= character <= "\U0001f3ff"
