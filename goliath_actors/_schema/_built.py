"""attrs classes that convert: msgspec sets fields directly and runs no converters, so these classes are called instead.

Each such class has a stand-in that msgspec takes for a foreign type and hands back to us.
"""

from __future__ import annotations

import datetime
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple, Union, cast

import attrs
import msgspec

from ._flat import PREFIX
from ._problems import MISSING, InputProblems, Problem

# Any, below: annotations, which may be any object, and JSON data of any shape.


class Field(NamedTuple):
    """One field of a class as JSON has it."""

    annotation: Any
    argument: str
    required: bool
    default: Any


class _StandIn(type):
    """The type of stand-ins: what was made of one is an object of the class that it stands for, and msgspec checks."""

    kind: type

    def __instancecheck__(cls, made: object) -> bool:
        return isinstance(made, cls.kind)


class Built(metaclass=_StandIn):
    """Base of stand-ins. `kind` is the class that is called."""

    kind: ClassVar[type]

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """Return the fields by name. Looked up when needed: a class may refer to itself."""
        hints = typing.get_type_hints(cls.kind, include_extras=True)
        return {
            field.name: Field(adapt(hints[field.name]), field.alias, field.default is attrs.NOTHING, field.default)
            for field in attrs.fields(cls.kind)
            if field.init
        }

    @classmethod
    def build(cls, raw: Any, convert: Callable[[Any, Any], Any]) -> Any:
        """Return an object of the class, made by calling it once.

        Raises: InputProblems for fields that are missing or do not convert; what the class raised.
        """
        if not isinstance(raw, dict):
            raise InputProblems.one(f"expected object, got {_json_name(raw)}")
        values: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, field in cls.fields().items():
            if name in raw:
                try:
                    values[field.argument] = convert(raw[name], field.annotation)
                except InputProblems as error:
                    problems.extend(problem.under(name) for problem in error.found)
            elif field.required:
                problems.append(Problem(name, MISSING))
        if problems:
            raise InputProblems(problems)
        return cls.kind(**values)


def adapt(annotation: Any) -> Any:
    """Return the annotation with stand-ins for the classes that convert, and with a format for date-times, about which
    msgspec's schemas say nothing."""
    if annotation is datetime.datetime:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return _stand_in(annotation) if _converts(annotation, set()) else annotation
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(adapt(args[0]), *args[1:])]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, (adapt(item) for item in args))
    adapted = tuple(adapt(item) for item in args)
    if origin is None or adapted == args:
        return annotation
    generic: Any = origin
    rebuild: Callable[[Any], Any] | None = getattr(annotation, "copy_with", None)  # of the aliases in `typing`
    return generic[adapted] if rebuild is None else rebuild(adapted)


def _json_name(raw: Any) -> str:
    if raw is None:
        return "null"
    names = {bool: "bool", int: "int", float: "float", str: "str", list: "array"}
    return names.get(type(raw), type(raw).__name__)


def _converts(kind: type, seen: set[type]) -> bool:
    """Say whether an attrs class, or one that it is made of, has a converter."""
    if kind in seen or not attrs.has(kind):
        return False
    seen.add(kind)
    if any(field.converter is not None for field in attrs.fields(kind)):
        return True
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return False  # msgspec will say it better
    return any(_converts(item, seen) for hint in hints.values() for item in _classes(hint))


def _classes(annotation: Any) -> list[type]:
    args = typing.get_args(annotation)
    if not args:
        return [annotation] if isinstance(annotation, type) else []
    return [kind for item in args for kind in _classes(item)]


@functools.lru_cache(maxsize=1024)
def _stand_in(kind: type) -> type[Built]:
    return cast("type[Built]", _StandIn(kind.__name__, (Built,), {"kind": kind}))


def schema_of_built(
    stand_in: type[Built], names: dict[type, str], definitions: dict[str, Any], schema: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Return a reference to the schema of a class that is called, adding its definition where it is new."""
    kind = stand_in.kind
    if kind not in names:
        name = kind.__name__
        while name in definitions:
            name += "_"
        names[kind] = name
        definitions[name] = None  # reserved before going down: it may refer to itself
        properties: dict[str, Any] = {}
        for field_name, field in stand_in.fields().items():
            properties[field_name] = dict(schema(field.annotation))
            if not field.required and not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # a class
                try:
                    properties[field_name]["default"] = msgspec.to_builtins(field.default)
                except TypeError:
                    continue  # a default that JSON cannot say
        made: dict[str, Any] = {"type": "object", "properties": properties}
        made["required"] = [field_name for field_name, field in stand_in.fields().items() if field.required]
        if kind.__doc__ and not kind.__doc__.startswith("Method generated"):
            made = {"description": " ".join(kind.__doc__.split()), **made}
        definitions[name] = made
    return {"$ref": PREFIX + names[kind]}
