"""Audit: a record as something begins and one as it ends, without what is nobody's business."""

import attrs
import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.policies import Audit, AuditRecord
from goliath_actors.testing import ScriptedModel


@tool
async def find_person(name: str) -> str:
    """Find somebody's address."""
    return f"{name} lives in Paris"


def redact(record: AuditRecord) -> AuditRecord | None:
    if record.of == "model":
        return None
    detail = {key: value for key, value in record.detail.items() if key in ("entry", "handled_by", "input")}
    return attrs.evolve(record, detail=detail)


def write(record: AuditRecord) -> None:
    print(f"{record.edge:5} {record.of:4} {record.name:11} {record.outcome or '-':9} {dict(record.detail)}")


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "find_person", "brief": "find Ada"},
        {"name": "Ada"},
        {"kind": "answer", "brief": "say it"},
        "Paris.",
    ]
)
agent = Agent(model=model, tools=[find_person], extensions=[Audit(write, redact=redact)])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        await runtime.run("Where does Ada live?", conversation_id="u1")


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   enter run  agent       -         {'entry': 'run'}
#   enter tool find_person -         {'input': {'name': 'Ada'}}
#   exit  tool find_person executed  {'input': {'name': 'Ada'}}
#   exit  run  agent       completed {'handled_by': 'device'}
