"""Tools from functions and from schemas: what a model is told, what is checked, what is called."""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import msgspec
import pydantic
import pytest

import goliath_actors.tools as tools_module
from goliath_actors._frozen import FrozenDict
from goliath_actors.errors import ConfigError, ToolInputError
from goliath_actors.tools import Tool, ToolContext, ToolDescriptor, tool

if TYPE_CHECKING:
    from somewhere_else import AppContext  # type: ignore[import-not-found]

CTX: ToolContext[Any] = ToolContext()
STRING = {"type": "string"}


@attrs.frozen
class Place:
    name: str
    floor: int = 3


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(properties)}


# --- from a function ------------------------------------------------------------------------------------------------


def test_name_description_and_schema_come_from_the_function() -> None:
    @tool
    def find_rooms(floor: int, name: str = "") -> list[str]:
        """Find rooms.

        Of one floor only.

        Args:
            floor: counted from the ground
        """
        return [name] * floor

    assert isinstance(find_rooms, Tool)
    assert find_rooms.name == "find_rooms"
    assert find_rooms.description == "Find rooms.\n\nOf one floor only."
    assert find_rooms.parameters == {
        "type": "object",
        "properties": {
            "floor": {"type": "integer", "description": "counted from the ground"},
            "name": {"type": "string", "default": ""},
        },
        "additionalProperties": False,
        "required": ["floor"],
    }
    assert find_rooms.descriptor == ToolDescriptor("find_rooms", "Find rooms.\n\nOf one floor only.", False)
    assert find_rooms.descriptor is find_rooms.descriptor
    assert repr(find_rooms) == "<Tool 'find_rooms'>"
    assert not find_rooms.is_async
    assert find_rooms(2, name="x") == ["x", "x"]


def test_every_keyword_is_kept() -> None:
    def resolve(value: Any, ctx: Any) -> Any:
        return value

    def words(output: Any) -> str:
        return str(output)

    async def observe(output: Any, ctx: Any) -> None:
        pass

    @tool
    def first() -> None:
        """First."""

    @tool(
        name="second_tool", description="Said here.", writes=True, requires=("zero", first), resolve_input=resolve,
        to_model_output=words, output_mode="content", sequential=True, timeout=1.5, confirm=True, on_output=observe,
    )  # fmt: skip
    def second() -> None:
        """Not said."""

    assert (second.name, second.description, second.writes) == ("second_tool", "Said here.", True)
    assert second.requires == ("zero", "first")
    assert (second.resolve_input, second.to_model_output, second.on_output) == (resolve, words, observe)
    assert (second.output_mode, second.sequential, second.timeout, second.confirm) == ("content", True, 1.5, True)
    assert second.descriptor == ToolDescriptor("second_tool", "Said here.", True)
    assert repr(second) == "<Tool 'second_tool' writes>"


def test_a_tool_is_frozen_and_compared_by_identity() -> None:
    @tool
    def one() -> None:
        """One."""

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.name = "two"  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.parameters["x"] = 1  # type: ignore[index]
    assert one == one
    assert one != attrs.evolve(one)
    assert len({one, attrs.evolve(one)}) == 2


@pytest.mark.parametrize(
    ("docstring", "description", "notes"),
    [
        ("One line.", "One line.", {}),
        (
            "Text.\n\n    Args:\n        a (int, optional): first\n            goes on\n        *b: second\n"
            "\n    Returns:\n        c",
            "Text.",
            {"a": "first goes on", "b": "second"},
        ),
        (
            "Text.\n\nParameters\n----------\na : int\n    first\n    goes on\nb\n    second\n"
            "\nReturns\n-------\nint\n    it",
            "Text.",
            {"a": "first goes on", "b": "second"},
        ),
        (
            "Text.\n\n:param a: first\n    goes on\n:param int b: second\n:returns: it",
            "Text.",
            {"a": "first goes on", "b": "second"},
        ),
        ("Text.\n\nArgs:\n  a: one\nAfter it.\n  b: no", "Text.", {"a": "one"}),
        ("Text: not a section.\n\nMore.\n\nRaises:\n  ValueError: a: b", "Text: not a section.\n\nMore.", {}),
        ("Text.\n\nArgs:\n  a: http://x: y", "Text.", {"a": "http://x: y"}),
    ],
)  # fmt: skip
def test_docstrings_of_three_styles_are_read(docstring: str, description: str, notes: dict[str, str]) -> None:
    def function(a: int, b: int) -> None: ...

    function.__doc__ = docstring
    made = tool(function)
    assert made.description == description
    properties = made.parameters["properties"]
    assert {name: item["description"] for name, item in properties.items() if "description" in item} == notes


