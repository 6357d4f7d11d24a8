"""Language-model conversations as actors on trio.

Each conversation has a mailbox that serialises its runs and their hooks; separate conversations run concurrently; a
supervisor owns the cancel scopes, so that `on_error` and `on_finish` observers always hear how a run ended.
"""

# Imported on first use: a program that only looks at the version, or completes a command line, does not wait for trio
# and for some hundred classes. Type checkers read the imports instead.

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from ._agent import Agent
    from ._conductor import Conductor, SessionFallback
    from ._facade import Conversation
    from ._face import Run
    from ._journal import EventStream
    from ._open import open_runtime, serve_runtime
    from ._runtime import Runtime
    from ._toolloop import Compaction, ToolLoop
    from .errors import GoliathError, RunAborted, ToolFailure
    from .hooks import Deny, Extension, Respond, Retry, Skip, Stop
    from .tools import Tool, ToolContext, approve_all, tool
    from .values import Memory, Message, Outcome, RunResult
else:
    from importlib import import_module

    _ROOMS = {
        "._agent": "Agent",
        "._conductor": "Conductor SessionFallback",
        "._face": "Run",
        "._facade": "Conversation",
        "._journal": "EventStream",
        "._open": "open_runtime serve_runtime",
        "._runtime": "Runtime",
        "._toolloop": "Compaction ToolLoop",
        ".errors": "GoliathError RunAborted ToolFailure",
        ".hooks": "Deny Extension Respond Retry Skip Stop",
        ".tools": "Tool ToolContext approve_all tool",
        ".values": "Memory Message Outcome RunResult",
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}
    # Reachable as attributes, without an import of their own.
    _OPEN = frozenset(("abc", "errors", "events", "hooks", "stores", "tokens", "tools", "values"))

    def __getattr__(name):
        if name in _ROOM_OF:
            value = getattr(import_module(_ROOM_OF[name], __name__), name)
        elif name in _OPEN:
            return import_module(f".{name}", __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, *_OPEN})


__all__ = [
    "Agent",
    "Compaction",
    "Conductor",
    "Conversation",
    "Deny",
    "EventStream",
    "Extension",
    "GoliathError",
    "Memory",
    "Message",
    "Outcome",
    "Respond",
    "Retry",
    "Run",
    "RunAborted",
    "RunResult",
    "Runtime",
    "SessionFallback",
    "Skip",
    "Stop",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolLoop",
    "__version__",
    "approve_all",
    "open_runtime",
    "serve_runtime",
    "tool",
]
