"""A program that lives on one file and is killed: it talks in two conversations, and tells what it was told (S7).

`serve` is a process that starts such programs by forking, so that a start costs no imports. Everything goes over the
standard streams, one JSON object a line and one system call a line: what can be read was said before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Compaction, Conversation, Runtime, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import RunAborted
from goliath_actors.stores import SqliteStore
from goliath_actors.tools import Suspend
from goliath_actors.values import Message, Usage

from .native import check_valid

CONVERSATIONS = ("a", "b")
KINDS = ("plain", "tools", "twice")
SLOW = "slow"


# --- what the model says --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Parrot:
    """Answers by what the last user said, which ends in a word of what is to be done. Keeps nothing but a count, so a
    new process goes on where another was killed."""

    serial: str
    faults: list[str] = attrs.Factory(list)
    requests: int = 0
    name: str = "parrot"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        try:
            check_valid(request.messages)
        except AssertionError as problem:
            self.faults.append(f"a request that providers refuse: {problem}")
        await trio.lowlevel.checkpoint()
        yield self._reply(request)

    async def _reply(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests += 1
        for event in self._events(request):
            await trio.lowlevel.checkpoint()
            yield event

    def _events(self, request: ModelRequest) -> list[ModelEvent]:
        usage = ModelUsage(Usage(9, 1))
        if request.role == "compact":
            return [usage, ModelText("They spoke."), ModelDone("stop")]
        ask, rounds = _last_ask(request.messages)
        if rounds < {"tools": 1, "twice": 2, "pay": 1, "question": 1, SLOW: 1}.get(ask.rpartition(" ")[2], 0):
            return [usage, ModelText("I will see. "), *_calls(ask, rounds), ModelDone("tool_calls")]
        return [usage, ModelText(f"answer to {ask}, "), ModelText(f"{self.serial}-{self.requests}"), ModelDone("stop")]


def _last_ask(messages: Sequence[Message]) -> tuple[str, int]:
    """Return the last line of what the last user said, and how many rounds of tools there were since."""
    rounds = 0
    for message in reversed(messages):
        if message.role == "assistant":
            rounds += 1
        if message.role == "user":
            return message.text.rpartition("\n")[2], rounds
    return "", rounds


def _calls(ask: str, number: int) -> list[ModelEvent]:
    def call(index: int, name: str, **arguments: str) -> ModelToolCall:
        return ModelToolCall(index, f"call-{index}", name, json.dumps(arguments))

    kind = ask.rpartition(" ")[2]
    if kind == "pay":
        return [call(0, "pay", token=f"{ask}/0"), call(1, "look", text=ask)]
    if kind == "question":
        return [call(0, "look", text=ask), call(1, "ask_person", text=ask)]
    if kind == SLOW:
        return [call(0, "wait", token=f"{ask}/0"), call(1, "mark", token=f"{ask}/1")]
    return [
        call(0, "mark", token=f"{ask}/{number}0"),
        call(1, "look", text=ask),
        call(2, "mark", token=f"{ask}/{number}1"),
        call(3, "nothing", text=ask),
    ]


# --- what it can do -------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Door:
    reached: trio.Event = attrs.Factory(trio.Event)
    release: trio.Event = attrs.Factory(trio.Event)


@attrs.define(eq=False)
class Hands:
    """The tools, which leave a mark of each write in a file beside the store, past all buffers. The slow one waits at
    the door of its conversation."""

    marks: str
    doors: dict[str, Door] = attrs.Factory(dict)

    def leave(self, ctx: ToolContext[Any], token: str) -> None:
        line = json.dumps({"run": ctx.run_id, "call": ctx.call_id, "token": token, "in": ctx.conversation_id})
        file = os.open(self.marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line.encode() + b"\n")
        os.close(file)

    def agent(self, model: Parrot) -> Agent[Any]:
        @tool(writes=True)
        async def mark(ctx: ToolContext[Any], token: str) -> str:
            """Leave a mark."""
            await trio.lowlevel.checkpoint()
            self.leave(ctx, token)
            await trio.lowlevel.checkpoint()
            return f"marked {token}"

        @tool(writes=True)
        async def pay(ctx: ToolContext[Any], token: str) -> str:
            """Leave a mark, once somebody has approved it."""
            await trio.lowlevel.checkpoint()
            self.leave(ctx, token)
            await trio.lowlevel.checkpoint()
            return f"paid {token}"

        @tool(writes=True)
        async def wait(ctx: ToolContext[Any], token: str) -> str:
            """Leave a mark, then wait."""
            self.leave(ctx, token)
            door = self.doors[ctx.conversation_id or ""]
            door.reached.set()
            await door.release.wait()
            return f"waited {token}"

        @tool
        async def look(text: str) -> str:
            """Look."""
            await trio.lowlevel.checkpoint()
            return f"saw {text}"

        @tool
        async def ask_person(ctx: ToolContext[Any], text: str) -> str:
            """Ask."""
            return f"they said {await ctx.suspend({'about': text})}"

        def confirm(request: Any) -> bool | Suspend:
            return Suspend({"who": "boss"}) if request.tool.name == "pay" else True

        # A window in which a dozen turns fill the share from which on they are summarised.
        loop = ToolLoop(window=20_000, compaction=Compaction(at=0.05, keep_turns=3), max_steps=5)
        tools = [mark, pay, wait, look, ask_person]
        return Agent(model=model, tools=tools, confirm=confirm, loop=loop, instructions="Be brief.")


def key_of(agent: Agent[Any], conversation_id: str) -> str:
    return f"{agent.name}/{conversation_id}"


# --- a life ---------------------------------------------------------------------------------------------------------


def say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


@attrs.define(eq=False)
class Life:
    """One process's doings. Before each deed it says what it is about to do, and behind it what it was told."""

    store: SqliteStore
    runtime: Runtime
    agent: Agent[Any]
    hands: Hands
    dice: random.Random
    number: int

    def next_ask(self, kind: str) -> str:
        self.number += 1
        return f"ask {self.number} {kind}"

    async def converse(self, conversation_id: str, deeds: int) -> None:
        conversation = self.runtime.conversation(conversation_id)
        deed = [self.ask, self.ask, self.ask, self.wait_for_a_person, self.steer, self.abort, self.regenerate]
        for _ in range(deeds):
            what = self.forget if self.dice.random() < 0.04 else self.dice.choice(deed)
            await what(conversation)

    async def done(self, conversation: Conversation, deed: str, **told: Any) -> None:
        assert conversation.id is not None
        version = (await self.store.load(key_of(self.agent, conversation.id))).version
        say(done=deed, at=conversation.id, version=version, **told)

    async def ask(self, conversation: Conversation) -> str:
        ask = self.next_ask(self.dice.choice(KINDS))
        say(begin="ask", at=conversation.id, ask=ask)
        result = await conversation.run(ask)
        await self.done(conversation, "ask", ask=ask, said=[["user", ask], ["assistant", result.text]])
        return ask

    async def regenerate(self, conversation: Conversation) -> None:
        ask = await self.ask(conversation)
        say(begin="regenerate", at=conversation.id, ask=ask)
        result = await conversation.rewrite("regenerate")
        await self.done(conversation, "regenerate", ask=ask, said=[["assistant", result.text]])

    async def wait_for_a_person(self, conversation: Conversation) -> None:
        ask = self.next_ask(self.dice.choice(["pay", "question"]))
        say(begin="suspend", at=conversation.id, ask=ask)
        result = await conversation.run(ask)
        (waiting,) = result.waiting
        answer = True if waiting.kind == "approval" else "yes"
        answers = {waiting.call_id: answer}
        await self.done(conversation, "suspend", ask=ask, answers=answers, said=[["user", ask]])
        if self.dice.random() < 0.2:  # a new message denies it
            return
        say(begin="resume", at=conversation.id, ask=ask)
        result = await conversation.resume(answers)
        await self.done(conversation, "resume", ask=ask, said=[["assistant", result.text]])

    async def steer(self, conversation: Conversation) -> None:
        assert conversation.id is not None
        door = self.hands.doors[conversation.id] = Door()
        ask, text = self.next_ask(SLOW), self.next_ask(self.dice.choice(KINDS))
        say(begin="steer", at=conversation.id, ask=ask)
        run = conversation.submit(ask)
        await door.reached.wait()
        conversation.steer(text)
        door.release.set()
        result = await run.wait()
        said = [["user", ask], ["user", text], ["assistant", result.text]]
        if run.followed_by is not None:
            said = [["user", ask], ["assistant", result.text], ["user", text]]
            said.append(["assistant", (await run.followed_by.wait()).text])
        await self.done(conversation, "steer", ask=ask, said=said)

    async def abort(self, conversation: Conversation) -> None:
        assert conversation.id is not None
        door = self.hands.doors[conversation.id] = Door()
        slow = self.dice.random() < 0.5
        ask = self.next_ask(SLOW if slow else "tools")
        say(begin="abort", at=conversation.id, ask=ask)
        run = conversation.submit(ask)
        if slow:
            await door.reached.wait()
        else:
            for _ in range(self.dice.randrange(40)):
                await trio.lowlevel.checkpoint()
        run.abort("enough")
        try:
            said = [["user", ask], ["assistant", (await run.wait()).text]]
        except RunAborted:
            # Its tool had begun, so the message that called it was stored before, and the ask before that.
            said = [["user", ask]] if slow else []
        await self.done(conversation, "abort", ask=ask, said=said)

    async def forget(self, conversation: Conversation) -> None:
        say(begin="forget", at=conversation.id, number=self.number)
        await conversation.forget()
        await self.done(conversation, "forget", number=self.number)


