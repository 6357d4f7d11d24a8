"""How an application's own callables are called: what they are given, and whether they want a context.

One rule for all of them: a callable that is given a context takes it as a parameter named `ctx`, by position or by its
name alone, or as a further parameter without a default; or it leaves it out.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from .errors import ConfigError

__all__ = ["CALLBACKS", "alone", "below", "call_with", "check_takes", "discard", "hears_texts", "without_texts"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
E = TypeVar("E", bound=Exception)

CALLBACKS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "confirm": (("request",),),
    "fallback": (("request",), ("request", "ctx"), ("request", "ctx=")),
    "facts": ((), ("ctx",), ("ctx=",)),
    "on_event": (("event",),),
    "resolve_input": (("input", "ctx"), ("input", "ctx="), ("input",)),
    "to_model_output": (("output",),),
    "on_output": (("output", "ctx"), ("output", "ctx="), ("output",)),
    "window": ((),),
}
"""The ways in which these callables may be called: names of arguments, one with "=" behind it by its name."""


def call_with(function: Callable[..., Any], given: tuple[Any, ...], ctx: Any, *, rest: bool = False) -> Any:
    """Call `function` with what it is given, and with the context if its signature has a place for one.

    Arguments: `rest`, whether `*args`, or a signature that cannot be read, is such a place.

    Returns: what it returned: an awaitable if it is async.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in callables do not tell
        return function(*given, ctx) if rest else function(*given)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    further = positional[len(given)] if len(positional) > len(given) else None
    if further is not None and (further.name == "ctx" or further.default is further.empty):
        return function(*given, ctx)
    if any(p.name == "ctx" and p.kind is p.KEYWORD_ONLY for p in parameters):
        return function(*given, ctx=ctx)
    if rest and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*given, ctx)
    return function(*given)


def alone(function: Callable[..., T], *args: Any) -> T:
    """Call `function` in a frame that forgets its caller once it is over, as only a generator's does.

    For code of an application whose errors are kept. An error knows its frames, and each of them its caller: whatever
    our own frames know, such as the run that keeps the error, would be freed by the garbage collector alone.

    Raises: what the function raised; who keeps it takes it from `below`.
    """
    return next(_calling(function, args))


def _calling(function: Callable[..., T], args: tuple[Any, ...]) -> Iterator[T]:
    yield function(*args)


def below(error: E) -> E:
    """Return an error that is being handled without the frame that handles it, and without those of `alone`."""
    traceback = error.__traceback__
    rest = None if traceback is None else traceback.tb_next
    if rest is not None and rest.tb_frame.f_code is alone.__code__ and rest.tb_next is not None:
        rest = rest.tb_next.tb_next
    return error.with_traceback(rest)


def discard(answer: object) -> None:
    """Close a coroutine that nobody will await, since its function must not be async; it would warn when freed."""
    if inspect.iscoroutine(answer):
        answer.close()


def without_texts(function: F) -> F:
    """Mark an `on_event` of ours that has no use for pieces of text, by far the most frequent events."""
    function.__dict__["hears_texts"] = False
    return function


def hears_texts(callback: Callable[..., Any]) -> bool:
    """Say whether an `on_event` is to be told of pieces of text."""
    return getattr(callback, "hears_texts", True) is not False


def check_takes(what: str, function: Callable[..., Any], *ways: tuple[str, ...]) -> None:
    """Refuse a callable that certainly cannot be called in any of these ways (as in `CALLBACKS`).

    A callable whose signature cannot be read, or may not be its own, is left alone: only a call can tell.

    Raises: `ConfigError` that says how it is called and what it takes.
    """
    signature = _own_signature(function)
    if signature is None or any(_binds(signature, way) for way in ways):
        return
    called = " or ".join(f"({', '.join(way)})" for way in ways)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    takes = signature.replace(parameters=bare, return_annotation=signature.empty)
    raise ConfigError(f"{what} is called with {called}, but takes {takes}{_without_self(function)}")


def _binds(signature: inspect.Signature, way: tuple[str, ...]) -> bool:
    try:
        signature.bind(
            *(name for name in way if not name.endswith("=")),
            **{name[:-1]: name for name in way if name.endswith("=")},
        )
    except TypeError:
        return False
    return True


def _own_signature(function: Any) -> inspect.Signature | None:
    """Return what a callable itself takes, None unless that is certain. What a wrapper wraps does not count: the
    wrapper may pass on something else."""
    inner = function
    while isinstance(inner, functools.partial | types.MethodType):
        if _claims(inner):
            return None
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    if not isinstance(inner, types.FunctionType):
        if isinstance(inner, type) or _claims(inner):
            return None
        inner = inspect.getattr_static(type(inner), "__call__", None)
    if not isinstance(inner, types.FunctionType) or _claims(inner):
        return None
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _claims(function: object) -> bool:
    """Say whether a callable carries a signature that somebody wrote for it."""
    return inspect.getattr_static(function, "__signature__", None) is not None


def _without_self(function: object) -> str:
    if not isinstance(function, types.MethodType) or not isinstance(function.__func__, types.FunctionType):
        return ""
    code = function.__func__.__code__
    first = code.co_varnames[:1] if code.co_argcount else ()
    return "; a method's first parameter is self" if first and first[0] not in ("self", "cls") else ""
