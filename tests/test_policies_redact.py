"""`Redact`: no secret comes through, however it is cut, and wherever it comes from."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Extension, Respond, open_runtime, tool
from goliath_actors.abc import ModelEvent, ModelText
from goliath_actors.errors import ConfigError
from goliath_actors.events import Answer, TextDelta
from goliath_actors.hooks import BeforeAppend, BeforeFallback, BeforeRun, HookContext, StreamControl
from goliath_actors.policies import Redact
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import FallbackRequest, Message, Step

from .planned import ANSWER, GIVE_UP, memory_of, planned, prompt, run, use

KEY = re.compile(r"sk-[a-z0-9]{6}")


def streamed(redact: Redact, pieces: list[str]) -> list[str]:
    stream = redact._stream()
    return [*(stream.feed(piece) for piece in pieces), stream.feed("", final=True)]


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


# --- pieces ---------------------------------------------------------------------------------------------------------

# Texts that are full of secrets, their beginnings and their parts.
scraps = st.lists(
    st.sampled_from(["sk-", "sk-abc123", "sk-sk-abc1", "sword", "fish", "swordfish", "s", "words", "12", "1234", " "])
    | st.text("sk-wordfi1 ", max_size=3),
    max_size=12,
).map("".join)
places = st.lists(st.integers(0, 200), max_size=12)
PATTERNS = ("swordfish", "fishsword", KEY, re.compile(r"\b\d{4}(-\d{4})?\b"), re.compile("WORDS+", re.IGNORECASE))


@given(scraps, places)
def test_no_secret_comes_through_whatever_the_pieces(text: str, where: list[int]) -> None:
    redact = Redact(*PATTERNS, replacement="#")
    shown = "".join(streamed(redact, cut(text, where)))
    for part in shown.split("#"):
        assert "swordfish" not in part
        assert "fishsword" not in part
        assert KEY.search(part) is None
        assert re.search("WORDS", part, re.IGNORECASE) is None


@given(scraps, places)
def test_pieces_make_no_difference_to_what_is_said(text: str, where: list[int]) -> None:
    redact = Redact(*PATTERNS)
    assert "".join(streamed(redact, cut(text, where))) == redact._clean(text)


@given(st.text("abc-", max_size=40), st.text("abc-", max_size=40), places)
def test_what_is_not_secret_comes_through_unchanged(before: str, after: str, where: list[int]) -> None:
    redact = Redact("SECRET", replacement="#")
    assert "".join(streamed(redact, cut(f"{before}SECRET{after}", where))) == f"{before}#{after}"


@given(st.text("ab-END ", max_size=60), places, st.integers(4, 12))
def test_never_more_than_the_longest_secret_is_held_back(text: str, where: list[int], longest: int) -> None:
    redact = Redact(re.compile("a.*?END"), longest=longest)
    stream = redact._stream()
    for piece in cut(text, where):
        stream.feed(piece)
        # What is undecided is short, or it is replaced already.
        assert len(stream.raw) - stream.place <= longest or stream.covered > stream.place


@given(st.text("x", min_size=30, max_size=60), places)
def test_a_secret_longer_than_was_foreseen_does_not_come_through_either(inside: str, where: list[int]) -> None:
    redact = Redact(re.compile("BEGIN.*END"), re.compile("x+"), longest=10, replacement="#")
    shown = "".join(streamed(redact, cut(f"a BEGIN{inside}END b", where)))
    assert (shown, redact._clean(f"a BEGIN{inside}END b")) == ("a # b", "a # b")


def test_text_goes_out_at_once_where_no_secret_can_begin() -> None:
    assert streamed(Redact(KEY), ["Hello ", "world", ", desk", "-top", " sk-abc1", "23."]) == [
        *("Hello ", "world", ", de", "", "sk-top ", "[redacted].", "")
    ]


def test_what_may_be_the_beginning_of_a_secret_is_given_out_at_the_end() -> None:
    assert streamed(Redact(KEY), ["it begins with sk-"]) == ["it begins with ", "sk-"]


def test_what_was_taken_for_a_long_secret_and_is_none_is_given_out_from_there() -> None:
    redact = Redact(re.compile("<.*>"), longest=5, replacement="#")
    assert streamed(redact, ["a <12345", "6789", "\nrest"]) == ["a #", "", "56789\nrest", ""]


def test_a_pattern_may_look_at_what_is_already_out() -> None:
    redact = Redact(re.compile(r"(?<=pin: )\d+"))
    assert "".join(streamed(redact, ["my pin: ", "12", "34."])) == "my pin: [redacted]."


def test_secrets_that_overlap_are_replaced_as_one() -> None:
    assert Redact("abcd", "cdef")._clean("xabcdefx") == "x[redacted]x"


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 5, 0])
async def test_deltas_answer_result_and_memory_agree(chunk: int) -> None:
    store = InMemoryStore()
    agent = planned(ScriptedModel(["The key is sk-abc123, keep it."], chunk=chunk), extensions=[Redact(KEY)])
    async with open_runtime(agent, store=store) as runtime, runtime.stream("key?") as streaming:
        events = [event async for event in streaming.events()]
        result = await streaming.wait()
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    answers = [event.text for event in events if isinstance(event, Answer)]
    assert [shown, *answers, result.text] == ["The key is [redacted], keep it."] * 3
    assert (await memory_of(store, agent)).recent[0].answer == result.text


async def test_nothing_is_lost_where_another_transform_keeps_the_end_to_itself() -> None:
    class Endless(Extension[Any]):
        name = "endless"

        async def transform_stream(
            self, ctx: HookContext[Any], events: AsyncIterator[ModelEvent], control: StreamControl
        ) -> AsyncIterator[ModelEvent]:
            async for event in events:
                if isinstance(event, ModelText):
                    yield event

    result = await run(planned(["it begins with sk-"], extensions=[Endless(), Redact(KEY)]))
    assert result.text == "it begins with sk-"


async def test_what_a_tool_returns_reaches_no_prompt() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "found sk-abc123"

    agent = planned([use("look"), ANSWER, "done"], tools=[look], extensions=[Redact(KEY)])
    result = await run(agent)
    assert result.steps[0].result == "found [redacted]"
    assert "sk-abc123" not in "".join(prompt(agent, call) for call in (1, 2))


async def test_a_fallback_is_asked_without_secrets_and_its_answer_is_redacted() -> None:
    @tool
    async def look(where: str) -> str:
        """Look."""
        return "nothing"

    asked: list[FallbackRequest] = []

    def cloud(request: FallbackRequest) -> str:
        asked.append(request)
        return "cloud says sk-fff000"

    store = InMemoryStore()
    agent = planned(
        [use("look", "find sk-abc123"), {"where": "sk-abc123"}, GIVE_UP],
        tools=[look],
        extensions=[Redact(KEY)],
        fallback=cloud,
    )
    agent_answering = planned(["noted"], extensions=[Redact(KEY)])
    async with open_runtime(agent_answering, store=store) as runtime:
        await runtime.run("remember sk-abc123")
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("what about sk-abc123?")
    assert result.text == "cloud says [redacted]"
    assert "sk-" not in repr(asked)
    assert asked[0].ask == "what about [redacted]?"
    assert asked[0].recent[0].ask == "remember [redacted]"
    assert asked[0].steps[0].input == {"where": "[redacted]"}


async def test_an_answer_in_the_models_place_is_redacted() -> None:
    class Answers(Extension[Any]):
        name = "answers"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Respond:
            return Respond("it is sk-abc123")

    result = await run(planned([], extensions=[Answers(), Redact(KEY)]))
    assert result.text == "it is [redacted]"


async def test_asks_are_redacted_only_on_request() -> None:
    open_agent, closed_agent = (planned(["ok"], extensions=[Redact(KEY, asks=asks)]) for asks in (False, True))
    for agent in (open_agent, closed_agent):
        await run(agent, "use sk-abc123")
    assert "sk-abc123" in prompt(open_agent, 0)
    assert "sk-abc123" not in prompt(closed_agent, 0)
    assert "use [redacted]" in prompt(closed_agent, 0)


def test_raw_outputs_are_handed_to_no_fallback() -> None:
    redact = Redact(KEY)
    step = Step(0, "tool", tool="look", result="sk-abc123", output={"key": "sk-abc123"})
    ctx: Any = None
    request = redact.before_fallback(ctx, BeforeFallback(FallbackRequest("hi", steps=[step], reason="r")))
    assert request.steps == (Step(0, "tool", tool="look", result="[redacted]"),)


def test_stored_messages_are_redacted_but_for_the_users_own() -> None:
    redact = Redact(KEY)
    ctx: Any = None
    answers = [
        redact.before_append(ctx, BeforeAppend(Message(role, "sk-abc123"))) for role in ("user", "assistant", "tool")
    ]
    assert answers == [None, Message("assistant", "[redacted]"), Message("tool", "[redacted]")]
    assert redact.before_append(ctx, BeforeAppend(Message("assistant", "hello"))) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redact(),
        lambda: Redact(" "),
        lambda: Redact(7),  # type: ignore[arg-type]
        lambda: Redact(re.compile(b"x")),  # type: ignore[arg-type]
        lambda: Redact(re.compile("x*")),
        lambda: Redact("x", replacement=""),
        lambda: Redact("red"),
        lambda: Redact("x", longest=0),
        lambda: Redact("secret", longest=5),
    ],
)
def test_wrong_configuration_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
