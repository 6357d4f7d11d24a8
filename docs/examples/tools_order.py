"""Tools that build on each other, identical calls, and results that are quoted in full."""

import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.testing import ScriptedModel


@tool
async def find_file(name: str) -> str:
    """Find a file."""
    return f"docs/{name}"


@tool(requires=("find_file",), output_mode="content")
async def read_file(path: str) -> str:
    """Read a file that was found."""
    return "It was a dark and stormy night. " * 40


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "read_file", "brief": "read the story"},  # too early: it is told once
        {"kind": "tool", "tool": "find_file", "brief": "find the story"},
        {"name": "story.txt"},
        {"kind": "tool", "tool": "read_file", "brief": "read the story"},
        {"path": "docs/story.txt"},
        {"kind": "tool", "tool": "read_file", "brief": "read it again"},
        {"path": "docs/story.txt"},
        {"kind": "answer", "brief": "say how it begins"},
        "It begins at night.",
    ]
)
agent = Agent(model=model, tools=[find_file, read_file])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("How does the story begin?")
        for step in result.steps:
            print(step.index, step.tool, step.status, step.from_step, len(step.result or ""))
    print("needs a result of find_file first" in model.requests[1].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   0 find_file executed None 14
#   1 read_file executed None 1280
#   2 read_file cached 1 1280
#   3 None executed None 0
#   True