@pytest.mark.parametrize(
    ("docstring", "says"),
    [
        ("Text.\n\nArgs:\n  frist: one", "describes 'frist', which is no parameter; did you mean 'first'?"),
        ("Text.\n\nArgs:\n  First: one", "describes 'First', which is no parameter; did you mean 'first'?"),
        (
            "Text.\n\nParameters\n----------\nfirst\n    one\nzone : int\n    two",
            "describes 'zone', .* there are first, second$",
        ),
        ("Text.\n\n:param first: one\n:param str zone: two", "describes 'zone', .* there are first, second$"),
        ("Text.\n\nArgs:\n  context: the place", "describes 'context', which is no parameter"),
    ],
)  # fmt: skip
def test_a_docstring_that_describes_what_is_no_parameter_is_refused(docstring: str, says: str) -> None:
    def function(ctx: ToolContext[Any], first: int, second: int) -> None: ...

    function.__doc__ = docstring
    with pytest.raises(ConfigError, match=rf"^the docstring of .*function\(\) {says}"):
        tool(function)


def test_a_docstring_of_a_function_without_parameters_may_describe_none() -> None:
    def nothing() -> None:
        """Text.

        Args:
            it: gone
        """

    with pytest.raises(ConfigError, match=r"nothing\(\) describes 'it', which is no parameter; it has none$"):
        tool(nothing)


def test_a_docstring_may_describe_what_the_model_does_not_see_and_hold_remarks() -> None:
    def place(ctx: ToolContext[Any], first: int, second: int) -> None:
        """Text.

        Args:
            ctx: the context
            first: one
            Note: of both
            second: two
        """

    assert set(tool(place).parameters["properties"]) == {"first", "second"}
    # Filled by the application, or taken away by a wrapper: the function underneath has them.
    assert set(tool(functools.partial(place, second=2)).parameters["properties"]) == {"first"}

    @functools.wraps(place)
    def shorter(first: int) -> None:
        place(CTX, first, 2)

    shorter.__signature__ = inspect.signature(place).replace(  # type: ignore[attr-defined]
        parameters=[inspect.Parameter("first", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int)]
    )
    assert set(tool(shorter).parameters["properties"]) == {"first"}

    class Kit:
        """Text.

        Args:
            size: of the kit
        """

        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, first: int) -> int:
            return first * self.size

        @tool
        def keep(self, first: int) -> None:
            """Text.

            Args:
                self: the kit
                first: one
            """

    assert set(tool(name="kit")(Kit(3)).parameters["properties"]) == {"first"}
    assert set(Kit(3).keep.parameters["properties"]) == {"first"}


def test_a_section_about_something_else_ends_the_parameters() -> None:
    def function(first: int) -> None:
        """Text.

        Parameters
        ----------
        first : int
            one

        Notes
        -----
        warning : slow
        done
        """

    assert tool(function).parameters["properties"]["first"]["description"] == "one"


def test_annotations_describe_parameters_before_the_docstring_does() -> None:
    @tool
    def act(
        a: Annotated[int, msgspec.Meta(description="meta", ge=1)],
        b: Annotated[int, "text"],
        c: Annotated[int, pydantic.Field(description="field", le=9)],
        d: Place,
    ) -> None:
        """Act.

        Args:
            a: no
            b: no
            c: no
            d: where
        """

    properties = act.parameters["properties"]
    assert properties["a"] == {"type": "integer", "minimum": 1, "description": "meta"}
    assert properties["b"] == {"type": "integer", "description": "text"}
    assert properties["c"] == {"type": "integer", "maximum": 9, "description": "field"}
    assert properties["d"]["description"] == "where"


