"""Who may enter the HTTP server, what they can see, and what a request cannot do."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from goliath_actors import Agent, ToolContext, ToolLoop, tool
from goliath_actors.errors import ConfigError
from goliath_actors.server import (
    ServerConfig,
    Token,
    Visitor,
    ask_client,
    hash_token,
    make_token,
    read_tokens,
    serve,
)
from goliath_actors.server._tokens import TokenFile
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

from .web import Web, open_web, read_all

ADA, BOB, OPS, READER = (f"{name}-a-token-of-enough-characters" for name in ("ada", "bob", "ops", "reader"))
TOKENS = (
    Token("ada", ["chat"], hash_token(ADA)),
    Token("bob", ["chat"], hash_token(BOB)),
    Token("ops", ["admin"], hash_token(OPS)),
    Token("ada", ["read"], hash_token(READER)),
)
GUARDED = ServerConfig(tokens=TOKENS, drain_grace=5)


def agent(*replies: Any, **more: Any) -> Agent[Any]:
    return Agent(**{"name": "assistant", "model": ScriptedModel(list(replies)), "loop": ToolLoop(), **more})


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def status(web: Web, method: str, path: str, token: str | None = None, body: Any = None) -> int:
    headers = {} if token is None else bearer(token)
    return (await web.client.request(method, path, json=body, headers=headers)).status_code


# --- tokens ---------------------------------------------------------------------------------------------------------

EVERYTHING = [
    ("GET", "/v1/conversations", None),
    ("GET", "/v1/conversations/c", None),
    ("DELETE", "/v1/conversations/c", None),
    ("GET", "/v1/conversations/c/history", None),
    ("POST", "/v1/conversations/c/runs", {"ask": "Hi."}),
    ("POST", "/v1/conversations/c/steer", {"text": "Hi."}),
    ("POST", "/v1/conversations/c/resume", {"answers": {"x": True}}),
    ("POST", "/v1/conversations/c/regenerate", {}),
    ("GET", "/v1/conversations/c/runs/r", None),
    ("GET", "/v1/conversations/c/runs/r/events", None),
    ("POST", "/v1/conversations/c/runs/r/abort", {}),
    ("POST", "/v1/conversations/c/runs/r/confirmations/x", {"approve": True}),
    ("GET", "/v1/agents", None),
    ("GET", "/v1/statistics", None),
    ("POST", "/v1/chat/completions", {"model": "assistant", "messages": [{"role": "user", "content": "Hi."}]}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/assistant", None),
]


async def test_nothing_but_health_and_the_document_is_open_without_a_token() -> None:
    async with open_web(agent(), config=GUARDED) as web:
        for method, path, body in EVERYTHING:
            for token in (None, "wrong", ADA.upper()):
                response = await web.client.request(
                    method, path, json=body, headers={} if token is None else bearer(token)
                )
                assert response.status_code == 401, (method, path)
                assert response.headers["www-authenticate"] == 'Bearer realm="goliath-actors"'
                said = "send the header Authorization" if token is None else "the server does not know this token"
                assert said in response.text
        for path in ("/", "/healthz", "/readyz", "/openapi.json"):
            assert await status(web, "GET", path) == 200
        assert web.server.runtime.statistics().accepted == 0


async def test_a_scope_allows_what_it_says() -> None:
    async with open_web(agent("Hello.", "Hello."), config=GUARDED) as web:
        ask = ("POST", "/v1/conversations/c/runs")
        assert await status(web, *ask, READER, {"ask": "Hi."}) == 403
        assert await status(web, *ask, ADA, {"ask": "Hi."}) == 200
        assert await status(web, "GET", "/v1/conversations/c/history", READER) == 200
        assert await status(web, "DELETE", "/v1/conversations/c", READER) == 403
        assert await status(web, "GET", "/v1/statistics", ADA) == 403
        assert await status(web, "GET", "/v1/statistics", OPS) == 200
        assert await status(web, *ask, OPS, {"ask": "Hi."}) == 200


async def test_a_conversation_belongs_to_its_principal_and_another_s_does_not_exist() -> None:
    gate = Gate()

    @tool(writes=True)
    async def save(text: str) -> str:
        """Save."""
        return "saved"

    own = agent(gate.then(tool_calls(("save", {"text": "x"}))), "Done.", tools=[save], confirm=ask_client)
    async with open_web(own, config=GUARDED) as web:
        ask = await web.client.post(
            "/v1/conversations/c/runs", json={"ask": "a secret", "wait": False}, headers=bearer(ADA)
        )
        run_id = ask.json()["run_id"]
        gate.open()
        while not (await web.client.get("/v1/conversations/c", headers=bearer(ADA))).json()["confirmations"]:
            await trio.lowlevel.checkpoint()
        mine = (await web.client.get("/v1/conversations/c", headers=bearer(ADA))).json()
        call_id = mine["confirmations"][0]["call_id"]
        for token in (BOB, OPS):
            for method, path, body in (
                ("GET", "", None),
                ("GET", "/history", None),
                ("GET", f"/runs/{run_id}", None),
                ("GET", f"/runs/{run_id}/events", None),
                ("POST", f"/runs/{run_id}/abort", {}),
                ("POST", f"/runs/{run_id}/confirmations/{call_id}", {"approve": True}),
                ("DELETE", "", None),
            ):
                response = await web.client.request(
                    method, f"/v1/conversations/c{path}", json=body, headers=bearer(token)
                )
                assert response.status_code == 404, (method, path)
                assert "secret" not in response.text
            listed = await web.client.get("/v1/conversations", headers=bearer(token))
            assert listed.json()["conversations"] == []
            # The principal's name is part of no id that a client can name.
            assert await status(web, "GET", "/v1/conversations/ada%2Fc", token) == 404
        await web.client.post(
            f"/v1/conversations/c/runs/{run_id}/confirmations/{call_id}", json={"approve": True}, headers=bearer(ADA)
        )
        async with web.client.stream(
            "GET", f"/v1/conversations/c/runs/{run_id}/events", headers=bearer(READER)
        ) as stream:
            assert (await read_all(stream))[-1].data["status"] == "completed"


async def test_two_principals_use_one_id_and_their_tools_know_who_asks() -> None:
    seen: list[tuple[str, str | None]] = []

    @tool
    async def look(ctx: ToolContext[Visitor]) -> str:
        """Look."""
        seen.append((ctx.context.principal, ctx.conversation_id))
        return "seen"

    async with open_web(agent(*[tool_calls(("look", {})), "Seen."] * 2, tools=[look]), config=GUARDED) as web:
        for token in (ADA, BOB):
            await web.client.post("/v1/conversations/c/runs", json={"ask": "Hi."}, headers=bearer(token))
        history = await web.client.get("/v1/conversations/c/history", headers=bearer(BOB))
        assert [entry["role"] for entry in history.json()["entries"]] == ["user", "assistant", "tool", "assistant"]
    assert seen == [("ada", "ada/c"), ("bob", "bob/c")]


async def test_an_application_makes_its_own_context() -> None:
    seen: list[object] = []

    @tool
    async def look(ctx: ToolContext[dict[str, str]]) -> str:
        """Look."""
        seen.append(ctx.context)
        return "seen"

    own = agent(tool_calls(("look", {})), "Seen.", tools=[look])
    async with open_web(own, context=lambda visitor: {"user": visitor.principal}) as web:
        await web.ask("Hi.")
    assert seen == [{"user": "local"}]


def test_tokens_are_kept_as_hashes_and_shown_nowhere() -> None:
    token = make_token()
    assert len(token) == 43
    kept = Token("ada", ["chat"], hash_token(token))
    assert token not in repr(kept)
    assert kept.hash not in repr(kept)
    assert kept.hash not in repr(ServerConfig(tokens=[kept]))
    with pytest.raises(ConfigError, match="at least 20 characters"):
        hash_token("short")


def test_a_token_file_is_read_and_its_mistakes_are_named_by_line_and_never_shown() -> None:
    line = f"ada read,chat {hash_token(ADA)}"
    (token,) = read_tokens(f"# who may enter\n\n  {line}\n", "tokens.txt")
    assert (token.principal, token.scopes) == ("ada", {"read", "chat"})
    for wrong in (
        ADA,
        f"ada chat {ADA}",
        f"ada write {hash_token(ADA)}",
        f"a/b chat {hash_token(ADA)}",
        f"{line} more",
    ):
        with pytest.raises(ConfigError) as caught:
            read_tokens(f"{line}\n{wrong}", "tokens.txt")
        assert "tokens.txt, line 2" in str(caught.value)
        assert ADA not in str(caught.value)


async def test_a_token_file_that_changes_is_read_again_and_one_that_is_broken_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.txt"
    ada, ops = (f"{name} chat {hash_token(token)}\n" for name, token in (("ada", ADA), ("ops", OPS)))
    file.write_text(ada)
    config = ServerConfig(tokens=[Token("rd", ["read"], hash_token(READER))], token_file=str(file))
    async with open_web(agent(), config=config) as web:

        async def entered() -> list[int]:
            return [await status(web, "GET", "/v1/conversations", token) for token in (ADA, OPS, READER)]

        assert await entered() == [200, 401, 200]
        file.write_text(ada + ops)
        assert await entered() == [200, 200, 200]
        file.write_text(ops)
        assert await entered() == [401, 200, 200]
        for wrong in ("ada chat nonsense\n", ""):
            file.write_text(wrong)
            assert await entered() == [401, 200, 200]
        file.unlink()
        assert await entered() == [401, 200, 200]
        file.write_text(ada)
        assert await entered() == [200, 401, 200]
    said = [record.message for record in caplog.records if "those who could enter" in record.message]
    assert ["line 1" in said[0], "no token" in said[1], "cannot be read" in said[2]] == [True] * 3
    assert len(said) == 3


def test_a_token_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(f"ada chat {hash_token(ADA)}\n")
    os.utime(file, (1000, 1000))
    tokens = TokenFile(str(file))
    first = tokens.tokens()
    assert tokens.tokens() is first
    os.utime(file, (2000, 2000))
    assert tokens.tokens() is not first
    # As long as its date is of this very moment it may change again within the same tick of the clock.
    file.touch()
    assert tokens.tokens() is not tokens.tokens()


def test_a_token_file_without_a_token_lets_no_server_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    for text, why in ((None, "cannot be read"), ("# nobody\n", "has no token"), ("x", "line 1")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError, match=why):
            ServerConfig(token_file=str(file))
    file.write_text(f"ada chat {hash_token(ADA)}\n")
    assert not ServerConfig(host="0.0.0.0", token_file=str(file)).shows_errors


# --- without tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": "80"}, "port must be an integer of at least 0, not '80'"),
        ({"port": 70_000}, "port must be between 0 and 65535, not 70000"),
        ({"tokens": ["a-token-of-enough-characters"]}, "tokens=... takes a list of Token"),
        ({"tokens": "a-token-of-enough-characters"}, "tokens=... takes a list of Token"),
        ({"allowed_hosts": "chat.example"}, "put 'chat.example' in brackets"),
        ({"cors_origins": "https://chat.example"}, "put 'https://chat.example' in brackets"),
        ({"cors_origins": [3]}, "cors_origins must name origins"),
        ({"confirm_timeout": -1}, "confirm_timeout must be a positive number of seconds or None, not -1"),
        ({"run_timeout": 0}, "run_timeout must be a positive number of seconds or None, not 0"),
        ({"body_timeout": None}, "body_timeout must be a positive number of seconds"),
        ({"drain_grace": "1"}, "drain_grace must be a number of seconds, 0 or more, not '1'"),
        ({"max_connections": 0}, "max_connections must be an integer of at least 1, not 0"),
        ({"max_running": 0}, "max_running must be an integer of at least 1 or None, not 0"),
        ({"high_water": "0.8"}, "high_water must be above 0 and at most 1"),
        ({"metrics": "no"}, "metrics must be True or False, not 'no'"),
        ({"show_errors": "no"}, "show_errors must be True, False or None, not 'no'"),
    ],
)
def test_a_wrong_configuration_is_refused_when_it_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**options)
    assert words in str(caught.value)
    assert "a-token" not in str(caught.value)


async def test_a_server_takes_agents_as_a_runtime_does() -> None:
    same = agent("Hello.")
    for wrong, words in (((), "at least one agent"), ((same, same), "two agents are named"), (("shop",), "not str")):
        with pytest.raises(ConfigError, match=words):
            await serve(*wrong, config=ServerConfig(port=0))  # type: ignore[arg-type]


def test_another_address_than_loopback_wants_tokens() -> None:
    with pytest.raises(ConfigError, match="configure tokens"):
        ServerConfig(host="0.0.0.0")
    for allowed in (
        ServerConfig(host="0.0.0.0", tokens=TOKENS),
        ServerConfig(host="0.0.0.0", insecure=True),
        ServerConfig(host="::1"),
    ):
        assert allowed.port == 8765


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:1234", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("chat.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
async def test_a_page_that_points_its_own_name_here_reaches_nothing(host: str, code: int) -> None:
    async with open_web(agent(), config=ServerConfig(allowed_hosts=["chat.example"])) as web:
        response = await web.client.get("/v1/agents", headers={"host": host})
        assert response.status_code == code


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", ""])
async def test_a_page_of_another_origin_changes_nothing(origin: str) -> None:
    async with open_web(agent("Hello.")) as web:
        for method, path, body in EVERYTHING:
            response = await web.client.request(method, path, json=body, headers={"origin": origin})
            assert "access-control-allow-origin" not in response.headers
            assert (response.status_code == 403) == (method != "GET"), (method, path)
        assert web.server.runtime.statistics().accepted == 0
        same = await web.client.post(
            "/v1/conversations/c/runs", json={"ask": "Hi."}, headers={"origin": web.server.url}
        )
        assert same.status_code == 200


async def test_an_origin_that_is_allowed_may_ask_and_read() -> None:
    origin = "https://chat.example"
    async with open_web(agent("Hello."), config=ServerConfig(cors_origins=[origin])) as web:
        preflight = await web.client.options(
            "/v1/conversations/c/runs", headers={"origin": origin, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        response = await web.client.post("/v1/conversations/c/runs", json={"ask": "Hi."}, headers={"origin": origin})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == origin
        assert response.headers["vary"] == "Origin"
        readable = set(response.headers["access-control-expose-headers"].split(", "))
        assert {"location", "retry-after", "x-run-id", "idempotent-replayed"} <= readable
        refused = await web.client.options(
            "/v1/conversations/c/runs",
            headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
        )
        assert "access-control-allow-origin" not in refused.headers


def test_an_origin_with_a_path_or_a_wildcard_is_refused() -> None:
    for wrong in ("*", "https://chat.example/", "chat.example"):
        with pytest.raises(ConfigError, match="cors_origins"):
            ServerConfig(cors_origins=[wrong])


async def test_every_answer_says_that_it_is_neither_sniffed_nor_framed_nor_kept() -> None:
    async with open_web(agent("Hello.")) as web:
        for path in ("/v1/agents", "/nowhere", "/v1/conversations/c", "/openapi.json"):
            headers = (await web.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert "server" not in headers


async def test_the_page_s_policy_allows_its_own_files_alone() -> None:
    async with open_web(agent()) as web:
        policy = (await web.client.get("/")).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        for path in ("/assets/../_tokens.py", "/assets/%2e%2e/_tokens.py", "/assets/..%2f..%2f_tokens.py"):
            assert await status(web, "GET", path) == 404


async def test_ids_that_are_no_text_are_refused_and_not_one_conversation() -> None:
    async with open_web(agent("Hello.")) as web:
        for wrong in ("%FF", "%FE", "%ED%A0%80"):
            response = await web.client.post(f"/v1/conversations/{wrong}/runs", json={"ask": "Hi."})
            assert (response.status_code, response.json()["field"]) == (422, "id")
        asked = await web.client.post("/v1/conversations/%EF%BF%BD/runs", json={"ask": "Hi."})
        assert asked.json()["conversation_id"] == "\ufffd"


async def test_nobody_speaks_http_2_here() -> None:
    """What its window has no room for would be kept in memory, for as long as a client likes."""
    async with open_web(agent("Hello.")) as web:
        upgrade = await web.connect()
        rows = {"upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__", "connection": "Upgrade, HTTP2-Settings"}
        await upgrade.send("GET", "/healthz", **rows)
        assert (await upgrade.read_until(b'{"status":"ok"}')).startswith(b"HTTP/1.1 200")
        knowing = await web.connect()
        await knowing.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        assert (await knowing.read_to_end()).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("asked", ["nothing", "and was answered", "and left at once"])
async def test_a_client_that_left_counts_as_a_connection_no_more(asked: str) -> None:
    """It did, until it would have been idle for too long: clients that come and go used up what there may be."""
    async with open_web(agent("Hello."), config=ServerConfig(max_connections=1, drain_grace=5)) as web:
        first = await web.connect()
        if asked == "and was answered":
            await first.send("GET", "/healthz")
            await first.read_until(b'{"status":"ok"}')
        elif asked == "and left at once":
            await first.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."})
        await first.stream.aclose()
        with trio.fail_after(10):
            answer = b""
            while b'{"status":"ok"}' not in answer:
                raw = await web.connect()
                await raw.send("GET", "/healthz", connection="close")
                try:
                    answer = await raw.read_to_end()
                except trio.BrokenResourceError:
                    continue
                assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))


# --- requests -------------------------------------------------------------------------------------------------------

RUNS = "/v1/conversations/c/runs"
JSON = "application/json"


@pytest.mark.parametrize(
    ("content", "content_type", "code", "kind", "field"),
    [
        (b'{"ask": "Hi."}', "text/plain", 415, "wrong-content-type", None),
        (b'{"ask": "Hi."}', None, 415, "wrong-content-type", None),
        (b'{"ask": "Hi."', JSON, 400, "bad-json", None),
        (b"\xff\xfe", JSON, 400, "bad-json", None),
        (b'{"ask": "\\ud800"}', JSON, 400, "bad-json", None),
        (b'{"ask": NaN}', JSON, 400, "bad-json", None),
        (b"[]", JSON, 422, "invalid", None),
        (b"", JSON, 422, "invalid", "ask"),
        (b"{}", JSON, 422, "invalid", "ask"),
        (b'{"ask": ""}', JSON, 422, "invalid", "ask"),
        (b'{"ask": " \\n"}', JSON, 422, "invalid", "ask"),
        (b'{"ask": 1}', JSON, 422, "invalid", "ask"),
        (b'{"ask": "x", "asks": "y"}', JSON, 422, "invalid", "asks"),
        (b'{"ask": "x", "timeout": 0}', JSON, 422, "invalid", "timeout"),
        (b'{"ask": "x", "timeout": 1e400}', JSON, 422, "invalid", "timeout"),
        (b'{"ask": "x", "when_busy": "now"}', JSON, 422, "invalid", "when_busy"),
        (b'{"ask": "x", "detach": "yes"}', JSON, 422, "invalid", "detach"),
        (b'{"ask": "x", "agent": "other"}', JSON, 404, "not-found", "agent"),
        (b'{"ask": "' + b"x" * 1_000_000 + b'"}', JSON, 413, "too-large", None),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong_with_it(
    content: bytes, content_type: str | None, code: int, kind: str, field: str | None
) -> None:
    async with open_web(agent()) as web:
        headers = {} if content_type is None else {"content-type": content_type}
        response = await web.client.post(RUNS, content=content, headers=headers)
        body = response.json()
        assert response.headers["content-type"] == "application/problem+json"
        assert (response.status_code, body["type"]) == (code, f"urn:goliath-actors:problem:{kind}"), body
        assert (body["status"], body["instance"], body.get("field")) == (code, RUNS, field), body
        assert set(body) <= {"type", "title", "status", "detail", "instance", "field", "retry_after"}
        assert web.server.runtime.statistics().accepted == 0


@pytest.mark.parametrize("ask", ["", " \n"])
async def test_a_blank_ask_is_told_in_words_and_not_in_a_pattern(ask: str) -> None:
    async with open_web(agent()) as web:
        response = await web.client.post(RUNS, json={"ask": ask})
        assert response.json()["detail"] == "it is blank; it needs at least one character"


async def test_data_that_is_nested_too_deeply_is_refused() -> None:
    async with open_web(agent()) as web:
        content = b'{"answers": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
        response = await web.client.post("/v1/conversations/c/resume", content=content, headers={"content-type": JSON})
        assert (response.status_code, response.json()["detail"]) == (400, "it is nested too deeply")


async def test_a_body_that_never_ends_or_never_comes_is_cut_off() -> None:
    async with open_web(agent(), config=ServerConfig(max_body=1000, body_timeout=0.1)) as web:
        raw = await web.connect()
        head = f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
        await raw.stream.send_all(head.encode() + b"400\r\n" + b"x" * 1024 + b"\r\n400\r\n")
        assert b"HTTP/1.1 413" in await raw.read_until(b"too-large")
        raw = await web.connect()
        head = f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON}\r\ncontent-length: 100\r\n\r\n"
        await raw.stream.send_all(head.encode() + b"{")
        assert b"HTTP/1.1 408" in await raw.read_until(b"problem:timeout")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/conversations/%20/history", 422),
        ("/v1/conversations/" + "x" * 257, 422),
        ("/v1/conversations/a%00b", 422),
        ("/v1/conversations/a%2Fb", 404),
        ("/v1/conversations/%FF", 422),
        ("/v1/conversations/c/history?limit=0", 422),
        ("/v1/conversations/c/history?limit=201", 422),
        ("/v1/conversations/c/history?before=-1", 422),
        ("/v1/conversations/c/history?after=\u0661", 422),
        ("/v1/conversations/c/history?anchor=99999999999999999999", 422),
        ("/v1/conversations?limit=many", 422),
        ("/v1/conversations?limt=5", 422),
        ("/v1/conversations/c?=", 422),
        ("/v2", 404),
    ],
)
async def test_a_wrong_address_is_told_what_is_wrong_with_it(path: str, code: int) -> None:
    async with open_web(agent()) as web:
        response = await web.client.get(path)
        assert (response.status_code, response.headers["content-type"]) == (code, "application/problem+json")


async def test_other_methods_and_other_answers_than_there_are_are_refused() -> None:
    async with open_web(agent()) as web:
        response = await web.client.put("/v1/conversations/c", json={})
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
        response = await web.client.post(RUNS, json={"ask": "Hi."}, headers={"accept": "text/html"})
        assert response.status_code == 406
        response = await web.client.get(f"{RUNS}/r/events", headers={"last-event-id": "x"})
        assert response.status_code == 422


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("show", [True, False])
async def test_texts_of_errors_reach_clients_only_where_they_may_see_them(
    show: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def broken() -> str:
        """Break."""
        raise RuntimeError("secret-of-a-tool")

    own = agent(tool_calls(("broken", {})), RuntimeError("secret-of-a-model"), tools=[broken])
    caplog.set_level(logging.DEBUG)
    async with open_web(own, config=ServerConfig(show_errors=show)) as web:
        async with web.stream("Hi.") as response:
            sent = json.dumps([one.data for one in await read_all(response)])
        run_id = json.loads(sent)[-1]["run_id"]
        run = (await web.client.get(f"{RUNS}/{run_id}")).text
        recorded = json.dumps((await web.server._hosting.ledger.read(":server/assistant/local/c")).private.copy())
    for secret in ("secret-of-a-tool", "secret-of-a-model"):
        assert (secret in sent) == show
        if not show:
            assert secret not in run + recorded
        assert secret not in caplog.text


async def test_an_error_of_the_server_itself_is_a_number_to_look_for(caplog: pytest.LogCaptureFixture) -> None:
    def context(visitor: Visitor) -> object:
        raise RuntimeError("a secret")

    async with open_web(agent(), config=ServerConfig(show_errors=False), context=context) as web:
        response = await web.ask("Hi.")
    assert response.status_code == 500
    assert "a secret" not in response.text + caplog.text
    number = response.json()["detail"].rpartition(" ")[2]
    assert number in caplog.text
