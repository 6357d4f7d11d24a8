"""From a function to the JSON object that its parameters are."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import attrs
import msgspec

from goliath_actors._frozen import FrozenDict, freeze, thaw
from goliath_actors._json import json_problem
from goliath_actors.errors import ConfigError

from ._flat import PREFIX
from ._problems import MISSING, Checked, InputProblems, Problem, Reader, one_line
from ._readers import reader_of

# Any, below: annotations and defaults, which may be any object, and JSON data of any shape.


@attrs.frozen(eq=False)
class Parameter:
    """One parameter. `default` is `Parameter.empty` for a required one; `description` is that of the docstring."""

    empty: ClassVar[Any] = inspect.Parameter.empty

    name: str
    annotation: Any
    default: Any = inspect.Parameter.empty
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
        originals: dict[str, Any] = {}  # the same, as their readers wrote them
        for parameter in parameters:
            try:
                reader = reader_of(parameter.annotation)
            except ConfigError as error:
                raise ConfigError(
                    f"parameter {parameter.name!r} of {owner}: {error}; use a type that JSON can express, or make the "
                    "tool by hand with Tool(name=..., description=..., parameters={...}, execute=...)"
                ) from error
            self._readers[parameter.name] = reader
            properties[parameter.name] = _described(_hoisted(thaw(reader.schema), definitions, originals), parameter)
        self._required = tuple(p.name for p in parameters if p.default is Parameter.empty)
        # One object for all calls, as Python has it: what one run put into it would be seen by all others.
        self._shared = {p.name: p.default for p in parameters if _can_be_changed(p.default)}
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if self._required:
            schema["required"] = list(self._required)
        if definitions:
            schema["$defs"] = definitions
        self.schema: FrozenDict = freeze(schema)

    def defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the defaults that a call could change, of those parameters that are not `given`."""
        return {name: copy.deepcopy(default) for name, default in self._shared.items() if name not in given}

    def check(self, raw: Any) -> Checked:
        """Check the arguments of one call, each once.

        Returns: `data`, the given arguments as plain coerced JSON in the order given; `value`, a dict of typed ones.

        Raises: InputProblems that name every problem: missing, unknown and unfit arguments, input that is no object.
        """
        return self.check_plain(plain_object(raw))

    def check_plain(self, plain: dict[str, Any]) -> Checked:
        """As `check`, of an object that was read from JSON just now, strictly, and that nobody else has."""
        problems: list[Problem] = []
        data: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, item in plain.items():
            reader = self._readers.get(name)
            if reader is None:
                known = ", ".join(self._readers)
                problems.append(
                    Problem(name, f"no such argument; there are {known}" if known else "no argument is taken")
                )
                continue
            try:
                checked = reader.read(item, name)
            except InputProblems as error:
                problems.extend(error.found)
                continue
            data[name], values[name] = checked.data, checked.value
        problems.extend(Problem(name, MISSING) for name in self._required if name not in plain)
        if problems:
            raise InputProblems(problems)
        return Checked(data, values)


def _can_be_changed(default: Any) -> bool:
    """Whether a call could change a default for the next one, and a copy of it can be had."""
    if not isinstance(default, (list, dict, set, bytearray)):
        return False
    try:
        copy.deepcopy(default)
    except Exception:  # noqa: BLE001  # an application's objects in it may refuse in any way: then there is none
        return False
    return True


def plain_object(raw: Any) -> dict[str, Any]:
    """Return an independent copy of `raw`, a JSON object, with dates and the like as JSON writes them.

    Raises: InputProblems if it is none.
    """
    if not isinstance(raw, Mapping):
        raise InputProblems.one(f"arguments must be a JSON object, not {type(raw).__name__}")
    problem = json_problem(raw)
    if problem is not None:
        raise InputProblems.one(problem)
    if not all(isinstance(key, str) for key in raw):
        raise InputProblems.one("the names of arguments must be strings")
    try:
        plain = msgspec.to_builtins(thaw(raw), str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputProblems.one(f"not JSON data: {one_line(error)}") from error
    assert isinstance(plain, dict)
    return plain


def _described(schema: dict[str, Any], parameter: Parameter) -> dict[str, Any]:
    """Add the default, and the first description found: in the annotation, in the docstring, of the type."""
    description = _note(parameter.annotation) or parameter.description or schema.pop("description", "")
    if description:
        schema = {**schema, "description": " ".join(description.split())}
    if parameter.default is not Parameter.empty and parameter.default is not None:
        try:
            default = msgspec.to_builtins(parameter.default, str_keys=True)
        except (TypeError, ValueError, RecursionError):
            return schema  # a default that JSON cannot say works all the same; the model need not know it
        if json_problem(default) is None:
            schema["default"] = default
    return schema


def _note(annotation: Any) -> str:
    """Return the description in an annotation's metadata: a bare string, `documentation` (Doc) or `description`."""
    for note in getattr(annotation, "__metadata__", ()):
        for text in (note, getattr(note, "documentation", None), getattr(note, "description", None)):
            if isinstance(text, str) and text.strip():
                return text
    return ""


def _hoisted(schema: dict[str, Any], definitions: dict[str, Any], originals: dict[str, Any]) -> dict[str, Any]:
    """Move a parameter's own definitions to the root, under a new name where another type has taken theirs."""
    own = schema.pop("$defs", {})
    renamed = {}
    for name, definition in own.items():
        free = name
        while free in originals and originals[free] != definition:
            free += "_"
        renamed[PREFIX + name] = PREFIX + free
        originals[free] = definition

    def put(node: Any) -> Any:
        if isinstance(node, list):
            return [put(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {
            key: renamed.get(item, item) if key == "$ref" and isinstance(item, str) else put(item)
            for key, item in node.items()
        }

    for name, definition in own.items():
        definitions[renamed[PREFIX + name].removeprefix(PREFIX)] = put(definition)
    moved_schema: dict[str, Any] = put(schema)
    return moved_schema
