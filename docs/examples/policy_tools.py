"""Tool policy: the first rule that holds decides about a call."""

from typing import Any

import trio

from goliath_actors import Agent, approve_all, open_runtime, tool
from goliath_actors.hooks import BeforeTool, HookContext
from goliath_actors.policies import ToolPolicy, allow, ask, deny
from goliath_actors.testing import ScriptedModel
from goliath_actors.tools import ConfirmRequest


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@tool
async def list_files() -> str:
    """List the files."""
    return "notes.txt, keys.pem"


@tool(writes=True)
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def is_key(ctx: HookContext[Any], call: BeforeTool) -> bool:
    return str(call.input["path"]).endswith(".pem")


def confirm(request: ConfirmRequest) -> bool:
    print("asked about", request.tool.name, request.input)
    return approve_all(request)


policy = ToolPolicy(
    deny("read_file", when=is_key, reason="keys are not read"),
    ask("read_*"),
    allow("list_*"),
    default="deny",
)
model = ScriptedModel(
    [
        {"kind": "tool", "tool": "read_file", "brief": "read the key"},
        {"path": "keys.pem"},
        {"kind": "tool", "tool": "read_file", "brief": "read the notes"},
        {"path": "notes.txt"},
        {"kind": "answer", "brief": "say what was found"},
        "Done.",
    ]
)
agent = Agent(model=model, tools=[read_file, list_files, delete_file], extensions=[policy], confirm=confirm)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Show me everything.")
        for step in result.steps[:2]:
            print(step.status, "|", step.result)
        print("offered delete_file:", "delete_file" in model.requests[0].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   asked about read_file {'path': 'notes.txt'}
#   skipped | Denied by tool-policy: keys are not read. Do not try it again unless the user asks for it.
#   executed | text of notes.txt
#   offered delete_file: False
