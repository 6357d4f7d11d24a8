"""The local model server: what it promises of its process, and what its replies are like for those who build on it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio.from_thread
import attrs
import httpx2
import jsonschema
import pytest
import trio

from goliath_actors.errors import ConfigError, ModelUnavailable
from goliath_actors.models import local
from goliath_actors.models.local import LocalServer, Slots, missing_packages, open_local_server

needs_the_extra = pytest.mark.skipif(
    bool(missing_packages()), reason=f"the extra `local` is not installed: {', '.join(missing_packages())}"
)

# Long enough for a busy machine; nothing below waits that long when it works.
PATIENCE = 60.0
# A slot is given back within milliseconds where the reply streams, else after a second of quiet.
FREED_WITHIN = 10.0

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "mood": {"enum": ["good", "bad"]}},
    "required": ["city", "mood"],
    "additionalProperties": False,
}
NOTE_TOOL = {
    "type": "function",
    "function": {
        "name": "add_note",
        "description": "Add a note.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 40}},
            "required": ["text"],
        },
    },
}


class Portal(Protocol):
    def call(self, function: Any, /) -> Any: ...


@attrs.frozen
class Shared:
    """A server that runs in a thread with a trio run of its own, for the tests that only ask it something."""

    server: LocalServer
    portal: Portal

    @property
    def url(self) -> str:
        return f"{self.server.base_url}/chat/completions"

    async def slots(self) -> Slots:
        answer: Slots = await trio.to_thread.run_sync(self.portal.call, self.server.slots)
        return answer

    async def freed(self) -> Slots:
        with trio.fail_after(FREED_WITHIN):
            await trio.to_thread.run_sync(self.portal.call, self.server.wait_idle, abandon_on_cancel=True)
        return await self.slots()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        with portal.wrap_async_context_manager(open_local_server(n_parallel=4, context=1024)) as server:
            yield Shared(server, portal)


@asynccontextmanager
async def a_client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        yield client


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def json_reply(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}


async def ask(url: str, **body: Any) -> dict[str, Any]:
    async with a_client() as client:
        response = await client.post(url, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def port_is_closed(base_url: str) -> bool:
    url = httpx2.URL(base_url)
    assert url.port is not None
    try:
        stream = await trio.open_tcp_stream(url.host, url.port)
    except OSError:
        return True
    await stream.aclose()
    return False


async def wait_closed(base_url: str) -> None:
    with trio.fail_after(PATIENCE):
        while not await port_is_closed(base_url):  # noqa: ASYNC110 - another process's port has no event
            await trio.sleep(0.01)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def children() -> set[str]:
    """The ids of this process's children, with those that ended and were not waited for."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_missing_package_is_named_with_what_to_install() -> None:
    with pytest.raises(ConfigError) as caught:
        local._require({"no_such_module_here": "no-such-package", "json": "json", "nor_this_one": "nor-this"})
    assert str(caught.value) == (
        "the local model server needs no-such-package and nor-this, not installed here; "
        "install the extra from a clone: pip install '/path/to/clone[local]'"
    )


