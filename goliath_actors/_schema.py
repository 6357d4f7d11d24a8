"""From Python types and functions to JSON schemas, and from a model's JSON to typed values.

Floor 1. msgspec knows attrs classes, dataclasses, structs, typed dicts, enums and literals; pydantic models are
recognised by what they offer and never imported; a JSON schema from elsewhere is checked with jsonschema, imported when
the first one turns up.
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Final, Protocol, Union, final

import attrs
import msgspec

from ._frozen import FrozenDict, freeze, thaw
from ._json import json_problem, parse_reply
from ._text import clip
from .errors import ConfigError

__all__ = [
    "Checked",
    "InputProblems",
    "OutputSchema",
    "Parameter",
    "Parameters",
    "RawSchema",
    "TypeReader",
    "schema_of",
]

# What a model is told at most, in problems and in code points for each: enough to mend a call, not a page.
_PROBLEMS: Final = 20
_PROBLEM_CHARS: Final = 300
# Definitions are written out where they are used, since many servers know no references, until this many nodes.
_INLINE_NODES: Final = 2_000
_LISTS: Final = (list, set, frozenset, Sequence, Set)
_MISSING: Final = "required, but missing"

# Any, below: annotations, which may be any object, and JSON data of any shape.


class InputProblems(ValueError):
    """Data does not fit a schema. `problems` names each problem with its path."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = [clip(problem, _PROBLEM_CHARS) for problem in problems]
        if len(found) > _PROBLEMS:
            found[_PROBLEMS:] = [f"and {len(found) - _PROBLEMS} more problems"]
        self.problems = tuple(found)
        super().__init__("; ".join(found))


@attrs.frozen(eq=False)
class Checked:
    """Data that fits: `data` is plain JSON as it is shown, `value` what the program works with."""

    data: Any
    value: Any


class Reader(Protocol):
    """Turns plain JSON data into a checked value."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of that data."""
        ...

    def read(self, raw: Any, path: str) -> Checked:
        """Check `raw`, plain JSON data, once.

        Raises: InputProblems, each problem under `path`.
        """
        ...


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, with definitions written out where they are not recursive.

    Raises: ConfigError if the type has no JSON schema.
    """
    return thaw(reader_of(annotation).schema)  # type: ignore[no-any-return]  # thaw of a mapping is a dict


def reader_of(annotation: Any) -> Reader:
    """Return the reader for a type.

    Raises: ConfigError if the type has no JSON schema.
    """
    if _speaks_pydantic(annotation):
        return _PydanticReader(annotation)
    return TypeReader(annotation)


def at(path: str, problem: str) -> str:
    """Return a problem with its place in front, the whole value having none."""
    return f"{path}: {problem}" if path else problem


# --- types that msgspec knows ---------------------------------------------------------------------------------------


@final
class TypeReader:
    """Reads a type with msgspec, lax about numbers sent as strings, strict about everything else."""

    def __init__(self, annotation: Any) -> None:
        self._type = annotation
        definitions: dict[str, Any] = {}

        def hook(foreign: type) -> dict[str, Any]:
            make = getattr(foreign, "model_json_schema", None)
            if make is None or not callable(getattr(foreign, "model_validate", None)):
                raise NotImplementedError
            made: dict[str, Any] = dict(make())
            definitions.update(made.pop("$defs", {}))
            return made

        try:
            (schema,), found = msgspec.json.schema_components((_dated(annotation),), schema_hook=hook)
        except (TypeError, ValueError, NotImplementedError, NameError) as error:
            raise ConfigError(f"{_type_name(annotation)} has no JSON schema ({_first_line(error)})") from error
        definitions.update(found)
        self.schema: Mapping[str, Any] = freeze(_flatten(schema, definitions))

    def read(self, raw: Any, path: str) -> Checked:
        """See `Reader.read`."""
        try:
            value = _convert(raw, self._type)
            data = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_encode)
        except Exception as error:  # a class's own converter may raise anything: its word is the problem
            found = list(_diagnose(raw, self._type, path))
            raise InputProblems(found or [_problem(error, path)]) from error
        data = _project(raw, data)
        problem = json_problem(data)  # "nan" becomes a float of that name
        if problem is not None:
            raise InputProblems([at(path, problem)])
        return Checked(data, value)


def _convert(raw: Any, annotation: Any) -> Any:
    return msgspec.convert(raw, annotation, strict=False, str_keys=True, dec_hook=_decode)


def _decode(annotation: Any, raw: Any) -> Any:
    return annotation.model_validate(raw)


def _encode(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is no JSON data")
    return dump(mode="json", by_alias=True, exclude_unset=True)


def _project(raw: Any, data: Any) -> Any:
    """Return `data`, the coerced form of `raw`, with only those fields that were given: defaults are not shown (H6)."""
    if isinstance(raw, dict) and isinstance(data, dict):
        return {key: _project(item, data[key]) for key, item in raw.items() if key in data}
    if isinstance(raw, list) and isinstance(data, list) and len(raw) == len(data):
        return [_project(old, new) for old, new in zip(raw, data, strict=True)]
    return data


def _dated(annotation: Any) -> Any:
    """Return the annotation with a format for date-times, about which msgspec's schemas say nothing."""
    if annotation is datetime.datetime:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, (_dated(arg) for arg in args))
    if origin is list:
        return list[_dated(args[0])]  # type: ignore[misc]  # built at run time, for msgspec alone
    if origin is Annotated:
        return Annotated[(_dated(args[0]), *args[1:])]
    return annotation


