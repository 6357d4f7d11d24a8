"""What hooks may answer beside a value: verdicts, which decide, and patches, which change some fields.

`hooks.py` exports all of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .abc import Model
from .values import Message

__all__ = [
    "Ask",
    "Complete",
    "Continue",
    "Decline",
    "Deny",
    "MetadataPatch",
    "ModelPatch",
    "NextStep",
    "PlanPatch",
    "Respond",
    "Retry",
    "RunPatch",
    "Skip",
    "Stop",
]


# --- verdicts -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Stop:
    """End the run with `text`: no answer transforms, no saving, no fallback, no `on_error`."""

    text: str
    reason: str


@attrs.frozen
class Respond:
    """Answer in the model's place. The text is an answer like any other: it is transformed and saved."""

    text: str
    reason: str = ""
    outcome: str = "blocked"


@attrs.frozen
class Deny:
    """Refuse a tool call; the model is told `reason`. `whole_batch` refuses its sibling calls too."""

    reason: str
    whole_batch: bool = False


@attrs.frozen
class Ask:
    """Have the call confirmed, even if it only reads. The chain goes on."""

    reason: str = ""


@attrs.frozen
class Retry:
    """Reject the plan; the model is told `feedback` and plans again, within `hook_retries`."""

    feedback: str


@attrs.frozen
class Skip:
    """Do not save this exchange."""


@attrs.frozen
class Decline:
    """Do not compact this range."""


@attrs.frozen
class NextStep:
    """Take another step."""


@attrs.frozen
class Complete:
    """End the run with what it has."""


@attrs.frozen
class Continue:
    """Go on with `text` as a user message."""

    text: str


# --- patches --------------------------------------------------------------------------------------------------------


@attrs.frozen
class RunPatch:
    """Changes to a run before it begins. None leaves a field as it is; `facts` merge by key, later ones win."""

    ask: str | None = None
    instructions: str | None = None
    facts: Mapping[str, str] | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[str] | None = None
    model: Model | None = None
    settings: Mapping[str, Any] | None = None
    provider_options: Mapping[str, Any] | None = None


@attrs.frozen
class PlanPatch:
    """Changes for one planning attempt or step. `tools` can only narrow; `context_text` replaces what is there."""

    tools: Sequence[str] | None = None
    context_text: str | None = None
    messages: Sequence[Message] | None = None
    model: Model | None = None
    settings: Mapping[str, Any] | None = None
    provider_options: Mapping[str, Any] | None = None


@attrs.frozen
class ModelPatch:
    """Changes for one attempt of a model call. With `model`, inherited settings and options are cleared first."""

    messages: Sequence[Message] | None = None
    model: Model | None = None
    settings: Mapping[str, Any] | None = None
    provider_options: Mapping[str, Any] | None = None
    timeout: float | None = None


@attrs.frozen
class MetadataPatch:
    """Metadata to be stored in the same commit."""

    metadata: Mapping[str, Any] | None = None
    private: Mapping[str, Any] | None = None
