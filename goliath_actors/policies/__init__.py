"""Ready-made extensions, built on the public hooks only. They work under both loops.

Floor 2, side door. What outlives a run lives on the extension object, by key, and is forgotten when it no
longer counts.
"""

from .rate_limit import RateLimit
from .redact import Redact
from .tool_policy import ToolPolicy, ToolRule, allow, ask, deny

__all__ = ["RateLimit", "Redact", "ToolPolicy", "ToolRule", "allow", "ask", "deny"]
