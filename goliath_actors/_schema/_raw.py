"""JSON schemas from elsewhere, checked with jsonschema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, final

from goliath_actors._frozen import FrozenDict, freeze, thaw
from goliath_actors._json import json_problem
from goliath_actors._text import clip
from goliath_actors.errors import ConfigError

from ._flat import BY_NAME, DATA
from ._functions import plain_object
from ._problems import MISSING, Checked, InputProblems, Problem

# Any, below: JSON data of any shape, and the validator, whose types jsonschema leaves open.


@final
class RawSchema:
    """A JSON schema given as data, checked with jsonschema. References outside of it are refused, never fetched."""

    def __init__(self, schema: Mapping[str, Any], owner: str) -> None:
        import jsonschema  # here: takes time to load, and only foreign schemas need it
        import referencing
        from jsonschema.validators import validator_for

        plain = thaw(schema)
        problem = json_problem(plain)
        if problem is not None:
            raise ConfigError(f"the schema of {owner}: {problem}")
        kind = validator_for(plain, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(plain)
        except jsonschema.SchemaError as error:
            raise ConfigError(f"the schema of {owner} is no JSON schema: {clip(error.message, 200)}") from error
        for problem in _unusable(plain, plain):
            raise ConfigError(f"the schema of {owner}: {problem}")
        self.schema: FrozenDict = freeze(plain)
        # An empty registry: nothing is ever fetched to resolve a reference.
        self._validator: Any = kind(plain, registry=referencing.Registry())

    def read(self, raw: Any, path: str) -> Checked:
        """See `Reader.read`."""
        try:
            errors = sorted(self._validator.iter_errors(raw), key=lambda error: [str(part) for part in error.path])
        except Exception as error:  # a schema that sends its checker astray must not end the run
            raise InputProblems.one(f"cannot be checked: {type(error).__name__}", path) from error
        if errors:
            raise InputProblems(_json_schema_problem(error, path) for error in errors)
        return Checked(raw, raw)

    def check(self, raw: Any) -> Checked:
        """Check the arguments of one call.

        Raises: InputProblems that name every problem.
        """
        return self.read(plain_object(raw), "")


def _json_schema_problem(error: Any, path: str) -> Problem:
    place = path
    for part in error.absolute_path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    missing = re.fullmatch(r"'(.*)' is a required property", error.message)
    if missing and error.validator == "required":
        return Problem(f"{place}.{missing[1]}" if place else missing[1], MISSING)
    return Problem(place, error.message)


def _unusable(node: Any, root: Any) -> Iterator[str]:
    """Yield what a valid schema may hold and this one may not: references that lead nowhere."""
    if isinstance(node, list):
        for item in node:
            yield from _unusable(item, root)
    if not isinstance(node, dict):
        return
    reference = node.get("$ref")
    if isinstance(reference, str) and not _resolves(reference, root):
        yield f"the reference {reference!r} leads to nothing inside it"
    for key, item in node.items():
        if key in BY_NAME and isinstance(item, dict):
            for inner in item.values():
                yield from _unusable(inner, root)
        elif key not in DATA:
            yield from _unusable(item, root)


def _resolves(reference: str, root: Any) -> bool:
    if reference == "#" or not reference.startswith("#/"):
        # Anchors and identifiers are looked up when checking; other documents are not there.
        return reference.startswith("#")
    node = root
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return False
    return True