# --- the context ----------------------------------------------------------------------------------------------------


def contexts() -> list[Callable[..., Any]]:
    def unannotated(ctx, x: int) -> Any:  # type: ignore[no-untyped-def]
        """It."""
        return ctx

    def bare(context: ToolContext, x: int) -> Any:  # type: ignore[type-arg]
        """It."""
        return context

    def generic(anything: ToolContext[dict[str, int]], x: int) -> Any:
        """It."""
        return anything

    def only_for_checkers(c: ToolContext[AppContext], x: int) -> Any:
        """It."""
        return c

    def annotated(c: Annotated[ToolContext[AppContext], "the context"], x: int) -> Any:
        """It."""
        return c

    def qualified(c: tools_module.ToolContext[Any], x: int) -> Any:
        """It."""
        return c

    def optional(c: ToolContext[Any] | None, x: int) -> Any:
        """It."""
        return c

    def positional(c: ToolContext[Any], /, x: int) -> Any:
        """It."""
        return c

    def evaluated(c: Any, x: int) -> Any:
        """It."""
        return c

    evaluated.__annotations__ = {"c": Annotated[ToolContext[int] | None, "the context"], "x": int}
    return [unannotated, bare, generic, only_for_checkers, annotated, qualified, optional, positional, evaluated]


@pytest.mark.parametrize("function", contexts(), ids=lambda function: function.__name__)
def test_a_context_is_recognised_and_is_no_part_of_the_schema(function: Callable[..., Any]) -> None:
    made = tool(function)
    assert list(made.parameters["properties"]) == ["x"]
    assert made.start(made.check({"x": 1}), CTX) is CTX


def test_a_tool_without_a_context_is_called_without_one() -> None:
    @tool
    def give(context: str, x: int = 1) -> Any:
        """It."""
        return context, x

    assert give.start(give.check({"context": "a"}), CTX) == ("a", 1)


def test_a_context_has_defaults_for_tests_and_can_not_be_changed() -> None:
    context = ToolContext(context={"user": 1}, steps=[], result_budget=9)  # type: ignore[arg-type]
    assert (context.context, context.run_id, context.conversation_id, context.call_id) == (
        {"user": 1},
        "run",
        None,
        "call",
    )
    assert (context.steps, context.recent, context.result_budget) == ((), (), 9)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        context.run_id = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        object.__setattr__(context, "new", 1)


async def test_submit_and_suspend_are_delegated() -> None:
    asked: list[Any] = []

    def submit(ask: str, **options: Any) -> str:
        asked.append((ask, options))
        return "the run"

    async def suspend(payload: Any) -> str:
        asked.append(payload)
        return "the answer"

    context = ToolContext(submit=submit, suspend=suspend)
    assert context.submit("hello", conversation_id="c2") == "the run"
    assert await context.suspend({"question": 1}) == "the answer"
    assert asked == [("hello", {"conversation_id": "c2"}), {"question": 1}]


async def test_submit_and_suspend_say_where_they_would_work() -> None:
    with pytest.raises(ConfigError, match="no runtime stands behind"):
        CTX.submit("hello")
    with pytest.raises(ConfigError, match="only under a ToolLoop"):
        await CTX.suspend({})


# --- what cannot be a tool ------------------------------------------------------------------------------------------


