"""A model that is no language model: fixed rules that plan, fill in arguments and answer, the same every time.

It needs no network and says in every answer what it is. It reads the same prompts as a real model, so that
all of a run goes its usual way.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

import attrs
import trio

from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall

__all__ = ["DemoModel"]

_REQUEST = re.compile(r"^Request: (.*)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\d+\. (\w[\w.-]*)\(.*?\) \[([\w ]+)\] -> (.*)")
_TOOL = re.compile(r"^- ([\w.-]+): (.*)$", re.MULTILINE)
_WORKER = re.compile(r"^Do exactly this with the tool ([\w.-]+): (.*)$", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SUM = re.compile(r"[-+(]*\d[\d\s.()*/%+-]*")
_WORD = re.compile(r"[^\W_]+")
_QUOTED = re.compile(r"[\"“'](.+?)[\"”'](?!\w)")
_NEXT = re.compile(r"[,;.]?\s+(?:and then|then)\s+", re.IGNORECASE)
_PIECE = re.compile(r"\S*\s*")

# Words that say nothing about which tool is meant.
# Those of one and two letters say nothing anyway.
_COMMON = frozenset(
    {"and", "are", "can", "every", "for", "from", "give", "has", "have", "please", "say", "show", "tell", "that"}
    | {"the", "them", "there", "thi", "what", "which", "with", "you", "your"}
)
_CHANGES = " (changes data)"


@final
@attrs.define(eq=False)
class DemoModel:
    """Rules instead of a model: a tool whose name or description shares a word with the ask is used, then reported.

    `hint` is what it says when no tool fits. `pace` is seconds between the words of an answer, 0 for all at once.
    """

    hint: str = "Name one of my tools and I call it."
    pace: float = 0.0
    name: str = "demo"
    retries: int = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play the reply that the rules give.

        Cancellation: honoured before the reply and between its words.
        """
        yield self._play(request)

    async def _play(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        call = _native_call(request)
        if call is not None:
            name, arguments = call
            yield ModelToolCall(0, f"demo-{len(request.messages)}", name, json.dumps(arguments, ensure_ascii=False))
            yield ModelDone("tool_calls")
            return
        text = self._reply(request)
        pieces = [text] if request.schema is not None else _PIECE.findall(text)
        for piece in pieces:
            if piece:
                yield ModelText(piece)
                await trio.sleep(self.pace)
        yield ModelDone("stop")

    def _reply(self, request: ModelRequest) -> str:
        if request.role == "plan":
            return json.dumps(_plan(request), ensure_ascii=False)
        if request.role == "arguments":
            found = _WORKER.search(_system(request))
            tool, brief = (found[1], found[2]) if found else ("", _ask(request))
            return json.dumps(_fill(request.schema or {}, brief, tool), ensure_ascii=False)
        if request.role in ("scribe", "compact"):
            return _brief(request)
        if request.schema is not None:
            return json.dumps(_fill(request.schema, _ask(request), ""), ensure_ascii=False)
        return self._answer(_log(request) or _native_log(request))

    def _answer(self, log: Sequence[tuple[str, str, str]]) -> str:
        if not log:
            return f"I am the demo model: fixed rules, no language model. {self.hint}"
        told = "; ".join(f"{tool} {_VERBS.get(status, status)}: {result.rstrip('.')}" for tool, status, result in log)
        return f"Demo model: {told}."


_VERBS = {"completed": "says", "cached": "said before", "skipped": "was not used", "failed": "failed"}


# --- reading prompts ------------------------------------------------------------------------------------------------


def _system(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.messages if message.role == "system")


def _last(request: ModelRequest) -> str:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def _ask(request: ModelRequest) -> str:
    text = _last(request)
    found = _REQUEST.search(text)
    return (found[1] if found else text).partition("\nChoose the next step.")[0].partition("\n\n")[0].strip()


def _log(request: ModelRequest) -> list[tuple[str, str, str]]:
    """Return the run's steps so far as (tool, status, first line of the result)."""
    steps = _last(request).partition("Request: ")[0]
    # What was done in earlier runs stands before the heading and begins with a dash.
    rows = [_STEP.match(line) for line in steps.splitlines()]
    return [(row[1], row[2], row[3]) for row in rows if row is not None]


def _native_log(request: ModelRequest) -> list[tuple[str, str, str]]:
    names: dict[str | None, str] = {}
    log: list[tuple[str, str, str]] = []
    for message in request.messages:
        if message.role == "user":
            log.clear()
        names.update((call.id, call.name) for call in message.tool_calls)
        if message.role == "tool":
            log.append((names.get(message.tool_call_id, "tool"), "completed", message.text))
    return log


def _native_call(request: ModelRequest) -> tuple[str, dict[str, Any]] | None:
    """Return the tool call that a native loop is to get, if one is due."""
    if not request.tools:
        return None
    ask = _last(request)
    used = {tool for tool, _, _ in _native_log(request)}
    for part in _NEXT.split(ask):
        name = _choose(part, {spec.name: spec.description for spec in request.tools})
        if name is not None and name not in used:
            spec = next(spec for spec in request.tools if spec.name == name)
            return name, _fill(spec.parameters, part, name)
    return None


# --- the rules ------------------------------------------------------------------------------------------------------


def _plan(request: ModelRequest) -> dict[str, str]:
    tools = {name: words.removesuffix(_CHANGES) for name, words in _TOOL.findall(_menu(request))}
    allowed = (request.schema or {}).get("properties", {}).get("tool", {}).get("enum", tuple(tools))
    tools = {name: words for name, words in tools.items() if name in allowed}
    used = {tool for tool, _, _ in _log(request)}
    for part in _NEXT.split(_ask(request)):
        name = _choose(part, tools)
        if name is not None and name not in used:
            return {"why": "its words are in the request", "kind": "tool", "tool": name, "brief": part.strip()}
    return {"why": "nothing is left to do", "kind": "answer", "brief": "say what was found"}


def _menu(request: ModelRequest) -> str:
    """Return the part of the planner's prompt that lists the tools."""
    return _system(request).partition("\nTools:\n")[2].partition("\nKnown facts:")[0].partition("\nExamples:")[0]


def _choose(ask: str, tools: Mapping[str, str]) -> str | None:
    """Return the tool that shares most words with the ask, those of its name counting double; the first of equals."""
    wanted = _words(ask)
    if re.search(r"\d\s*[-+*/%]\s*[-(]?\d", ask):
        wanted |= {"calculate", "calculator", "arithmetic"}
    best, most = None, 0
    for name, description in tools.items():
        own = _words(name)
        score = 2 * len(wanted & own) + len(wanted & (_words(description) - own))
        if score > most:
            best, most = name, score
    return best


def _words(text: str) -> set[str]:
    found = {word.rstrip("s") or word for word in _WORD.findall(text.casefold().replace("_", " "))}
    return {word for word in found if word not in _COMMON and len(word) > 2}


def _fill(schema: Mapping[str, Any], text: str, tool: str) -> dict[str, Any]:
    """Return an object for `schema` made of what stands in `text`; what is not there is named in `missing`."""
    numbers = [float(number) if "." in number else int(number) for number in _NUMBER.findall(text)]
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    filled: dict[str, Any] = {}
    missing: list[str] = []
    for name, rule in properties.items():
        if name == "missing":
            continue
        value = _value(name, rule, text, tool, numbers)
        if value is not None:
            filled[name] = value
        elif name in required:
            missing.append(name)
    if missing and "missing" in properties:
        filled["missing"] = ", ".join(missing)
    return filled


def _value(name: str, rule: Mapping[str, Any], text: str, tool: str, numbers: list[Any]) -> Any:
    if "enum" in rule:
        said = text.casefold()
        return next((option for option in rule["enum"] if str(option).casefold() in said), rule["enum"][0])
    kind = rule.get("type", "string")
    if kind in ("integer", "number"):
        return numbers.pop(0) if numbers else None
    if kind == "boolean":
        return True
    if kind == "array":
        payload = _payload(text, tool)
        return [part.strip() for part in re.split(r",| and ", payload) if part.strip()] if payload else []
    if kind == "object":
        return {}
    if name == "expression":
        sums = [found.strip() for found in _SUM.findall(text)]
        return max(sums, key=len, default=None)
    return _payload(text, tool) or None


def _payload(text: str, tool: str) -> str:
    """Return the part of an ask that is content: in quotes, behind a colon, or behind the words that name the tool."""
    quoted = _QUOTED.search(text)
    if quoted:
        return quoted[1].strip()
    head, colon, rest = text.partition(":")
    if colon and len(head) < 60:
        return rest.strip()
    named = _words(tool)
    last = 0
    for word in _WORD.finditer(text):
        if word[0].casefold().rstrip("s") in named:
            last = word.end()
    rest = re.sub(r"^\W*(?:to|that|for|about|with|of)\s+", "", text[last:], flags=re.IGNORECASE)
    return rest.strip(" .?!") if last else text.strip()


def _brief(request: ModelRequest) -> str:
    exchange = _last(request).partition("New exchange:\n")[2]
    user = re.search(r"^User: (.*)$", exchange, re.MULTILINE)
    said = user[1][:80] if user else "a conversation"
    return f"Goal: {said}\nDone: answered\nDecisions: none\nPending: none\nNext: none"
