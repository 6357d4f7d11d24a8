"""The way into a run: `before_run`, asked of an ask, of an episode that is taken up, and of a text that is handed in.

Used by what begins a run and by the loop that takes texts while it goes.
"""

from __future__ import annotations

from typing import Any, Literal

from ._decisions import combine
from ._work import Route, Unpatched, Work
from .hooks import BeforeRun, Stop

__all__ = ["before_run"]


async def before_run(work: Work, ask: str, entry: Literal["run", "resume", "steer"]) -> tuple[str, Any, str]:
    """Ask `before_run` and apply its patches to the run.

    Returns: the ask, as the hooks left it; their verdict, a `Respond` or None; and who gave it.

    Raises: `RunStopped`; `GoliathExtensionError`.

    Cancellation: honoured; no patch is applied.
    """
    if not work.panel.hears("before_run"):
        return ask, None, ""
    # What hooks made of the run counts for what they were asked about: a text that is handed in is asked about anew,
    # and whoever adds to each would otherwise add twice. Tools that were taken away stay away (H9).
    if work.unpatched is None:
        work.unpatched = Unpatched.of(work)
    else:
        work.unpatched.restore(work)
    question = BeforeRun(ask, work.instructions, work.facts, entry, work.known)
    decision = await work.panel.decide("before_run", question)
    merged: BeforeRun = decision.question
    work.instructions, work.facts = merged.instructions, merged._facts
    if decision.patches:
        patch = combine(decision.patches)
        route = Route.of(work).patched(patch)
        work.model, work.settings, work.provider_options = route.model, route.settings, route.provider_options
        work.messages = tuple(patch.messages or ())
        if patch.tools is not None:
            work.tools = {name: tool for name, tool in work.tools.items() if name in set(patch.tools)}
    if isinstance(decision.verdict, Stop):
        raise work.panel.stop("before_run", decision)
    return merged.ask, decision.verdict, decision.extension
