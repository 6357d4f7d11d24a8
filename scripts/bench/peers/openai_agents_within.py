"""openai-agents: an agent with one tool, the input list kept by conversation; a model that answers by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from _within import ANSWER, ARGUMENTS, INSTRUCTIONS, QUESTION, drive
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


@function_tool
async def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


class Fixed(Model):
    """Asks for the weather once, then answers."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        if isinstance(input[-1], dict) and input[-1].get("type") == "function_call_output":
            text = ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
            said: Any = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            said = ResponseFunctionToolCall(
                name="weather", arguments=ARGUMENTS, call_id="call-1", type="function_call", id="f", status="completed"
            )
        usage = Usage(requests=1, input_tokens=20, output_tokens=10, total_tokens=30)
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *rest: Any, **options: Any) -> Any:
        raise NotImplementedError


async def main() -> None:
    set_tracing_disabled(True)
    agent = Agent(name="bench", instructions=INSTRUCTIONS, tools=[weather], model=Fixed())
    histories: dict[str, list[Any]] = {}

    async def turn(conversation: str) -> str:
        asked = [*histories.get(conversation, []), {"role": "user", "content": QUESTION}]
        result = await Runner.run(agent, asked)
        histories[conversation] = result.to_input_list()
        return str(result.final_output)

    await drive(turn)


asyncio.run(main())
