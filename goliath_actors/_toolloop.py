"""The native tool loop's configuration. The loop itself is not part of this version.

Floor 4. The names are promised; an agent refuses a `ToolLoop` until there is one to run.
"""

from __future__ import annotations

from typing import final

import attrs

__all__ = ["Compaction", "ToolLoop"]


@final
@attrs.frozen(kw_only=True)
class Compaction:
    """When a tool loop summarises old history: at this share of the window, keeping the last turns."""

    at: float = 0.75
    keep_turns: int = 4


@final
@attrs.frozen(kw_only=True)
class ToolLoop:
    """Native tool calling on a transcript, for large windows. `window` in tokens."""

    window: int = 128_000
    max_steps: int = 20
    max_parallel_tools: int = 8
    hook_retries: int = 2
    compaction: Compaction | None = attrs.Factory(Compaction)
