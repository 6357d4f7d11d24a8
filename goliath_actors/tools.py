"""Tools: what a model may ask for, and what a person may be asked about.

`@tool` makes a `Tool` from a function; `Tool(...)` by hand takes a JSON schema.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    cast,
    final,
    get_overloads,
    overload,
)

import attrs

from ._callables import CALLBACKS, check_takes
from ._client import answered_by, ask_client
from ._frozen import ATOMS, freeze
from ._json import parse_arguments
from ._schema import (
    InputProblems,
    RawSchema,
    Signature,
    is_async,
    object_schema,
    parsed_by,
    plain_object,
    read_function,
    takes_nothing,
    takes_second,
)
from ._tool_words import (
    CheckedInput,
    Confirmed,
    ConfirmRequest,
    Suspend,
    ToolContext,
    ToolDescriptor,
    ToolOutcome,
    approve_all,
)
from .abc import ToolSpec
from .errors import ConfigError, ToolInputError

__all__ = [
    "CheckedInput",
    "ConfirmRequest",
    "Confirmed",
    "Suspend",
    "Tool",
    "ToolContext",
    "ToolDescriptor",
    "ToolOutcome",
    "answered_by",
    "approve_all",
    "ask_client",
    "tool",
]


# The planned loop's argument schema has a field of this name, for values that the model could not find.
_RESERVED: Final = frozenset({"missing"})


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a tool needs a name that is not blank, not {name!r}; pass name=...")
    if name.split() != [name] or not name.isprintable() or name.startswith("<"):
        raise ConfigError(f"{name!r} cannot name a tool: no spaces, no control characters; pass name=...")
    return name


def _names(requires: Iterable[str | Tool]) -> tuple[str, ...]:
    if isinstance(requires, (str, Tool)):
        raise ConfigError(f"requires={requires!r}: give a tuple of tool names, as in ({requires!r},)")
    names = tuple(item.name if isinstance(item, Tool) else item for item in requires)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"requires=... takes tools and their names, not {name!r}")
    return tuple(_check_name(name) for name in names)


@final
@attrs.frozen(eq=False, kw_only=True, repr=False)
class Tool:
    """Something a model may ask for. Frozen; can be shared by agents, runs and runtimes.

    Arguments:
      name: how the model calls it.
      description: what it does, in the model's words; never blank.
      parameters: JSON schema of an object; references inside it only. The default takes no input.
      execute: called with the input, a plain dict, and the context if it has a second parameter; sync (then it runs in
        a worker thread) or async. What it returns is the raw output.
      parse: makes of the checked input, a dict, what `execute` gets instead. Runs once per check; a ValueError out of
        it is told to the model.
      writes: whether it changes anything; a write is confirmed, and never repeated.
      requires: names of tools that must have been executed before in the same run.
      resolve_input: `(input, ctx)`, sync or async; puts real values in place of references.
      to_model_output: `(output)`, sync; puts the raw output into words.
      output_mode: `"summary"` (600 characters) or `"content"` (a share of the window, in tokens).
      sequential: never runs beside another tool of the same round.
      timeout: seconds for one execution; None, no limit.
      confirm: True asks a person also before a read.
      on_output: `(output, ctx)`, sync or async; told each output, changes nothing.

    Raises: ConfigError for anything that could not work.
    """

    name: str = attrs.field(converter=_check_name)
    description: str
    parameters: Mapping[str, Any] = attrs.field(factory=dict, converter=freeze)
    execute: Callable[..., Any]
    parse: Callable[[dict[str, Any]], Any] | None = None
    writes: bool = False
    requires: tuple[str, ...] = attrs.field(default=(), converter=_names)
    resolve_input: Callable[..., Any] | None = None
    to_model_output: Callable[[Any], str] | None = None
    output_mode: Literal["summary", "content"] = "summary"
    sequential: bool = False
    timeout: float | None = None
    confirm: bool | None = None
    on_output: Callable[..., Any] | None = None
    # Set by `tool`; a tool made by hand has its schema instead.
    _signature: Signature | None = attrs.field(default=None, alias="_signature")
    descriptor: ToolDescriptor = attrs.field(init=False)
    # As a provider is told about it.
    spec: ToolSpec = attrs.field(init=False)
    takes_no_input: bool = attrs.field(init=False)
    is_async: bool = attrs.field(init=False)
    takes_context: bool = attrs.field(init=False)
    _raw: RawSchema | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        _check_settings(self)
        put = object.__setattr__
        signature = self._signature
        if signature is None:
            put(self, "parameters", object_schema(self.name, self.parameters, _RESERVED))
            put(self, "_raw", RawSchema(self.parameters, f"the tool {self.name!r}"))
            put(self, "takes_context", takes_second(self.execute, self.name))
            put(self, "is_async", is_async(self.execute))
        else:
            put(self, "_raw", None)
            put(self, "takes_context", signature.takes_context)
            put(self, "is_async", signature.is_async)
        put(self, "descriptor", ToolDescriptor(self.name, self.description, self.writes))
        put(self, "spec", ToolSpec(self.name, self.description, self.parameters))
        put(self, "takes_no_input", takes_nothing(self.parameters))

    def __repr__(self) -> str:
        return f"<Tool {self.name!r}{' writes' if self.writes else ''}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had never been made a tool. For tests and for other code."""
        return self.execute(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """Bind a tool made from a method to its object. Tools made from plain functions are returned as they are."""
        signature = self._signature
        if instance is None or signature is None or not signature.takes_self:
            return self
        bound = types.MethodType(self.execute, instance)
        return attrs.evolve(self, execute=bound, _signature=attrs.evolve(signature, takes_self=False))

    def check_bound(self) -> None:
        """Raise `ConfigError` if this is a method that was read from its class, and so has no object to work on."""
        if self._signature is not None and self._signature.takes_self:
            raise ConfigError(f"{self.name} is a method of a class; add the tool of an object, as in `kit.{self.name}`")

    def check(self, raw: Any) -> CheckedInput:
        """Check and type the arguments of one call; every transform in the schema runs once.

        Arguments: `raw`, a JSON object, from a model or from a hook; it is not kept.

        Raises: ToolInputError that names every problem, unknown arguments and input that is no object included.
        """
        try:
            return self._checked(plain_object(raw))
        except InputProblems as error:
            raise ToolInputError(self.name, error.problems) from error

    def _checked(self, plain: dict[str, Any], repairs: tuple[str, ...] = ()) -> CheckedInput:
        """Check and type arguments that are plain JSON data, of which nobody else has the containers."""
        if self._raw is None:
            assert self._signature is not None
            checked = self._signature.parameters.check_plain(plain)
            return CheckedInput(freeze(checked.data), checked.value, repairs)
        checked = self._raw.read(plain, "")
        if self.parse is not None:
            checked = parsed_by(self.parse, checked.data)
        return CheckedInput(freeze(checked.data), {"input": checked.value}, repairs)

    def read(self, text: str | None, *, confirms: bool) -> CheckedInput:
        """Parse and check the arguments of one call as a model wrote them; None stands for an absent text.

        Arguments: `confirms`, whether a person will be asked: then nothing is repaired. Output that was cut off by a
        length limit must not be passed.

        Raises: ToolInputError, for the model: what is wrong with the text, or every problem of the arguments.
        """
        try:
            parsed = parse_arguments(text, no_parameters=self.takes_no_input, confirms=confirms)
        except ValueError as error:
            problems = [str(error)]
            if text is None or text.strip() in ("", "null"):
                # Nothing was written: say also what would have been needed.
                problems += self._problems_of_nothing()
            raise ToolInputError(self.name, tuple(problems)) from error
        try:
            return self._checked(parsed.value, parsed.repairs)
        except InputProblems as error:
            raise ToolInputError(self.name, error.problems) from error

    def _problems_of_nothing(self) -> tuple[str, ...]:
        try:
            self.check({})
        except ToolInputError as error:
            return error.problems
        return ()

    def start(self, checked: CheckedInput, ctx: ToolContext[Any] | None) -> Any:
        """Call the function with argument values of its own: what it does to them is seen by nobody else.

        Arguments: `checked`, from this tool's `check`; `ctx` is passed on if the function takes a context,
          and may be None if it takes none.

        Returns: what the function returned: an awaitable if it is async.

        Raises: what the function raised; ConfigError for a method that was never bound to an object.
        """
        self.check_bound()
        values = dict(checked.kwargs)
        if not ATOMS.issuperset(map(type, values.values())):
            values = copy.deepcopy(values)
        if self._raw is not None:
            return self.execute(values["input"], ctx) if self.takes_context else self.execute(values["input"])
        if self._signature is not None:
            values.update(self._signature.parameters.defaults(values))
        return self.execute(ctx, **values) if self.takes_context else self.execute(**values)


def _check_settings(tool: Tool) -> None:
    what = f"the tool {tool.name!r}"
    if not isinstance(tool.description, str) or not tool.description.strip():
        raise ConfigError(
            f"{what} has no description; a model must be told what it does: write a docstring or pass one"
        )
    for name in ("writes", "sequential"):
        if not isinstance(getattr(tool, name), bool):
            raise ConfigError(f"{what}: {name} must be True or False, not {getattr(tool, name)!r}")
    if tool.confirm is not None and not isinstance(tool.confirm, bool):
        raise ConfigError(f"{what}: confirm must be True, False or None, not {tool.confirm!r}")
    if tool.output_mode not in ("summary", "content"):
        raise ConfigError(f'{what}: output_mode must be "summary" or "content", not {tool.output_mode!r}')
    timeout = tool.timeout
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf
    ):
        raise ConfigError(f"{what}: timeout must be a positive number of seconds or None, not {timeout!r}")
    for name in ("execute", "parse", "resolve_input", "to_model_output", "on_output"):
        value = getattr(tool, name)
        if not callable(value) and (value is not None or name == "execute"):
            raise ConfigError(f"{what}: {name} must be callable, not {value!r}")
    for name in ("resolve_input", "to_model_output", "on_output"):
        value = getattr(tool, name)
        if value is not None:
            check_takes(f"{what}: {name}", value, *CALLBACKS[name])
    for name in ("parse", "to_model_output"):
        if is_async(getattr(tool, name)):
            raise ConfigError(f"{what}: {name} must not be async; it is called where nothing may wait")
    if tool.name in tool.requires:
        raise ConfigError(f"{what} requires itself, so it could never be used")


