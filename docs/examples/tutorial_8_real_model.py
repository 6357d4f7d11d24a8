"""Step 8: the same program with a real model. Set OPENAI_BASE_URL (and MODEL) to try it with yours."""

import os

import trio

from goliath_actors import Agent, Conductor, open_runtime, tool
from goliath_actors.abc import Model
from goliath_actors.models import OpenAIChat
from goliath_actors.testing import ScriptedModel


@tool
async def list_tasks() -> list[str]:
    """List today's tasks."""
    return ["water the plants", "call Grace"]


def choose_model() -> Model:
    """Return a model at the address in the environment, or the script of step 2 if there is none."""
    if os.environ.get("OPENAI_BASE_URL"):
        return OpenAIChat(os.environ.get("MODEL", "qwen3:4b"))
    return ScriptedModel(
        [
            {"kind": "tool", "tool": "list_tasks", "brief": "read the list"},
            {"kind": "answer", "brief": "say what is on"},
            "You have two tasks: water the plants and call Grace.",
        ]
    )


# The window is in tokens, of prompt and reply together.
agent = Agent(name="assistant", model=choose_model(), tools=[list_tasks], loop=Conductor(window=8192))


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("What is on today?", conversation_id="ada", timeout=120)
        print(result.text or result.reason)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   You have two tasks: water the plants and call Grace.
