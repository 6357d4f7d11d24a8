"""`before_tool`: put arguments right, then judge them. Registration order is the order in which they are asked."""

from typing import Any

import attrs
import trio

from goliath_actors import Agent, Deny, Extension, open_runtime, tool
from goliath_actors.hooks import BeforeTool, HookContext
from goliath_actors.testing import ScriptedModel
from goliath_actors.tools import ConfirmRequest


@attrs.frozen
class Account:
    most: int


@tool(writes=True)
async def pay(to: str, amount: int) -> str:
    """Pay somebody.

    Args:
        to: who is paid
        amount: whole euros
    """
    return f"paid {amount} to {to}"


class TidyNames(Extension[Account]):
    """Rewrites come first, so that policies see what will be executed."""

    name = "tidy-names"

    def before_tool(self, ctx: HookContext[Account], question: BeforeTool) -> dict[str, Any]:
        return {**question.input, "to": question.input["to"].strip().title()}


class SpendingLimit(Extension[Account]):
    name = "spending-limit"

    def before_tool(self, ctx: HookContext[Account], question: BeforeTool) -> Deny | None:
        if question.input["amount"] > ctx.context.most:
            return Deny(f"at most {ctx.context.most} without a call to the bank")
        return None


def confirm(request: ConfirmRequest) -> bool:
    print("asked about", request.input)
    return True


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "pay", "brief": "pay Grace 500"},
        {"to": " grace ", "amount": 500},
        {"kind": "tool", "tool": "pay", "brief": "pay Grace 50"},
        {"to": " grace ", "amount": 50},
        {"kind": "answer", "brief": "say what was done"},
        "I paid Grace 50; more needs a call to the bank.",
    ]
)
agent = Agent(model=model, tools=[pay], extensions=[TidyNames(), SpendingLimit()], confirm=confirm)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Pay Grace.", context=Account(most=100))
        for step in result.steps[:2]:
            print(step.status, step.input, "|", step.result)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   asked about {'to': 'Grace', 'amount': 50}
#   skipped {'to': 'Grace', 'amount': 500} | Denied by spending-limit: at most 100 without a call to the bank. \
#       Do not try it again unless the user asks for it.
#   executed {'to': 'Grace', 'amount': 50} | paid 50 to Grace