# --- the decorator --------------------------------------------------------------------------------------------------

# What `@tool` passes on to `Tool`; the rest comes from the function.
_SETTINGS: Final = (
    "writes",
    "requires",
    "resolve_input",
    "to_model_output",
    "output_mode",
    "sequential",
    "timeout",
    "confirm",
    "on_output",
)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    writes: bool = False,
    requires: Iterable[str | Tool] = (),
    resolve_input: Callable[..., Any] | None = None,
    to_model_output: Callable[[Any], str] | None = None,
    output_mode: Literal["summary", "content"] = "summary",
    sequential: bool = False,
    timeout: float | None = None,
    confirm: bool | None = None,
    on_output: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **settings: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function: its name, its description and its schema come from the signature and the docstring.

    Used bare, with keywords, or as a plain call on a method, a `functools.partial` or a callable object. A first
    parameter annotated `ToolContext`, or named `ctx` without annotation, gets the context and is no part of the schema.
    Parameters are described by `Annotated[..., msgspec.Meta(description=...)]`, `Annotated[..., "text"]`, or the
    docstring's section "Args:". In a class body the tool is bound to its object when it is read from one.

    Arguments: as for `Tool`.

    Raises: ConfigError that names the parameter and the function, for what has no schema: no annotation, `*args`,
    `**kwargs`, positional-only parameters, types that JSON cannot express; for a parameter named `missing`, which
    planned loops need for themselves; for a docstring that describes a parameter that is not there; for a blank name
    or description, for settings that could not work and for those that do not exist.
    """

    def make(wanted: Callable[..., Any], names: Mapping[str, Any]) -> Tool:
        if isinstance(wanted, Tool):
            raise ConfigError(f"{wanted!r} is a tool already")
        _refuse_unknown(wanted, settings)
        signature = read_function(wanted, is_context=_is_context, names=names, reserved=_RESERVED)
        return Tool(
            name=signature.name if name is None else name,
            description=signature.description if description is None else description,
            parameters=signature.parameters.schema,
            execute=_callable(wanted),
            _signature=signature,
            **settings,
        )

    # String annotations may name what is local to where the decorator stands.
    if function is not None:
        return make(function, sys._getframe(1).f_locals)
    return lambda wanted: make(wanted, sys._getframe(1).f_locals)


# What `help` and editors show: the settings one by one, though unknown ones are told apart by hand, with a hint.
tool.__signature__ = inspect.signature(get_overloads(tool)[1])  # type: ignore[attr-defined]


def _refuse_unknown(wanted: object, settings: Iterable[str]) -> None:
    for name in settings:
        if name in _SETTINGS:
            continue
        close = difflib.get_close_matches(name, ("name", "description", *_SETTINGS), n=1)
        meant = f"did you mean {close[0]!r}?" if close else f"the others are {', '.join(_SETTINGS)}"
        owner = getattr(wanted, "__qualname__", type(wanted).__qualname__)
        raise ConfigError(f"@tool({name}=...) of {owner}(): there is no such setting; {meant}")


def _callable(function: Any) -> Callable[..., Any]:
    return cast("Callable[..., Any]", function.__func__ if isinstance(function, staticmethod) else function)


_CONTEXT_TEXT: Final = re.compile(r"""["']?(?:\w+\.)*(?:Annotated\[\s*(?:\w+\.)*)?ToolContext\b""")


def _is_context(annotation: Any) -> bool:
    """Say whether an annotation, or its text, is a tool's context."""
    if isinstance(annotation, str):
        return _CONTEXT_TEXT.match(annotation) is not None
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _is_context(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(_is_context(item) for item in typing.get_args(annotation))
    return (origin or annotation) is ToolContext
