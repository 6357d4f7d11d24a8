"""The server and its OpenAPI document say the same: requests made up from the document, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from goliath_actors.server import hash_token
from goliath_actors.server._openapi import openapi
from goliath_actors.server._problems import PROBLEMS

from .test_server_process import Process, serving


def without_security(document: Any) -> Any:
    """Return the document without its tokens: see test_server_security. Schemathesis would leave out and mangle the
    header that the test has to send, and then be told of success."""
    found = json.loads(json.dumps(document))
    for operations in found["paths"].values():
        for operation in operations.values():
            del operation["security"]
    del found["components"]["securitySchemes"]
    return found


TOKEN = "a-token-of-enough-characters"
DOCUMENT = openapi()
# Served from the test's own copy; a base address is given when a server is there.
SCHEMA = schemathesis.openapi.from_dict(without_security(DOCUMENT))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("openapi")
    (folder / "tokens.txt").write_text(f"ada admin {hash_token(TOKEN)}\n", encoding="utf-8")
    arguments = ("--model", "demo", "--store", "memory", "--timeout", "5", "--token-file", "tokens.txt")
    with serving(folder, *arguments) as process:
        yield process


def test_the_server_gives_the_document(server: Process) -> None:
    assert server.call("GET", "/openapi.json").body == DOCUMENT


@pytest.mark.timeout(300)
@SCHEMA.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
def test_every_answer_is_one_that_the_document_has(case: Any, server: Process) -> None:
    case.call_and_validate(base_url=server.url, timeout=20, headers={"authorization": f"Bearer {TOKEN}"})


def test_every_operation_is_documented_with_its_scope() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert (operation["security"] == []) == (path in ("/healthz", "/readyz")), (method, path)


def test_every_kind_of_problem_is_a_clear_client_or_server_error() -> None:
    assert all(400 <= status < 600 and title for status, title in PROBLEMS.values())
