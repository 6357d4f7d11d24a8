"""A request in the messages dialect: what is sent.

Uses _wire, _keeper; used by anthropic. The dialect has no system message and no tool message: instructions
stand beside the conversation, and a tool's result is something that the user says. Turns alternate, every call is
answered in the turn behind it, and no text is blank; a request that departs from this is refused as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import attrs

from goliath_actors.abc import ModelRequest, ToolSpec
from goliath_actors.values import Message

from ._keeper import KEPT_AT_MOST, Keeper
from ._wire import Written, arguments_text, compact_json, encode_value

__all__ = ["BlockWriter", "messages_body"]

_NO_ID = re.compile(r"[^A-Za-z0-9_-]")


@attrs.frozen(eq=False)
class Block:
    """A part of a turn, in writing. `id` is its call's, `text` what it says; both are empty where there is none."""

    kind: str
    id: str
    text: str
    data: bytes


@final
class BlockWriter:
    """Writes messages as blocks, and tools, and keeps what it wrote, at most `at_most` bytes of messages.

    Blocks and not turns, since neighbours share a turn, and results go behind their calls.
    """

    def __init__(self, at_most: int = KEPT_AT_MOST) -> None:
        self.kept = Keeper(_blocks, lambda blocks: sum(len(block.data) for block in blocks), at_most)
        self._specs: Keeper[ToolSpec, bytes] = Keeper(lambda tool: encode_value(_tool(tool)), len)

    def turns(self, messages: Sequence[Message]) -> list[tuple[str, list[Block]]]:
        """Return messages as alternating turns, each of a role, beginning with the user's."""
        turns: list[tuple[str, list[Block]]] = []
        for message, blocks in zip(messages, self.kept.each(messages), strict=True):
            if not blocks:
                continue
            role = "assistant" if message.role == "assistant" else "user"
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, [*blocks]))
        if turns and turns[0][0] != "user":
            turns.insert(0, ("user", [_text("(The beginning is left out.)")]))
        _answer_calls(turns)
        if turns and turns[-1][0] == "assistant":
            _strip_end(turns[-1][1])
        return turns

    def tools(self, tools: Sequence[ToolSpec], more: Iterable[Mapping[str, object]]) -> Written:
        """Return a JSON array of the tools, and `more` of them. Raises: as `encode`."""
        return Written(b"[%s]" % b",".join([*self._specs.each(tools), *map(encode_value, more)]))


def messages_body(
    model: str, request: ModelRequest, settings: Mapping[str, object], max_tokens: int, writer: BlockWriter
) -> tuple[dict[str, object], str | None]:
    """Return the body of one request, and the name of the tool whose input is the reply, if there is one.

    A schema for an object becomes the input of such a tool, which the model has to call; any other schema is told in
    words. With an `output_config` of the application's it is left to that.

    Arguments: `settings`, the adapter's sampling parameters; the request's own go over them, field by field, and a
    value of None takes a field out. The request's provider options come last, key by key, as they are. `max_tokens` is
    the most that a reply may have; the request's cap and the settings lower it.
    """
    system = [message.text for message in request.messages if message.role == "system" and message.text.strip()]
    more: list[Mapping[str, object]] = []
    wanted = {**settings, **request.settings, **request.provider_options}
    reply_tool: str | None = None
    if request.schema is not None and "output_config" not in wanted:
        if request.schema.get("type") == "object":
            reply_tool = _free_name({tool.name for tool in request.tools})
            told = "Give the reply by calling this."
            more.append({"name": reply_tool, "description": told, "input_schema": request.schema})
        else:
            system.append(f"Reply with JSON alone that is valid by this schema: {compact_json(request.schema)}")
    turns = writer.turns(request.messages)
    if not turns:
        # Only instructions: somebody has to ask for something.
        turns, system = [("user", [_text("\n\n".join(system) or "(nothing)")])], []
    body: dict[str, object] = {"model": model, "max_tokens": max_tokens, "messages": _written(turns), "stream": True}
    if system:
        body["system"] = "\n\n".join(system)
    if request.tools or more:
        body["tools"] = writer.tools(request.tools, more)
    if reply_tool is not None:
        body["tool_choice"] = _choice(reply_tool, not request.tools, wanted.get("thinking"))
    for name, value in {**settings, **request.settings}.items():
        if value is None:
            body.pop(name, None)
        else:
            body[name] = value
    cap = body.get("max_tokens")
    if request.max_output_tokens is not None:
        body["max_tokens"] = min(cap, request.max_output_tokens) if isinstance(cap, int) else request.max_output_tokens
    body.update(request.provider_options)
    return body, reply_tool


