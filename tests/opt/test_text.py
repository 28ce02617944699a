"""What released tokens spell, and where a candidate begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fakes.next_token import WordEngine

from langchain_dp.opt.text import Text
from langchain_dp.ports import Decoding


def text(engine: WordEngine | None = None, stop: Sequence[str] = ("\n",), **decoding: Any) -> Text:
    return Text(engine or WordEngine(), Decoding(**decoding), stop)


def test_an_instruction_ends_before_the_first_stop_string() -> None:
    """If it breaks, what follows the instruction is handed over with it."""
    engine = WordEngine()
    for said, left in [
        ("Say yes.\nInput: Read", "Say yes."),
        ("\n\nSay yes.\n", "Say yes."),
        ("Say yes", "Say yes"),
        ("\n\n", ""),
    ]:
        tokens = engine.tokenize(said)
        assert text(engine).instruction(tokens) == left
        assert text(engine).stops(tokens) == ("\n" in said.lstrip())
    both = text(engine, ["Input", "\n"])
    assert both.instruction(engine.tokenize(["Say", "Input", "\n"])) == "Say"
    assert text(engine, ()).instruction(engine.tokenize("Say\n\nRead")) == "Say\n\nRead"


def test_half_a_letter_at_the_end_is_cut() -> None:
    """If it breaks, an instruction ends in a replacement character."""
    assert text().instruction([*WordEngine().tokenize("Say"), 2]) == "Say"
    assert text().instruction([*WordEngine().tokenize("Say"), 2, 3]) == "Say\u00e9"


def test_a_candidate_does_not_begin_with_its_end() -> None:
    """If it breaks, models that begin on a new line write nothing; or a banned token comes back in mid-sentence."""
    engine = WordEngine()
    opening = text(engine, ["#", "or"], banned=frozenset({9}))
    first, then = opening.decoding([]), opening.decoding([5])
    assert then.banned == {9}
    for token in range(4, engine.vocabulary_size):
        spelt = engine.detokenize([token])
        assert (token in first.banned) == ("\n" in spelt or "#" in spelt or "or" in spelt or token == 9)
    assert not first.banned & engine.end_tokens
    assert opening.decoding([]) is first
