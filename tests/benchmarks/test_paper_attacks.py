"""Attacks of the papers where the answer is known: context, attributes, reconstruction."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from fakes import vocabularies
from fakes.next_token import WordEngine, agreeing, by_text

sys.path.insert(0, str(Path(__file__).parent))
from attribute_inference import infer_attribute, mean_embeddings
from context_inversion import NeighborsMasked, invert_in_context
from reconstruction import reconstruct

from langchain_dp.attacks import invert_words, unigram_prior
from langchain_dp.audit.report.results import reported_attacks
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.rapt import Vocabulary
from langchain_dp.rapt.posterior import known_words

SMALL = vocabularies.small()
TEXTS = ["the doctor and the nurse was at the house.", "the dog, the cat and the bird in the garden of paris!"] * 15
PRIOR = unigram_prior(SMALL, TEXTS)


class After:
    """Knows which word follows which. Keeps what it was shown."""

    name = "after"

    def __init__(self) -> None:
        self.shown: list[int] = []
        self._counts = np.full((len(SMALL) + 1, len(SMALL)), 0.01)
        for text in TEXTS:
            ids = known_words(SMALL, [text])
            for before, after in zip([-1, *ids[:-1]], ids, strict=True):
                self._counts[before, after] += 1

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> np.ndarray:
        self.shown += ids
        rows = self._counts[[ids[place - 1] if place else -1 for place in places]]
        return np.asarray(np.log(rows / rows.sum(axis=1, keepdims=True)))


def attack(model: Any, **changes: Any) -> Any:
    given = {"vocabulary": SMALL, "eta": 2.5, "prior": PRIOR, "mechanism": "exponential", **changes}
    return invert_in_context(TEXTS, model=model, rng=NotPrivateSeededRandomness(3), **given)


def test_without_weight_it_is_the_attack_without_context() -> None:
    """If it breaks, word and frequencies are weighed otherwise than by the posterior."""
    done = attack(After(), weight=0.0)
    alone = invert_words(
        TEXTS, vocabulary=SMALL, eta=2.5, prior=PRIOR, mechanism="exponential", rng=NotPrivateSeededRandomness(3)
    )
    assert done.words == alone.words
    assert done.settings["without_context"] == done.rate == alone.rate


@pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
def test_a_model_that_knows_the_language_guesses_more(mechanism: str) -> None:
    """If it breaks, the context does not count, is read at the wrong place, or holds the true words."""
    model = After()
    done = attack(model, weight=0.7, mechanism=mechanism)
    assert [SMALL.words[i] for i in model.shown] == [released for _, released, _ in done.words]
    assert done.interval[0] > done.settings["without_context"]
    assert attack(After(), weight=0.7, rounds=3, mechanism=mechanism).rate > done.rate


def test_the_counting_model_is_bayes_rule_over_its_counts() -> None:
    """If it breaks, the model guesses from wrong counts: compared with sums by hand."""
    model = NeighborsMasked(SMALL, TEXTS, strength=3.0)
    lines = [known_words(SMALL, [text]) for text in TEXTS]
    pairs = Counter((a, b) for line in lines for a, b in pairwise(line))
    followed = Counter(a for line in lines for a in line[:-1])
    plain = np.bincount(np.concatenate(lines), minlength=len(SMALL)) + 0.5
    plain = plain / plain.sum()

    def follows(x: int, left: int) -> float:
        return (pairs[left, x] + 3.0 * plain[x]) / (followed[left] + 3.0)

    ids = lines[1][:4].tolist()
    rows = np.exp(model.log_probabilities(ids, [0, 1, 3]))
    for row, (left, right) in zip(rows, ((None, ids[1]), (ids[0], ids[2]), (ids[2], None)), strict=True):
        weight = np.array(
            [
                (plain[x] if left is None else follows(x, left)) * (1 if right is None else follows(right, x))
                for x in range(len(SMALL))
            ]
        )
        assert row == pytest.approx(weight / weight.sum())
    done = attack(NeighborsMasked(SMALL, TEXTS), weight=0.7)
    assert done.interval[0] > done.settings["without_context"]
    table = Vocabulary(SMALL.words, SMALL.vectors, never=[SMALL.index["cancer"]])
    rows = NeighborsMasked(table, TEXTS).log_probabilities([0, 1], [0, 1])
    assert np.isneginf(rows[:, SMALL.index["cancer"]]).all()
    assert np.isfinite(rows).sum() == 2 * (len(SMALL) - 1)


def shifted(count: int, by: float, seed: int) -> tuple[np.ndarray, list[str]]:
    """Half of the texts lie ``by`` further along one direction."""
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % 2
    vectors = rng.normal(size=(count, 6))
    vectors[:, 2] += by * classes
    return vectors * 0.01 + 5, ["ab"[place] for place in classes]


def test_the_attacker_of_attributes_reaches_what_can_be_reached_and_no_more() -> None:
    """If it breaks, the network learns nothing, or is told the attacked texts' classes.

    Two normal classes 2.5 apart: nobody is right more often than Phi(1.25) = 0.894. The rate of 1,000 texts must lie
    between 0.83 and 0.937, six standard errors up to either side at most; without a shift, around one half.
    """
    best = NormalDist().cdf(1.25)
    done = infer_attribute(*shifted(600, 2.5, 0), *shifted(1000, 2.5, 1), hidden=64, attribute="kind")
    assert 0.83 < done.rate < best + 4.5 * (best * (1 - best) / 1000) ** 0.5
    assert done.baseline == 0.5
    assert np.mean(list(done.by_class.values())) == pytest.approx(done.rate)
    nothing = infer_attribute(*shifted(600, 0.0, 2), *shifted(1000, 0.0, 3), hidden=64, networks=1)
    assert 0.42 < nothing.rate < 0.58


def test_mean_embeddings_are_means_over_words() -> None:
    """If it breaks, the attacked vector is not that of the paper."""
    found = mean_embeddings(["the doctor zyzzyva", ""], SMALL)
    the, doctor = (SMALL.vectors[SMALL.index[word]].astype(float) for word in ("the", "doctor"))
    assert found[0] == pytest.approx((the + doctor + SMALL.unknown) / 3)
    assert found[1] == pytest.approx(SMALL.unknown)


ORIGINALS = ["The soup was cold today.", "Nurse Bram woke me gently.", "Great lamp, lovely colour!"]
RELEASED = ["The soup of Monday tree.", "Uncle Bram chair me river.", "Stone window seven moon!"]


def test_words_that_come_back_are_counted() -> None:
    """If it breaks, function words, repeats or words of other texts count as found, or chance is left out."""
    known = dict(zip(RELEASED, ORIGINALS, strict=True))

    def oracle(prompt: str) -> str:
        return next(f" {text}\nmore" for seen, text in known.items() if f"Changed: {seen}\nOriginal:" in prompt)

    done = reconstruct(ORIGINALS, RELEASED, model=oracle)
    assert (done.rate, done.n) == (1.0, 11)  # soup cold today; nurse bram woke gently; great lamp lovely colour
    assert done.readable == done.settings["readable"] == pytest.approx(2 / 11)  # soup, bram
    assert (done.baseline, done.texts[0]) == (0.0, (ORIGINALS[0], RELEASED[0], ORIGINALS[0]))
    anybody = reconstruct(ORIGINALS, RELEASED, model=lambda prompt: "The soup was great, nurse!")
    assert anybody.rate == anybody.baseline == pytest.approx(3 / 11)
    copied = reconstruct(ORIGINALS * 6, ORIGINALS * 6, model=lambda prompt: prompt.split("Changed: ")[-1])
    assert (copied.rate, copied.readable) == (1.0, 1.0)
    assert reported_attacks([copied])[0].better


def test_the_model_sees_releases_and_public_pairs_only() -> None:
    """If it breaks, the attacker is shown what it is to find."""
    shown: list[str] = []

    def model(prompt: str) -> str:
        shown.append(prompt)
        return ""

    done = reconstruct(ORIGINALS, RELEASED, model=model, examples=[("a stone b", "a\nhouse b")], settings={"eta": 3.0})
    assert not any(word in prompt for prompt in shown for word in ("cold", "Nurse", "lamp"))
    assert all("Changed: a stone b\nOriginal: a house b\n\nChanged: " in prompt for prompt in shown)
    assert done.settings["eta"] == 3.0


def test_a_port_writes_token_by_token_up_to_the_end_of_a_line() -> None:
    """If it breaks, an engine's texts are cut, run on, or mixed between members; or its caches keep private text."""
    said = {"soup of": "\nThe soup was cold.\nAnd more.", "Uncle Bram": "Nurse Bram woke me.", "Stone": None}
    engine = WordEngine(by_text(said), extra="\n".join(filter(None, said.values())))
    done = reconstruct(ORIGINALS, RELEASED, model=engine, max_new_tokens=12)
    assert [written for _, _, written in done.texts] == ["The soup was cold.", "Nurse Bram woke me.", ""]
    assert not engine.cache
    assert len(engine.calls) < 12  # nobody is asked again after the end
    many = reconstruct(ORIGINALS * 5, RELEASED * 5, model=WordEngine(agreeing("Read the review.")))
    assert [written for _, _, written in many.texts] == ["Read the review."] * 15