def _choice(reply_tool: str, alone: bool, thinking: object) -> dict[str, object]:
    if isinstance(thinking, dict) and thinking.get("type") != "disabled":
        return {"type": "auto"}  # a model that thinks may not be told which tool to call
    return {"type": "tool", "name": reply_tool} if alone else {"type": "any"}


def _free_name(taken: set[str]) -> str:
    name = "reply"
    while name in taken:
        name += "_"
    return name


def _written(turns: Iterable[tuple[str, list[Block]]]) -> Written:
    parts = [
        b'{"role":"%s","content":[%s]}' % (role.encode("ascii"), b",".join([block.data for block in blocks]))
        for role, blocks in turns
    ]
    return Written(b"[%s]" % b",".join(parts))


def _blocks(message: Message) -> tuple[Block, ...]:
    if message.role == "system":
        return ()
    if message.role == "tool":
        return (_result(_id(message.tool_call_id or ""), message.text if message.text.strip() else "(no output)"),)
    blocks = [_text(message.text)] if message.text.strip() else []
    for call in message.tool_calls if message.role == "assistant" else ():
        given = json.loads(arguments_text(call.arguments))
        call_id = _id(call.id)
        written = encode_value({"type": "tool_use", "id": call_id, "name": call.name, "input": given})
        blocks.append(Block("tool_use", call_id, "", written))
    return tuple(blocks)


def _answer_calls(turns: list[tuple[str, list[Block]]]) -> None:
    """See that each call has exactly one result, first thing in the turn behind it; other results become text."""
    open_calls: list[str] = []
    for number in range(len(turns)):
        role, blocks = turns[number]
        if role == "assistant":
            open_calls = [block.id for block in blocks if block.kind == "tool_use"]
            if open_calls and number + 1 == len(turns):
                turns.append(("user", _results([], open_calls)[0]))
            continue
        results, rest = _results(blocks, open_calls)
        turns[number] = ("user", results + rest)
        open_calls = []


def _results(blocks: list[Block], calls: list[str]) -> tuple[list[Block], list[Block]]:
    found: dict[str, Block] = {}
    rest: list[Block] = []
    for block in blocks:
        if block.kind != "tool_result":
            rest.append(block)
        elif block.id in calls and block.id not in found:
            found[block.id] = block
        else:
            rest.append(_text(f"Result of an earlier call: {block.text}"))
    missing = "(The call was not answered.)"
    return [found.get(call) or _result(call, missing, is_error=True) for call in calls], rest


def _strip_end(blocks: list[Block]) -> None:
    # What the model is to go on from may not end in white space.
    if blocks[-1].kind == "text":
        blocks[-1] = _text(blocks[-1].text.rstrip())


def _text(text: str) -> Block:
    return Block("text", "", text, encode_value({"type": "text", "text": text}))


def _result(call_id: str, text: str, **more: object) -> Block:
    written = encode_value({"type": "tool_result", "tool_use_id": call_id, "content": text, **more})
    return Block("tool_result", call_id, text, written)


def _id(call_id: str) -> str:
    """An id as the dialect allows it; those of other providers are of other characters, but stay different."""
    return _NO_ID.sub(lambda match: f"_{ord(match[0]):x}", call_id) or "call"


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
