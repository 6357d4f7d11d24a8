"""From PAI: policy before any tool of a message starts, and results looked at before the model sees them."""

from __future__ import annotations

from typing import Any

import trio

from goliath_actors import Agent, Deny, Extension, ToolFailure, ToolLoop, approve_all, open_runtime, tool
from goliath_actors.hooks import AfterTool, BeforeTool, HookContext
from goliath_actors.testing import ScriptedModel, tool_calls

seen: list[dict[str, str]] = []


def remember(output: dict[str, str], ctx: Any) -> None:
    seen.append(output)  # typed handling of one tool's output, beside that tool


@tool(on_output=remember)
async def look_up_customer(name: str) -> dict[str, str]:
    """Look up a customer."""
    if name == "nobody":
        raise ToolFailure("There is no such customer.")  # told word for word
    if name == "bug":
        raise KeyError("internal detail")  # not told
    return {"name": name, "phone": "555-0100"}


@tool(writes=True)
async def send_email(to: str) -> str:
    """Send an e-mail."""
    print("sent to", to)
    return "sent"


class EmailPolicy(Extension[Any]):
    name = "email-policy"

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | None:
        print("gate:", question.tool.name)
        if question.tool.name == "send_email" and not question.input["to"].endswith("@example.org"):
            return Deny(f"e-mail to {question.input['to']} is not allowed")
        return None

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> str | None:
        if question.tool.name == "look_up_customer" and question.outcome.status == "executed":
            return f"name: {question.outcome.output['name']}"  # the phone number stays here
        return None


model = ScriptedModel(
    [
        tool_calls(
            ("look_up_customer", {"name": "Ada"}),
            ("send_email", {"to": "ada@example.org"}),
            ("send_email", {"to": "eve@example.com"}),
            ("look_up_customer", {"name": "nobody"}),
            ("look_up_customer", {"name": "bug"}),
        ),
        "Done.",
    ]
)
agent = Agent(
    model=model,
    tools=[look_up_customer, send_email],
    extensions=[EmailPolicy()],
    loop=ToolLoop(),
    confirm=approve_all,
)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Write to Ada.")
    for step in result.steps:
        if step.tool:
            print(step.status, "|", (step.result or "").partition(", error id")[0])
    print(seen)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   gate: look_up_customer
#   gate: send_email
#   gate: send_email
#   gate: look_up_customer
#   gate: look_up_customer
#   sent to ada@example.org
#   executed | name: Ada
#   executed | sent
#   skipped | Denied by email-policy: e-mail to eve@example.com is not allowed. Do not try it again unless the \
#     user asks for it.
#   failed | There is no such customer.
#   failed | look_up_customer failed with an internal error (KeyError
#   [{'name': 'Ada', 'phone': '555-0100'}]
