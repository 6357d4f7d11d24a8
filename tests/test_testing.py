"""The fakes that ship to users say what is wrong with how they are used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trio

from goliath_actors.errors import ConfigError, ModelUnavailable
from goliath_actors.testing import ScriptedModel, ScriptExhausted, tool_calls

from .planned import end, planned, run

WORDS = "a reply is a str, a mapping, an exception instance, tool_calls(...) or a callable"


@pytest.mark.parametrize(
    "single",
    ["hello", {"kind": "answer"}, ModelUnavailable("down"), tool_calls(("look", {})), len, 7, None],
    ids=lambda value: type(value).__name__,
)
def test_a_single_reply_in_place_of_a_list_is_refused_with_the_list_to_write(single: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ScriptedModel(single)
    assert str(caught.value) == f"ScriptedModel takes a list of replies; write ScriptedModel([{single!r}])"


@pytest.mark.parametrize("reply", [1, None, ["a"], b"bytes", KeyboardInterrupt()], ids=lambda value: repr(value))
def test_what_is_no_reply_is_refused_with_its_place(reply: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'ScriptedModel: replies[1] is {reply!r}; {WORDS}')}$"):
        ScriptedModel(["one", reply])


def test_every_kind_of_reply_and_any_iterable_of_them_is_taken() -> None:
    kinds: list[Any] = ["text", {"a": 1}, ModelUnavailable("down"), tool_calls(("look", {})), lambda request: "late"]
    assert ScriptedModel(iter(kinds)).remaining == 5
    assert ScriptedModel(()).remaining == 0


async def later(request: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return None


@pytest.mark.parametrize(("reply", "shown"), [(lambda request: 1, "1"), (later, "None")])
async def test_a_callable_that_gives_no_reply_fails_the_run_and_is_no_outage(
    reply: Callable[[Any], Any], shown: str
) -> None:
    ending = await end(planned([reply], fallback=lambda request: "from the fallback"))
    assert isinstance(ending.error, ScriptExhausted)
    assert str(ending.error) == f"the callable for call 1 gave {shown}; {WORDS}"


async def test_a_callable_may_give_another_callable() -> None:
    result = await run(planned([lambda request: lambda request: "hello"]))
    assert result.text == "hello"
