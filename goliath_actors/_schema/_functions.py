"""From a function to the JSON object that its parameters are.

Floor 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import attrs
import msgspec

from goliath_actors._frozen import FrozenDict, freeze, thaw
from goliath_actors._json import json_problem
from goliath_actors.errors import ConfigError

from ._flat import PREFIX
from ._problems import MISSING, Checked, InputProblems, Reader, at, one_line
from ._readers import reader_of

# Any, below: annotations and defaults, which may be any object, and JSON data of any shape.


@attrs.frozen(eq=False)
class Parameter:
    """One parameter: `default` is `attrs.NOTHING` for a required one; `description` is used if the type has none."""

    name: str
    annotation: Any
    default: Any = attrs.NOTHING
    description: str = ""


@final
class Parameters:
    """The parameters of a function as one JSON object.

    Arguments: `parameters` in order; `owner`, how the function is named in errors.

    Raises: ConfigError that names a parameter whose type has no JSON schema.
    """

    def __init__(self, parameters: Sequence[Parameter], owner: str) -> None:
        self._readers: dict[str, Reader] = {}
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for parameter in parameters:
            try:
                reader = reader_of(parameter.annotation)
            except ConfigError as error:
                raise ConfigError(
                    f"parameter {parameter.name!r} of {owner}: {error}; use a type that JSON can express, or make the "
                    "tool by hand with Tool(name=..., description=..., parameters={...}, execute=...)"
                ) from error
            self._readers[parameter.name] = reader
            properties[parameter.name] = _described(_hoisted(thaw(reader.schema), definitions), parameter)
        self._required = tuple(p.name for p in parameters if p.default is attrs.NOTHING)
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if self._required:
            schema["required"] = list(self._required)
        if definitions:
            schema["$defs"] = definitions
        self.schema: FrozenDict = freeze(schema)

    def check(self, raw: Any) -> Checked:
        """Check the arguments of one call, each once.

        Returns: `data`, the given arguments as plain coerced JSON in the order given; `value`, a dict of typed ones.

        Raises: InputProblems that name every problem: missing, unknown and unfit arguments, input that is no object.
        """
        plain = plain_object(raw)
        problems: list[str] = []
        data: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, item in plain.items():
            reader = self._readers.get(name)
            if reader is None:
                known = ", ".join(self._readers)
                problems.append(at(name, f"no such argument; there are {known}" if known else "no argument is taken"))
                continue
            try:
                checked = reader.read(item, name)
            except InputProblems as error:
                problems.extend(error.problems)
                continue
            data[name], values[name] = checked.data, checked.value
        problems.extend(at(name, MISSING) for name in self._required if name not in plain)
        if problems:
            raise InputProblems(problems)
        return Checked(data, values)


def plain_object(raw: Any) -> dict[str, Any]:
    """Return an independent copy of `raw`, a JSON object, with dates and the like as JSON writes them.

    Raises: InputProblems if it is none.
    """
    if not isinstance(raw, Mapping):
        raise InputProblems([f"arguments must be a JSON object, not {type(raw).__name__}"])
    problem = json_problem(raw)
    if problem is not None:
        raise InputProblems([problem])
    if not all(isinstance(key, str) for key in raw):
        raise InputProblems(["the names of arguments must be strings"])
    try:
        plain = msgspec.to_builtins(thaw(raw), str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputProblems([f"not JSON data: {one_line(error)}"]) from error
    assert isinstance(plain, dict)
    return plain


def _described(schema: dict[str, Any], parameter: Parameter) -> dict[str, Any]:
    description = schema.get("description") or parameter.description
    for note in getattr(parameter.annotation, "__metadata__", ()):
        # The two usual notations beside msgspec's: a bare string, and `Doc` with its `documentation`.
        text = note if isinstance(note, str) else getattr(note, "documentation", None)
        if isinstance(text, str):
            description = text
    if parameter.description and not _describes(parameter.annotation):
        description = parameter.description
    if description:
        schema = {
            "description": " ".join(description.split()),
            **{k: v for k, v in schema.items() if k != "description"},
        }
    if parameter.default is not attrs.NOTHING and parameter.default is not None:
        try:
            default = msgspec.to_builtins(parameter.default, str_keys=True)
        except (TypeError, ValueError, RecursionError):
            return schema  # a default that JSON cannot say works all the same; the model need not know it
        if json_problem(default) is None:
            schema["default"] = default
    return schema


def _describes(annotation: Any) -> bool:
    """Say whether an annotation carries a description of its own, as opposed to its class's docstring."""
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, str) or any(getattr(note, name, None) for name in ("description", "documentation")):
            return True
    return False


def _hoisted(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Move a parameter's own definitions to the root, under a new name where another type has taken theirs."""
    own = schema.pop("$defs", {})
    renamed = {}
    for name, definition in own.items():
        free = name
        while free in definitions and definitions[free] != definition:
            free += "_"
        renamed[PREFIX + name] = PREFIX + free
        definitions[free] = definition

    def put(node: Any) -> Any:
        if isinstance(node, list):
            return [put(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {
            key: renamed.get(item, item) if key == "$ref" and isinstance(item, str) else put(item)
            for key, item in node.items()
        }

    for name in own:
        moved = renamed[PREFIX + name].removeprefix(PREFIX)
        definitions[moved] = put(definitions[moved])
    moved_schema: dict[str, Any] = put(schema)
    return moved_schema
