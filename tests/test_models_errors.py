"""What a provider's failure is called, and what its message may show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors.errors import BadRequest, ContextOverflow, ModelError, ModelUnavailable, RateLimited, Refused
from goliath_actors.models._errors import Report, Scrubber, from_exchange, from_report, from_response, parse_retry_after
from goliath_actors.models._http import httpx
from goliath_actors.models._pool import StaleConnection

SCRUB = Scrubber(("sk-test-12345",))


def respond(status: int, payload: object = None, **headers: str) -> ModelError:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = payload if isinstance(payload, bytes) else b"" if payload is None else json.dumps(payload).encode()
    return from_response(status, names, body, SCRUB, now=0.0)


@pytest.mark.parametrize(
    ("status", "payload", "kind", "code", "retryable"),
    [
        (
            400,
            {"error": {"message": "no", "type": "invalid_request_error"}},
            BadRequest,
            "invalid_request_error",
            False,
        ),
        (401, None, BadRequest, None, False),
        (402, {"error": {"message": "no"}}, RateLimited, "insufficient_quota", False),
        (403, None, BadRequest, None, False),
        (404, {"error": {"code": "model_not_found"}}, BadRequest, "model_not_found", False),
        (408, None, ModelUnavailable, None, True),
        (409, None, ModelUnavailable, None, True),
        (413, None, ContextOverflow, "context_length_exceeded", False),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, BadRequest, None, False),
        (425, None, ModelUnavailable, None, True),
        (429, {"error": {"type": "billing_not_active"}}, RateLimited, "insufficient_quota", False),
        (429, {"error": {"message": "prompt too long"}}, RateLimited, None, True),
        (500, {"error": {"code": "context_length_exceeded"}}, ContextOverflow, "context_length_exceeded", False),
        (500, {"error": {"type": "invalid_request_error"}}, ModelUnavailable, "invalid_request_error", True),
        (503, {"error": {"type": "rate_limit_error"}}, ModelUnavailable, "rate_limit_error", True),
        (529, {"error": {"type": "overloaded_error"}}, ModelUnavailable, "overloaded_error", True),
        (400, {"error": {"code": "content_filter"}}, Refused, "content_filter", False),
        (
            400,
            {"error": {"code": "bad", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
            Refused,
            "content_filter",
            False,
        ),
        (301, None, BadRequest, "redirect", False),
    ],
)
def test_status_first_then_the_code(
    status: int, payload: object, kind: type[ModelError], code: str | None, retryable: bool
) -> None:
    error = respond(status, payload)
    assert (type(error), error.code, error.retryable, error.status) == (kind, code, retryable, status)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "x", "code": 503}, ModelUnavailable, 503),
        ({"message": "x", "code": "429"}, RateLimited, 429),
        ({"message": "x", "code": 400}, BadRequest, 400),
        ({"message": "x", "code": 7}, ModelUnavailable, None),
        ({"message": "x", "type": "rate_limit_exceeded"}, RateLimited, None),
        ({"message": "x", "type": "invalid_request_error"}, BadRequest, None),
        ({"message": "x", "type": "context_length_exceeded"}, ContextOverflow, None),
        ("context window exceeded", ContextOverflow, None),
        ("anything else", ModelUnavailable, None),
    ],
)
def test_an_error_inside_a_stream_is_told_apart_by_its_code(
    error: object, kind: type[ModelError], status: int | None
) -> None:
    found = from_report(Report.of(error), SCRUB, partial="so far")
    assert (type(found), found.status, found.partial) == (kind, status, "so far")


@pytest.mark.parametrize(
    "sentence",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5120 tokens",
        "the request exceeds the available context size, try increasing it",
        "Prompt is too long: 200001 tokens > 200000 maximum",
        "Requested tokens (5120) exceed context window of 4096",
        "Please reduce the length of the messages.",
        "The input token count 5120 exceeds the prompt limit of 4096",
    ],
)
def test_sentences_of_a_prompt_that_is_too_long(sentence: str) -> None:
    assert type(respond(400, {"error": {"message": sentence}})) is ContextOverflow


@pytest.mark.parametrize(
    "sentence",
    [
        "max_tokens must be between 1 and 4096",
        "messages[0].name is too long: 64 characters at most",
        "unknown parameter: context_tokens",
        "the prompt must not be empty",
        "this key is limited to 3 prompt tokens a day",
    ],
)
def test_sentences_that_are_about_something_else(sentence: str) -> None:
    assert type(respond(400, {"error": {"message": sentence}})) is BadRequest


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"error": "plain"}, "plain"),
        ({"error": {"error": {"message": "nested"}}}, "nested"),
        ([{"error": {"message": "listed"}}], "listed"),
        ({"errors": [{"message": "several"}]}, "several"),
        ({"message": "bare"}, "bare"),
        ({"detail": "fast"}, "fast"),
        ({"detail": [{"msg": "one"}, {"msg": "two"}]}, "one; two"),
        (b"just words", "just words"),
        (b"<html><style>b{}</style><script>x()</script><body>Sign &amp; in<br", "Sign &amp; in"),
        (b"a < b and <i>c</i>", "a < b and c"),
    ],
)
def test_the_message_is_found_wherever_it_is(payload: object, words: str) -> None:
    assert str(respond(400, payload)) == f"{words} (HTTP 400)"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:30 -0100", 3630.0),
        ("Wed, 31 Dec 1969 23:00:00 GMT", 0.0),
        ("Thu, 32 Jan 1970 00:00:30 GMT", None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("+5", None),
        ("1e3", None),
        ("²", None),
        ("٣", None),
        ("2, 7", None),
        ("nan", None),
        ("9" * 400, None),
    ],
)
def test_retry_after_in_all_its_forms(value: str, seconds: float | None) -> None:
    assert parse_retry_after({"retry-after": value}, now=0.0) == seconds


def test_milliseconds_are_more_exact_than_seconds() -> None:
    assert parse_retry_after({"retry-after-ms": "250", "retry-after": "1"}, now=0.0) == 0.25


def test_a_pause_that_is_too_long_is_told_and_not_retried() -> None:
    for status in (429, 503):
        error = respond(status, {"error": {"message": "later"}}, retry_after="61")
        assert (error.retryable, error.retry_after) == (False, 61.0)
        assert str(error) == f"later (HTTP {status}); it asks for a pause of 61 s"
        assert respond(status, None, retry_after="60").retryable is True


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")), st.floats(0, 4e9))
def test_no_header_makes_the_parser_fail(value: str, now: float) -> None:
    found = parse_retry_after({"retry-after": value}, now)
    assert found is None or 0 <= found < 1e13


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "message", "code", "type", "status", "detail", "object", "innererror"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from([400, 401, 404, 413, 429, 500, 503]))
def test_any_body_gives_a_message_that_is_fit_to_show(payload: object, status: int) -> None:
    error = respond(status, json.dumps(payload).encode())
    assert 1 <= len(str(error)) <= 300
    assert str(error).replace("\u200c", "").replace("\u200d", "").isprintable()
    report = Report.find(payload)
    assert report is None or 1 <= len(str(from_report(report, SCRUB))) <= 300


scraps = ["sk-test-12345", "<b>", "</b>", " ", "x" * 90, "é", "👨‍👩‍👧", "\n", "Bearer abcdefgh1 "]


@given(st.lists(st.sampled_from(scraps)))
def test_a_secret_never_comes_through(parts: list[str]) -> None:
    text = SCRUB("".join(parts))
    assert "sk-test-12345" not in text
    assert "abcdefgh1" not in text
    assert len(text) <= 300


def test_a_secret_inside_markup_is_hidden_too() -> None:
    assert SCRUB("<p>sk-test-12345</p>") == "[secret]"
    assert Scrubber(("sk<b>4711",))("the key sk<b>4711 is wrong") == "the key [secret] is wrong"
    assert "sk-test" not in repr(SCRUB)


def test_long_messages_are_cut_at_a_word_and_long_words_not_inside_a_character() -> None:
    words = SCRUB("word " * 100)
    assert words == "word " * 59 + "word…"
    family = "👨‍👩‍👧"
    joined = SCRUB(family * 100)
    assert len(joined) <= 300
    assert joined == family * ((len(joined) - 1) // len(family)) + "…"


@pytest.mark.parametrize(
    ("error", "kind", "code", "words"),
    [
        (StaleConnection("dead"), ModelUnavailable, "stale-connection", "dead"),
        (httpx.ConnectTimeout("x"), ModelUnavailable, "timeout", r"within 3 s \(connect_timeout\)"),
        (httpx.ConnectError("refused"), ModelUnavailable, "connect", "refused; is the server running"),
        (httpx.ReadError("reset sk-test-12345"), ModelUnavailable, "network", r"reset \[secret\]"),
        (httpx.RemoteProtocolError(""), ModelUnavailable, "network", "broke off: RemoteProtocolError"),
        (httpx.LocalProtocolError("bad header"), BadRequest, "bad-request", "cannot be sent: bad header"),
    ],
)
def test_failures_of_the_network(error: Exception, kind: type[ModelError], code: str, words: str) -> None:
    found = from_exchange(error, "http://host/v1", SCRUB, 3)
    assert (type(found), found.code) == (kind, code)
    assert found.retryable is (kind is ModelUnavailable)
    with pytest.raises(kind, match=words):
        raise found
