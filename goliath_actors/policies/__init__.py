"""Ready-made extensions, built on the public hooks only. They work under both loops.

What outlives a run lives on the extension object, by key, and is forgotten when it no
longer counts.
"""

from .audit import Audit, AuditRecord
from .guardrail import Block, Correct, Guardrail
from .rate_limit import RateLimit
from .redact import Redact
from .retrieval import Passage, Retrieval
from .token_budget import TokenBudget
from .tool_policy import ToolPolicy, ToolRule, allow, ask, deny

__all__ = [
    "Audit",
    "AuditRecord",
    "Block",
    "Correct",
    "Guardrail",
    "Passage",
    "RateLimit",
    "Redact",
    "Retrieval",
    "TokenBudget",
    "ToolPolicy",
    "ToolRule",
    "allow",
    "ask",
    "deny",
]
