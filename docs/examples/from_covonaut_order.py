"""From covonaut: in which order several extensions are heard, started and closed, and what a failing one does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from goliath_actors import Agent, Extension, ToolLoop, open_runtime, tool
from goliath_actors.hooks import AfterTool, AroundTool, BeforeTool, HookContext
from goliath_actors.testing import ScriptedModel

heard: list[str] = []


class Named(Extension[Any]):
    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name
        self._fails = fails

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        if self._fails:
            raise OSError(f"{self.name} has no disk")
        heard.append(f"open {self.name}")
        yield
        heard.append(f"close {self.name}")

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> dict[str, Any]:
        heard.append(f"before {self.name}")
        return {"text": question.input["text"] + self.name}  # the next one gets what this one makes of it

    async def around_tool(
        self, ctx: HookContext[Any], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        heard.append(f"into {self.name}")
        output = await call_next()
        heard.append(f"out of {self.name}")
        return output

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> None:
        heard.append(f"after {self.name}")


@tool
async def echo(text: str) -> str:
    """Say it."""
    heard.append(f"echo {text}")
    return text


def agent(*extensions: Extension[Any]) -> Agent[Any]:
    return Agent(model=ScriptedModel([]), tools=[echo], extensions=extensions, loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent(Named("a"), Named("b"))) as runtime:
        await runtime.invoke_tool("echo", {"text": ""})
    print(heard)
    heard.clear()
    try:
        async with open_runtime(agent(Named("a"), Named("b", fails=True), Named("c"))):
            print("never")
    except OSError as error:
        print(error, heard)  # what had been opened is closed, the rest was never opened


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   ['open a', 'open b', 'before a', 'before b', 'into a', 'into b', 'echo ab', 'out of b', 'out of a', 'after \
#     a', 'after b', 'close b', 'close a']
#   b has no disk ['open a', 'close a']
