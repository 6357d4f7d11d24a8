"""An agent as a tool of another one. Each call is a conversation of its own, a child of the run that makes it."""

import trio

from goliath_actors import Agent, Deny, Extension, ToolLoop, open_runtime
from goliath_actors.hooks import AfterTool, BeforeTool, HookContext
from goliath_actors.testing import ScriptedModel, tool_calls
from goliath_actors.values import SubAgentOutcome

librarian = Agent(
    name="librarian",
    model=ScriptedModel(["The field guide.", OSError("the catalogue is down")]),
    loop=ToolLoop(),
    instructions="You know every book.",
)


class Watch(Extension[None]):
    name = "watch"

    def before_tool(self, ctx: HookContext[None], question: BeforeTool) -> Deny | None:
        return Deny("one book is enough") if len(question.steps) > 1 else None

    def after_tool(self, ctx: HookContext[None], question: AfterTool) -> None:
        found = question.outcome.output
        if isinstance(found, SubAgentOutcome):
            print("it ended:", found.agent, found.status, found.text)


desk = Agent(
    name="desk",
    model=ScriptedModel(
        [
            tool_calls(("librarian", {"ask": "A book on trees?"})),
            tool_calls(("librarian", {"ask": "And one on stars?"})),
            tool_calls(("librarian", {"ask": "And one on the sea?"})),
            "Take the field guide.",
        ]
    ),
    tools=[librarian.as_tool(description="Ask the librarian about books.")],
    extensions=[Watch()],
    loop=ToolLoop(),
)


async def main() -> None:
    async with open_runtime(desk) as runtime:  # the librarian comes along
        result = await runtime.run("A book, please.", conversation_id="ada")
        for step in result.steps[:3]:
            text = step.result or ""
            print(step.status, "|", text.split(", run ")[0])
        print(result.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   it ended: librarian completed The field guide.
#   executed | The field guide.
#   failed | The agent 'librarian' failed (OSError
#   skipped | Denied by watch: one book is enough. Do not try it again unless the user asks for it.
#   Take the field guide.