@pytest.mark.parametrize("wrong", [{"n_parallel": 0}, {"threads": 0}, {"context": 255}])
async def test_arguments_that_make_no_sense_are_refused_before_anything_starts(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        async with open_local_server(**wrong):  # type: ignore[arg-type]  # one of three int arguments
            raise AssertionError("must not start")


def test_importing_it_loads_nothing_native() -> None:
    code = "import sys, goliath_actors.models.local as local; print([n for n in sys.modules if n in local._PACKAGES])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"


@needs_the_extra
@pytest.mark.live
async def test_it_serves_one_model_with_the_slots_and_the_context_that_were_asked_for(shared: Shared) -> None:
    assert shared.server.base_url.startswith("http://127.0.0.1:")
    async with a_client() as client:
        models = (await client.get(f"{shared.server.base_url}/models")).json()["data"]
    assert [(model["id"], model["meta"]["n_ctx"]) for model in models] == [("gemma-3-270m", 1024)]
    assert shared.server.model == "gemma-3-270m"
    assert await shared.slots() == Slots(busy=0, total=4)


@needs_the_extra
@pytest.mark.live
async def test_a_reply_obeys_its_json_schema_and_stops_by_itself(shared: Shared) -> None:
    answer = await ask(
        shared.url,
        messages=user("What is the capital of France?"),
        response_format=json_reply(CITY),
        max_tokens=64,
    )
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    reply = json.loads(choice["message"]["content"])
    jsonschema.validate(reply, CITY)
    assert reply["city"] == "Paris"
    assert 0 < answer["usage"]["completion_tokens"] < 64


@needs_the_extra
@pytest.mark.live
async def test_a_reply_in_prose_ends_where_the_next_turn_would_begin(shared: Shared) -> None:
    answer = await ask(shared.url, messages=user("What is the capital of France?"), max_tokens=64)
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"


@needs_the_extra
@pytest.mark.live
async def test_max_tokens_cut_a_reply_short_and_say_so(shared: Shared) -> None:
    answer = await ask(shared.url, messages=user("What is the capital of France?"), max_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


@needs_the_extra
@pytest.mark.live
async def test_four_asks_at_once_each_get_their_own_reply(shared: Shared) -> None:
    words = ["north", "east", "south", "west"]
    replies: dict[str, Any] = {}

    async def one(word: str) -> None:
        schema = {"type": "object", "properties": {"way": {"enum": [word]}}, "required": ["way"]}
        answer = await ask(shared.url, messages=user(f"Go {word}."), response_format=json_reply(schema), max_tokens=128)
        replies[word] = json.loads(answer["choices"][0]["message"]["content"])["way"]

    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(one, word)
    assert replies == {word: word for word in words}


@needs_the_extra
@pytest.mark.live
async def test_slots_count_what_is_generated_and_are_free_again_when_the_clients_leave(shared: Shared) -> None:
    speaking = [trio.Event() for _ in range(4)]

    async def listen(index: int) -> None:
        body = {
            "messages": user("Tell a story."),
            "stream": True,
            "max_tokens": 900,
            "ignore_eos": True,
            "stop": ["%%"],
        }
        async with a_client() as client, client.stream("POST", shared.url, json=body) as response:
            async for line in response.aiter_lines():
                if '"content":"' in line:
                    speaking[index].set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(listen, index)
            for event in speaking:
                await event.wait()
            during = await shared.slots()
            nursery.cancel_scope.cancel()
    assert during == Slots(busy=4, total=4)
    assert await shared.freed() == Slots(busy=0, total=4)


@needs_the_extra
@pytest.mark.live
async def test_a_slot_is_free_again_when_a_client_leaves_that_did_not_stream(shared: Shared) -> None:
    body = {"messages": user("Tell a story."), "max_tokens": 900, "ignore_eos": True, "stop": ["%%"]}
    with trio.fail_after(PATIENCE):
        async with a_client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(client.post, shared.url, json=body))
            while (await shared.slots()).busy != 1:  # noqa: ASYNC110 - the server has no event to wait for
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert await shared.freed() == Slots(busy=0, total=4)


@needs_the_extra
@pytest.mark.live
async def test_a_streamed_reply_ends_with_a_reason_then_its_usage_then_done(shared: Shared) -> None:
    body = {
        "messages": user("What is the capital of France?"),
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with a_client() as client, client.stream("POST", shared.url, json=body) as response:
        data = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert data[-1] == "[DONE]"
    events = [json.loads(item) for item in data[:-1]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == "The capital of France is Paris."
    assert events[-2]["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == (
        events[-1]["usage"]["prompt_tokens"] + events[-1]["usage"]["completion_tokens"]
    )


@needs_the_extra
@pytest.mark.live
async def test_a_tool_is_called_natively_and_its_result_becomes_the_answer(shared: Shared) -> None:
    messages = user("Add a note: buy milk.")
    asked = await ask(shared.url, messages=messages, tools=[NOTE_TOOL], max_tokens=80)
    choice = asked["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add_note"
    assert json.loads(call["function"]["arguments"]) == {"text": "buy milk"}
    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "Noted: buy milk."}]
    answered = await ask(shared.url, messages=messages, tools=[NOTE_TOOL], max_tokens=80)
    assert answered["choices"][0]["message"]["content"] == "Noted: buy milk."
    assert answered["choices"][0]["finish_reason"] == "stop"


@needs_the_extra
@pytest.mark.live
async def test_a_prompt_larger_than_the_context_is_refused_with_both_numbers(shared: Shared) -> None:
    async with a_client() as client:
        response = await client.post(shared.url, json={"messages": user("word " * 2000), "max_tokens": 5})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 1024)
    assert error["n_prompt_tokens"] > 2000


@needs_the_extra
@pytest.mark.live
async def test_nothing_is_left_when_the_block_ends_and_its_error_stays_the_same_object() -> None:
    mistake = LookupError("the application's own")
    servers: list[LocalServer] = []
    with pytest.raises(LookupError) as caught:
        async with open_local_server(n_parallel=1, context=256) as server:
            servers.append(server)
            assert not await port_is_closed(server.base_url)
            raise mistake
    assert caught.value is mistake
    assert await port_is_closed(servers[0].base_url)
    with pytest.raises(ProcessLookupError):
        os.kill(servers[0].pid, 0)


@needs_the_extra
@pytest.mark.live
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 1.0])
async def test_cancelling_while_it_starts_leaves_no_process(seconds: float) -> None:
    before = children()
    with trio.move_on_after(seconds):
        async with open_local_server(n_parallel=1, context=256):
            await trio.sleep_forever()
    assert children() == before


