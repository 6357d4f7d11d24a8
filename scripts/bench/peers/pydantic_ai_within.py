"""pydantic-ai: an agent with one tool, the message history kept by conversation; its function model."""

from __future__ import annotations

import asyncio
from typing import Any

from _within import ANSWER, INSTRUCTIONS, QUESTION, drive
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if isinstance(messages[-1].parts[-1], ToolReturnPart):
        return ModelResponse(parts=[TextPart(ANSWER)])
    return ModelResponse(parts=[ToolCallPart("weather", {"city": "Lisbon"}, "call-1")])


async def main() -> None:
    agent = Agent(FunctionModel(reply), instructions=INSTRUCTIONS, tools=[weather])
    histories: dict[str, list[Any]] = {}

    async def turn(conversation: str) -> str:
        result = await agent.run(QUESTION, message_history=histories.get(conversation, []))
        histories[conversation] = result.all_messages()
        return str(result.output)

    await drive(turn)


asyncio.run(main())
