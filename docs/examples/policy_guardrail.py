"""Guardrail: the model is told everything that is wrong with its answer, and may put it right."""

from typing import Any

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.hooks import HookContext
from goliath_actors.policies import Block, Correct, Guardrail
from goliath_actors.testing import ScriptedModel


def in_metres(ctx: HookContext[Any], text: str) -> Correct | None:
    return Correct("give lengths in metres") if " feet" in text else None


def with_source(ctx: HookContext[Any], text: str) -> Correct | None:
    return None if "(" in text else Correct("name a source in brackets")


def no_advice(ctx: HookContext[Any], text: str) -> Block | None:
    return Block("medical advice", "Please ask a doctor.") if "dose" in text else None


model = ScriptedModel(
    [
        "It is 984 feet high.",
        "It is 300 metres high (city guide).",
        "The usual dose is two (box).",
    ]
)
agent = Agent(model=model, extensions=[Guardrail(in_metres, with_source, no_advice)])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        print((await runtime.run("How high is the tower?")).text)
        rejected = model.requests[1].text.partition("rejected: ")[2]
        print(rejected.splitlines()[:2])
        result = await runtime.run("How many of these may I take?")
        print(result.text, result.responded.reason if result.responded else None)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   It is 300 metres high (city guide).
#   ['- give lengths in metres', '- name a source in brackets']
#   Please ask a doctor. medical advice
