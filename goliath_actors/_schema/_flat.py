"""JSON schemas without references where possible: many servers and small models do badly with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from goliath_actors._frozen import thaw

# Definitions are written out where they are used until a schema has this many nodes.
_INLINE_NODES: Final = 2_000

# Keywords whose value maps names to schemas, and keywords whose value is data and no schema.
BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
DATA: Final = frozenset({"default", "enum", "const", "examples", "required"})
# Titles only repeat names; discriminators are no JSON schema, and point to definitions that are written out here.
_DROPPED: Final = frozenset({"title", "discriminator", "$ref"})
PREFIX: Final = "#/$defs/"


def flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without references where possible, and without titles, which only repeat names."""
    recursive = {name for name in definitions if name in _reachable(definitions[name], definitions)}
    nodes = 0
    kept: dict[str, Any] = {}

    def put(node: Any, by_name: bool = False) -> Any:
        nonlocal nodes
        nodes += 1
        if isinstance(node, list):
            return [put(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if by_name:
            return {name: put(item) for name, item in node.items()}
        own = {
            key: thaw(item) if key in DATA else put(item, key in BY_NAME)
            for key, item in node.items()
            if key not in _DROPPED
        }
        name = _referred(node)
        if name is None or name not in definitions:
            return own if name is None else {"$ref": node["$ref"], **own}
        if name in recursive or nodes > _INLINE_NODES:
            if name not in kept:
                kept[name] = None  # reserved before going down: it may refer to itself
                kept[name] = put(definitions[name])
            return {"$ref": node["$ref"], **own}
        return {**put(definitions[name]), **own}

    flat = put(schema)
    name = _referred(flat)
    if name is not None and name in kept:  # a recursive type: its own schema at the root, the references to it inside
        flat = {**kept[name], **{key: item for key, item in flat.items() if key != "$ref"}}
    return {**flat, "$defs": kept} if kept else flat


def _referred(node: Mapping[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.removeprefix(PREFIX) if isinstance(reference, str) else None


def _reachable(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            name = _referred(node)
            if name is not None and name not in found and name in definitions:
                found.add(name)
                pending.append(definitions[name])
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return found
