"""Shares of the window, counting a whole prompt, and choosing the counter."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._budget import (
    INPUT_SHARE,
    PROMPT_OVERHEAD,
    ContentBudgets,
    count_prompt,
    input_limit,
    provider_reserve,
    resolve_counter,
    source_of,
)
from goliath_actors._text import estimate
from goliath_actors.abc import TokenCounter
from goliath_actors.errors import ConfigError
from goliath_actors.tokens import EstimateCounter, best_counter


@attrs.define(eq=False)
class Recording:
    """A counter that notes what it was asked and answers with what it was told to."""

    answer: Any = 100
    name: str = "recording"
    exact: bool = True
    asked: list[str] = attrs.Factory(list)

    def count(self, text: str) -> int:
        self.asked.append(text)
        return self.answer  # type: ignore[no-any-return]


@attrs.define(eq=False)
class Model:
    """A model that counts tokens itself."""

    answer: Any = 7
    name: str = "small"

    def count_tokens(self, text: str) -> int:
        return self.answer  # type: ignore[no-any-return]


# --- shares ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "cap", "limit"),
    [
        (4096, 256, 2867), (4096, 512, 2867), (4096, 384, 2867), (4096, 192, 2867),
        (8192, 512, 5734),
        (2048, 256, 1433), (2048, 512, 1331), (2048, 384, 1433), (2048, 192, 1433),
        (1024, 256, 640), (1024, 512, 384), (1024, 384, 512), (1024, 192, 704),
        (512, 256, 128), (512, 384, 0), (512, 512, -128),
        (90, 0, -38), (100_000, 0, 70_000),
    ],
)  # fmt: skip
def test_input_limit_is_the_smaller_of_the_share_and_the_room(window: int, cap: int, limit: int) -> None:
    assert input_limit(window, cap) == limit


@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_input_limit_is_exact_for_every_window(window: int, cap: int) -> None:
    share = math.floor(Fraction(str(INPUT_SHARE)) * window)
    reserve = max(128, math.ceil(Fraction(window, 10)))
    assert provider_reserve(window) == reserve
    assert input_limit(window, cap) == min(share, window - cap - reserve)


@pytest.mark.parametrize(
    ("window", "result", "retrieved"),
    [(4096, 512, 1024), (8192, 800, 2000), (128_000, 800, 2000), (512, 64, 128), (7, 1, 1), (1, 1, 1)],
)
def test_content_budgets_are_shares_with_a_cap(window: int, result: int, retrieved: int) -> None:
    budgets = ContentBudgets(window)
    assert (budgets.result, budgets.retrieved) == (result, retrieved)


def test_content_budgets_can_be_given() -> None:
    budgets = ContentBudgets(4096, result=900, retrieved=900)
    assert (budgets.result, budgets.retrieved) == (900, 900)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"result": 0}, "result budget must be a positive integer"),
        ({"result": True}, "result budget must be a positive integer"),
        ({"retrieved": 1.5}, "retrieved budget must be a positive integer"),
        ({"retrieved": float("nan")}, "retrieved budget must be a positive integer"),
        ({"result": 2000}, "is larger than that of all retrieved content"),
        ({"retrieved": 100}, "is larger than that of all retrieved content"),
    ],
)
def test_content_budgets_that_make_no_sense_are_config_errors(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ContentBudgets(4096, **given)


# --- counting a prompt ----------------------------------------------------------------------------------------------


def test_a_tokenizer_counts_all_parts_at_once_and_an_estimate_is_their_sum() -> None:
    counter = Recording()
    assert count_prompt(counter, "system", '{"type":"object"}', "prompt") == 100 + PROMPT_OVERHEAD == 108
    assert count_prompt(counter, "system", "", "prompt") == 108
    assert counter.asked == ['system\n\n{"type":"object"}\n\nprompt', "system\n\nprompt"]
    guess = Recording(answer=3, exact=False)
    assert count_prompt(guess, "system", "{}", "prompt") == 9 + 8
    assert guess.asked == ["system", "{}", "prompt"]
    assert count_prompt(EstimateCounter(), "a" * 400, "", "中") == 115 + 3 + 8


@pytest.mark.parametrize("answer", [math.nan, -1, math.inf, -math.inf, 1.2, True, None, "7", -1.0])
@pytest.mark.parametrize("exact", [True, False])
def test_a_count_that_is_none_is_a_value_error_that_names_the_counter(answer: Any, exact: bool) -> None:
    counter = resolve_counter(Recording(answer, exact=exact), None)
    with pytest.raises(
        ValueError, match=r"the token counter 'recording' returned .*; a count is a whole number, 0 or more"
    ):
        count_prompt(counter, "system", "", "prompt")
    with pytest.raises(ValueError, match=r"the token counter 'small\.count_tokens' returned"):
        count_prompt(resolve_counter(None, Model(answer)), "system", "", "prompt")


class Indexed:
    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize(("answer", "tokens"), [(0, 0), (7, 7), (7.0, 7), (Indexed(), 5)])
def test_a_whole_number_of_any_type_is_a_count(answer: Any, tokens: int) -> None:
    counted = resolve_counter(Recording(answer), None).count("x")
    assert (counted, type(counted)) == (tokens, int)


def test_an_async_counter_is_refused_without_leaving_a_coroutine_behind() -> None:
    async def count(text: str) -> int:
        return 1

    with pytest.raises(ValueError, match="the token counter 'count' is async"):
        resolve_counter(count, None).count("x")  # type: ignore[arg-type]


def test_what_a_counter_raises_passes_unchanged() -> None:
    failure = LookupError("no tokenizer today")

    def count(text: str) -> int:
        raise failure

    with pytest.raises(LookupError) as caught:
        count_prompt(resolve_counter(count, None), "system", "", "prompt")
    assert caught.value is failure


# --- choosing the counter -------------------------------------------------------------------------------------------


def test_the_agents_counter_comes_before_the_models_and_the_estimate_is_last() -> None:
    given = Recording(answer=1)
    assert resolve_counter(given, Model()).count("x") == 1
    assert resolve_counter(len, Model()).count("four") == 4
    assert resolve_counter(None, Model()).count("x") == 7
    assert resolve_counter(None, None).count("a" * 400) == 115
    assert resolve_counter(None, object()).count("中") == estimate("中")

    class Silent:
        name = "silent"
        count_tokens = None

    assert source_of(resolve_counter(None, Silent())) == "estimate"


def test_each_counter_says_its_name_and_its_source() -> None:
    def mine(text: str) -> int:
        return 1

    for counter, name, source in [
        (resolve_counter(mine, None), "mine", "tokenizer"),
        (resolve_counter(Recording(name="exactly"), None), "exactly", "tokenizer"),
        (resolve_counter(Recording(exact=False), None), "recording", "estimate"),
        (resolve_counter(None, Model()), "small.count_tokens", "tokenizer"),
        (resolve_counter(None, None), "estimate", "estimate"),
        (resolve_counter(EstimateCounter(), Model()), "estimate", "estimate"),
    ]:
        assert isinstance(counter, TokenCounter)
        assert (counter.name, source_of(counter)) == (name, source)


def test_auto_takes_the_best_counter_on_disk() -> None:
    assert resolve_counter("auto", Model()) is best_counter()


def test_resolving_twice_changes_nothing() -> None:
    counter = resolve_counter(Recording(), None)
    assert resolve_counter(counter, None) is counter


@pytest.mark.parametrize("wrong", ["tiktoken", 3, object(), EstimateCounter, {}])
def test_what_is_no_counter_is_a_config_error(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="token_counter"):
        resolve_counter(wrong, None)
