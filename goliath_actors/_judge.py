"""The planned loop's rules for not going round in circles. Pure: steps in, a verdict out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ._call import Cached
from ._json import canonical
from ._records import RESULT_CHARS
from ._text import clip
from .tools import Tool
from .values import Step

__all__ = ["Escalated", "find_identical", "two_failures", "unmet"]

FAILED = ("failed", "unknown")


class Escalated(Exception):
    """The loop gives up on the device. Raised and caught by the planned loop only."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason)


def unmet(tool: Tool, steps: Sequence[Step]) -> list[str]:
    """Return the tools that `tool` builds on and that have not come to a result in this run."""
    if not tool.requires:
        return []
    done = {step.tool for step in steps if step.status in ("executed", "cached")}
    return [name for name in tool.requires if name not in done]


def two_failures(steps: Sequence[Step]) -> bool:
    """Say whether the last two steps both failed."""
    return len(steps) > 1 and all(step.kind == "tool" and step.status in FAILED for step in steps[-2:])


def find_identical(
    tool: Tool, input: Mapping[str, Any], steps: Sequence[Step], repeatable: Collection[int] = ()
) -> Cached | None:
    """Look for an earlier call of the same tool with the same arguments.

    Arguments: `repeatable`, indices of failed reads that may be repeated once as they are (C12).

    Returns: what to answer from the log, None if the call is to be made. A read is answered from the log once; what
    was read before a later write is read again.

    Raises: `Escalated`, reason `repeated-tool-call`.
    """
    wanted = canonical(input)
    match: Step | None = None
    times = 0
    for step in reversed(steps):
        same = step.kind == "tool" and step.tool == tool.name and step.skip_reason != "missing"
        if same and canonical(step.input or {}) == wanted:
            match = match or step
            times += 1
        # A write that may have happened makes older reads stale, whether or not it is known to have succeeded.
        if match is None and not tool.writes and step.writes and step.status != "skipped":
            return None
    if match is None:
        return None
    if not tool.writes and match.status == "executed":
        earlier = match.result or ""
        text = earlier if tool.output_mode == "content" else f"Same as step {match.index + 1}: {earlier}"
        return Cached(match.index, clip(text, RESULT_CHARS) if tool.output_mode != "content" else text, match.output)
    if not tool.writes and match.index in repeatable and times == 1:
        return None
    raise Escalated("repeated-tool-call", f"{tool.name} was called again with the same arguments")
