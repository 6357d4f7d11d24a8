"""Adapters for model providers over HTTP: `OpenAIChat` and `AnthropicMessages`, and `HttpFallback` for a second brain
behind an address. `Fallbacks` makes one model of several, and `Limited` keeps a model's limits.

Built on the public contracts only.
"""

from .anthropic import AnthropicMessages
from .fallbacks import Fallbacks
from .http_fallback import HttpFallback
from .limited import Limited, LimitedStatistics
from .openai_chat import OpenAIChat

__all__ = ["AnthropicMessages", "Fallbacks", "HttpFallback", "Limited", "LimitedStatistics", "OpenAIChat"]
