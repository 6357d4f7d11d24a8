"""Evaluation: two asks with what must come of them, each asked twice, and the report."""

import itertools
from typing import Any

import trio

from goliath_actors import Agent, tool
from goliath_actors.evals import Fixture, acknowledge, evaluate
from goliath_actors.testing import ScriptedModel


@tool
def list_tasks() -> str:
    """List the open tasks."""
    return "milk"


FIXTURES = [
    Fixture("open", "What is left?", tools=["list_tasks"], mentions=["milk"]),
    Fixture("essay", "Write an essay about milk.", handled_by="cloud"),
]

# A real model stands here in a real evaluation: it is what is being measured.
LOOK, ANSWER = {"kind": "tool", "tool": "list_tasks", "brief": "look"}, {"kind": "answer", "brief": "say it"}
SCRIPTS: list[list[Any]] = [
    [LOOK, ANSWER, "Milk is left."],
    [LOOK, ANSWER, "Nothing is left."],
    [{"kind": "escalate", "brief": "too long for me"}],
    [{"kind": "escalate", "brief": "too long for me"}],
]
scripts = itertools.cycle(SCRIPTS)


def make_agent() -> Agent:
    return Agent(model=ScriptedModel(next(scripts)), tools=[list_tasks], fallback=acknowledge)


async def main() -> None:
    report = await evaluate(make_agent, FIXTURES, runs=2, metadata={"model": "scripted"})
    print(report.text())


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   pass^2: 1 of 2 fixtures
#     FAIL  open (1 of 2 runs)
#           Run 2: does not mention 'milk'
#     pass  essay (2 of 2 runs)
#   4 runs: 2 on device, 2 escalated, 0 errors, 1.00 steps on average
#   model: scripted
