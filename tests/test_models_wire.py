"""Pieces of replies and of requests, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage, ToolSpec
from goliath_actors.errors import ModelError, ModelUnavailable, Refused
from goliath_actors.models import _wire
from goliath_actors.models._calls import LONE, Calls, whole
from goliath_actors.models._errors import Scrubber
from goliath_actors.models._reply import Reply, usage_of
from goliath_actors.models._sse import Frame
from goliath_actors.models._wire import Writer, encode, read_json, request_body
from goliath_actors.values import Message, ToolCall, Usage


def body(**changes: object) -> dict[str, object]:
    settings = changes.pop("adapter", {})
    assert isinstance(settings, dict)
    fields: dict[str, object] = {"role": "answer", "messages": (Message("user", "Hi"),), **changes}
    return request_body("m", ModelRequest(**fields), settings)  # type: ignore[arg-type]  # tests name any field


# Requests.


def test_the_requests_settings_go_over_the_adapters_field_by_field_and_options_come_last() -> None:
    made = body(
        adapter={"temperature": 1, "top_p": 0.5, "stop": ["a"]},
        settings={"temperature": 0, "stop": None},
        provider_options={"top_p": 0.1, "seed": None},
    )
    assert {key: made[key] for key in ("temperature", "top_p", "seed")} == {
        "temperature": 0,
        "top_p": 0.1,
        "seed": None,
    }
    assert "stop" not in made


def test_none_takes_out_a_field_that_is_sent_by_itself() -> None:
    assert "stream_options" not in body(adapter={"stream_options": None})
    assert "stream" not in body(adapter={"stream": None})


def test_options_of_a_stream_go_with_it_wherever_it_is_turned_off() -> None:
    assert "stream_options" not in body(settings={"stream": False})
    assert "stream_options" not in body(provider_options={"stream": False})
    assert body()["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("configured", "sent"),
    [
        ({}, {"max_tokens": 100}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_tokens": 500}, {"max_tokens": 100}),
        ({"max_completion_tokens": 500}, {"max_completion_tokens": 100}),
    ],
)
def test_the_smaller_cap_holds_under_the_configured_name(
    configured: dict[str, object], sent: dict[str, object]
) -> None:
    made = body(adapter=configured, max_output_tokens=100)
    assert {key: value for key, value in made.items() if key.startswith("max_")} == sent


def test_messages_without_content_are_left_out_but_for_what_a_call_asks_for() -> None:
    call = ToolCall("a", "list", "")
    made = body(
        messages=(
            Message("system", " "),
            Message("user", "Hi", name="ann"),
            Message("assistant", "\n"),
            Message("assistant", " ", (call,)),
            Message("tool", " ", tool_call_id="a", name="list"),
            Message("user", ""),
        )
    )
    assert made["messages"] == [
        {"role": "user", "content": "Hi", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "list", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "(no output)", "tool_call_id": "a"},
    ]
    assert body(messages=(Message("user", ""),))["messages"] == [{"role": "user", "content": ""}]


@pytest.mark.parametrize("text", ['{"a": NaN}', "{", "[1]", "null", "not JSON"])
def test_refused_arguments_are_shown_inside_an_object(text: str) -> None:
    made = body(messages=(Message("assistant", "", (ToolCall("a", "f", text),)),))
    assert (
        f'"arguments":{json.dumps(json.dumps({"not_an_object": text}, separators=(",", ":")))}' in encode(made).decode()
    )


def test_half_a_surrogate_pair_does_not_stop_a_request() -> None:
    assert b'"content":"a?b"' in encode(body(messages=(Message("user", "a\ud83db"),)))


class Words(str):
    """What templates and parsers put in place of a text."""


def test_a_text_of_a_subclass_is_written_as_the_text_that_it_is() -> None:
    call = ToolCall(Words("c"), Words("look"), Words('{"a":1}'))
    said = (
        Message("user", Words("Hi é")),
        Message("assistant", Words("Well."), (call,)),
        Message("tool", Words("done"), (), Words("c")),
    )
    plain = (
        Message("user", "Hi é"),
        Message("assistant", "Well.", (ToolCall("c", "look", '{"a":1}'),)),
        Message("tool", "done", (), "c"),
    )
    assert Writer().messages(said).data == Writer().messages(plain).data
    assert json.loads(Writer().messages(said).data)[0]["content"] == "Hi é"


# Tool calls.


def piece(arguments: object = None, **fields: object) -> dict[str, object]:
    function = {key: value for key, value in (("name", fields.pop("name", None)),) if value is not None}
    if arguments is not None:
        function["arguments"] = arguments
    return {"function": function, **fields}


def assembled(*batches: list[dict[str, object]], taken: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    calls = Calls(taken)
    events = [event for batch in batches for event in calls.feed(batch)] + calls.close()
    found: dict[int, list[str]] = {}
    for event in events:
        call = found.setdefault(event.index, ["", "", ""])
        if event.id is not None:
            assert call == ["", "", ""]  # id and name come once, first, and together
            assert event.name is not None
            call[:2] = [event.id, event.name]
        call[2] += event.arguments
    assert list(found) == sorted(found)
    return [(id, name, arguments) for id, name, arguments in found.values()]


def test_without_an_index_a_new_id_begins_a_call_and_a_bare_piece_belongs_to_the_last() -> None:
    assert assembled(
        [piece('{"x"', id="a", name="f")],
        [piece(":1}")],
        [piece('{"x":', id="b", name="f")],
        [piece("2}")],
    ) == [("a", "f", '{"x":1}'), ("b", "f", '{"x":2}')]


def test_pieces_that_repeat_the_id_and_the_name_are_one_call() -> None:
    assert assembled([piece('{"x"', id="a", name="f")], [piece(":1}", id="a", name="f")]) == [("a", "f", '{"x":1}')]


def test_neither_index_nor_ids_but_names() -> None:
    found = assembled([piece('{"x":1}', name="f"), piece('{"x":2}', name="f"), piece("", name="g")])
    assert [(name, arguments) for _, name, arguments in found] == [("f", '{"x":1}'), ("f", '{"x":2}'), ("g", "")]
    assert len({id for id, _, _ in found}) == 3


def test_neither_index_nor_different_ids() -> None:
    found = assembled([piece('{"x":1}', id="a", name="f")], [piece('{"x":2}', id="b", name="f")])
    assert found == [("a", "f", '{"x":1}'), ("b", "f", '{"x":2}')]
    calls = Calls()
    calls.feed([piece('{"x":1}', id="a", name="f"), piece('{"y"', id="b", name="g")])
    # The id of an earlier call with a name: another call if that one is whole, the rest of it if not.
    [again] = calls.feed([piece('{"x":3}', id="a", name="f")])
    assert again.index == 2
    assert again.id not in (None, "a", "b")
    [rest] = calls.feed([piece(":2}", id="b", name="g")])
    assert rest == ModelToolCall(1, arguments=":2}")


def test_one_index_for_several_calls_with_ids_of_their_own() -> None:
    assert assembled(
        [piece('{"x":1}', index=0, id="a", name="f"), piece('{"x":2}', index=0, id="b", name="f")],
        [piece("", index=0)],
    ) == [("a", "f", '{"x":1}'), ("b", "f", '{"x":2}')]


def test_pieces_of_several_calls_may_be_mixed() -> None:
    assert assembled(
        [piece('{"x"', index=1, id="b", name="g")],
        [piece('{"y"', index=0, id="a", name="f")],
        [piece(":1}", index=1), piece(":2}", index=0)],
    ) == [("b", "g", '{"x":1}'), ("a", "f", '{"y":2}')]


def test_an_id_or_a_name_may_come_late_or_in_parts() -> None:
    assert assembled([piece(index=0, name="loo")], [piece(index=0, name="kup", id="a")], [piece("{}", index=0)]) == [
        ("a", "lookup", "{}")
    ]
    assert assembled([piece('{"x":', id="a")], [piece("1}", name="f")]) == [("a", "f", '{"x":1}')]


def test_a_placeholder_gives_way_to_what_follows_and_stays_if_nothing_does() -> None:
    assert assembled([piece("{}", index=0, id="a", name="f")], [piece('{"x":1}', index=0)]) == [("a", "f", '{"x":1}')]
    assert assembled([piece("{}", index=0, id="a", name="f")], [piece(" ", index=0)]) == [("a", "f", "{} ")]
    assert assembled([piece("{", index=0, id="a", name="f")], [piece("}", index=0)]) == [("a", "f", "{}")]


def test_a_call_without_a_name_is_still_a_call() -> None:
    assert assembled([piece('{"x":1}', index=0, id="a")]) == [("a", "", '{"x":1}')]


def test_what_is_no_piece_is_no_call() -> None:
    calls = Calls()
    assert calls.feed([None, "x", 3]) == []
    assert not calls


def test_ids_differ_from_each_other_and_from_those_taken() -> None:
    found = assembled(
        [piece("", index=0, id="x", name="f"), piece("", index=1, id="x", name="f"), piece("", index=2, name="f")],
        [piece("", index=3, id=" ", name="f"), piece("", index=4, id="old", name="f")],
        taken=("old",),
    )
    ids = [id for id, _, _ in found]
    assert ids[0] == "x"
    assert len(set(ids)) == 5
    assert not {"", " ", "old"} & set(ids)


@given(st.text(max_size=30), st.lists(st.integers(1, 7), max_size=10))
@settings(max_examples=50)
def test_arguments_are_the_same_in_any_cutting(value: str, sizes: list[int]) -> None:
    text = json.dumps({"text": value}, ensure_ascii=False)
    parts, at = [], 0
    for size in [*sizes, len(text)]:
        parts.append(text[at : at + size])
        at += size
    [call] = assembled([piece(id="a", name="f", index=0)], *[[piece(part, index=0)] for part in parts])
    assert call == ("a", "f", text)


@given(st.text(), st.lists(st.integers(0, 5), max_size=20))
def test_surrogates_are_joined_in_any_cutting(value: str, sizes: list[int]) -> None:
    units = value.encode("utf-16-le")
    halves = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    result, half, at = "", "", 0
    for size in [*sizes, len(halves)]:
        text, half = whole(half + "".join(halves[at : at + size]))
        result += text
        at += size
    assert (result + LONE if half else result) == value


# Replies.


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["", "stop", "text", "a", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "index",
                    "id",
                    "finish_reason",
                    "usage",
                    "prompt_tokens",
                    "type",
                    "text",
                    "refusal",
                    "done",
                    "done_reason",
                    "error",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
deltas = st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"delta": json_values}), max_size=2)})


@given(st.lists(json_values | deltas, max_size=4), st.booleans())
def test_no_payload_makes_anything_but_a_model_error(payloads: list[object], whole: bool) -> None:
    reply = Reply(Scrubber())
    heard: list[ModelEvent] = []
    errors: list[ModelError] = []
    for payload in payloads:
        frame = Frame(json.dumps(payload))
        try:
            heard.extend(reply.feed_whole(frame) if whole else reply.feed(frame))
        except ModelError as error:
            errors.append(error)
            break
    else:
        heard.extend(reply.end("cut off")[0])
    assert [error.partial for error in errors] == [reply.text] * len(errors)
    assert "".join(event.text for event in heard if isinstance(event, ModelText)) == reply.text
    indexes = {event.index for event in heard if isinstance(event, ModelToolCall)}
    assert indexes == set(range(len(indexes)))


def chunk(text: str = "", reason: str | None = None, usage: dict[str, int] | None = None) -> Frame:
    return Frame(json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": reason}], "usage": usage}))


def test_an_event_that_the_end_of_the_stream_has_cut_is_a_cut_and_no_nonsense() -> None:
    reply = Reply(Scrubber())
    assert reply.feed(chunk("Hi")) == [ModelText("Hi")]
    assert reply.feed(Frame('{"choices": [{"del', cut=True)) == []
    [*events], error = reply.end("cut off")
    assert events == []
    assert isinstance(error, ModelUnavailable)
    assert (str(error), error.code, error.partial) == ("cut off", "truncated", "Hi")


def test_the_same_usage_is_told_once() -> None:
    reply = Reply(Scrubber())
    counts = {"prompt_tokens": 3, "completion_tokens": 1}
    assert reply.feed(chunk("a", usage=counts)) == [ModelText("a"), ModelUsage(Usage(3, 1))]
    assert reply.feed(chunk("b", usage=counts)) == [ModelText("b")]
    assert reply.feed(chunk("c", usage={**counts, "completion_tokens": 2})) == [ModelText("c"), ModelUsage(Usage(3, 2))]


@pytest.mark.parametrize("reason", ["content_filter", "SAFETY", "content_filter: hate"])
def test_a_filter_is_not_taken_back_by_a_later_reason(reason: str) -> None:
    reply = Reply(Scrubber())
    reply.feed(chunk("Hi", reason))
    reply.feed(chunk("", "stop"))
    _, error = reply.end("")
    assert isinstance(error, Refused)
    assert (error.code, error.partial) == ("content_filter", "Hi")


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "model_length"])
def test_a_reply_that_was_too_long_has_one_word_for_it(reason: str) -> None:
    reply = Reply(Scrubber())
    reply.feed(chunk("Hi", reason))
    assert reply.end("") == ([ModelDone("length")], None)


@pytest.mark.parametrize("data", ['{"message": "broken"}', '{"detail": "broken"}', '"broken"', "broken"])
def test_an_event_named_error_is_one_whatever_it_holds(data: str) -> None:
    with pytest.raises(ModelUnavailable, match="broken"):
        Reply(Scrubber()).feed(Frame(data, "error"))


def test_other_choices_than_the_first_are_not_mixed_in() -> None:
    choices = [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]
    assert Reply(Scrubber()).feed(Frame(json.dumps({"choices": choices}))) == [ModelText("yes")]


def test_deep_nesting_is_no_reply() -> None:
    for feed in (Reply(Scrubber()).feed, Reply(Scrubber()).feed_whole):
        with pytest.raises(ModelError, match="not JSON"):
            feed(Frame("[" * 200_000))


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 1}, Usage(3, 1)),
        ({"prompt_tokens": 3.0, "completion_tokens": 1}, Usage(3, 1)),
        ({"prompt_tokens": 3}, Usage(3, 0)),
        ({"input_tokens": 3, "output_tokens": 2}, Usage(3, 2)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(3, 1)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": -3, "completion_tokens": 1}, None),
        ({"prompt_tokens": 3, "completion_tokens": float("nan")}, None),
        ({"prompt_tokens": float("inf")}, None),
        ({"prompt_tokens": True, "completion_tokens": 1}, None),
        ({"prompt_tokens": "3"}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": 2**64}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_usage_is_what_can_be_or_nothing(reported: object, usage: Usage | None) -> None:
    assert usage_of(reported) == usage


# --- what is kept in writing ------------------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.sampled_from(["", " ", "\ud83d", "\x00", "ü\u2028"])
calls = st.builds(ToolCall, texts, texts, texts | st.just('{"a": 1}'))
messages = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), texts, st.lists(calls, max_size=2), texts, texts
)


@given(st.lists(st.lists(messages, max_size=6), min_size=1, max_size=6), st.integers(0, 3000))
def test_what_a_writer_has_kept_makes_the_same_bytes(histories: list[list[Message]], at_most: int) -> None:
    writer = Writer(at_most)
    tool = ToolSpec("t", "d", {"type": "object"})
    for history in [*histories, *histories]:
        request = ModelRequest("answer", tuple(history), tools=(tool,))
        assert encode(request_body("m", request, {"top_p": 0.5}, writer)) == encode(
            request_body("m", request, {"top_p": 0.5})
        )
        assert sum(2 * len(data) + 200 for data in writer.kept.kept()) <= at_most


def test_a_message_is_written_once_while_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    write = _wire._message

    def counted(message: Message) -> dict[str, object]:
        made.append(message.text)
        return write(message)

    monkeypatch.setattr(_wire, "_message", counted)
    history = [Message("user", str(number)) for number in range(5)]
    writer = Writer()
    for count in range(1, 6):
        writer.messages(history[:count])
    assert made == ["0", "1", "2", "3", "4"]
    writer.messages([Message("user", "0")])  # an equal one is another one
    assert made == ["0", "1", "2", "3", "4", "0"]


def test_a_message_that_is_gone_is_not_taken_for_a_new_one_in_its_place() -> None:
    writer, places = Writer(2000), set[int]()
    for number in range(500):
        message = Message("user", str(number))
        places.add(id(message))
        assert writer.messages([message]).data == b'[{"role":"user","content":"%d"}]' % number
    assert len(places) < 500  # or this has shown nothing


def test_calls_that_are_none_are_no_reply() -> None:
    reply = Reply(Scrubber())
    assert reply.feed(Frame('{"choices": [{"delta": {"tool_calls": ["none"]}, "finish_reason": "tool_calls"}]}')) == []
    events, error = reply.end("")
    assert (events, getattr(error, "code", None)) == ([], "empty")


def test_a_setting_may_take_the_place_of_what_was_written() -> None:
    request = ModelRequest("answer", (Message("user", "hi"),), provider_options={"messages": [], "x": {"a": None}})
    assert encode(request_body("m", request, {}, Writer())) == (
        b'{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"x":{"a":null}}'
    )


def test_a_tool_that_json_cannot_hold_is_refused_as_without_a_writer() -> None:
    request = ModelRequest("answer", (Message("user", "hi"),), tools=(ToolSpec("t", "d", {"least": float("nan")}),))
    for writer in (None, Writer()):
        with pytest.raises(ValueError, match="JSON compliant"):
            encode(request_body("m", request, {}, writer))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def _told(read: Any, text: str) -> object:
    try:
        return repr(read(text))
    except ValueError:
        return "refused"


@given(values, st.integers(0, 60), st.text('{}[]",:eE+-.019 \tnul\\\ud800', max_size=3), st.booleans())
def test_json_is_read_as_the_standard_library_reads_it(value: object, place: int, noise: str, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    for seen in (text, text[:place] + noise + text[place:]):
        assert _told(lambda text: read_json(text, json.loads), seen) == _told(json.loads, seen)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "1e400", "123456789012345678901234567890", '"\\ud83d"', "NaN", "[1,]"]
)
def test_json_of_the_margins_is_read_as_the_standard_library_reads_it(text: str) -> None:
    assert _told(lambda text: read_json(text, json.loads), text) == _told(json.loads, text)
