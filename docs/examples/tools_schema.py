"""Where a tool's schema comes from, and what becomes of arguments that do not fit."""

from typing import Annotated, Literal

import attrs
import trio

from goliath_actors import ToolContext, tool
from goliath_actors.errors import ToolInputError


@attrs.frozen
class Place:
    street: str
    number: int


@tool
def plan_trip(
    ctx: ToolContext[None],
    to: Place,
    by: Annotated[Literal["foot", "bike", "train"], "how to travel"] = "foot",
    stops: list[str] | None = None,
) -> str:
    """Plan a trip.

    Args:
        to: where the trip ends
    """
    return f"to {to.street} {to.number} by {by}, {len(stops or ())} stops"


async def main() -> None:
    print(plan_trip.name, "|", plan_trip.description)
    properties = plan_trip.parameters["properties"]
    print(list(properties), plan_trip.parameters["required"])
    print(properties["to"]["description"], "|", properties["by"]["description"], properties["by"]["enum"])

    # Numbers written as text are understood; the rest is told by name, all of it at once.
    checked = plan_trip.check({"to": {"street": "Elm Street", "number": "4"}})
    print(checked.data)
    print(plan_trip.start(checked, ToolContext()))
    try:
        plan_trip.check({"to": {"street": "Elm Street"}, "by": "boat", "speed": 3})
    except ToolInputError as error:
        for problem in error.problems:
            print("wrong:", problem.partition(":")[0])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   plan_trip | Plan a trip.
#   ['to', 'by', 'stops'] ['to']
#   where the trip ends | how to travel ['bike', 'foot', 'train']
#   {'to': {'street': 'Elm Street', 'number': 4}}
#   to Elm Street 4 by foot, 0 stops
#   wrong: to.number
#   wrong: by
#   wrong: speed
