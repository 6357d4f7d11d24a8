"""Spans of a run: the request around it, the run, its model calls, its tool and what the tool does."""

import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.otel import Tracing
from goliath_actors.testing import ScriptedModel, tool_calls

# A program sets up an exporter of its own, once; this one keeps the spans.
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("shop")


@tool
async def price(article: str) -> str:
    """Say what an article costs."""
    with tracer.start_as_current_span("database"):
        await trio.lowlevel.checkpoint()
    return "3 euros"


agent = Agent(
    name="seller",
    model=ScriptedModel([tool_calls(("price", {"article": "tea"})), "It costs 3 euros."], name="small"),
    tools=[price],
    extensions=[Tracing(tracer_provider=provider, provider="openai")],
    loop=ToolLoop(),
)


def show(spans: list[ReadableSpan], parent: int | None = None, depth: int = 0) -> None:
    for span in sorted(spans, key=lambda one: one.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent and span.context:
            told = {key: value for key, value in (span.attributes or {}).items() if "conversation" in key}
            print("  " * depth + span.name, told or "-")
            show(spans, span.context.span_id, depth + 1)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        with tracer.start_as_current_span("POST /chat"):
            await runtime.run("What does tea cost?", conversation_id="u1")
    show(list(exporter.get_finished_spans()))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   POST /chat -
#     invoke_agent seller {'gen_ai.conversation.id': 'u1'}
#       chat small {'gen_ai.conversation.id': 'u1'}
#       execute_tool price {'gen_ai.conversation.id': 'u1'}
#         database -
#       chat small {'gen_ai.conversation.id': 'u1'}
