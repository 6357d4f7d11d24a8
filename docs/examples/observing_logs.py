"""Log records of runs, one JSON object a line, with the ids of run and conversation and without what was said."""

import json
import logging

import trio

from goliath_actors import Agent, RunAborted, ToolLoop, open_runtime, tool
from goliath_actors.logs import Logs
from goliath_actors.testing import ScriptedModel, tool_calls

KEYS = ("conversation_id", "event", "tool", "status", "cause", "error_type")


class Json(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        told = {key: getattr(record, key) for key in KEYS if getattr(record, key, None) is not None}
        print(record.levelname, json.dumps(told))


logger = logging.getLogger("shop.runs")
logger.setLevel(logging.DEBUG)
logger.addHandler(Json())
logger.propagate = False


@tool
async def price(article: str) -> str:
    """Say what an article costs."""
    if article == "gold":
        raise LookupError("no such article")
    await trio.sleep(0 if article == "tea" else 60)
    return "3 euros"


model = ScriptedModel(
    [
        tool_calls(("price", {"article": "tea"}), ("price", {"article": "gold"})),
        "Tea costs 3 euros.",
        tool_calls(("price", {"article": "coffee"})),
    ]
)
agent = Agent(model=model, tools=[price], extensions=[Logs(logger)], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        await runtime.run("What does tea cost, and gold?", conversation_id="u1")
        try:
            await runtime.run("And coffee?", conversation_id="u1", timeout=0.5)
        except RunAborted:
            pass


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   DEBUG {"conversation_id": "u1", "event": "run-started"}
#   DEBUG {"conversation_id": "u1", "event": "model-finished"}
#   DEBUG {"conversation_id": "u1", "event": "tool-finished", "tool": "price", "status": "executed"}
#   WARNING {"conversation_id": "u1", "event": "tool-finished", "tool": "price", "status": "failed", \
#     "error_type": "LookupError"}
#   DEBUG {"conversation_id": "u1", "event": "model-finished"}
#   INFO {"conversation_id": "u1", "event": "run-finished", "status": "completed"}
#   DEBUG {"conversation_id": "u1", "event": "run-started"}
#   DEBUG {"conversation_id": "u1", "event": "model-finished"}
#   WARNING {"conversation_id": "u1", "event": "run-finished", "status": "aborted", "cause": "deadline", \
#     "error_type": "RunAborted"}