def refused() -> Iterator[tuple[Callable[..., Any], str]]:
    def bare(x) -> None:  # type: ignore[no-untyped-def]
        """It."""

    def hinted(context, x: int) -> None:  # type: ignore[no-untyped-def]
        """It."""

    def starred(*names: str) -> None:
        """It."""

    def keywords(**names: str) -> None:
        """It."""

    def positional(x: int, /) -> None:
        """It."""

    def inexpressible(x: complex) -> None:
        """It."""

    def called(x: Callable[[], int]) -> None:
        """It."""

    def unresolved(x: AppContext) -> None:
        """It."""

    def late(x: int, ctx: ToolContext[Any]) -> None:
        """It."""

    def keyword_only(*, ctx: ToolContext[Any], x: int) -> None:
        """It."""

    def reserved(missing: str) -> None:
        """It."""

    def silent(x: int) -> None: ...

    def generator(x: int) -> Iterator[int]:
        """It."""
        yield x

    async def asynchronous_generator(x: int) -> Any:
        """It."""
        yield x

    class Kind:
        """It."""

    where = r"of refused\.<locals>\.{}\(\)"
    yield bare, rf"^parameter 'x' {where.format('bare')} has no annotation, so its schema is unknown; annotate it$"
    yield hinted, r"^parameter 'context' .* a context must be annotated ToolContext or named `ctx`$"
    yield starred, rf"^\*names {where.format('starred')} has no schema; name each parameter"
    yield keywords, rf"^\*\*names {where.format('keywords')} has no schema"
    yield positional, rf"^parameter 'x' {where.format('positional')} is positional-only"
    yield inexpressible, rf"^parameter 'x' {where.format('inexpressible')}: complex has no JSON schema .* Tool\(name="
    yield called, rf"^parameter 'x' {where.format('called')}: .* has no JSON schema"
    yield unresolved, r"^parameter 'x' .* 'AppContext' cannot be evaluated .* outside of `if TYPE_CHECKING`$"
    yield late, r"^parameter 'ctx' .* must be the first parameter$"
    yield keyword_only, r"must be its first positional parameter"
    yield reserved, r"^parameter 'missing' .* rename it$"
    yield silent, r"^the tool 'silent' has no description"
    yield generator, r"is a generator"
    yield asynchronous_generator, r"is a generator"
    yield lambda: None, r"^'<lambda>' cannot name a tool"
    yield Kind, r"^a tool is made from a function"
    yield max, r"^max\(\) has no signature to be read .* wrap it in a function$"


@pytest.mark.parametrize(("function", "says"), [*refused()], ids=lambda value: getattr(value, "__name__", ""))
def test_what_has_no_schema_is_refused_with_the_parameter_and_what_to_do(function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(function)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": ""}, "a name that is not blank"),
        ({"name": " "}, "a name that is not blank"),
        ({"name": 3}, "a name that is not blank"),
        ({"name": "two words"}, "no spaces"),
        ({"name": "bell\a"}, "no control characters"),
        ({"description": " "}, "no description"),
        ({"timeout": 0}, "timeout must be a positive number of seconds"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": float("inf")}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"timeout": True}, "timeout must be"),
        ({"timeout": "1"}, "timeout must be"),
        ({"output_mode": "text"}, 'output_mode must be "summary" or "content"'),
        ({"writes": 1}, "writes must be True or False"),
        ({"sequential": None}, "sequential must be True or False"),
        ({"confirm": "yes"}, "confirm must be True, False or None"),
        ({"requires": "lookup"}, r"give a tuple of tool names, as in \('lookup',\)"),
        ({"requires": ("",)}, "a name that is not blank"),
        ({"requires": ("it",)}, "requires itself"),
        ({"to_model_output": "x"}, "to_model_output must be callable"),
        ({"resolve_input": 1}, "resolve_input must be callable"),
        ({"on_output": 1}, "on_output must be callable"),
    ],
)
def test_wrong_settings_are_config_errors(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(**{"name": "it", "description": "It.", **settings})(lambda: None)
    with pytest.raises(ConfigError, match=says):
        Tool(**{"name": "it", "description": "It.", "execute": lambda value: None, **settings})


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("write", "did you mean 'writes'?"),
        ("descripton", "did you mean 'description'?"),
        ("zone", "the others are writes, requires, resolve_input, to_model_output, output_mode, sequential, timeout, "
         "confirm, on_output"),
        # They belong to tools made by hand; the function has them already.
        ("parse", "the others are writes, requires, resolve_input, to_model_output, output_mode, sequential, timeout, "
         "confirm, on_output"),
    ],
)  # fmt: skip
def test_a_setting_that_there_is_not_is_refused_with_the_functions_name(setting: str, says: str) -> None:
    def create(title: str) -> str:
        """Create a task."""
        return title

    options: dict[str, Any] = {setting: True}
    with pytest.raises(ConfigError) as caught:
        tool(**options)(create)
    where = "test_a_setting_that_there_is_not_is_refused_with_the_functions_name.<locals>.create()"
    assert str(caught.value) == f"@tool({setting}=...) of {where}: there is no such setting; {says}"