def _diagnose(raw: Any, annotation: Any, path: str) -> Iterator[str]:
    """Yield every problem of data that did not convert, where msgspec stops at the first.

    Goes down by structure and converts only what has none, so that a class's own transforms are not run again.
    """
    annotation = _bare(annotation, raw)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(raw, list) and args and (origin in _LISTS or (origin is tuple and args[1:] == (...,))):
        for position, item in enumerate(raw):
            yield from _diagnose(item, args[0], f"{path}[{position}]")
        return
    if isinstance(raw, dict) and origin in (dict, Mapping) and len(args) == 2:
        for key, item in raw.items():
            yield from _diagnose(item, args[1], f"{path}.{key}" if path else key)
        return
    fields = _fields_of(annotation)
    if isinstance(raw, dict) and fields is not None:
        for name, (kind, required) in fields.items():
            inner = f"{path}.{name}" if path else name
            if name in raw:
                yield from _diagnose(raw[name], kind, inner)
            elif required:
                yield at(inner, _MISSING)
        return
    try:
        _convert(raw, annotation)
    except Exception as error:  # noqa: BLE001 - as in read
        yield _problem(error, path, annotation)


def _bare(annotation: Any, raw: Any) -> Any:
    """Return what matters for `raw` of an annotation: without metadata, and without None where `raw` is something."""
    while typing.get_origin(annotation) is Annotated and _fields_of(typing.get_args(annotation)[0]) is not None:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (Union, types.UnionType) and raw is not None:
        rest = [arg for arg in typing.get_args(annotation) if arg is not types.NoneType]
        if len(rest) == 1:
            return _bare(rest[0], raw)
    return annotation


