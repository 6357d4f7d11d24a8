"""A load test of a runtime in this process: misbehaving clients, a failing provider, and every account settled."""

import trio

from goliath_actors.loadtest import Clients, Dice, Provider, Scenario, Turn, read_threshold, run_load

SCENARIO = Scenario(
    name="evening",
    conversations=10,
    max_asks=40,
    think=Dice("uniform", 0, 0.02),
    mix=[Turn("What is on today?", weight=3), Turn("And what about {n}?", tools=1)],
    clients=Clients(abandon=0.1, abort=0.1),
    provider=Provider(
        first_token=Dice("lognormal", 0.005, 0.4),
        tokens=Dice("uniform", 5, 20),
        tokens_per_second=2000,
        errors=0.05,
    ),
)


async def main() -> None:
    report = await run_load(SCENARIO, thresholds=[read_threshold("p99>20s")])
    print(report.figures["counts"]["sent"], "asks sent")
    for check in report.checks:
        print("ok" if check.ok else "FAILED", check.name)


trio.run(main)

# Prints:
#   40 asks sent
#   ok every ask that was sent has an end
#   ok every accepted ask ended once
#   ok the runtime and its askers count the same
#   ok every observer heard every end
#   ok events keep their grammar
#   ok nothing runs or waits any more
#   ok nothing is left behind