def test_a_formatter_or_a_transform_must_not_be_async() -> None:
    async def words(output: Any) -> str:
        return ""

    with pytest.raises(ConfigError, match="to_model_output must not be async"):
        tool(name="it", description="It.", to_model_output=words)(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="parse must not be async"):
        Tool(name="it", description="It.", execute=lambda value: None, parse=words)


def test_a_tool_is_not_made_twice() -> None:
    made = tool(name="it", description="It.")(lambda: None)
    with pytest.raises(ConfigError, match="is a tool already"):
        tool(made)


# --- methods, partials and other callables --------------------------------------------------------------------------


class Kit:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @tool
    def times(self, x: int) -> int:
        """Multiply."""
        return self.factor * x

    @tool(writes=True)
    async def add(self, ctx: ToolContext[Any], x: int) -> int:
        """Add."""
        return self.factor + x

    @staticmethod
    @tool
    def half(x: int) -> float:
        """Halve."""
        return x / 2

    @tool
    @staticmethod
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    def plain(self, x: int) -> int:
        """Do something plain."""
        return self.factor - x

    def __call__(self, x: int) -> int:
        """Call it."""
        return self.factor


def run(made: Tool, **arguments: Any) -> Any:
    return made.start(made.check(arguments), CTX)


async def test_a_method_is_bound_to_its_object_when_it_is_read_from_one() -> None:
    kit, other = Kit(3), Kit(5)
    assert (run(kit.times, x=2), run(other.times, x=2)) == (6, 10)
    assert list(kit.times.parameters["properties"]) == ["x"]
    assert (kit.add.name, kit.add.writes, kit.add.is_async) == ("add", True, True)
    assert await run(kit.add, x=1) == 4
    assert (run(kit.half, x=1), run(kit.double, x=1), run(Kit.double, x=1)) == (0.5, 2, 2)


def test_a_method_that_was_not_bound_says_how_to_bind_it() -> None:
    with pytest.raises(
        ConfigError, match=r"times is a method of a class; add the tool of an object, as in `kit.times`"
    ):
        run(Kit.times, x=1)


def test_a_tool_kept_in_a_class_is_not_bound_unless_it_is_a_method() -> None:
    @tool
    def outside(x: int) -> int:
        """Outside."""
        return x

    class Holder:
        inside = outside

    assert Holder().inside is outside


def test_bound_methods_partials_and_callable_objects_are_tools() -> None:
    def divide(ctx: ToolContext[Any], by: int, x: int) -> float:
        """Divide."""
        return x / by

    assert run(tool(Kit(3).plain), x=1) == 2
    halve = tool(functools.partial(divide, by=2))
    assert (halve.name, halve.description, list(halve.parameters["properties"])) == ("divide", "Divide.", ["x"])
    assert run(halve, x=3) == 1.5
    called = tool(name="kit")(Kit(3))
    assert (called.description, run(called, x=1)) == ("Call it.", 3)
    assert not called.is_async


async def test_what_is_async_is_known_through_wrappers() -> None:
    async def work(x: int) -> int:
        """Work."""
        return x

    class Worker:
        """Works."""

        async def __call__(self, x: int) -> int:
            return x

    @functools.wraps(work)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await work(*args, **kwargs)

    for made in (tool(work), tool(functools.partial(work)), tool(name="worker")(Worker()), tool(wrapped)):
        assert made.is_async
        started = run(made, x=4)
        assert inspect.isawaitable(started)
        assert await started == 4
    assert tool(name="worker")(Worker()).description == "Works."


def test_string_annotations_may_name_what_is_local_to_the_decorator() -> None:
    @attrs.frozen
    class Local:
        size: int

    @tool
    def take(thing: Local) -> int:
        """Take."""
        return thing.size

    @tool(name="other")
    def take_many(things: list[Local]) -> int:
        """Take."""
        return len(things)

    assert run(take, thing={"size": "2"}) == 2
    assert run(take_many, things=[{"size": 1}]) == 1