@needs_the_extra
@pytest.mark.live
async def test_cancelling_while_it_generates_leaves_no_process() -> None:
    before = children()
    ports: list[str] = []
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with open_local_server(n_parallel=1, context=512) as server, a_client() as client:
            ports.append(server.base_url)
            body = {"messages": user("Tell a story."), "stream": True, "max_tokens": 400, "ignore_eos": True}
            async with client.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
                async for _ in response.aiter_lines():
                    scope.cancel()
    assert scope.cancelled_caught
    assert children() == before
    assert await port_is_closed(ports[0])


@needs_the_extra
@pytest.mark.live
async def test_the_server_ends_with_a_program_that_was_killed() -> None:
    program = (
        "import trio\n"
        "from goliath_actors.models.local import open_local_server\n"
        "async def main():\n"
        "    async with open_local_server(n_parallel=1, context=256) as server:\n"
        "        print(server.base_url, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    process = await trio.lowlevel.open_process([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with trio.fail_after(PATIENCE):
            base_url = (await process.stdout.receive_some()).decode().strip()
        assert not await port_is_closed(base_url)
    finally:
        process.send_signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()
    await wait_closed(base_url)


@needs_the_extra
@pytest.mark.live
async def test_a_server_that_crashed_is_a_typed_error_and_the_block_still_ends() -> None:
    before = children()
    async with open_local_server(n_parallel=1, context=256) as server:
        os.kill(server.pid, signal.SIGKILL)
        await wait_closed(server.base_url)
        with pytest.raises(ModelUnavailable, match="the local model server does not answer") as caught:
            await server.slots()
        assert caught.value.retryable
    assert children() == before


@needs_the_extra
@pytest.mark.live
async def test_a_start_that_fails_tells_the_last_log_lines(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"no model at all")
    before = children()
    with pytest.raises(ModelUnavailable) as caught:
        async with open_local_server(weights=wrong):
            raise AssertionError("must not start")
    first, *lines = str(caught.value).splitlines()
    assert first == "the local model server ended with exit code 1 before it was ready; its last log lines:"
    assert any("failed to load model" in line and str(wrong) in line for line in lines)
    assert (caught.value.code, caught.value.retryable) == ("start_failed", False)
    assert children() == before


@needs_the_extra
@pytest.mark.live
async def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(ModelUnavailable, match=r"was not ready within 0\.2 s"):
        async with open_local_server(cache=tmp_path, start_timeout=0.2):
            raise AssertionError("cannot be that fast: the weights have to be put together first")
    assert children() == before
    assert names_in(tmp_path) == []


@needs_the_extra
@pytest.mark.live
async def test_weights_that_were_left_half_written_are_replaced_by_whole_ones(tmp_path: Path) -> None:
    target = tmp_path / "gemma-3-270m-q4_k_m.gguf"
    target.write_bytes(b"half")
    try:
        async with open_local_server(cache=tmp_path, n_parallel=1, context=256) as server:
            assert await server.slots() == Slots(busy=0, total=1)
        assert names_in(tmp_path) == [target.name]
        assert target.stat().st_size > 200_000_000
    finally:
        target.unlink()  # pytest keeps its folders, and this one is large
