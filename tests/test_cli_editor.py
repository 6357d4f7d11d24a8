"""A line being typed: what keys do to it, and what is shown of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._cli.editor import LineEditor
from goliath_actors._cli.screen import cells

UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        ("abc", "abc", 3),
        (f"abc{LEFT}{LEFT}X", "aXbc", 2),
        (f"abc{LEFT}\x7f", "ac", 1),
        ("abc\x08", "ab", 2),
        ("\x7f", "", 0),
        (f"abc\x1b[H{RIGHT}\x1b[3~", "ac", 1),
        ("abc\x01\x04", "bc", 0),
        ("abc\x04", "abc", 3),
        ("abc\x01X\x05Y", "XabcY", 5),
        ("abc\x1bOHX\x1bOFY", "XabcY", 5),
        ("abc\x1b[1~X\x1b[4~Y", "XabcY", 5),
        (f"ab cd{LEFT}\x0b", "ab c", 4),
        (f"ab cd{LEFT}\x15", "d", 0),
        ("ab cd  \x17", "ab ", 3),
        ("ab cd\x1b[1;5D\x1b[1;5DX\x1b[1;5CY", "XabY cd", 4),
        ("ab cd\x1bb\x1bfX", "ab cdX", 6),
        (f"abc{RIGHT}{RIGHT}", "abc", 3),
        (f"{LEFT}abc", "abc", 3),
        ("a\tb", "a b", 3),
        ("a\x07\x1b[15~\x1b[Z\x1bxb", "ab", 2),
        ("日本" + LEFT + "の", "日の本", 2),
        (UP + DOWN + "a", "a", 1),
    ],
)
def test_a_key_does_what_its_name_says(keys: str, text: str, cursor: int) -> None:
    editor = LineEditor()
    assert editor.feed(keys) == ()
    assert (editor.text, editor.cursor) == (text, cursor)
    one_by_one = LineEditor()
    for key in keys:
        one_by_one.feed(key)
    assert (one_by_one.text, one_by_one.cursor) == (text, cursor)


def test_enter_ends_lines_and_what_follows_begins_the_next() -> None:
    editor = LineEditor()
    assert editor.feed("one\rtwo\n\nthr") == ("one", "two", "")
    assert editor.feed("ee\r") == ("three",)


def test_ctrl_d_ends_the_input_on_an_empty_line_alone() -> None:
    editor = LineEditor()
    assert editor.feed("a\x04\x7f\x04") == (None,)


def test_up_and_down_walk_through_what_was_typed_and_keep_the_draft() -> None:
    editor = LineEditor()
    editor.feed("one\rtwo\rtwo\r \rdraft")
    walked = []
    for key in (UP, UP, UP, DOWN, DOWN, DOWN):
        editor.feed(key)
        walked.append(editor.text)
    assert walked == ["two", "one", "one", "two", "draft", "draft"]
    assert editor.cursor == len("draft")


def test_answers_to_questions_are_nothing_to_fetch_back() -> None:
    editor = LineEditor()
    editor.feed("one\r")
    editor.remember = False
    assert editor.feed("y\r") == ("y",)
    assert editor.history == ["one"]


def test_the_history_is_bounded() -> None:
    editor = LineEditor()
    for number in range(600):
        editor.feed(f"{number}\r")
    assert (len(editor.history), editor.history[0], editor.history[-1]) == (500, "100", "599")


def test_an_escape_sequence_without_end_is_given_up() -> None:
    editor = LineEditor()
    editor.feed("\x1b[" + "1;" * 20)
    editor.feed("abc")
    assert editor.text == "abc"


def test_clearing_forgets_the_line_and_half_a_key() -> None:
    editor = LineEditor()
    editor.feed("one\rtwo" + UP + "\x1b[")
    editor.clear()
    editor.feed("A")
    assert (editor.text, editor.history) == ("A", ["one"])
    editor.clear()
    editor.feed(UP)
    assert editor.text == "one"


@pytest.mark.parametrize(
    ("cursor", "shown", "column"),
    [
        (0, "abcdefghijklmnopqr…", 0),
        (3, "abcdefghijklmnopqr…", 3),
        (13, "…cdefghijklmnopqrs…", 12),
        (25, "…opqrstuvwxyz", 12),
        (26, "…pqrstuvwxyz", 12),
    ],
)
def test_a_long_line_is_shown_around_the_cursor(cursor: int, shown: str, column: int) -> None:
    assert LineEditor(text="abcdefghijklmnopqrstuvwxyz", cursor=cursor).draw(20) == (shown, column)


@given(st.lists(st.sampled_from([UP, DOWN, LEFT, RIGHT, "\r", "\x7f", "\x17", "\x0b", "\x15", "\x1b", "a", " ", "日"])))
def test_no_keys_break_a_line(keys: list[str]) -> None:
    editor = LineEditor()
    for key in keys:
        editor.feed(key)
        assert 0 <= editor.cursor <= len(editor.text)
    editor.feed("\x1b[F")  # ends whatever key was half typed, and goes to the end
    before = editor.text
    assert editor.feed("Z\r") == (before + "Z",)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf"]), max_size=80), st.data())
def test_what_is_shown_fits_and_the_cursor_stands_where_it_types(text: str, data: st.DataObject) -> None:
    cursor = data.draw(st.integers(0, len(text)))
    width = data.draw(st.integers(8, 60))
    shown, column = LineEditor(text=text, cursor=cursor).draw(width)
    assert cells(shown) < width or cells(text) < width
    assert 0 <= column <= cells(shown)
    left = shown.removeprefix("…") if shown != text else shown
    assert text.find(left.removesuffix("…")) >= 0
