"""Where a name lives is a promise."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import goliath_actors

PROMISED = {
    "goliath_actors": """Agent Conductor ToolLoop SessionFallback Compaction open_runtime serve_runtime Runtime Run
        Conversation EventStream RunResult Outcome Extension Stop Deny Respond Retry Skip tool Tool ToolContext
        ToolFailure Message Memory approve_all GoliathError RunAborted __version__""",
    "goliath_actors.hooks": """Extension HOOKS BeforeRun AfterRecall ResolveContext BeforePlan BeforeRequest AroundModel
        AfterResponse AfterPlan BeforeTool AroundTool AfterTool AfterTools AfterStep BeforeFallback AfterAnswer
        BeforeAppend BeforeCompact BeforeRemember BeforeRewrite AfterRewrite OnError OnFinish Ask Stop Respond Deny
        Retry Skip Decline NextStep Complete Continue RunPatch PlanPatch ModelPatch MetadataPatch""",
    "goliath_actors.tools": """tool Tool ToolContext ToolDescriptor ToolOutcome ConfirmRequest Confirmed Suspend
        approve_all""",
    "goliath_actors.threads": "Mutation RewritingMutation StepThread Thread",
    "goliath_actors.abc": """Model Store TokenCounter ModelRequest ModelText ModelToolCall ModelUsage ModelDone Record
        Change Entry""",
    "goliath_actors.values": """Plan Step Memory Exchange Message ToolCall Outcome Abort RunResult Stopped Responded
        Usage Diagnostic Waiting FallbackRequest FallbackAnswer Page DrainReport ConversationStatus
        RuntimeStatistics""",
    "goliath_actors.events": """RunQueued RunStarted Recall Budget ModelStarted TextDelta ModelFinished PlanMade Confirm
        ToolStarted ToolFinished HookDecision Answer Retraction Escalate Remember MemoryError Steered RunWaiting
        RunFinished""",
    "goliath_actors.errors": """GoliathError ConfigError GoliathExtensionError GoliathBudgetError MailboxFull
        ConversationBusy RuntimeClosed RunAborted ReentrantRun ModelError ModelUnavailable ContextOverflow Refused
        RateLimited FallbackError StoreConflict ToolFailure""",
    "goliath_actors.models": "AnthropicMessages Fallbacks HttpFallback Limited LimitedStatistics OpenAIChat",
    "goliath_actors.stores": "InMemoryStore LeasedStore PostgresStore SqliteStore",
    "goliath_actors.policies": "Audit Guardrail RateLimit Redact Retrieval TokenBudget ToolPolicy",
    "goliath_actors.server": """Ledger Server ServerConfig Token Visitor ask_client create_app hash_token make_token
        read_token_file read_tokens recorded serve serve_app""",
    "goliath_actors.bridge": "Bridge BridgeConversation BridgeRun BridgeStream call_asyncio open_bridge",
    "goliath_actors.metrics": "CONTENT_TYPE HttpMetrics Metrics",
    "goliath_actors.evals": "Fixture evaluate Report Attempt Evaluated acknowledge",
    "goliath_actors.loadtest": """run_load Scenario Turn Burst Clients Provider RuntimeShape Dice InProcess
        BackendTarget Target LoadReport Check Threshold read_scenario read_threshold as_page""",
    "goliath_actors.files": "CompositeFiles MemoryFiles SqliteFiles StaticFiles file_tools",
    "goliath_actors.logs": "Logs",
    "goliath_actors.otel": "Tracing trace_headers",
    "goliath_actors.mcp": "McpTools McpOutput McpProgress",
    "goliath_actors.testing": "ScriptedModel ScriptExhausted tool_calls Gate Journal FailingStore check_events",
}


@pytest.mark.parametrize("module", PROMISED)
def test_every_promised_name_is_where_it_was_promised(module: str) -> None:
    namespace = importlib.import_module(module)
    missing = [name for name in PROMISED[module].split() if not hasattr(namespace, name)]
    assert missing == []
    assert set(PROMISED[module].split()) <= set(namespace.__all__)


@pytest.mark.parametrize("module", PROMISED)
def test_every_exported_name_exists_and_is_documented(module: str) -> None:
    namespace = importlib.import_module(module)
    for name in namespace.__all__:
        value = getattr(namespace, name)
        if callable(value) and getattr(value, "__module__", "").startswith("goliath_actors"):
            assert value.__doc__, f"{module}.{name} has no docstring"


def test_the_front_door_has_at_most_thirty_names() -> None:
    assert len(goliath_actors.__all__) <= 30


HEAVY = (
    "httpx2 httpcore2 h2 anyio tiktoken regex jsonschema pydantic sqlite3 asyncio pytest psycopg starlette hypercorn "
    "h11 mcp opentelemetry prometheus_client rich"
)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import goliath_actors", f"trio attrs msgspec trio_util {HEAVY}"),
        ("from goliath_actors import *", HEAVY),
        ("import goliath_actors.hooks, goliath_actors.tools, goliath_actors.events, goliath_actors.errors", HEAVY),
        ("import goliath_actors.testing", HEAVY.replace("pytest ", "")),  # trio.testing loads it
        ("import goliath_actors.policies", HEAVY),
        ("import goliath_actors.mcp, goliath_actors.otel, goliath_actors.logs", HEAVY),
    ],
)
def test_an_import_loads_no_heavy_library(statement: str, absent: str) -> None:
    code = f"import sys; {statement}; print([name for name in {absent.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_front_door_opens_the_rooms_that_type_checkers_read() -> None:
    tree = ast.parse(Path(goliath_actors.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: f".{statement.module}"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == goliath_actors._ROOM_OF
    assert sorted([*typed, "__version__"]) == goliath_actors.__all__
    for name, room in typed.items():
        assert getattr(goliath_actors, name) is getattr(importlib.import_module(room, "goliath_actors"), name)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Agnet'"):
        goliath_actors.Agnet  # noqa: B018


def test_live_objects_show_only_what_is_promised() -> None:
    def shown(kind: type) -> str:
        return " ".join(name for name in dir(kind) if not name.startswith("_"))

    assert shown(goliath_actors.Runtime) == "agents conversation drain invoke_tool run statistics store stream submit"
    assert shown(goliath_actors.Run) == "abort ask conversation_id events followed_by id outcome state wait wait_ended"
    assert shown(goliath_actors.Conversation) == (
        "abort forget history id memory resume rewrite run set_visibility status steer stream submit submit_resume "
        "submit_rewrite thread"
    )
