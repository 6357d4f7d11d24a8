"""A runtime for asyncio programs: it runs on trio, in a thread of its own, and is used from any event loop.

Above the roof: built on the public API. Never imports `trio_asyncio`, which changes asyncio for the whole process.
"""

from __future__ import annotations

from ._doors import Bridge, BridgeConversation, BridgeRun, BridgeStream, open_bridge
from ._outward import call_asyncio

__all__ = ["Bridge", "BridgeConversation", "BridgeRun", "BridgeStream", "call_asyncio", "open_bridge"]
