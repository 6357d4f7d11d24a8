"""Tools of MCP servers, against real servers in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goliath_actors import Agent, Conductor, Extension, Tool, ToolContext, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.errors import (
    ConfigError,
    RunAborted,
    ToolFailure,
    ToolInputError,
    ToolInterrupted,
    ToolsUnavailable,
    ToolTimeout,
)
from goliath_actors.events import ToolProgress
from goliath_actors.mcp import McpOutput, McpProgress, McpTools
from goliath_actors.otel import Tracing
from goliath_actors.testing import ScriptedModel, check_events, tool_calls

from .mcp_server import make

HERE = Path(__file__).parent
STDIO = [sys.executable, str(HERE / "mcp_server.py"), "stdio"]
ALL = [
    "add",
    "echo",
    "write",
    "pid",
    "environment",
    "hang",
    "hang_writing",
    "count",
    "fail",
    "picture",
    "large",
    "trace",
    "learn",
]


def raw(way: str, **options: Any) -> McpTools:
    return McpTools(stdio=[sys.executable, str(HERE / "mcp_raw_server.py"), way], stderr="discard", **options)


def agent_of(*extensions: Extension[Any], replies: list[Any] | None = None, **options: Any) -> Agent[Any]:
    options = {"loop": ToolLoop(), "confirm": approve_all, **options}
    return Agent(model=ScriptedModel(replies or []), extensions=extensions, **options)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another process; there is no other way to see how far it is."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110  # it has no events of ours
            await trio.sleep(0.01)


def says(path: Path, text: str) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text(encoding="utf-8") == text


def names(tools: McpTools) -> list[str]:
    return [tool.name for tool in tools.tools]


# --- listing --------------------------------------------------------------------------------------------------------


async def test_a_servers_tools_are_the_agents_while_the_runtime_is_open() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    agent = agent_of(tools, replies=[tool_calls(("add", {"a": 1, "b": 2}), ("echo", {"text": "hi"})), "done"])
    assert names(tools) == []
    async with open_runtime(agent) as runtime:
        assert list(agent.tool_table) == ALL
        result = await runtime.run("add")
    assert [(step.tool, step.status, step.result) for step in result.steps[:2]] == [
        ("add", "executed", '{\n  "total": 3\n}'),
        ("echo", "executed", "hi"),
    ]
    assert result.text == "done"


async def test_the_planned_loop_uses_them_too() -> None:
    tools = McpTools(server=make(), allow=["echo"])
    plan = {"kind": "tool", "tool": "echo", "brief": "say it"}
    agent = agent_of(
        tools,
        replies=[plan, {"text": "hi"}, {"kind": "answer", "brief": "tell"}, "it said hi", "noted"],
        loop=Conductor(),
    )
    async with open_runtime(agent) as runtime:
        result = await runtime.run("say hi")
    assert [(step.tool, step.result) for step in result.steps if step.kind == "tool"] == [("echo", "hi")]


async def test_a_tool_writes_unless_somebody_says_that_it_only_reads() -> None:
    plain, said = (
        McpTools(server=make(), name="a", prefix="a_"),
        McpTools(server=make(), name="b", prefix="b_", reads=["hang_*"], writes=["echo"]),
    )
    agent = agent_of(plain, said)
    async with open_runtime(agent):
        assert [name for name, tool in agent.tool_table.items() if tool.writes] == [
            "a_write",
            "a_hang_writing",
            "b_echo",
            "b_write",
        ]


async def test_writes_without_anybody_to_confirm_them_keep_the_runtime_from_opening() -> None:
    agent = agent_of(McpTools(server=make()), confirm=None)
    with pytest.raises(ConfigError, match="'write', 'hang_writing' must be confirmed"):
        async with open_runtime(agent):
            raise AssertionError("opened")
    async with open_runtime(agent_of(McpTools(server=make(), allow=["echo", "add"]), confirm=None)):
        pass


async def test_a_write_is_confirmed_and_a_refusal_never_reaches_the_server(tmp_path: Path) -> None:
    asked = []

    def confirm(request: Any) -> bool:
        asked.append((request.tool.name, request.input))
        return False

    agent = agent_of(McpTools(server=make()), confirm=confirm)
    path = tmp_path / "file"
    async with open_runtime(agent) as runtime:
        outcome = await runtime.invoke_tool("write", {"path": str(path), "text": "x"})
    assert (outcome.status, outcome.reason) == ("skipped", "confirmation")
    assert asked == [("write", {"path": str(path), "text": "x"})]
    assert not path.exists()


async def test_names_that_are_taken_keep_the_runtime_from_opening_and_a_prefix_helps() -> None:
    @tool
    def echo(text: str) -> str:
        """Say it."""
        return text

    with pytest.raises(ConfigError, match="two tools are named 'echo'"):
        async with open_runtime(agent_of(McpTools(server=make()), tools=[echo])):
            raise AssertionError("opened")
    agent = agent_of(McpTools(server=make(), prefix="far_", allow=["echo"]), tools=[echo])
    async with open_runtime(agent):
        assert list(agent.tool_table) == ["echo", "far_echo"]
    with pytest.raises(ConfigError, match="two extensions are named 'mcp'"):
        agent_of(McpTools(server=make()), McpTools(server=make()))


async def test_tools_with_schemas_that_cannot_be_used_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    tools = raw("schemas")
    async with open_runtime(agent_of(tools)):
        assert names(tools) == ["good", "bare"]
        assert tools.tools[1].description == "The tool 'bare' of mcp."
        assert sorted(tools.refused) == ["broken", "elsewhere", "reserved"]
        assert "no JSON schema" in tools.refused["broken"]
        assert "leads to nothing" in tools.refused["elsewhere"]
    assert "its tool 'reserved' is left out" in caplog.text


async def test_names_are_made_such_as_providers_take_and_stay_unique() -> None:
    tools = raw("names")
    async with open_runtime(agent_of(tools)):
        first, second, third, fourth = names(tools)
        assert (first, fourth) == ("files_read_text", "good")
        assert {len(second), len(third)} == {64}
        assert second != third
        assert list(tools.refused) == ["files_read_text", "good"]


async def test_arguments_are_checked_here_against_the_servers_schema() -> None:
    async with open_runtime(agent_of(McpTools(server=make()))) as runtime:
        with pytest.raises(ToolInputError, match=r"b: .*missing"):
            await runtime.invoke_tool("add", {"a": 1})
        with pytest.raises(ToolInputError, match="'two' is not of type 'integer'"):
            await runtime.invoke_tool("add", {"a": 1, "b": "two"})


async def test_a_changed_list_is_taken_up_by_the_next_run() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    async with open_runtime(agent_of(tools)) as runtime:
        await runtime.invoke_tool("learn", {"name": "sing"})
        await until(lambda: names(tools)[-1] == "sing")
        assert (await runtime.invoke_tool("sing", {})).output.text == "sing"


async def test_a_changed_list_of_an_older_server_too_and_a_name_that_is_taken_is_left_out() -> None:
    @tool
    def mine() -> str:
        """Mine."""
        return "mine"

    tools = raw("changes", pass_instructions=True)
    agent = agent_of(tools, tools=[mine])
    assert tools.instructions == ""
    async with open_runtime(agent) as runtime:
        assert tools.instructions == "Say little."
        await runtime.invoke_tool("good", {"text": "other"})
        await until(lambda: names(tools) == ["good", "other"])
        await runtime.invoke_tool("good", {"text": "mine"})
        await until(lambda: names(tools) == ["good", "mine"])
        assert agent.tool_table["mine"] is mine
        assert list(agent.tool_table) == ["mine", "good"]


# --- results --------------------------------------------------------------------------------------------------------


async def test_pictures_are_put_into_words_and_kept_for_the_application() -> None:
    async with open_runtime(agent_of(McpTools(server=make()))) as runtime:
        output = (await runtime.invoke_tool("picture", {})).output
        assert isinstance(output, McpOutput)
        assert output.text == "look:\n[image: image/png, 40 bytes]"
        assert [block["type"] for block in output.content] == ["text", "image"]
        assert "base64" not in repr(output)
        assert (await runtime.invoke_tool("add", {"a": 1, "b": 2})).output.structured == {"total": 3}


async def test_a_servers_failure_is_told_in_its_own_words() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    agent = agent_of(tools, replies=[tool_calls(("fail", {"why": "No such city."})), "done"])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    assert result.steps[0].status == "failed"
    assert "No such city." in (result.steps[0].result or "")
    assert result.diagnostics == ()


async def test_an_error_of_the_protocol_is_a_failure_and_nonsense_is_not_believed() -> None:
    async with open_runtime(agent_of(raw("refuses"))) as runtime:
        outcome = await runtime.invoke_tool("good", {"text": "x"})
        assert outcome.status == "failed"
        assert isinstance(outcome.error, ToolFailure)
        assert not isinstance(outcome.error, ToolInterrupted)
        assert outcome.error.text == "good: I will not."
    async with open_runtime(agent_of(raw("nonsense", writes=["good"]))) as runtime:
        outcome = await runtime.invoke_tool("good", {"text": "x"})
        assert outcome.status == "unknown"
        assert isinstance(outcome.error, ToolInterrupted)


async def test_a_large_result_is_capped_like_any_other() -> None:
    tools = McpTools(server=make())
    short = McpTools(server=make(), name="short", prefix="s_", output_mode="summary")
    agent = agent_of(
        tools,
        short,
        replies=[tool_calls(("large", {"size": 200_000}), ("s_large", {"size": 200_000})), "ok"],
        loop=ToolLoop(window=8_000),
    )
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    assert 600 < len(result.steps[0].result or "") < 20_000
    assert len(result.steps[1].result or "") <= 600


async def test_progress_is_told_in_order() -> None:
    heard: list[McpProgress] = []
    tools = McpTools(stdio=STDIO, stderr="discard", on_progress=heard.append)
    agent = agent_of(tools, replies=[tool_calls(("count", {"to": 3})), "done"])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("count", conversation_id="c1")
    assert [(one.progress, one.total, one.message) for one in heard] == [
        (1, 3, "at 1"),
        (2, 3, "at 2"),
        (3, 3, "at 3"),
    ]
    assert {(one.tool, one.run_id, one.conversation_id, one.call_id) for one in heard} == {
        ("count", result.run_id, "c1", result.steps[0].call_id)
    }
    told = [event for event in check_events(result.trace) if isinstance(event, ToolProgress)]
    assert (told[0].tool, told[0].progress, told[0].total, told[0].message) == ("count", 1, 3, "at 1")


async def test_a_trace_goes_along_to_the_server() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tools = McpTools(stdio=STDIO, stderr="discard")
    agent = agent_of(Tracing(tracer_provider=provider), tools, replies=[tool_calls(("trace", {})), "done"])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "execute_tool trace"]
    assert span.context is not None
    told, _, _ = (result.steps[0].result or "").rpartition("-")  # the last part is flags
    assert told == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"
    provider.shutdown()


# --- calls that end early -------------------------------------------------------------------------------------------


async def test_an_abort_of_the_run_cancels_the_call_at_the_server(tmp_path: Path) -> None:
    path = tmp_path / "state"
    tools = McpTools(stdio=STDIO, stderr="discard")
    agent = agent_of(tools, replies=[tool_calls(("hang", {"path": str(path)}))])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await until(says(path, "begun"))
        run.abort("enough")
        with pytest.raises(RunAborted):
            await run.wait()
        await until(says(path, "cancelled"))
        assert (await runtime.invoke_tool("echo", {"text": "still here"})).output.text == "still here"
        check_events([event async for event in run.events()])


async def test_a_call_has_a_time_limit_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    path = tmp_path / "state"
    tools = McpTools(stdio=STDIO, stderr="discard", call_timeout=1.5)
    async with open_runtime(agent_of(tools)) as runtime:
        outcome = await runtime.invoke_tool("hang_writing", {"path": str(path)})
        assert outcome.status == "unknown"
        assert isinstance(outcome.error, ToolTimeout)
        await until(says(path, "cancelled"))


async def test_a_killed_server_fails_the_calls_in_flight_and_the_next_call_connects_again(tmp_path: Path) -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    outcomes: dict[str, Any] = {}
    async with open_runtime(agent_of(tools)) as runtime:
        first = (await runtime.invoke_tool("pid", {})).output.text

        async def hang(name: str) -> None:
            outcomes[name] = await runtime.invoke_tool(name, {"path": str(tmp_path / name)})

        async with trio.open_nursery() as nursery:
            for name in ("hang", "hang_writing"):
                nursery.start_soon(hang, name)
                await until(says(tmp_path / name, "begun"))
            os.kill(int(first), signal.SIGKILL)
        second = (await runtime.invoke_tool("pid", {})).output.text
    assert second != first
    # A read failed; a write may have happened.
    assert [(name, outcomes[name].status) for name in ("hang", "hang_writing")] == [
        ("hang", "failed"),
        ("hang_writing", "unknown"),
    ]
    for outcome in outcomes.values():
        assert isinstance(outcome.error, ToolInterrupted)
        assert outcome.error.retryable


async def test_a_server_that_died_while_nobody_called_is_not_noticed_by_the_next_call() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    async with open_runtime(agent_of(tools)) as runtime:
        first = (await runtime.invoke_tool("pid", {})).output.text
        os.kill(int(first), signal.SIGKILL)
        await until(lambda: tools._server._client is None)
        assert (await runtime.invoke_tool("pid", {})).output.text != first


async def test_a_server_that_dies_in_every_call_is_left_alone_for_a_while() -> None:
    async with open_runtime(agent_of(raw("dies-in-call"))) as runtime:
        outcomes = [await runtime.invoke_tool("good", {"text": "x"}) for _ in range(3)]
        texts = [outcome.error.text for outcome in outcomes]
        assert texts[0] == texts[1] == "mcp was lost before good had answered."
        assert texts[2] == "mcp cannot be reached (the connection ended); try again in 1 s."


async def test_twenty_calls_at_a_time_get_their_own_answers_with_few_slots() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard", max_parallel=4)
    answers: list[str] = [""] * 20
    async with open_runtime(agent_of(tools)) as runtime:

        async def ask(number: int) -> None:
            answers[number] = (await runtime.invoke_tool("echo", {"text": f"n{number}"})).output.text

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
    assert answers == [f"n{number}" for number in range(20)]


async def test_leaving_the_runtime_ends_the_process() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    async with open_runtime(agent_of(tools)) as runtime:
        pid = int((await runtime.invoke_tool("pid", {})).output.text)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_cancelling_the_runtime_in_a_call_ends_the_process_too(tmp_path: Path) -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    agent = agent_of(tools, replies=[tool_calls(("hang", {"path": str(tmp_path / "state")}))])
    pid = 0
    with trio.CancelScope() as scope:
        async with open_runtime(agent) as runtime:
            pid = int((await runtime.invoke_tool("pid", {})).output.text)
            runtime.submit("go")
            await until(says(tmp_path / "state", "begun"))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_tool_that_is_kept_beyond_the_runtime_says_so_instead_of_waiting(tmp_path: Path) -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    async with open_runtime(agent_of(tools)) as runtime:
        pid = (await runtime.invoke_tool("pid", {})).output.text
        (echo,) = [tool for tool in tools.tools if tool.name == "echo"]
    with pytest.raises(ToolFailure, match="mcp is closed: its runtime has ended"):
        await echo.start(echo.check({"text": "x"}), ToolContext())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_cancelling_the_opening_of_a_runtime_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    tools = McpTools(stdio=[sys.executable, str(HERE / "mcp_raw_server.py"), "mute", str(pids)], stderr="discard")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def open_it() -> None:
                async with open_runtime(agent_of(tools)):
                    raise AssertionError("opened")

            nursery.start_soon(open_it)
            await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
            scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


async def test_two_agents_share_one_server() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard")
    one, two = agent_of(tools, name="one"), agent_of(tools, name="two")
    async with open_runtime(one, two) as runtime:
        pids = [(await runtime.invoke_tool("pid", {}, agent=name)).output.text for name in ("one", "two")]
    assert pids[0] == pids[1]


async def test_a_callback_for_progress_that_raises_changes_nothing() -> None:
    def raising(progress: McpProgress) -> None:
        raise OSError("no screen")

    async with open_runtime(agent_of(McpTools(stdio=STDIO, stderr="discard", on_progress=raising))) as runtime:
        assert (await runtime.invoke_tool("count", {"to": 3})).output.text == "counted"


async def test_one_extension_can_be_opened_again_after_it_was_closed() -> None:
    tools = McpTools(stdio=STDIO, stderr="discard", allow=["echo"])
    agent = agent_of(tools)
    for _ in range(2):
        async with open_runtime(agent) as runtime:
            assert (await runtime.invoke_tool("echo", {"text": "x"})).output.text == "x"


# --- reaching a server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        (lambda: McpTools(stdio=["/no/such/program"], name="far"), "FileNotFoundError"),
        (lambda: raw("dies", name="far"), "Connection closed"),
        (lambda: raw("mute", name="far", connect_timeout=0.5), "no answer within 0.5 s"),
        (lambda: raw("endless", name="far"), "does not end within 100 pages"),
        (lambda: raw("array", name="far"), "ValidationError: .* Input should be 'object'"),
        (lambda: McpTools(url="http://127.0.0.1:9/mcp", name="far"), "ConnectError"),
    ],
    ids=["no-program", "dies", "mute", "endless", "array", "no-address"],
)
async def test_a_server_that_cannot_be_reached_keeps_the_runtime_from_opening(
    tools: Callable[[], McpTools], why: str
) -> None:
    with pytest.raises(ToolsUnavailable, match=rf"^far \(.*\) cannot be reached: .*{why}"):
        async with open_runtime(agent_of(tools())):
            raise AssertionError("opened")


async def test_a_server_that_talks_beside_the_protocol_is_understood() -> None:
    async with open_runtime(agent_of(raw("noisy"))) as runtime:
        assert (await runtime.invoke_tool("good", {"text": "x"})).output.text == "x"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(port: int) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: ASYNC220  # starting it is quick, and it is killed, not waited for
        [sys.executable, str(HERE / "mcp_server.py"), "http", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        with trio.fail_after(20):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                except OSError:
                    await trio.sleep(0.02)
                else:
                    await stream.aclose()
                    break
        yield process
    finally:
        process.kill()
        process.wait()


async def test_an_optional_server_is_tried_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    tools = McpTools(url=f"http://127.0.0.1:{port}/mcp", required=False, allow=["echo"])
    agent = agent_of(tools)
    async with open_runtime(agent) as runtime:
        assert list(agent.tool_table) == []
        async with serving(port):
            await until(lambda: names(tools) == ["echo"])
            assert (await runtime.invoke_tool("echo", {"text": "hi"})).output.text == "hi"


# A reply that is no longer wanted is dropped by the protocol's library without being closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_everything_works_over_http_too(tmp_path: Path) -> None:
    port = free_port()
    heard: list[McpProgress] = []
    tools = McpTools(url=f"http://127.0.0.1:{port}/mcp", on_progress=heard.append)
    path = tmp_path / "state"
    agent = agent_of(tools, replies=[tool_calls(("hang", {"path": str(path)}))])
    async with serving(port), open_runtime(agent) as runtime:
        assert names(tools) == ALL
        assert (await runtime.invoke_tool("count", {"to": 2})).output.text == "counted"
        assert [one.progress for one in heard] == [1, 2]
        run = runtime.submit("go")
        await until(says(path, "begun"))
        run.abort()
        await until(says(path, "cancelled"))
        await runtime.invoke_tool("learn", {"name": "sing"})
        await until(lambda: names(tools)[-1] == "sing")
        answers: list[str] = [""] * 20

        async def ask(number: int) -> None:
            answers[number] = (await runtime.invoke_tool("echo", {"text": f"n{number}"})).output.text

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
        assert answers == [f"n{number}" for number in range(20)]


async def test_a_server_behind_an_address_that_was_killed_is_found_again(tmp_path: Path) -> None:
    port = free_port()
    tools = McpTools(url=f"http://127.0.0.1:{port}/mcp")
    path = tmp_path / "state"
    outcomes: list[Any] = []
    async with serving(port) as process:
        async with open_runtime(agent_of(tools)) as runtime:

            async def hang() -> None:
                outcomes.append(await runtime.invoke_tool("hang_writing", {"path": str(path)}))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hang)
                await until(says(path, "begun"))
                process.kill()
                process.wait()
            assert outcomes[0].status == "unknown"
            assert isinstance(outcomes[0].error, ToolInterrupted)
            missing = await runtime.invoke_tool("echo", {"text": "x"})
            assert missing.status == "failed"
            assert isinstance(missing.error, ToolFailure)
            async with serving(port):
                await until(lambda: tools._server._not_before <= trio.current_time())
                assert (await runtime.invoke_tool("echo", {"text": "back"})).output.text == "back"


# --- secrets --------------------------------------------------------------------------------------------------------


async def test_what_is_secret_reaches_the_server_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    tools = McpTools(stdio=[*STDIO, "asyncio"], env={"TOKEN": "s3cret-value"}, stderr="discard")
    async with open_runtime(agent_of(tools)) as runtime:
        assert (await runtime.invoke_tool("environment", {"name": "TOKEN"})).output.text == "s3cret-value"
    far = McpTools(
        url="http://me:pass-word@127.0.0.1:9/mcp?key=s3cret-value",
        headers={"Authorization": "Bearer s3cret-value"},
        name="far",
    )
    with pytest.raises(ToolsUnavailable) as raised:
        async with open_runtime(agent_of(far)):
            pass
    with pytest.raises(ConfigError) as refused:
        McpTools(stdio=["x"], env={"TOKEN": b"s3cret-value"})  # type: ignore[dict-item]  # the mistake under test
    seen = [repr(tools), repr(far), repr(tools._server), str(raised.value), str(refused.value), caplog.text]
    assert [text for text in seen if "s3cret" in text or "pass-word" in text] == []
    assert repr(far) == "<McpTools 'far' http://127.0.0.1:9/mcp tools=0>"


def test_a_masked_text_keeps_the_rest() -> None:
    from goliath_actors.mcp._transports import Reach

    reach = Reach(url="https://me:pass-word@example.org/mcp?key=s3cret", headers={"X": "token-1"})
    assert reach.masked("GET https://me:pass-word@example.org/mcp?key=s3cret with token-1 failed") == (
        "GET https://example.org/mcp with *** failed"
    )


# --- wrong configuration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs one of stdio"),
        ({"stdio": ["x"], "url": "http://x"}, "needs one of stdio"),
        ({"stdio": "server --verbose"}, "takes a program and its arguments"),
        ({"stdio": []}, "takes a program and its arguments"),
        ({"url": "example.org/mcp"}, "must begin with http"),
        ({"url": "http://x", "env": {"A": "b"}}, "is for a server that is started"),
        ({"stdio": ["x"], "headers": {"A": "b"}}, "are for a server behind url"),
        ({"stdio": ["x"], "name": " "}, "string with text in it"),
        ({"stdio": ["x"], "allow": "search"}, "list of names or patterns"),
        ({"stdio": ["x"], "call_timeout": 0}, "positive number of seconds"),
        ({"stdio": ["x"], "connect_timeout": None}, "positive number of seconds"),
        ({"stdio": ["x"], "max_parallel": 0}, "1 or more"),
        ({"stdio": ["x"], "output_mode": "long"}, "output_mode"),
        ({"stdio": ["x"], "stderr": "file"}, "stderr"),
        ({"stdio": ["x"], "on_progress": 1}, "must be callable"),
    ],
)
def test_what_could_never_work_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        McpTools(**options)


def test_without_the_library_the_extension_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"/path/to/clone\[mcp\]"):
        McpTools(stdio=["x"])


def test_importing_the_extension_does_not_load_the_library() -> None:
    code = "import sys, goliath_actors.mcp; goliath_actors.mcp.McpTools(stdio=['x']); print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_empty_list_of_tools_is_what_an_unopened_extension_has() -> None:
    tools: list[Tool] = list(McpTools(stdio=["x"]).tools)
    assert tools == []
