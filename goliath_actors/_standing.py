"""What the requests of one agent have in common, made once for all its runs rather than anew for each.

A system message and the tools that a model is told about stay the same objects as long as they say the same, so that
whoever keeps something by the object, as a model does that writes them out, finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ._budget import FixedCounts
from ._composition import schemas_text, system_text
from .abc import ToolSpec
from .tools import Tool
from .values import Message

__all__ = ["Offer", "Standing"]


@attrs.frozen(eq=False)
class Offer:
    """Tools that a model is told about: as a provider is, and, with the reply's schema, in words that cost tokens."""

    tools: Mapping[str, Tool]
    schema: Mapping[str, Any] | None
    specs: tuple[ToolSpec, ...]
    words: str


@attrs.define(eq=False)
class Standing:
    """Of each kind the last one that was made: what differs from it is made anew, so nothing grows.

    An agent may serve several threads at once: every slot is read and set as one.
    """

    fixed: FixedCounts
    _offer: Offer | None = None
    _head: tuple[tuple[Any, ...], tuple[Message, ...]] = ((), ())
    _names: tuple[Mapping[str, Tool] | None, frozenset[str]] = (None, frozenset())

    def names(self, tools: Mapping[str, Tool]) -> frozenset[str]:
        """Return the names of tools, in a mapping that nobody changes."""
        known, names = self._names
        if known is not tools:
            names = frozenset(tools)
            self._names = tools, names
        return names

    def offer(self, tools: Mapping[str, Tool], schema: Mapping[str, Any] | None) -> Offer:
        """Return what a model is told of tools, in a mapping that nobody changes."""
        offer = self._offer
        if offer is None or offer.tools is not tools or offer.schema is not schema:
            specs = tuple([tool.spec for tool in tools.values()])
            offer = self._offer = Offer(tools, schema, specs, schemas_text(schema, specs))
        return offer

    def system(
        self, instructions: tuple[str, str], facts: Mapping[str, str], text: str, note: str
    ) -> tuple[Message, ...]:
        """Return the message that begins a request, none if there is nothing to say. As `system_text`."""
        # Facts are told in their order, which a comparison of mappings passes over.
        parts = (instructions, tuple(facts.items()), text, note)
        known, messages = self._head
        if known != parts:
            said = system_text(instructions, facts, text, note)
            messages = (Message("system", said),) if said else ()
            self._head = parts, messages
        return messages
