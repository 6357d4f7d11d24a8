"""Readers: from a type to its JSON schema, and from plain JSON data to its values.

msgspec reads attrs classes, dataclasses, structs, typed dicts, enums and literals; what only pydantic
understands is given to pydantic, which is never imported otherwise.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Final, Union, final

import msgspec

from goliath_actors._frozen import ATOMS, freeze, thaw
from goliath_actors._json import json_problem
from goliath_actors.errors import ConfigError

from ._built import Built, adapt, schema_of_built
from ._flat import flatten
from ._problems import MISSING, Checked, InputProblems, Problem, Reader, one_line

# Any, below: annotations, which may be any object, and JSON data of any shape.

# Stands for an object that JSON cannot express, made by a class's own converter: it is shown as it was given.
_AS_GIVEN: Final = "\0as given\0"
_LISTS: Final = (list, set, frozenset, Sequence, Set)


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


# --- types that msgspec knows ---------------------------------------------------------------------------------------


@final
class TypeReader:
    """Reads a type with msgspec, lax about numbers sent as strings, strict about everything else."""

    def __init__(self, annotation: Any) -> None:
        definitions: dict[str, Any] = {}
        names: dict[type, str] = {}

        def schema(part: Any) -> dict[str, Any]:
            (made,), found = msgspec.json.schema_components((part,), schema_hook=hook)
            definitions.update(found)
            return made

        def hook(foreign: type) -> dict[str, Any]:
            if issubclass(foreign, Built):
                return schema_of_built(foreign, names, definitions, schema)
            make = getattr(foreign, "model_json_schema", None)
            if make is None or not callable(getattr(foreign, "model_validate", None)):
                # How a hook of msgspec's says that a type is none of its business: then a schema in the annotation
                # (`Meta(extra_json_schema=...)`) may do, else msgspec raises a TypeError, which is told below.
                raise NotImplementedError(foreign)
            model: dict[str, Any] = dict(make())
            definitions.update(model.pop("$defs", {}))
            return model

        try:
            self._type = adapt(annotation)
            root = schema(self._type)
        except (TypeError, ValueError, NameError) as error:
            why = one_line(error)
            if "schema_hook" in why:  # msgspec's advice to its own users, no help to ours
                why = f"JSON cannot express {why.partition(') type ')[2].removesuffix(' is not supported') or 'it'}"
            raise ConfigError(f"{_type_name(annotation)} has no JSON schema ({why})") from error
        self.schema: Mapping[str, Any] = freeze(flatten(root, definitions))

    def read(self, raw: Any, path: str) -> Checked:
        """See `Reader.read`."""
        try:
            value = _convert(raw, self._type)
        except Exception as error:  # a class's own converter may raise anything: its word is the problem
            found = list(_diagnose(raw, self._type, path))
            raise InputProblems(found or [_problem(error, path)]) from error
        if value is raw and type(raw) in ATOMS and type(raw) is not float:
            return Checked(raw, raw)  # nothing was coerced, and what is plain JSON data stays that
        data = _project(raw, msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_encode))
        problem = json_problem(data)  # "nan" becomes a float of that name
        if problem is not None:
            raise InputProblems.one(problem, path)
        return Checked(data, value)


def _convert(raw: Any, annotation: Any) -> Any:
    return msgspec.convert(raw, annotation, strict=False, str_keys=True, dec_hook=_decode)


def _decode(annotation: Any, raw: Any) -> Any:
    if issubclass(annotation, Built):
        return annotation.build(raw, _convert_all)
    return annotation.model_validate(raw)


def _convert_all(raw: Any, annotation: Any) -> Any:
    """Convert, naming every problem if it fails."""
    try:
        return _convert(raw, annotation)
    except Exception as error:
        raise InputProblems(list(_diagnose(raw, annotation, "")) or [_problem(error, "")]) from error


def _encode(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return _AS_GIVEN if dump is None else dump(mode="json", by_alias=True, exclude_unset=True)


def _project(raw: Any, data: Any) -> Any:
    """Return `data`, the coerced form of `raw`, with only those fields that were given: defaults are not shown (H6)."""
    if data == _AS_GIVEN or (isinstance(data, (list, tuple)) and _AS_GIVEN in data):
        return raw
    if isinstance(data, tuple):
        data = list(data)
    if isinstance(raw, dict) and isinstance(data, dict):
        # msgspec reads fields whose name begins with an underscore, and does not write them.
        return {
            key: _project(item, data.get(key, item)) for key, item in raw.items() if key in data or key.startswith("_")
        }
    if isinstance(raw, list) and isinstance(data, list):
        if len(raw) != len(data):  # a set that was given one element twice
            raw = data
        return [_project(old, new) for old, new in zip(raw, data, strict=True)]
    return data


def _diagnose(raw: Any, annotation: Any, path: str) -> Iterator[Problem]:
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
        unknown = raw.keys() - fields.keys() if _is_closed(annotation) else ()
        yield from (Problem(path, f"there is no field {name}") for name in raw if name in unknown)
        for name, (kind, required) in fields.items():
            inner = f"{path}.{name}" if path else name
            if name in raw:
                yield from _diagnose(raw[name], kind, inner)
            elif required:
                yield Problem(inner, MISSING)
        return
    try:
        _convert(raw, annotation)
    except Exception as error:  # noqa: BLE001 - as in read
        if isinstance(error.__cause__, InputProblems):
            yield from (problem.under(path) for problem in error.__cause__.found)
        elif hasattr(error.__cause__, "errors"):
            yield from _pydantic_problems(error.__cause__, path)
        else:
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


def _is_closed(annotation: Any) -> bool:
    config = getattr(annotation, "__struct_config__", None)
    return config is not None and config.forbid_unknown_fields and config.tag is None


def _problem(error: Exception, path: str, annotation: Any = None) -> Problem:
    text = one_line(error) if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
    text, _, place = text.partition(" - at `$")
    text = text.replace("`", "")
    if isinstance(error, msgspec.ValidationError):
        text = text[:1].lower() + text[1:]
    if text.startswith("invalid enum value") and annotation is not None:
        allowed = TypeReader(annotation).schema.get("enum", ())
        text += f"; allowed are {', '.join(map(repr, allowed))}" if allowed else ""
    return Problem("", text).under(place.rstrip("`").lstrip(".")).under(path)


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
        if hasattr(item, "__pydantic_validator__"):  # its dataclasses derive from nothing
            return True
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
            raise ConfigError(f"{_type_name(annotation)} has no JSON schema ({one_line(error)})") from error
        definitions = schema.pop("$defs", {})
        self.schema: Mapping[str, Any] = freeze(flatten(schema, definitions))

    def read(self, raw: Any, path: str) -> Checked:
        """See `Reader.read`."""
        try:
            value = self._adapter.validate_python(raw)
            data = self._adapter.dump_python(value, mode="json", by_alias=True, exclude_unset=True, warnings=False)
        except Exception as error:  # a validator may raise anything: its word is the problem
            raise InputProblems(_pydantic_problems(error, path)) from error
        problem = json_problem(data)
        if problem is not None:
            raise InputProblems.one(problem, path)
        return Checked(data, value)


def _pydantic_problems(error: BaseException | None, path: str) -> list[Problem]:
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return [Problem(path, f"{type(error).__name__}: {error}")]
    found = []
    for entry in errors():
        place = path
        for part in entry["loc"]:
            place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
        found.append(Problem(place, entry["msg"]))
    return found