@attrs.define(eq=False)
class Hourglass(trio.abc.Instrument):
    """Kills the process before a step of a task."""

    left: int

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(path: str, marks: str, seed: int, deeds: int) -> None:
    model = Parrot(f"{seed}")
    dice = random.Random(seed)
    hands = Hands(marks)
    agent = hands.agent(model)
    store = SqliteStore(path)
    try:
        async with open_runtime(agent, store=store) as runtime, trio.open_nursery() as nursery:
            for place, name in enumerate(CONVERSATIONS):
                number = 1000 * (seed * len(CONVERSATIONS) + place)
                life = Life(store, runtime, agent, hands, random.Random(dice.random()), number)
                nursery.start_soon(life.converse, name, deeds)
    except* Exception as group:
        say(fault=[repr(error) for error in group.exceptions])
    for fault in model.faults:
        say(fault=fault)


# --- the process that starts them -----------------------------------------------------------------------------------


def be(path: str, marks: str, seed: int, deeds: int, steps: int, seconds: float) -> None:
    """Be a program that dies before its step number `steps`, or after so many seconds, at any place of any thread."""
    if seconds:
        clock = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        clock.daemon = True
        clock.start()
    trio.run(live, path, marks, seed, deeds, instruments=[Hourglass(steps)] if steps else [])


def serve() -> None:
    """Start a program for each line, and say how it ended before the next."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            be(**json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
