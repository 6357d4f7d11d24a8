"""Adapters for model providers over HTTP: `OpenAIChat`, and `HttpFallback` for a second brain behind an address.

Floor 2, side door. Built on the public contracts only.
"""

from .http_fallback import HttpFallback
from .openai_chat import OpenAIChat

__all__ = ["HttpFallback", "OpenAIChat"]
