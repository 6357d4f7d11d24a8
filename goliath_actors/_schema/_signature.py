"""Reading a function: its parameters with evaluated annotations, and what its docstring says of them."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from goliath_actors.errors import ConfigError

from ._functions import Parameter, Parameters

# Any, below: annotations, defaults and callables of an application's.


@attrs.frozen(eq=False)
class Signature:
    """A function as a tool sees it. `takes_self`: a method that was not bound to an object yet."""

    name: str
    description: str
    parameters: Parameters
    takes_context: bool
    takes_self: bool
    is_async: bool


def read_function(
    function: Any, *, is_context: Callable[[Any], bool], names: Mapping[str, Any], reserved: frozenset[str]
) -> Signature:
    """Return what a function tells about itself.

    Arguments: `is_context` recognises the annotation of a context parameter, or its text where the annotation cannot be
    evaluated; `names` are local names that string annotations may use; `reserved` are names no parameter may have.

    Raises: ConfigError that says which parameter of which function cannot be used, and what to do.
    """
    base, bound = _unwrapped(function)
    owner = f"{getattr(base, '__qualname__', type(base).__name__)}()"
    if inspect.isclass(function) or not callable(function):
        raise ConfigError(f"a tool is made from a function, a method or another callable object, not {function!r}")
    if inspect.isgeneratorfunction(base) or inspect.isasyncgenfunction(base):
        raise ConfigError(f"{owner} is a generator; a tool returns its one result: collect it and return it")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{owner} has no signature to be read ({error}); wrap it in a function") from error
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    evaluate = functools.partial(_evaluated, owner=owner, scope=getattr(base, "__globals__", {}), names=names)
    takes_self = _is_unbound_method(function, parameters)
    if takes_self:
        del parameters[0]
    takes_context = bool(parameters) and _is_context(parameters[0], evaluate, is_context)
    if takes_context:
        if parameters[0].kind is parameters[0].KEYWORD_ONLY:
            raise ConfigError(f"the context of {owner} must be its first positional parameter, not keyword-only")
        del parameters[0]
    documented = _documented(function, base)
    description, notes = read_docstring(inspect.getdoc(documented) or "")
    if documented is base:  # a class's docstring may speak of what makes its objects
        _refuse_strangers(notes, {**_own_parameters(base), **signature.parameters}, parameters, owner)
    found = [_parameter(parameter, owner, evaluate, is_context, notes, reserved) for parameter in parameters]
    return Signature(
        name=str(getattr(base, "__name__", "") if base is not None else ""),
        description=description,
        parameters=Parameters(found, owner),
        takes_context=takes_context,
        takes_self=takes_self,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(base),
    )


def _unwrapped(function: Any) -> tuple[Any, frozenset[str]]:
    """Return the plain function underneath, and the parameters that `functools.partial` has already filled by name."""
    bound: frozenset[str] = frozenset()
    while True:
        if isinstance(function, functools.partial):
            bound |= frozenset(function.keywords)
            function = function.func
        elif isinstance(function, (staticmethod, types.MethodType)):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)) and isinstance(
            call := inspect.getattr_static(type(function), "__call__", None), types.FunctionType
        ):
            function = call
        else:
            return function, bound


def _documented(function: Any, base: Any) -> Any:
    """Return the object whose docstring speaks of the tool: for a callable object its class, if `__call__` has none."""
    if not inspect.isroutine(function) and not isinstance(function, functools.partial) and not base.__doc__:
        return type(function)
    return base


def _own_parameters(base: Any) -> Mapping[str, Any]:
    """Return the parameters of the function underneath, those that a wrapper or a partial hides from callers too."""
    try:
        return inspect.signature(base).parameters
    except (TypeError, ValueError):
        return {}


def _refuse_strangers(
    notes: Iterable[str], known: Iterable[str], parameters: list[inspect.Parameter], owner: str
) -> None:
    """Refuse a docstring that describes what is no parameter: most likely the model would miss a description."""
    names = list(known)
    for name in notes:
        close = difflib.get_close_matches(name, names, n=1)
        # "Note: ..." and the like, among the parameters, are remarks.
        if name in names or (name[0].isupper() and not close):
            continue
        there = ", ".join(parameter.name for parameter in parameters)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {there}" if there else "it has none"
        raise ConfigError(f"the docstring of {owner} describes {name!r}, which is no parameter; {hint}")


def _is_unbound_method(function: Any, parameters: list[inspect.Parameter]) -> bool:
    return (
        isinstance(function, types.FunctionType)
        and bool(parameters)
        and parameters[0].name == "self"
        and parameters[0].annotation is inspect.Parameter.empty
    )


def _is_context(
    parameter: inspect.Parameter, evaluate: Callable[[inspect.Parameter], Any], is_context: Callable[[Any], bool]
) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    if parameter.annotation is parameter.empty:
        return parameter.name == "ctx"
    if isinstance(parameter.annotation, str) and is_context(parameter.annotation):
        return True  # without evaluating it: its argument is often imported for type checkers only
    return is_context(evaluate(parameter))


def _parameter(
    parameter: inspect.Parameter,
    owner: str,
    evaluate: Callable[[inspect.Parameter], Any],
    is_context: Callable[[Any], bool],
    notes: Mapping[str, str],
    reserved: frozenset[str],
) -> Parameter:
    name = parameter.name
    what = f"parameter {name!r} of {owner}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise ConfigError(f"{stars}{name} of {owner} has no schema; name each parameter, or take one list or mapping")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ConfigError(f"{what} is positional-only, and arguments are passed by name; remove the `/`")
    if parameter.annotation is parameter.empty:
        hint = "; a context must be annotated ToolContext or named `ctx`" if name in ("context", "self", "cls") else ""
        raise ConfigError(f"{what} has no annotation, so its schema is unknown; annotate it{hint}")
    if name in reserved:
        raise ConfigError(f"{what} has a name that planned loops use for values they could not find; rename it")
    if isinstance(parameter.annotation, str) and is_context(parameter.annotation):
        raise ConfigError(f"{what} is a context; it must be the first parameter")
    annotation = evaluate(parameter)
    if is_context(annotation):
        raise ConfigError(f"{what} is a context; it must be the first parameter")
    return Parameter(name, annotation, parameter.default, notes.get(name, ""))


def _evaluated(parameter: inspect.Parameter, *, owner: str, scope: dict[str, Any], names: Mapping[str, Any]) -> Any:
    """Evaluate one annotation by itself, so that a name only one of them lacks is blamed on that one."""
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        # The local names come last: a module's own are what its annotations usually mean.
        return typing.get_type_hints(holder, {**names, **scope}, {**scope, **names}, include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigError(
            f"parameter {parameter.name!r} of {owner}: its annotation {parameter.annotation!r} cannot be evaluated "
            f"({error}); import what it names where the function is defined, outside of `if TYPE_CHECKING`"
        ) from error


# --- docstrings -----------------------------------------------------------------------------------------------------

_SECTION: Final = re.compile(
    r"(?P<args>Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters)"
    r"|Returns?|Yields?|Raises|Examples?|Cancellation"
)
_GOOGLE_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:(?:\s+(?P<text>.*))?$")
_NUMPY_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?::.*)?$")
_FIELD: Final = re.compile(r":(?P<kind>\w+)(?:\s+[^:]*?(?P<name>\w+))?\s*:\s*(?P<text>.*)$")
_FIELD_PARAMETERS: Final = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description in front of the first section, and what is said of each parameter.

    Understands sections with a colon ("Args:"), underlined ones ("Parameters" over dashes) and `:param name:` fields.
    """
    lines = inspect.cleandoc(text).splitlines()
    description: list[str] = []
    notes: dict[str, list[str]] = {}
    style = ""  # of the section that the line is in: "" before the first one
    entry_indent = 0
    current: list[str] | None = None
    position = 0
    while position < len(lines):
        line = lines[position]
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        following = lines[position + 1].strip() if position + 1 < len(lines) else ""
        position += 1
        underlined = len(following) >= 3 and set(following) <= set("-=")
        header = _SECTION.fullmatch(bare.removesuffix(":")) if indent == 0 else None
        if underlined and indent == 0 and style and not header:
            style, current = "other", None  # a section that says nothing of parameters
            position += 1
            continue
        field = _FIELD.match(bare)
        if header and (underlined or bare.endswith(":")):
            style = ("numpy" if underlined else "google") if header["args"] else "other"
            position += underlined
            entry_indent, current = -1, None
        elif field and indent == 0:
            style, current = "field", None
            if field["kind"] in _FIELD_PARAMETERS and field["name"]:
                current = notes.setdefault(field["name"], [field["text"]])
        elif style == "":
            description.append(line)
        elif not bare:
            continue
        elif style in ("google", "numpy"):
            if style == "google" and indent == 0:
                style = "other"  # text that no longer belongs to the section
                continue
            if entry_indent < 0:
                entry_indent = indent
            entry = (
                (_GOOGLE_ENTRY if style == "google" else _NUMPY_ENTRY).match(bare) if indent == entry_indent else None
            )
            if entry:
                first = entry["text"] if style == "google" else None
                current = notes.setdefault(entry["name"], [first] if first else [])
            elif current is not None:
                current.append(bare)
        elif style == "field" and indent > 0 and current is not None:
            current.append(bare)
    return "\n".join(description).strip(), {name: " ".join(" ".join(parts).split()) for name, parts in notes.items()}
