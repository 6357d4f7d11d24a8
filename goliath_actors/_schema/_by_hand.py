"""Tools made by hand: a JSON schema and a function of the whole input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from goliath_actors._frozen import FrozenDict, freeze, thaw
from goliath_actors._json import json_problem, snapshot
from goliath_actors.errors import ConfigError

from ._problems import Checked, InputProblems

# Any, below: schemas, functions and values of an application's.


def is_async(function: Any) -> bool:
    """Say whether calling `function`, which may be an object with an async `__call__`, gives an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        inspect.getattr_static(type(function), "__call__", None)
    )


def object_schema(name: str, schema: Any, reserved: frozenset[str]) -> FrozenDict:
    """Return the schema with its type said, checked to be one of an object."""
    if not isinstance(schema, Mapping):
        raise ConfigError(f"the tool {name!r}: parameters must be a JSON schema as a mapping, not {schema!r}")
    if not schema:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise ConfigError(
            f'the tool {name!r}: the schema of parameters must have type "object", not {schema["type"]!r}'
        )
    for taken in reserved & set(schema.get("properties") or ()):
        raise ConfigError(
            f"the tool {name!r}: parameter {taken!r} has a name that planned loops use for values they could not "
            "find; rename it"
        )
    return cast(FrozenDict, freeze({"type": "object", **schema}))


# Keywords that can ask for input although there are no properties.
_ASKING: Final = frozenset(
    {"patternProperties", "required", "allOf", "anyOf", "oneOf", "$ref", "minProperties", "if", "propertyNames"}
)


def takes_nothing(schema: Mapping[str, Any]) -> bool:
    """Say whether a tool of this schema can be called without asking a model for arguments."""
    return (
        not schema.get("properties")
        and not isinstance(schema.get("additionalProperties"), Mapping)
        and schema.get("additionalProperties") is not True
        and not any(schema.get(keyword) for keyword in _ASKING)
    )


def takes_second(function: Any, name: str) -> bool:
    """Say whether `execute` takes the context behind the input.

    Raises: ConfigError if it cannot be called with the input at all.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False  # some built-in callables do not tell; they get the input alone
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    second = positional[1] if len(positional) > 1 else None
    takes = rest or (second is not None and (second.default is second.empty or second.name == "ctx"))
    try:
        signature.bind(*(("input", "ctx") if takes else ("input",)))
    except TypeError as error:
        raise ConfigError(
            f"the tool {name!r}: execute must take (input) or (input, ctx): {error}; for a function with named "
            "parameters use @tool"
        ) from error
    return takes


def parsed_by(parse: Callable[[dict[str, Any]], Any], data: dict[str, Any]) -> Checked:
    """Run a tool's own transform, once, on checked input.

    Raises: InputProblems with what the transform raised.
    """
    try:
        value = parse(thaw(data))
    except Exception as error:
        raise InputProblems.one(str(error).strip() or type(error).__name__) from error
    shown = snapshot(value)
    if not isinstance(shown, dict) or not set(data) <= set(shown) or json_problem(shown) is not None:
        return Checked(data, value)  # a value of another shape: the input is shown as it was given
    return Checked({key: shown[key] for key in data}, value)
