"""What a written text may not repeat, and when a text is about to."""

from __future__ import annotations

import pytest

from langchain_dp.opt.filters import Echo

ASKED = "Say of each output which inputs belong to it."
ECHO = Echo([ASKED], known="Which inputs belong to me?", headings=["Input:", "# Student"])


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("", False),
        ("Say of each OUTPUT what it is", True),
        ("Tell of each output which one fits", True),
        ("say of each", False),
        ("Say which inputs belong to whom", False),  # the task itself says so
        ("Say: input: a film", True),
        ("Do as a # student does", True),
    ],
)
def test_four_words_in_a_row_or_a_heading(text: str, repeats: bool) -> None:
    """If it breaks, what was asked is handed over as if it had been learned, or what is new is dropped."""
    assert ECHO(text) is repeats


@pytest.mark.parametrize(
    "tokens",
    [
        ["Say", " of", " each", " output", " what"],
        ["Tell", " of", " each", " output", " wh", "ich"],
        ["Say", " of", " each", " out", "put", "s"],
        ["Say", " input", ":"],
        ["Do", " #", " Stu", "dent"],
    ],
)
def test_no_text_repeats_that_was_not_near_it_one_token_before(tokens: list[str]) -> None:
    """If it breaks, the token that makes a text repeat is drawn, as nobody looked."""
    texts = ["".join(tokens[:at]) for at in range(len(tokens) + 1)]
    repeating = next(at for at, text in enumerate(texts) if ECHO(text))
    assert ECHO.near(texts[repeating - 1])


def test_a_text_of_its_own_is_not_looked_at() -> None:
    """If it breaks, the whole vocabulary is spelt for every token of every text."""
    assert not any(ECHO.near(text) for text in ("Is it a good film", "Say of", "in", "#1 of all"))
    assert not Echo().near("")
    assert not Echo()("")
