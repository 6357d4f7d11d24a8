"""`ToolPolicy`: who may call what."""

from __future__ import annotations

from typing import Any

import pytest

from goliath_actors import approve_all, open_runtime, tool
from goliath_actors.errors import ConfigError, GoliathExtensionError
from goliath_actors.events import HookDecision
from goliath_actors.hooks import BeforeTool, HookContext
from goliath_actors.policies import ToolPolicy, ToolRule, allow, ask, deny
from goliath_actors.tools import ConfirmRequest

from .planned import ANSWER, planned, prompt, roles, run, told, use


@tool
async def read_note(title: str) -> str:
    """Read a note."""
    return f"note {title}"


@tool(writes=True)
async def drop_note(title: str) -> str:
    """Drop a note."""
    return f"dropped {title}"


TOOLS = [read_note, drop_note]
DENIED = "Denied by tool-policy: {}. Do not try it again unless the user asks for it."


def one_call(name: str, policy: ToolPolicy, title: str = "a", **options: Any) -> Any:
    script = [use(name), {"title": title}, ANSWER, "done"]
    return planned(script, tools=TOOLS, extensions=[policy], **options)


async def test_a_call_that_no_rule_is_about_is_allowed_by_default() -> None:
    result = await run(one_call("read_note", ToolPolicy(deny("drop_*"))))
    assert [(step.status, step.result) for step in result.steps[:1]] == [("executed", "note a")]


async def test_the_first_rule_that_holds_decides() -> None:
    policy = ToolPolicy(allow("read_note"), deny("read_*", reason="no reading"))
    result = await run(one_call("read_note", policy))
    assert result.steps[0].status == "executed"


async def test_a_denied_call_is_not_executed_and_the_model_is_told_why() -> None:
    policy = ToolPolicy(deny("read_*", reason="no reading"), hide=False)
    result = await run(one_call("read_note", policy))
    assert (result.steps[0].status, result.steps[0].extension) == ("skipped", "tool-policy")
    assert result.steps[0].result == DENIED.format("no reading")
    decisions = [(event.phase, event.decision, event.reason) for event in told(result, HookDecision)]
    assert decisions == [("before_tool", "deny", "no reading")]


async def test_with_deny_as_default_only_what_is_allowed_passes() -> None:
    policy = ToolPolicy(allow("read_note"), default="deny", hide=False)
    result = await run(one_call("drop_note", policy))
    assert result.steps[0].result == DENIED.format("this tool may not be used here")


async def test_a_tool_that_can_only_be_denied_is_not_offered() -> None:
    agent = one_call("read_note", ToolPolicy(deny("drop_note", when=lambda ctx, call: True), deny("drop_note")))
    await run(agent)
    assert "read_note" in prompt(agent, 0)
    assert "drop_note" not in prompt(agent, 0)


async def test_a_tool_that_may_be_allowed_after_all_is_offered() -> None:
    agent = one_call("read_note", ToolPolicy(deny("drop_note", when=lambda ctx, call: True)))
    await run(agent)
    assert "drop_note" in prompt(agent, 0)


async def test_where_every_tool_is_denied_the_run_answers_without_planning() -> None:
    agent = planned(["hello"], tools=TOOLS, extensions=[ToolPolicy(default="deny")])
    result = await run(agent)
    assert (result.text, roles(agent)) == ("hello", ["answer"])


async def test_a_rule_can_look_at_the_input_and_the_context() -> None:
    async def others(ctx: HookContext[Any], call: BeforeTool) -> bool:
        return call.input["title"] != ctx.context

    policy = ToolPolicy(deny("read_note", when=others, reason="not yours"))
    results = [(await run(one_call("read_note", policy, title), context="mine")).steps[0] for title in ("mine", "hers")]
    assert [step.result for step in results] == ["note mine", DENIED.format("not yours")]


async def test_ask_has_a_read_confirmed() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def confirm(request: ConfirmRequest) -> bool:
        asked.append((request.tool.name, request.input))
        return False

    result = await run(one_call("read_note", ToolPolicy(ask("read_note")), confirm=confirm))
    assert asked == [("read_note", {"title": "a"})]
    assert (result.steps[0].status, result.steps[0].skip_reason) == ("skipped", "confirmation")


async def test_a_rule_can_be_about_tools_that_write_whatever_their_names() -> None:
    policy = ToolPolicy(deny(writes=True), hide=False)
    results = [(await run(one_call(name, policy))).steps[0].status for name in ("read_note", "drop_note")]
    assert results == ["executed", "skipped"]


async def test_a_tool_called_by_hand_passes_the_same_policy() -> None:
    agent = one_call("read_note", ToolPolicy(deny("drop_note")), confirm=approve_all)
    async with open_runtime(agent) as runtime:
        outcome = await runtime.invoke_tool("drop_note", {"title": "a"})
    assert (outcome.status, outcome.reason, outcome.extension) == ("skipped", "policy", "tool-policy")


async def test_a_predicate_that_answers_with_anything_but_a_bool_fails_the_run() -> None:
    policy = ToolPolicy(deny("read_note", when=lambda ctx, call: None))  # type: ignore[arg-type, return-value]
    with pytest.raises(GoliathExtensionError, match="must return True or False, not None") as caught:
        await run(one_call("read_note", policy))
    assert (caught.value.extension, caught.value.phase) == ("tool-policy", "before_tool")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolPolicy("read_note"),  # type: ignore[arg-type]
        lambda: ToolPolicy(default="maybe"),  # type: ignore[arg-type]
        lambda: ToolPolicy(reason=" "),
        lambda: ToolRule("maybe"),  # type: ignore[arg-type]
        lambda: deny(" "),
        lambda: deny("a", when=True),  # type: ignore[arg-type]
        lambda: deny("a", reason=None),  # type: ignore[arg-type]
        lambda: deny("a", writes="yes"),  # type: ignore[arg-type]
        lambda: ToolRule("allow", whole_batch=True),
    ],
)
def test_wrong_configuration_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
