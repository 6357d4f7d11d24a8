"""langgraph: the prebuilt tool-calling agent with a checkpointer in memory; a chat model that answers by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from _within import ANSWER, INSTRUCTIONS, QUESTION, drive
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver


@tool
async def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


class Fixed(BaseChatModel):
    """Asks for the weather once, then answers."""

    @property
    def _llm_type(self) -> str:
        return "fixed"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            said = AIMessage(ANSWER)
        else:
            said = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Lisbon"}, "id": "call-1"}])
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(self, messages: list[BaseMessage], *rest: Any, **options: Any) -> ChatResult:
        return self._generate(messages)


async def main() -> None:
    agent = create_agent(Fixed(), tools=[weather], system_prompt=INSTRUCTIONS, checkpointer=InMemorySaver())

    async def turn(conversation: str) -> str:
        config = {"configurable": {"thread_id": conversation}}
        result = await agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]}, config)
        return str(result["messages"][-1].content)

    await drive(turn)


asyncio.run(main())