# --- checking and starting ------------------------------------------------------------------------------------------


def test_check_gives_shared_data_to_show_and_typed_values_to_call() -> None:
    @tool
    def put(place: Place, tags: list[str] | None = None) -> Any:
        """Put."""
        return place, tags

    checked = put.check({"place": {"name": "attic", "floor": "2"}})
    assert checked.data == {"place": {"name": "attic", "floor": 2}}
    assert isinstance(checked.data, FrozenDict)
    assert checked.kwargs == {"place": Place("attic", 2)}
    assert put.start(checked, CTX) == (Place("attic", 2), None)
    assert "attic" in repr(checked)
    assert put.check(checked.data).data == checked.data


def test_check_names_every_problem_and_the_tool() -> None:
    @tool
    def put(room: str, level: int) -> None:
        """Put."""

    with pytest.raises(ToolInputError) as caught:
        put.check({"level": "x", "why": 1})
    assert caught.value.tool == "put"
    assert caught.value.problems == (
        "level: expected int, got str",
        "why: no such argument; there are room, level",
        "room: required, but missing",
    )
    for raw in (None, [], "{}", 5):
        with pytest.raises(ToolInputError, match="must be a JSON object"):
            put.check(raw)


def test_every_start_gets_values_of_its_own() -> None:
    @tool
    def spoil(names: list[str], options: dict[str, Any], things: list[Any]) -> Any:
        """Spoil."""
        names.append("x")
        options["deep"]["new"] = 1
        things[0].append(1)
        return names, options, things

    raw: dict[str, Any] = {"names": ["a"], "options": {"deep": {}}, "things": [[]]}
    checked = spoil.check(raw)
    raw["names"].append("later")
    spoiled = (["a", "x"], {"deep": {"new": 1}}, [[1]])
    assert spoil.start(checked, CTX) == spoiled
    assert spoil.start(checked, CTX) == spoiled
    assert checked.data == {"names": ["a"], "options": {"deep": {}}, "things": [[]]}
    by_hand = Tool(name="spoil", description="It.", parameters=schema(x={}), execute=lambda value: value.pop("x"))
    checked = by_hand.check({"x": 1})
    assert (by_hand.start(checked, CTX), by_hand.start(checked, CTX)) == (1, 1)


def test_a_default_that_can_be_changed_is_made_anew_for_every_start() -> None:
    lasting = object()

    @tool
    def spoil(
        ctx: ToolContext[None],
        names: list[str] = [],  # noqa: B006
        options: dict[str, list[int]] = {"deep": []},  # noqa: B006
        things: set[int] = set(),  # noqa: B006
        kept: Any = lasting,
    ) -> Any:
        """Spoil."""
        names.append("x")
        options["deep"].append(1)
        things.add(1)
        return names, options, things, kept

    spoiled = (["x"], {"deep": [1]}, {1}, lasting)
    assert spoil.start(spoil.check({}), CTX) == spoiled
    assert spoil.start(spoil.check({}), CTX) == spoiled
    assert spoil.start(spoil.check({"names": ["a"]}), CTX)[:2] == (["a", "x"], {"deep": [1]})


