"""One load test, from its scenario to its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ._drive import Driver
from ._measure import Recorder
from .report import LoadReport, make_report
from .scenario import Scenario
from .targets import InProcess, Target
from .thresholds import Threshold

__all__ = ["run_load"]

_PROBE = 0.5  # seconds between two looks at the queues


async def run_load(
    scenario: Scenario,
    target: Target | None = None,
    *,
    thresholds: Sequence[Threshold] = (),
    on_progress: Callable[[Recorder], object] | None = None,
    stop: trio.Event | None = None,
) -> LoadReport:
    """Drive `target` through a scenario and return what came of it, every account settled.

    Arguments: `target`, None for a runtime in this process with the scenario's simulated provider; `on_progress`,
    called about twice a second and once at the end, inline; `stop`, an event that ends the load early once it is set:
    nothing more is sent, what is in flight has up to ten seconds (or `settle`, if that is less), and the report says
    that it was interrupted.

    Returns: the report. What the target's runs raise is counted there, and never raised here.

    Raises: what opening the target raises, such as `ConfigError` or `StoreError`.

    Cancellation: the asks in flight are aborted and their observers told; the target is closed; there is no report.
    """
    target = target or InProcess(scenario)
    stop = trio.Event() if stop is None else stop
    async with target.open():
        record = Recorder.over(trio.current_time(), scenario.duration)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_probe, target, record, on_progress)
            await Driver(scenario, target, record, stop).run()
            interrupted = stop.is_set()
            nursery.cancel_scope.cancel()
        seconds = trio.current_time() - record.start
    if on_progress is not None:
        on_progress(record)
    return make_report(scenario, target.name, record, seconds, target.checks(), thresholds, interrupted)


async def _probe(target: Target, record: Recorder, on_progress: Callable[[Recorder], object] | None) -> None:
    while True:
        depth = await target.depth()
        bucket = record.bucket(trio.current_time())
        bucket.running = max(bucket.running, depth.running)
        bucket.waiting = max(bucket.waiting, depth.waiting)
        if on_progress is not None:
            on_progress(record)
        await trio.sleep(_PROBE)
