"""Structured answers: what `Agent(output=...)` is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

import attrs

from goliath_actors._frozen import FrozenDict, freeze
from goliath_actors._json import parse_reply
from goliath_actors.errors import ConfigError

from ._problems import Reader
from ._raw import RawSchema
from ._readers import reader_of

# Any, below: a type or a schema, and the value made from a reply.


@final
@attrs.frozen(eq=False)
class OutputSchema:
    """What a structured answer must look like. Made by `of`.

    `schema` is sent to the provider, `name` names it there.
    """

    name: str
    schema: FrozenDict
    _reader: Reader = attrs.field(repr=False)

    @classmethod
    def of(cls, spec: Any) -> OutputSchema:
        """Return the checker for `spec`: a type (attrs class, dataclass, msgspec.Struct, TypedDict, pydantic model,
        Literal, …), or a JSON schema as a mapping.

        Raises: ConfigError if `spec` is neither, or has no JSON schema.
        """
        if isinstance(spec, OutputSchema):
            return spec
        if isinstance(spec, Mapping):
            title = spec.get("title")
            reader: Reader = RawSchema(spec, "the output")
            return cls(_identifier(title if isinstance(title, str) else ""), freeze(reader.schema), reader)
        if spec is None or isinstance(spec, (str, int, float, list, tuple, set)):
            raise ConfigError(f"output={spec!r}: give a type, or a JSON schema as a mapping")
        try:
            reader = reader_of(spec)
        except ConfigError as error:
            raise ConfigError(f"output: {error}") from error
        return cls(_identifier(getattr(spec, "__name__", "")), freeze(reader.schema), reader)

    def parse(self, text: str) -> Any:
        """Return the typed value of a reply, its transforms applied once; plain data if `spec` was a JSON schema.

        Raises: ValueError that lists the problems; the text must be JSON, at most inside one code fence.
        """
        return self._reader.read(parse_reply(text), "").value


def _identifier(name: str) -> str:
    """Return a name that providers accept for a schema."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "answer"
