"""The text that is stored for an exception: every store can hold it, whatever was raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_lib import Permanent
from queue_lib.engine.settle import MAX_ERROR_BYTES, error_text

SEPARATOR = "\x1e"  # stands before the text of a delivery whose dead-letter copy is owed


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RudeError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class ConfusedError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class EndlessError(Exception):
    def __str__(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (ValueError(), "ValueError"),
        (KeyError("order"), "KeyError: 'order'"),
        (SystemExit(1), "SystemExit: 1"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("a\0b"), "ValueError: a\N{REPLACEMENT CHARACTER}b"),
        (ValueError("\ud800"), "ValueError: ?"),
        (ValueError(f"{SEPARATOR}5{SEPARATOR}x"), "ValueError:  5 x"),
        (ValueError("line\nline\ttab"), "ValueError: line\nline\ttab"),
        (Permanent(ValueError("wrapped")), "ValueError: wrapped"),
        (Permanent("unknown customer"), "Permanent: unknown customer"),
        (Permanent(), "Permanent"),
        (Permanent(MuteError()), "MuteError: (its text could not be read)"),
        (MuteError(), "MuteError: (its text could not be read)"),
        (RudeError(), "RudeError: (its text could not be read)"),
        (ConfusedError(), "ConfusedError: (its text could not be read)"),
        (EndlessError(), "EndlessError: (its text could not be read)"),
        (ExceptionGroup("many", [ValueError()]), "ExceptionGroup: many (1 sub-exception)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_it_names_the_kind_and_repeats_the_words(error: BaseException, text: str) -> None:
    assert error_text(error) == text


@pytest.mark.parametrize("character", ["x", "é", "日", "😀"])
def test_a_long_text_is_cut_on_a_character(character: str) -> None:
    text = error_text(ValueError("!" + character * 5_000_000))
    room = 2048 - len("ValueError: !")
    assert text == "ValueError: !" + character * (room // len(character.encode()))
    assert MAX_ERROR_BYTES == 2048


def test_a_long_class_name_is_cut_too() -> None:
    error = type("E" * 10_000, (Exception,), {})("why")
    assert error_text(error) == "E" * 2048


@given(st.text(st.characters() | st.sampled_from(["\0", "\ud800", "\udfff", SEPARATOR, "😀"])))
def test_every_store_can_hold_it(said: str) -> None:
    for error in (ValueError(said), Permanent(said), Permanent(ValueError(said)), OSError(2, said)):
        text = error_text(error)
        assert 0 < len(text.encode()) <= MAX_ERROR_BYTES
        assert "\0" not in text
        assert SEPARATOR not in text
