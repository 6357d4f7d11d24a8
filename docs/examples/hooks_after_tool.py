"""`after_tool`: change what the model is told of a result. The outcome itself is not yours to change."""

import re

import trio

from goliath_actors import Agent, Extension, open_runtime, tool
from goliath_actors.hooks import AfterTool, HookContext
from goliath_actors.testing import ScriptedModel


@tool
async def find_contact(name: str) -> dict[str, str]:
    """Look up somebody in the address book."""
    return {"name": name, "phone": "+49 30 1234567", "city": "Berlin"}


class HidePhones(Extension[None]):
    """Numbers are seen by hooks and tools, and never enter a prompt, the memory or an event."""

    name = "hide-phones"

    def after_tool(self, ctx: HookContext[None], question: AfterTool) -> str | None:
        if question.outcome.status == "executed":
            ctx.state["raw"] = question.outcome.output  # the tool's own output, a copy
        return re.sub(r"\+[\d ]+\d", "(hidden)", question.result)

    def on_finish(self, ctx: HookContext[None], question: object) -> None:
        print("raw:", ctx.state["raw"]["phone"])


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "find_contact", "brief": "look up Grace"},
        {"name": "Grace"},
        {"kind": "answer", "brief": "say where she lives"},
        "Grace lives in Berlin.",
    ]
)
agent = Agent(model=model, tools=[find_contact], extensions=[HidePhones()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Where does Grace live?")
        print((result.steps[0].result or "").splitlines())
    print(any("1234567" in request.text for request in model.requests))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   raw: +49 30 1234567
#   ['name: Grace', 'phone: (hidden)', 'city: Berlin']
#   False