def _fields_of(annotation: Any) -> dict[str, tuple[Any, bool]] | None:
    """Return the fields of a record type by the names they have in JSON: type, and whether required. Else None."""
    if not isinstance(annotation, type):
        return None
    try:
        info = msgspec.inspect.type_info(annotation)
        if not isinstance(
            info, (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
        ) or getattr(info, "array_like", False):
            return None
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {field.encode_name: (hints[field.name], field.required) for field in info.fields}
    except (TypeError, NameError, KeyError):
        return None


def _problem(error: Exception, path: str, annotation: Any = None) -> str:
    text = _first_line(error) if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
    text, _, place = text.partition(" - at `$")
    text = text.replace("`", "")
    if text.startswith(("Expected", "Invalid")):
        text = text[0].lower() + text[1:]
    if text.startswith("invalid enum value") and annotation is not None:
        allowed = TypeReader(annotation).schema.get("enum", ())
        text += f"; allowed are {', '.join(map(repr, allowed))}" if allowed else ""
    return at((path + place.rstrip("`")).lstrip("."), text)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _type_name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


# --- types that pydantic knows --------------------------------------------------------------------------------------


def _speaks_pydantic(annotation: Any) -> bool:
    """Say whether an annotation holds a pydantic model or pydantic's own metadata at any depth."""
    pending, seen = [annotation], 0
    while pending and seen < 1_000:
        seen += 1
        item = pending.pop()
        pending.extend(typing.get_args(item))
        pending.extend(getattr(item, "__metadata__", ()))
        kinds = item.__mro__ if isinstance(item, type) else type(item).__mro__
        if any(kind.__module__.partition(".")[0] == "pydantic" for kind in kinds):
            return True
    return False


@final
class _PydanticReader:
    """Reads a type that pydantic alone understands. Its transforms run once a read."""

    def __init__(self, annotation: Any) -> None:
        import pydantic  # here: whoever annotates with it has it; nobody else pays for it

        try:
            self._adapter: Any = pydantic.TypeAdapter(annotation)
            schema = self._adapter.json_schema()
        except Exception as error:
            raise ConfigError(f"{_type_name(annotation)} has no JSON schema ({_first_line(error)})") from error
        definitions = schema.pop("$defs", {})
        self.schema: Mapping[str, Any] = freeze(_flatten(schema, definitions))

    def read(self, raw: Any, path: str) -> Checked:
        """See `Reader.read`."""
        try:
            value = self._adapter.validate_python(raw)
            data = self._adapter.dump_python(value, mode="json", by_alias=True, exclude_unset=True, warnings=False)
        except Exception as error:  # a validator may raise anything: its word is the problem
            raise InputProblems(_pydantic_problems(error, path)) from error
        problem = json_problem(data)
        if problem is not None:
            raise InputProblems([at(path, problem)])
        return Checked(data, value)


def _pydantic_problems(error: Exception, path: str) -> list[str]:
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return [at(path, f"{type(error).__name__}: {error}")]
    found = []
    for entry in errors():
        place = path
        for part in entry["loc"]:
            place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
        found.append(at(place, entry["msg"]))
    return found


# --- schemas made flat ----------------------------------------------------------------------------------------------

# Keywords whose value maps names to schemas, and keywords whose value is data and no schema.
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA: Final = frozenset({"default", "enum", "const", "examples", "required"})
_PREFIX: Final = "#/$defs/"


def _flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
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
            key: thaw(item) if key in _DATA else put(item, key in _BY_NAME)
            for key, item in node.items()
            if key not in ("title", "$ref")
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
    return reference.removeprefix(_PREFIX) if isinstance(reference, str) else None


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


# --- parameters of a function ---------------------------------------------------------------------------------------


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
        problems.extend(at(name, _MISSING) for name in self._required if name not in plain)
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
        raise InputProblems([f"not JSON data: {_first_line(error)}"]) from error
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
        renamed[_PREFIX + name] = _PREFIX + free
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
        moved = renamed[_PREFIX + name].removeprefix(_PREFIX)
        definitions[moved] = put(definitions[moved])
    moved_schema: dict[str, Any] = put(schema)
    return moved_schema


# --- schemas from elsewhere -----------------------------------------------------------------------------------------


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
            raise InputProblems([at(path, f"cannot be checked: {type(error).__name__}")]) from error
        if errors:
            raise InputProblems(_json_schema_problem(error, path) for error in errors)
        return Checked(raw, raw)

    def check(self, raw: Any) -> Checked:
        """Check the arguments of one call.

        Raises: InputProblems that name every problem.
        """
        return self.read(plain_object(raw), "")


def _json_schema_problem(error: Any, path: str) -> str:
    place = path
    for part in error.absolute_path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    missing = re.fullmatch(r"'(.*)' is a required property", error.message)
    if missing and error.validator == "required":
        return at(f"{place}.{missing[1]}" if place else missing[1], _MISSING)
    return at(place, error.message)


def _unusable(node: Any, root: Any) -> Iterator[str]:
    """Yield what a valid schema may hold and this one may not: references that lead nowhere, patterns not ours."""
    if isinstance(node, list):
        for item in node:
            yield from _unusable(item, root)
    if not isinstance(node, dict):
        return
    reference = node.get("$ref")
    if isinstance(reference, str) and not _resolves(reference, root):
        yield f"the reference {reference!r} leads to nothing inside it"
    pattern = node.get("pattern")
    for text in (pattern, *(node.get("patternProperties") or ())):
        if isinstance(text, str):
            try:
                re.compile(text)
            except re.error as error:
                yield f"the pattern {text!r} is not one of Python's: {error}"
    for key, item in node.items():
        if key in _BY_NAME and isinstance(item, dict):
            for inner in item.values():
                yield from _unusable(inner, root)
        elif key not in _DATA:
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


# --- structured answers ---------------------------------------------------------------------------------------------


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
