"""What the command line writes, whatever it is given and wherever it goes."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._cli.screen import Screen, cells, fit, one_line, plain

from .cli_stage import PLAIN, Tty


class Latin(Tty):
    encoding = "latin-1"  # type: ignore[assignment]  # a property in the base class


def screen(width: int | None = 40, **environ: str) -> tuple[Screen, io.StringIO]:
    stream = io.StringIO() if width is None else Tty()
    return Screen.on(stream, {"COLUMNS": str(width or 0), "NO_COLOR": "1", **environ}), stream


def test_escape_sequences_become_visible_and_harmless() -> None:
    assert plain("\x1b[31mred\x1b[0m \x07\x9b2J") == "␛[31mred␛[0m ␇\ufffd2J"
    assert plain("one\r\ntwo\tthree\rfour") == "one\ntwo\tthree␍four"


def test_marks_that_turn_the_reading_order_are_shown_as_unknown() -> None:
    assert plain("pay \u202e001\u202c to \u2066Eve") == "pay \ufffd001\ufffd to \ufffdEve"


@given(st.text())
def test_nothing_that_steers_a_terminal_passes(text: str) -> None:
    assert not [c for c in plain(text) if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert not any(c in one_line(text) for c in "\n\t\r\x1b")


@given(st.text(), st.integers(1, 60))
def test_a_fitted_text_fits_and_is_a_prefix(text: str, width: int) -> None:
    fitted = fit(text, width)
    assert cells(fitted) <= width
    assert fitted == text or text.startswith(fitted.removesuffix("…"))


def test_wide_characters_count_twice_and_combining_ones_not_at_all() -> None:
    assert [cells(text) for text in ("abc", "日本", "e\u0301", "👍", "")] == [3, 4, 1, 2, 0]
    assert fit("日本語の文", 7) == "日本語…"


def test_a_terminal_has_colours_unless_no_color_or_a_dumb_one() -> None:
    assert Screen.on(Tty(), {}).colour
    assert not Screen.on(Tty(), {"NO_COLOR": "1"}).colour
    assert not Screen.on(Tty(), {"TERM": "dumb"}).colour
    assert not Screen.on(io.StringIO(), {}).colour
    closed = io.StringIO()
    closed.close()
    assert not Screen.on(closed, {}).terminal


def test_styles_are_written_only_where_there_are_colours() -> None:
    stream = Tty()
    Screen.on(stream, {"COLUMNS": "40"}).line("hello", "bold", "red")
    assert stream.getvalue() == "\x1b[1;31mhello\x1b[0m\n"
    plain_screen, out = screen()
    plain_screen.line("hello", "bold")
    assert out.getvalue() == "hello\n"


def test_the_width_is_that_of_columns_and_too_narrow_ones_cut_nothing() -> None:
    assert screen(33)[0].width == 33
    assert screen(19)[0].width is None
    assert screen(None)[0].width is None
    assert Screen.on(Tty(), {"COLUMNS": "many"}).width == 80  # this object has no descriptor to ask


def test_a_line_ends_what_is_open() -> None:
    page, out = screen()
    page.write("you> ")
    page.line("next")
    page.end_line()
    assert out.getvalue() == "you> \nnext\n"


def test_after_a_key_the_cursor_stands_at_the_start_of_a_line() -> None:
    page, out = screen()
    page.write("you> ")
    page.typed()
    page.line("next")
    assert out.getvalue() == "you> next\n"  # the terminal itself showed the key and the new line


def test_pieces_are_cut_to_the_width_together() -> None:
    page, out = screen(20)
    page.spans(("12345", "bold"), ("67890123456789abcdef", ""), ("never", ""), cut=True)
    page.spans(("a\nb", ""), cut=True)
    assert out.getvalue() == "1234567890123456789…\na b\n"


def test_paragraphs_wrap_at_spaces_behind_their_indents() -> None:
    page, out = screen(20)
    page.wrapped("one two three four five six", indent="  ", first="> ")
    assert out.getvalue() == "> one two three\n  four five six\n"
    wide, all_of_it = screen(None)
    wide.wrapped("one two three four five six", indent="  ", first="> ")
    assert all_of_it.getvalue() == "> one two three four five six\n"


def test_running_text_breaks_between_words_however_it_arrives() -> None:
    text = "The quick brown fox jumps over the lazy dog.\n\nNew paragraph"
    expected = "The quick brown fox\njumps over the lazy\ndog.\n\nNew paragraph\n"
    for size in (1, 2, 7, 100):
        page, out = screen(21)
        for start in range(0, len(text), size):
            page.flow(text[start : start + size])
        page.end_line()
        assert out.getvalue() == expected


@given(st.text("ab \n日本", max_size=80), st.integers(20, 30), st.integers(1, 9))
def test_running_text_loses_nothing_but_spaces_at_a_break(text: str, width: int, size: int) -> None:
    page, out = screen(width)
    for start in range(0, len(text), size):
        page.flow(text[start : start + size])
    page.end_line()
    assert "".join(out.getvalue().split()) == "".join(text.split())
    assert all(cells(row) < width for row in out.getvalue().split("\n") if " " not in row.strip()[:width])


def test_running_text_is_written_as_it_is_without_a_terminal() -> None:
    page, out = screen(None)
    page.flow("a ")
    page.flow("b" * 200)
    page.end_line()
    assert out.getvalue() == "a " + "b" * 200 + "\n"


def test_running_text_can_stand_behind_an_indent() -> None:
    page, out = screen(20)
    page.flow("one two three four five", "    ")
    page.end_line()
    assert out.getvalue() == "    one two three\n    four five\n"
    wide, all_of_it = screen(None)
    wide.flow("one", "    ")
    wide.flow(" two", "    ")
    wide.end_line()
    assert all_of_it.getvalue() == "    one two\n"


def test_a_status_is_wiped_out_by_what_follows() -> None:
    stream = Tty()
    page = Screen.on(stream, {"COLUMNS": "20"})
    page.status("  thinking about many things")
    assert stream.getvalue() == "\x1b[2m  thinking about m…\x1b[0m"
    page.line("done")
    assert stream.getvalue().endswith("\r\x1b[Kdone\n")


def test_a_status_never_stands_in_an_open_line_or_where_nothing_can_be_wiped() -> None:
    stream = Tty()
    page = Screen.on(stream, {"COLUMNS": "20"})
    page.write("open ")
    page.status("never")
    assert "never" not in stream.getvalue()
    plain_screen, out = screen()
    plain_screen.status("never")
    assert out.getvalue() == ""


def test_what_a_stream_cannot_carry_becomes_a_question_mark() -> None:
    stream = Latin()
    page = Screen.on(stream, PLAIN)
    page.line("naïve 日本")
    assert stream.getvalue() == "naïve ??\n"
    assert page.word("✓", "ok") == "ok"
    assert screen()[0].word("✓", "ok") == "✓"


@pytest.mark.parametrize("text", ["", "\n"])
def test_writing_nothing_or_a_new_line_leaves_the_line_as_it_was_or_ends_it(text: str) -> None:
    page, out = screen()
    page.write("open")
    page.write(text)
    page.end_line()
    assert out.getvalue() == "open\n"
