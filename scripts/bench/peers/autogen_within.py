"""autogen-agentchat: an assistant agent with one tool, which keeps its own history; its replaying model."""

from __future__ import annotations

import asyncio
import logging

from _within import ANSWER, ARGUMENTS, INSTRUCTIONS, QUESTION, drive
from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient


async def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


REPLIES = [
    CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id="call-1", name="weather", arguments=ARGUMENTS)],
        usage=RequestUsage(prompt_tokens=20, completion_tokens=10),
        cached=False,
    ),
    CreateResult(
        finish_reason="stop",
        content=ANSWER,
        usage=RequestUsage(prompt_tokens=20, completion_tokens=10),
        cached=False,
    ),
]
INFO = ModelInfo(vision=False, function_calling=True, json_output=False, structured_output=False, family="unknown")


async def main() -> None:
    logging.disable()  # it warns of its own replaying model in each turn
    client = ReplayChatCompletionClient(list(REPLIES), model_info=INFO)
    agent = AssistantAgent("bench", client, tools=[weather], system_message=INSTRUCTIONS, reflect_on_tool_use=True)

    async def turn(conversation: str) -> str:
        await agent.model_context.clear()  # quicker than an agent of its own for each conversation
        client.reset()
        result = await agent.run(task=QUESTION)
        return str(result.messages[-1].content)

    await drive(turn)


asyncio.run(main())
