"""Reconstruction with models that know the originals, copy, or talk of something else."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing, by_text

from langchain_dp.attacks import reconstruct
from langchain_dp.audit.report.results import reported_attacks
from langchain_dp.errors import InvalidParameter

TEXTS = ["The soup was cold today.", "Nurse Bram woke me gently.", "Great lamp, lovely colour!"]
RELEASED = ["The soup of Monday tree.", "Uncle Bram chair me river.", "Stone window seven moon!"]


def test_words_that_come_back_are_counted() -> None:
    """If it breaks, function words, repeats or words of other texts count as found."""
    known = dict(zip(RELEASED, TEXTS, strict=True))

    def oracle(prompt: str) -> str:
        return next(f" {text}\nmore" for seen, text in known.items() if f"Changed: {seen}\nOriginal:" in prompt)

    done = reconstruct(TEXTS, RELEASED, model=oracle)
    assert (done.rate, done.n) == (1.0, 11)  # soup cold today; nurse bram woke gently; great lamp lovely colour
    assert done.readable == done.settings["readable"] == pytest.approx(2 / 11)  # soup, bram
    assert done.baseline == 0.0
    assert done.texts[0] == (TEXTS[0], RELEASED[0], TEXTS[0])
    copied = reconstruct(TEXTS, RELEASED, model=lambda prompt: prompt.split("Changed: ")[-1].splitlines()[0])
    assert copied.rate == copied.readable
    empty = reconstruct(TEXTS, RELEASED, model=lambda prompt: "  ")
    assert (empty.rate, empty.interval[0]) == (0.0, 0.0)
    assert 0.5 < empty.interval[1] < 0.8  # three texts say little


def test_what_anybody_would_write_is_chance() -> None:
    """If it breaks, a model that always writes the same words seems to reconstruct."""
    done = reconstruct(TEXTS, RELEASED, model=lambda prompt: "The soup was great, nurse!")
    assert done.rate == pytest.approx(3 / 11)
    assert done.baseline == done.rate


def test_a_release_that_protects_nothing_is_no_guessing() -> None:
    """If it breaks, a report calls a model that reads every word back "no better than guessing"."""
    done = reconstruct(TEXTS * 6, TEXTS * 6, model=lambda prompt: prompt.split("Changed: ")[-1].splitlines()[0])
    assert (done.rate, done.readable) == (1.0, 1.0)
    [told] = reported_attacks([done])
    assert told.better


def test_the_model_sees_releases_and_public_pairs_only() -> None:
    """If it breaks, the attacker is shown what it is to find."""
    shown: list[str] = []

    def model(prompt: str) -> str:
        shown.append(prompt)
        return ""

    done = reconstruct(TEXTS, RELEASED, model=model, examples=[("a stone b", "a\nhouse b")], settings={"eta": 3.0})
    assert len(shown) == 3
    assert not any(word in prompt for prompt in shown for word in ("cold", "Nurse", "lamp"))
    assert all("Changed: a stone b\nOriginal: a house b\n\nChanged: " in prompt for prompt in shown)
    assert done.settings["eta"] == 3.0
    assert not any("soup" in text for text in (repr(done), str(done), str(done.to_dict())))
    assert "rewritten" in done.side_by_side()
    assert "cold" in done.side_by_side()


def test_a_port_writes_token_by_token_up_to_the_end_of_a_line() -> None:
    """If it breaks, an engine's texts are cut, run on, or mixed between members; or its caches keep private text."""
    said = {"soup of": "\nThe soup was cold.\nAnd more.", "Uncle Bram": "Nurse Bram woke me.", "Stone": None}
    engine = WordEngine(by_text(said), extra="\n".join(filter(None, said.values())))
    done = reconstruct(TEXTS, RELEASED, model=engine, max_new_tokens=12)
    assert [written for _, _, written in done.texts] == ["The soup was cold.", "Nurse Bram woke me.", ""]
    assert done.settings["model"] == engine.name
    assert not engine.cache
    assert len(engine.calls) < 12  # nobody is asked again after the end
    assert {decoding.temperature for decoding in engine.decodings} == {0.0}
    short = reconstruct(TEXTS, RELEASED, model=WordEngine(agreeing("Read the review.")), max_new_tokens=2)
    assert short.texts[0][2] == "Read the"
    many = reconstruct(TEXTS * 5, RELEASED * 5, model=WordEngine(agreeing("Read the review.")))
    assert [written for _, _, written in many.texts] == ["Read the review."] * 15


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"released": RELEASED[:2]}, "one text for each of 3"),
        ({"texts": []}, "at least 1"),
        ({"texts": ["the of and"] * 3}, "no function word"),
        ({"texts": "one"}, "list of str"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], says: str) -> None:
    """If it breaks, texts and releases are paired wrongly, or a share of nothing is reported."""
    given: dict[str, Any] = {"texts": TEXTS, "released": RELEASED, "model": lambda prompt: "", **change}
    with pytest.raises(InvalidParameter, match=says):
        reconstruct(given.pop("texts"), given.pop("released"), **given)
