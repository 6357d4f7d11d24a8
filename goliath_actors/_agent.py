"""`Agent`: a frozen definition. It holds no state and can be shared by any number of runtimes.

Wrong configuration raises here, at once, never in the middle of a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, final

import attrs

from ._budget import FixedCounts, resolve_counter
from ._callables import CALLBACKS, check_takes
from ._conductor import Conductor
from ._frozen import FrozenDict
from ._numbers import check_seconds
from ._roster import Roster
from ._schema import OutputSchema, is_async
from ._standing import Standing
from ._subagent import agent_tool
from ._toolloop import ToolLoop
from ._work import Loop
from .abc import Model, TokenCounter
from .errors import ConfigError, GoliathExtensionError
from .hooks import Extension
from .tools import Confirmed, Tool
from .values import FallbackAnswer

__all__ = [
    "Agent",
    "Parts",
    "check_facts",
    "check_live_tools",
    "check_on_event",
    "is_same",
    "output_schema",
    "parts_of",
]

if TYPE_CHECKING:
    # With a default, an `Agent` may be named without its context type; typing has none before Python 3.13.
    from typing_extensions import TypeVar

    C = TypeVar("C", default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")

Facts: TypeAlias = "Mapping[str, str] | Callable[..., Mapping[str, str] | Awaitable[Mapping[str, str]]]"
# Any in the parameters: callbacks may name their own, wider types.
Confirm: TypeAlias = "Callable[[Any], bool | Confirmed | Awaitable[bool | Confirmed] | Any]"
Fallback: TypeAlias = "Callable[..., str | FallbackAnswer | Awaitable[str | FallbackAnswer]]"

INSTRUCTIONS = "You are a careful assistant. Be short and exact, and say so when you do not know."


def output_schema(spec: Any) -> OutputSchema | None:
    """Return the checker of structured answers for `output=`, None for prose.

    Raises: `ConfigError` if `spec` is neither a type with a schema nor a JSON schema.
    """
    if spec is None or isinstance(spec, OutputSchema):
        return spec
    try:
        return OutputSchema.of(spec)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"output: {spec!r} has no JSON schema ({error}); give a type or a schema mapping") from error


@attrs.frozen(eq=False)
class Parts:
    """What is made of a definition when it is constructed, and is nobody's to set."""

    # Which extension implements which row of the hook table.
    roster: Roster
    # The token counter in use.
    counter: TokenCounter
    # The checker of structured answers, None for prose.
    schema: OutputSchema | None
    # What its requests have in common.
    standing: Standing


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Agent(Generic[C]):
    """What a conversation is held with: model, tools, extensions, loop.

    Arguments:
      model: anything with `name` and `stream` (`abc.Model`).
      name: names the agent within a runtime; part of every conversation's identity.
      tools: made with `@tool` or `Tool(...)`; names unique, those of extensions included.
      extensions: asked in this order in every row of the hook table.
      loop: `Conductor(...)` (plans one step at a time) or a `ToolLoop(...)`.
      instructions: the text that begins every prompt but those that only summarise.
      facts: strings by name, or a callable that gives them once a run (with a context if it takes a parameter).
      examples: worked examples for the planner of a `Conductor`, one line each.
      confirm: asked before every write and whatever a tool or an extension wants confirmed. Sync or async.
      confirm_timeout: seconds that a confirmation may take; then it is a refusal. None: no limit.
      fallback: the second brain of a `Conductor`. Sync or async.
      output: a type or JSON schema for structured answers, None for prose.
      on_event: called with every event, inline; what it raises up to the answer fails the run.
      token_counter: a `TokenCounter`, a callable, or "auto" for a tokenizer if its vocabulary is on disk; None takes
        the model's own counter if it has one, else the estimate.

    Raises: `ConfigError`, saying what is wrong and what to do.
    """

    model: Model
    name: str = "agent"
    tools: Sequence[Tool] = ()
    extensions: Sequence[Extension[C]] = ()
    loop: Loop = attrs.Factory(Conductor)
    instructions: str = INSTRUCTIONS
    facts: Facts = attrs.field(factory=dict)
    examples: Sequence[Any] = ()
    confirm: Confirm | None = None
    confirm_timeout: float | None = None
    fallback: Fallback | None = None
    output: Any = None
    on_event: Callable[[Any], object] | None = None
    token_counter: TokenCounter | Callable[[str], int] | str | None = None

    _parts: Parts = attrs.field(init=False)
    # Invariant: an agent and what `replace` makes of it have the same one, and no others.
    _identity: object = attrs.field(init=False)
    _fixed_table: Mapping[str, Tool] = attrs.field(init=False)
    # The extensions with their tools; None where `tools` is a property, which is read anew for each run (H11).
    _contributed: tuple[tuple[Extension[C], tuple[Tool, ...] | None], ...] = attrs.field(init=False)
    _live: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        put = object.__setattr__
        put(self, "_identity", object())
        _check_text("Agent(name=...)", self.name)
        if len(self.name) > 512:
            raise ConfigError(f"Agent(name=...) must have at most 512 characters, it has {len(self.name)}")
        _refuse_class("Agent(model=...)", self.model)
        if not callable(getattr(self.model, "stream", None)) or not isinstance(getattr(self.model, "name", None), str):
            raise ConfigError(
                f"Agent(model=...) needs a `name` and a `stream` method, {type(self.model).__name__} has not; "
                "use goliath_actors.models or implement goliath_actors.abc.Model"
            )
        if not isinstance(self.instructions, str):
            raise ConfigError(f"Agent(instructions=...) must be a string, not {type(self.instructions).__name__}")
        put(self, "extensions", _as_tuple("Agent(extensions=...)", self.extensions))
        roster = Roster.of(self.extensions)
        put(self, "tools", _as_tuple("Agent(tools=...)", self.tools))
        put(self, "_contributed", tuple((one, _fixed_tools(one)) for one in self.extensions))
        put(self, "_live", any(fixed is None for _, fixed in self._contributed))
        put(self, "_fixed_table", FrozenDict(self._tools_by_name()))
        examples = _as_tuple("Agent(examples=...)", self.examples)
        put(self, "examples", tuple(_example(example) for example in examples))
        self._check_loop()
        self._check_callables()
        counter = resolve_counter(self.token_counter, self.model)
        put(self, "_parts", Parts(roster, counter, output_schema(self.output), Standing(FixedCounts(counter))))

    def __repr__(self) -> str:
        tools, extensions = ", ".join(self.tool_table), list(self._parts.roster.names)
        return f"<Agent {self.name!r} model={self.model.name!r} tools=[{tools}] extensions={extensions}>"

    def replace(self, **changes: Any) -> Agent[C]:
        """Return this agent with other arguments, which stands for it in a runtime.

        There the tools with which others ask this one (`as_tool`) ask the other one, and this one, given as `agent=`,
        means the other one. What `attrs.evolve` makes is another agent of the same name.

        Arguments: as of `Agent`, but for the name.

        Raises: `ConfigError`, also for another name.
        """
        if changes.get("name", self.name) != self.name:
            raise ConfigError(f"replace keeps the name {self.name!r}; an agent of another name is another one")
        try:
            agent = attrs.evolve(self, **changes)
        except TypeError as error:
            raise ConfigError(f"Agent.replace: {error}") from error
        object.__setattr__(agent, "_identity", self._identity)
        return agent

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        conversation_id: str | Callable[..., str | Awaitable[str]] | None = None,
        writes: bool = False,
        confirm: bool | None = None,
        sequential: bool = False,
        timeout: float | None = None,
        output_mode: Literal["summary", "content"] = "content",
    ) -> Tool:
        """Return a tool with which another agent asks this one. It takes one argument, `ask`.

        A call is a run of this agent in a conversation of the same runtime, and a child of the run that makes it: it
        is aborted with it and uses its slot. This agent's own extensions, confirmations and limits hold inside it, and
        none of the calling agent's. A runtime of the calling agent has this one too, without being told.

        Arguments:
          name: how the model calls it; None takes the agent's name.
          description: what the model is told that it is good for.
          conversation_id: which conversation of this agent is asked: a string, or a callable (ctx, input), sync or
            async, that gives one. None: a new one for each call.
          writes, confirm, sequential, timeout, output_mode: as of any tool; they are about the call as a whole.

        Raises: `ConfigError`.
        """
        return agent_tool(
            self,
            name=name,
            description=description,
            conversation_id=conversation_id,
            writes=writes,
            confirm=confirm,
            sequential=sequential,
            timeout=timeout,
            output_mode=output_mode,
        )

    @property
    def tool_table(self) -> Mapping[str, Tool]:
        """Every tool by name, those of extensions included.

        Made on construction, unless an extension has its `tools` as a property: then it is what they are now. A run
        keeps the table that it began with.
        """
        return FrozenDict(self._tools_by_name(lenient=True)) if self._live else self._fixed_table

    def _tools_by_name(self, *, lenient: bool = False) -> dict[str, Tool]:
        """Return the tools by name; if `lenient`, what came later under a name that is taken is left out.

        Raises: `ConfigError`.
        """
        table: dict[str, Tool] = {}
        owners: dict[str, str] = {}
        for owner, tools in self._sources():
            for tool in tools:
                if not isinstance(tool, Tool):
                    name = getattr(tool, "__name__", repr(tool))
                    how = "decorate the function with @tool or make a Tool(...)"
                    if isinstance(tool, Agent):
                        name, how = f"agent {tool.name!r}", "make one of it with as_tool(description=...)"
                    raise ConfigError(f"{owner}: {name} is no tool; {how}")
                tool.check_bound()
                if tool.name in table:
                    if lenient:
                        continue
                    raise ConfigError(
                        f"two tools are named {tool.name!r} ({owners[tool.name]} and {owner}); give one another name"
                    )
                table[tool.name] = tool
                owners[tool.name] = owner
        if not self._live:
            _check_requires(table)
        return table

    def _sources(self) -> list[tuple[str, Sequence[Tool]]]:
        """Return who has which tools: those of most were read on construction, those that are a property are read now.

        Raises: `GoliathExtensionError` with what a property raised.
        """
        sources: list[tuple[str, Sequence[Tool]]] = [("Agent(tools=...)", self.tools)]
        for extension, fixed in self._contributed:
            tools = fixed
            if tools is None:
                try:
                    tools = tuple(extension.tools)
                except Exception as error:
                    raise GoliathExtensionError(extension.name, "tools") from error
            sources.append((f"extension {extension.name!r}", tools))
        return sources

    def _check_loop(self) -> None:
        if isinstance(self.loop, type):
            raise ConfigError(f"Agent(loop=...) got the class {self.loop.__name__}; pass {self.loop.__name__}()")
        if isinstance(self.loop, ToolLoop):
            if self.fallback is not None:
                raise ConfigError("a fallback belongs to a Conductor; give a ToolLoop model=models.Fallbacks([...])")
            return
        if not callable(getattr(self.loop, "drive", None)):
            raise ConfigError(f"Agent(loop=...) must be a Conductor or a ToolLoop, not {type(self.loop).__name__}")

    def _check_callables(self) -> None:
        for name in ("confirm", "fallback", "on_event"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                how = "; approve_all lets every call go ahead" if name == "confirm" else ""
                raise ConfigError(f"Agent({name}=...) must be callable, not {type(value).__name__}{how}")
            if value is not None:
                check_takes(f"Agent({name}=...)", value, *CALLBACKS[name])
        check_on_event("Agent(on_event=...)", self.on_event)
        if callable(self.facts):
            check_takes("Agent(facts=...)", self.facts, *CALLBACKS["facts"])
        else:
            object.__setattr__(self, "facts", FrozenDict(check_facts(self.facts)))
        check_seconds("Agent(confirm_timeout=...)", self.confirm_timeout)
        if self.confirm is None:
            _check_confirmed(self._fixed_table)


def is_same(one: Agent[Any], other: Agent[Any]) -> bool:
    """Say whether two definitions stand for the same agent (`Agent.replace`)."""
    return one._identity is other._identity


def parts_of(agent: Agent[Any]) -> Parts:
    """Return what is behind a definition, for the rooms that run it."""
    return agent._parts


def _check_requires(table: Mapping[str, Tool]) -> None:
    for tool in table.values():
        unknown = [name for name in tool.requires if name not in table]
        if unknown:
            raise ConfigError(
                f"tool {tool.name!r} requires {', '.join(map(repr, unknown))}, which the agent does not have "
                f"(it has {', '.join(map(repr, table))})"
            )


def _check_confirmed(table: Mapping[str, Tool]) -> None:
    asking = [tool.name for tool in table.values() if tool.writes or tool.confirm]
    if asking:
        raise ConfigError(
            f"{', '.join(map(repr, asking))} must be confirmed, and the agent has no `confirm`; "
            "give it one, or say confirm=approve_all if every call may go ahead"
        )


def _fixed_tools(extension: Extension[Any]) -> tuple[Tool, ...] | None:
    live = isinstance(inspect.getattr_static(extension, "tools", ()), property)
    return None if live else tuple(getattr(extension, "tools", ()))


def check_live_tools(agent: Agent[Any]) -> None:
    """Check the tools that an agent's extensions have only since their lifespans were entered, as construction does.

    Raises: `ConfigError`: for a name that is taken, a `requires` of a tool that is not there, a write without anybody
    to confirm it.
    """
    if agent._live:
        table = agent._tools_by_name()
        _check_requires(table)
        if agent.confirm is None:
            _check_confirmed(table)


def _as_tuple(what: str, value: Any) -> tuple[Any, ...]:
    """Return the items; a single thing where a list is wanted is a common slip, and so is a string."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(type(value), "__iter__"):
        raise ConfigError(f"{what} must be a list, not one {type(value).__name__}; put it in brackets")
    return tuple(value)


def _refuse_class(what: str, value: object) -> None:
    if isinstance(value, type):
        raise ConfigError(f"{what} got the class {value.__name__} itself; make one: {value.__name__}(...)")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{what} must be a string with text in it, not {value!r}")


def _example(example: Any) -> str:
    """One line: a string as it is, a sequence of strings joined by arrows."""
    if isinstance(example, str):
        return example
    if isinstance(example, Sequence) and all(isinstance(part, str) for part in example):
        return " -> ".join(example)
    raise ConfigError(f"Agent(examples=...) takes strings or sequences of strings, not {example!r}")


def check_facts(facts: object) -> Mapping[str, str]:
    """Return `facts` if they map strings to strings.

    Raises: `ConfigError` naming the first that does not.
    """
    if not isinstance(facts, Mapping):
        raise ConfigError(f"facts must be a mapping of strings, not {type(facts).__name__}")
    for key, value in facts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(f"facts must map strings to strings; {key!r} maps to {type(value).__name__}")
    return facts


def check_on_event(what: str, callback: Callable[..., object] | None) -> None:
    """Refuse an async event callback: it is called where nothing may wait, so nothing of it would ever run.

    Raises: `ConfigError`.
    """
    if callback is not None and is_async(callback):
        raise ConfigError(f"{what} must not be async; iterate over run.events() in a task of your own instead")
