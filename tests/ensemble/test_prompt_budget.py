"""Texts that are longer than the model's context: what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from langchain_dp.ensemble.engine_calls import PromptBudget, beginning
from langchain_dp.errors import ModelUnavailable


class Counting:
    """Counts words, and how often it was asked."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.asked = 0

    def count_tokens(self, text: str) -> int:
        self.asked += 1
        if self.fails:
            raise ModelUnavailable("gone")
        return len(text.split())


def lines(texts: Sequence[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)


WORDS = some.text(alphabet="ab cé\n", max_size=60)


@given(some.lists(WORDS, max_size=5), some.integers(0, 40))
def test_the_whole_fits_and_every_text_is_shown_by_its_beginning(texts: list[str], tokens: int) -> None:
    """If it breaks, a member is too long all the same, or something else than its own texts is shown."""
    shown = PromptBudget(Counting()).truncate(texts, whole=lines, tokens=tokens)
    assert all(text.startswith(cut) for text, cut in zip(texts, shown, strict=True))
    if tokens >= len(texts):  # the dashes count too
        assert len(lines(shown).split()) <= tokens


def test_long_texts_are_cut_short_ones_are_whole_and_none_is_kept() -> None:
    """If it breaks, each text pays for the longest, a dead server raises on private text, or a text stays here."""
    long, short = "word " * 200, "a few words"
    shown = PromptBudget(Counting()).truncate([long, short, long], whole=lines, tokens=50)
    assert shown[1] == short
    assert shown[0] == shown[2]
    assert 18 <= len(shown[0].split()) <= 22
    assert PromptBudget(Counting(fails=True)).truncate(["word " * 99], whole=lines, tokens=5) == ["word " * 99]
    room = PromptBudget(Counting())
    room.truncate(["secret " * 200], whole=lines, tokens=50)
    assert "secret" not in repr(vars(room))


@pytest.mark.parametrize(
    ("text", "characters", "shown"),
    [
        ("a very long story", 8, "a very"),
        ("a very long story", 6, "a very"),
        ("一二三四五", 3, "一二三"),
        ("ab", 0, ""),
    ],
)
def test_no_word_is_cut_in_two_where_there_are_blanks(text: str, characters: int, shown: str) -> None:
    """If it breaks, half a word ends each long text, or a text without blanks is lost."""
    assert beginning(text, characters) == shown


def test_what_is_shown_hangs_on_the_member_alone_and_is_counted_once() -> None:
    """If it breaks, one member's length shows in another's prompt, or a server counts every member at every token."""
    one, other = ["word " * 200], ["thing " * 900, "x"]
    room, engine = PromptBudget(Counting()), Counting()
    room.truncate(other, whole=lines, tokens=50)
    both = PromptBudget(engine)
    assert both.truncate(one, whole=lines, tokens=50) == room.truncate(one, whole=lines, tokens=50)
    asked = engine.asked
    both.truncate(one, whole=lines, tokens=50)
    assert engine.asked == asked > 1


@pytest.mark.parametrize("turned", [False, True])
def test_texts_that_make_the_same_prompt_are_cut_each_on_its_own(turned: bool) -> None:
    """If it breaks, a record that holds what stands between two others decides how much of these is shown."""
    one, other = "word " * 60, "thing " * 60
    lists = [[one, other], [f"{one}\n- {other}"]]
    assert len({lines(texts) for texts in lists}) == 1
    room = PromptBudget(Counting())
    for texts in reversed(lists) if turned else lists:
        shown = room.truncate(texts, whole=lines, tokens=50)
        assert shown == PromptBudget(Counting()).truncate(texts, whole=lines, tokens=50)
        assert len(lines(shown).split()) <= 50


class Server(Counting):
    """Refuses to read what has more than so many words; loses the first so many requests."""

    def __init__(self, most: int = 10_000, lost: int = 0) -> None:
        super().__init__()
        self.most, self.lost = most, lost

    def count_tokens(self, text: str) -> int:
        words = super().count_tokens(text)
        if words > self.most or self.asked <= self.lost:
            raise ModelUnavailable("refused")
        return words


def test_what_a_server_refuses_to_read_is_cut_too() -> None:
    """If it breaks, long records are sent whole to a server that refuses them: all abstain, and noise is charged."""
    server = Server(most=100)
    room = PromptBudget(server)
    shown = room.truncate(["word " * 500], whole=lines, tokens=50)
    assert shown == PromptBudget(Counting()).truncate(["word " * 500], whole=lines, tokens=50)
    asked = server.asked
    room.truncate(["word " * 500], whole=lines, tokens=50)
    assert server.asked == asked  # counted on both sides of the cut: it is known


@pytest.mark.parametrize("lost", [1, 3, 9, 100])
def test_a_count_that_failed_is_not_remembered(lost: int) -> None:
    """If it breaks, one request that a server loses leaves a record's member out of every later release."""
    server = Server(lost=lost)
    room = PromptBudget(server)
    for _ in range(2):
        first = room.truncate(["word " * 500], whole=lines, tokens=50)
        server.lost = 0
    assert "".join(first).split()
    assert room.truncate(["word " * 500], whole=lines, tokens=50) == PromptBudget(Counting()).truncate(
        ["word " * 500], whole=lines, tokens=50
    )


def test_no_text_is_kept() -> None:
    """If it breaks, a record that was forgotten is still in memory."""
    room = PromptBudget(Counting())
    room.truncate(["secret " * 200], whole=lines, tokens=50)
    assert "secret" not in repr(vars(room))