class Plus(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def add_one(cls, value: int) -> int:
        counted.append(value)
        return value + 1


counted: list[int] = []


def test_a_transform_runs_once_a_check_and_never_at_a_start() -> None:
    @tool
    def plus(value: Plus) -> int:
        """Plus."""
        return value.n

    counted.clear()
    checked = plus.check({"value": {"n": 1}})
    assert checked.data == {"value": {"n": 2}}
    assert (plus.start(checked, CTX), plus.start(checked, CTX)) == (2, 2)
    rewritten = plus.check({"value": {"n": 10}})
    assert (rewritten.data, plus.start(rewritten, CTX)) == ({"value": {"n": 11}}, 11)
    assert counted == [1, 10]


# --- by hand --------------------------------------------------------------------------------------------------------


def test_a_tool_by_hand_gets_its_input_and_the_context_if_it_takes_one() -> None:
    def alone(value: Any) -> Any:
        return value

    def both(value: Any, ctx: Any) -> Any:
        return value, ctx

    def defaulted(value: Any, verbose: bool = False) -> Any:
        return value, verbose

    def starred(*args: Any) -> Any:
        return args

    def made(execute: Any) -> Any:
        return run(Tool(name="it", description="It.", parameters=schema(x=STRING), execute=execute), x="a")

    assert made(alone) == {"x": "a"}
    assert type(made(alone)) is dict
    assert made(both) == ({"x": "a"}, CTX)
    assert made(defaulted) == ({"x": "a"}, False)
    assert made(starred) == ({"x": "a"}, CTX)
    assert made(functools.partial(both, ctx=1)) == ({"x": "a"}, 1)
    assert made(dict) == {"x": "a"}


async def test_a_tool_by_hand_may_be_async() -> None:
    async def work(value: Any, ctx: Any) -> Any:
        return value["x"]

    made = Tool(name="it", description="It.", parameters=schema(x=STRING), execute=work)
    assert made.is_async
    assert await run(made, x="a") == "a"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"execute": lambda: None}, r"execute must take \(input\) or \(input, ctx\)"),
        ({"execute": lambda a, b, c: None}, "execute must take"),
        ({"execute": lambda *, x: None}, "execute must take"),
        ({"execute": 3}, "execute must be callable"),
        ({"parameters": {"type": "array"}}, 'must have type "object"'),
        ({"parameters": {"type": "objekt"}}, 'must have type "object"'),
        ({"parameters": [1]}, "must be a JSON schema as a mapping"),
        ({"parameters": schema(x={"type": "text"})}, "the schema of the tool 'it' is no JSON schema"),
        ({"parameters": schema(missing=STRING)}, "'missing' has a name that planned loops use"),
        ({"parameters": schema(x={"$ref": "http://example.com"})}, "leads to nothing inside it"),
    ],
)
def test_a_tool_by_hand_that_could_not_work_is_a_config_error(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Tool(**{"name": "it", "description": "It.", "execute": lambda value: None, **settings})


def test_the_schema_of_a_tool_by_hand_is_its_own_copy_and_says_its_type() -> None:
    given: dict[str, Any] = {"properties": {"x": {"type": "string"}}}
    made = Tool(name="it", description="It.", parameters=given, execute=lambda value: None)
    given["properties"]["x"]["type"] = "integer"
    assert made.parameters == {"type": "object", "properties": {"x": {"type": "string"}}}


def test_parse_makes_the_value_once_and_its_failure_is_told() -> None:
    parsed: list[Any] = []

    def parse(value: dict[str, Any]) -> Place:
        parsed.append(dict(value))
        value["floor"] = value.get("floor", 0) + 1
        if value["name"] == "":
            raise ValueError("a place has a name")
        return Place(**value)

    made = Tool(
        name="it", description="It.", parameters={"type": "object"}, parse=parse, execute=lambda value, ctx: value
    )
    checked = made.check({"floor": 1, "name": "attic"})
    assert checked.data == {"floor": 2, "name": "attic"}
    assert made.start(checked, CTX) == Place("attic", 2)
    assert made.check({"name": "attic"}).data == {"name": "attic"}
    assert parsed == [{"floor": 1, "name": "attic"}, {"name": "attic"}]
    with pytest.raises(ToolInputError) as caught:
        made.check({"name": ""})
    assert caught.value.problems == ("a place has a name",)


def test_a_parsed_value_of_another_shape_leaves_the_input_as_it_was_given() -> None:
    made = Tool(
        name="it", description="It.", parameters=schema(x=STRING), parse=lambda value: value["x"].split(), execute=list
    )
    checked = made.check({"x": "a b"})
    assert (checked.data, made.start(checked, CTX)) == ({"x": "a b"}, ["a", "b"])


@pytest.mark.parametrize(
    ("parameters", "empty"),
    [
        ({}, True),
        ({"type": "object"}, True),
        ({"type": "object", "properties": {}}, True),
        ({"properties": {}, "additionalProperties": False, "required": []}, True),
        (schema(x=STRING), False),
        ({"type": "object", "additionalProperties": {"type": "string"}}, False),
        ({"type": "object", "additionalProperties": True}, False),
        ({"type": "object", "required": ["x"]}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, False),
        ({"anyOf": [{"required": ["x"]}]}, False),
        ({"patternProperties": {"a": {}}}, False),
    ],
)
def test_a_tool_knows_whether_it_takes_no_input(parameters: dict[str, Any], empty: bool) -> None:
    assert Tool(name="it", description="It.", parameters=parameters, execute=lambda value: 1).takes_no_input is empty


def test_a_function_without_parameters_takes_no_input() -> None:
    made = tool(name="it", description="It.")(lambda: 1)
    assert made.takes_no_input
    assert run(made) == 1
    with pytest.raises(ToolInputError, match="x: no argument is taken"):
        made.check({"x": 1})


def test_a_tool_can_be_checked_in_many_threads_at_once() -> None:
    made = Tool(name="it", description="It.", parameters=schema(x=STRING), execute=lambda value: value["x"])
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append(run(made, x=str(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [str(n) for n in range(8)]


# --- what models really write ---------------------------------------------------------------------------------------

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "argument_quirks.jsonl").read_text("utf-8").splitlines()
]
TOOLS = {
    name: Tool(name=name, description="It.", parameters=parameters, execute=lambda value: value)
    for name, parameters in LINES[0]["input"]["tools"].items()
}


def outcome_of(made: Tool, text: str | None, confirms: bool) -> dict[str, Any]:
    try:
        checked = made.read(text, confirms=confirms)
    except ToolInputError as error:
        return {"outcome": "model_error", "text": str(error)}
    return {"outcome": "call", "tool": made.name, "args": dict(checked.data), "times": 1}


def fits(outcome: dict[str, Any], expected: dict[str, Any]) -> bool:
    wanted = {key: value for key, value in expected.items() if key != "mentions"}
    mentions = all(word in outcome.get("text", "") for word in expected.get("mentions", ()))
    return mentions and all(key in outcome and outcome[key] == value for key, value in wanted.items())


@pytest.mark.parametrize("confirms", [False, True])
@pytest.mark.parametrize("line", LINES[1:], ids=lambda line: line["id"])
def test_argument_texts_have_an_accepted_outcome(line: dict[str, Any], confirms: bool) -> None:
    made = TOOLS[line["input"]["name"]]
    outcome = outcome_of(made, line["input"].get("arguments"), confirms)
    expect = line["expect"]
    if outcome["outcome"] == "call":
        assert any(fits(outcome, accepted) for accepted in expect["accept"]), outcome
    else:
        # Refusing is right where it is listed, and for a confirmed call wherever a repair would be needed.
        listed = any(fits(outcome, accepted) for accepted in expect["accept"])
        assert listed or (confirms and len(expect["accept"]) > 1), outcome
        assert outcome["text"]
    assert not any(fits(outcome, never) for never in expect["never"]), outcome


def test_read_says_which_repairs_a_text_needed() -> None:
    assert TOOLS["lookup"].read('{"id": 5}', confirms=True).repairs == ()
    checked = TOOLS["lookup"].read("{'id': 5,}", confirms=False)
    assert (checked.data, checked.repairs) == ({"id": 5}, ("single-quotes", "trailing-comma"))
    assert TOOLS["lookup"].check({"id": 5}).repairs == ()


def test_read_of_no_text_says_what_was_needed() -> None:
    with pytest.raises(ToolInputError) as caught:
        TOOLS["set_level"].read("", confirms=False)
    assert caught.value.problems == (
        "no arguments were given; they must be a JSON object",
        "room: required, but missing",
        "level: required, but missing",
    )
    optional = tool(name="it", description="It.")(lambda: 1)
    assert optional.read(None, confirms=True).data == {}
    with pytest.raises(ToolInputError) as caught:
        Tool(name="it", description="It.", parameters={"properties": {"x": {}}}, execute=print).read(
            " ", confirms=False
        )
    assert caught.value.problems == ("no arguments were given; they must be a JSON object",)
