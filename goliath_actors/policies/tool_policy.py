"""`ToolPolicy`: which tools may be called, which never, and which only after a person has agreed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import attrs

from goliath_actors.errors import ConfigError
from goliath_actors.hooks import Ask, BeforePlan, BeforeTool, Deny, Extension, HookContext, PlanPatch
from goliath_actors.tools import ToolDescriptor

__all__ = ["ToolPolicy", "ToolRule", "allow", "ask", "deny"]

Action: TypeAlias = Literal["allow", "deny", "ask"]
# Any: the application's context.
When: TypeAlias = Callable[[HookContext[Any], BeforeTool], "bool | Awaitable[bool]"]

_ACTIONS = ("allow", "deny", "ask")


def _names(names: Iterable[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@attrs.frozen
class ToolRule:
    """What is to become of calls of some tools. `allow`, `deny` and `ask` make one.

    Fields:
      action: `allow`, `deny` or `ask`.
      tools: names, or patterns with `*`, `?` and `[...]`; upper and lower case matter. Nothing: every tool.
      when: called with the hook's context and the `BeforeTool` question; the rule holds where it returns True. Plain
        or async.
      reason: what the model is told of a denial, and a person of a question.
      writes: True, only tools that write; False, only those that do not; None, both.
      whole_batch: a denial refuses the other calls of its batch too (native tool calling).

    Raises: `ConfigError`.
    """

    action: Action
    tools: tuple[str, ...] = attrs.field(default=(), converter=_names)
    when: When | None = None
    reason: str = ""
    writes: bool | None = None
    whole_batch: bool = False

    def __attrs_post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ConfigError(f"a ToolRule's action must be 'allow', 'deny' or 'ask', not {self.action!r}")
        for name in self.tools:
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(f"a ToolRule's tools must be names with text in them, not {name!r}")
        if self.when is not None and not callable(self.when):
            raise ConfigError(f"a ToolRule's when must be callable, not {self.when!r}")
        if not isinstance(self.reason, str):
            raise ConfigError(f"a ToolRule's reason must be a string, not {self.reason!r}")
        if self.writes is not None and not isinstance(self.writes, bool):
            raise ConfigError(f"a ToolRule's writes must be True, False or None, not {self.writes!r}")
        if self.whole_batch and self.action != "deny":
            raise ConfigError("whole_batch belongs to a rule that denies")

    def covers(self, tool: ToolDescriptor) -> bool:
        """Say whether the rule is about this tool, whatever `when` says."""
        if self.writes is not None and self.writes is not tool.writes:
            return False
        return not self.tools or any(fnmatchcase(tool.name, pattern) for pattern in self.tools)


def allow(*tools: str, when: When | None = None, writes: bool | None = None) -> ToolRule:
    """Return a rule that lets calls pass. Arguments: as the fields of `ToolRule`."""
    return ToolRule("allow", tools, when, writes=writes)


def deny(
    *tools: str, when: When | None = None, reason: str = "", writes: bool | None = None, whole_batch: bool = False
) -> ToolRule:
    """Return a rule that refuses calls. Arguments: as the fields of `ToolRule`."""
    return ToolRule("deny", tools, when, reason, writes, whole_batch)


def ask(*tools: str, when: When | None = None, reason: str = "", writes: bool | None = None) -> ToolRule:
    """Return a rule that has calls confirmed, also those that only read. Arguments: as the fields of `ToolRule`."""
    return ToolRule("ask", tools, when, reason, writes)


class ToolPolicy(Extension[Any]):
    """Allows, denies or has confirmed every tool call: the first rule that holds decides.

    Arguments:
      rules: in order of precedence.
      default: what becomes of calls that no rule is about.
      reason: what the model is told of a denial by default.
      hide: tools that can only be denied are not offered to the model at all.
      name: the extension's name; needed where an agent has two policies.

    What `allow` lets pass is still confirmed if the tool itself wants it, as all that write do. Register the policy
    behind extensions that rewrite a tool's input, so that it judges what is executed.

    Raises: `ConfigError`. In a run, a `when` that raises or returns no bool fails the run.
    """

    def __init__(
        self,
        *rules: ToolRule,
        default: Action = "allow",
        reason: str = "this tool may not be used here",
        hide: bool = True,
        name: str = "tool-policy",
    ) -> None:
        for rule in rules:
            if not isinstance(rule, ToolRule):
                raise ConfigError(f"ToolPolicy takes rules made by allow, deny and ask, not {rule!r}")
        if default not in _ACTIONS:
            raise ConfigError(f"ToolPolicy(default=...) must be 'allow', 'deny' or 'ask', not {default!r}")
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError("ToolPolicy(reason=...) must be a string with text in it")
        self.name = name
        self._rules = (*rules, ToolRule(default))
        self._reason = reason
        self._hide = hide

    def before_plan(self, ctx: HookContext[Any], question: BeforePlan) -> PlanPatch | None:
        """Take tools that can only be denied out of the choice."""
        if not self._hide:
            return None
        left = [tool.name for tool in question.tools if not self._always_denied(tool)]
        return None if len(left) == len(question.tools) else PlanPatch(tools=left)

    async def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | Ask | None:
        """Judge one call."""
        for rule in self._rules:
            if not rule.covers(question.tool) or not await _holds(rule, ctx, question):
                continue
            if rule.action == "deny":
                return Deny(rule.reason or self._reason, rule.whole_batch)
            return Ask(rule.reason) if rule.action == "ask" else None
        raise AssertionError("unreachable: the last rule is about every tool")

    def _always_denied(self, tool: ToolDescriptor) -> bool:
        for rule in self._rules:
            if not rule.covers(tool):
                continue
            if rule.action != "deny":
                return False
            if rule.when is None:
                return True
        raise AssertionError("unreachable: the last rule is about every tool")


async def _holds(rule: ToolRule, ctx: HookContext[Any], question: BeforeTool) -> bool:
    if rule.when is None:
        return True
    answer = rule.when(ctx, question)
    if inspect.isawaitable(answer):
        answer = await answer
    if not isinstance(answer, bool):
        # Neither guess is safe: what is falsy by accident could let pass what is to be denied.
        raise TypeError(f"a rule's when must return True or False, not {answer!r}")
    return answer
