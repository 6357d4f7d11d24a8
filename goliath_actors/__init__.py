"""Language-model conversations as actors on trio.

Each conversation has a mailbox that serialises its runs and their hooks; separate conversations run concurrently; a
supervisor owns the cancel scopes, so that `on_error` and `on_finish` observers always hear how a run ended.
"""

from ._agent import Agent
from ._conductor import Conductor, SessionFallback
from ._envelope import Run
from ._facade import Conversation
from ._open import open_runtime, serve_runtime
from ._runtime import Runtime
from ._toolloop import Compaction, ToolLoop
from ._version import __version__
from .errors import GoliathError, RunAborted, ToolFailure
from .hooks import Deny, Extension, Respond, Retry, Skip, Stop
from .tools import Tool, ToolContext, approve_all, tool
from .values import Memory, Message, Outcome, RunResult

__all__ = [
    "Agent",
    "Compaction",
    "Conductor",
    "Conversation",
    "Deny",
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
