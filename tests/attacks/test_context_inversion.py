"""Contextual inversion with models that know the text, know nothing, or are a small random transformer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fakes import vocabularies
from fakes.tiny_model import one_thread

from langchain_dp.attacks import (
    NeighborsMasked,
    PredictsMasked,
    TransformersMasked,
    invert_in_context,
    invert_words,
    unigram_prior,
)
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.rapt import Vocabulary
from langchain_dp.rapt.posterior import known_words

SMALL = vocabularies.small()
TEXTS = ["the doctor and the nurse was at the house.", "the dog, the cat and the bird in the garden of paris!"] * 15
PRIOR = unigram_prior(SMALL, TEXTS)


class After:
    """Knows which word follows which; silent where it knows nothing. Keeps what it was shown."""

    name = "after"

    def __init__(self, texts: Sequence[str]) -> None:
        self.shown: list[tuple[int, ...]] = []
        self._counts = np.full((len(SMALL) + 1, len(SMALL)), 0.01)
        for text in texts:
            ids = known_words(SMALL, [text])
            for before, after in zip([-1, *ids[:-1]], ids, strict=True):
                self._counts[before, after] += 1

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> np.ndarray:
        self.shown.append(tuple(ids))
        rows = self._counts[[ids[place - 1] if place else -1 for place in places]]
        return np.asarray(np.log(rows / rows.sum(axis=1, keepdims=True)))


def attack(model: Any, **changes: Any) -> Any:
    given = {"vocabulary": SMALL, "eta": 2.5, "prior": PRIOR, "mechanism": "exponential", **changes}
    return invert_in_context(TEXTS, model=model, rng=NotPrivateSeededRandomness(3), **given)


def test_without_weight_it_is_the_attack_without_context() -> None:
    """If it breaks, word and frequencies are weighed otherwise than by the posterior."""
    done = attack(After(TEXTS), weight=0.0)
    alone = invert_words(
        TEXTS, vocabulary=SMALL, eta=2.5, prior=PRIOR, mechanism="exponential", rng=NotPrivateSeededRandomness(3)
    )
    assert done.words == alone.words
    assert done.settings["without_context"] == done.rate == alone.rate


@pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
def test_a_model_that_knows_the_language_guesses_more(mechanism: str) -> None:
    """If it breaks, the context does not count, or is read at the wrong place."""
    model = After(TEXTS)
    assert isinstance(model, PredictsMasked)
    done = attack(model, weight=0.7, mechanism=mechanism)
    assert done.interval[0] > done.settings["without_context"]
    again = attack(After(TEXTS), weight=0.7, rounds=3, mechanism=mechanism)
    assert again.rate > done.rate


def test_the_model_sees_released_words_and_nothing_else() -> None:
    """If it breaks, the attacker is told what it is to guess."""
    model = After(TEXTS)
    done = attack(model, eta=0.2)
    shown = [i for ids in model.shown for i in ids]
    assert [SMALL.words[i] for i in shown] == [released for _, released, _ in done.words]
    assert len(model.shown) == len(TEXTS)
    assert "doctor" not in repr(done)


def test_the_released_word_can_be_left_out() -> None:
    """If it breaks, the mask-token attack of the literature cannot be run: it must not see the word itself."""
    blind = attack(After(TEXTS), eta=1e-6, see_word=False)
    seeing = attack(After(TEXTS), eta=1e-6, see_word=True)
    assert blind.words == seeing.words  # at such an eta a word says nothing
    clear = attack(After([TEXTS[1]]), eta=500.0, see_word=False)
    assert clear.rate < 1.0 == attack(After([TEXTS[1]]), eta=500.0).rate


def test_a_transformer_is_asked_once_for_every_place_with_that_place_masked() -> None:
    """If it breaks, batches, marks or windows put the mask or the answer at another place."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SMALL), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertForMaskedLM(config)
    ids = known_words(SMALL, [TEXTS[1]]).tolist()
    with one_thread():
        masked = TransformersMasked(model, mask=0, before=[1], after=[2], batch=4)
        rows = np.asarray(masked.log_probabilities(ids, range(len(ids))))
        for place in range(len(ids)):
            line = [1, *ids, 2]
            line[place + 1] = 0
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([line])).logits[0, place + 1]
            assert rows[place] == pytest.approx(logits.log_softmax(dim=-1).numpy(), abs=1e-5)
        short = TransformersMasked(model, mask=0, longest=5)
        cut = np.asarray(short.log_probabilities(ids, [0, 6, len(ids) - 1]))
        for row, (line, place) in zip(cut, ((ids[:5], 0), (ids[4:9], 2), (ids[-5:], 4)), strict=True):
            line = list(line)
            line[place] = 0
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([line])).logits[0, place]
            assert row == pytest.approx(logits.log_softmax(dim=-1).numpy(), abs=1e-5)
        done = attack(masked, weight=0.5)
    assert done.settings["model"] == "masked language model"


def test_the_counting_model_is_bayes_rule_over_its_counts() -> None:
    """If it breaks, the model that needs no download guesses from wrong counts: compared with sums by hand."""
    model = NeighborsMasked(SMALL, TEXTS, strength=3.0)
    assert isinstance(model, PredictsMasked)
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
    with pytest.raises(InvalidParameter, match="two neighbouring"):
        NeighborsMasked(SMALL, ["the", "zyzzyva"])


def test_words_that_are_never_written_have_no_chance() -> None:
    """If it breaks, a special token is guessed, or its logarithm of 0 makes every guess a NaN."""
    table = Vocabulary(SMALL.words, SMALL.vectors, never=[SMALL.index["cancer"]])
    rows = NeighborsMasked(table, TEXTS).log_probabilities([0, 1], [0, 1])
    assert np.isneginf(rows[:, SMALL.index["cancer"]]).all()
    assert np.isfinite(rows).sum() == 2 * (len(SMALL) - 1)


class Wrong:
    name = "wrong"

    def __init__(self, columns: int, value: float = 0.0) -> None:
        self._columns, self._value = columns, value

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> np.ndarray:
        return np.full((len(places), self._columns), self._value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight": 1.5}, "weight"),
        ({"rounds": 0}, "rounds"),
        ({"mechanism": "gauss"}, "mechanism"),
        ({"model": Wrong(3)}, "belongs to the table"),
        ({"model": Wrong(len(SMALL), float("nan"))}, "belongs to the table"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], says: str) -> None:
    """If it breaks, a model of another table gives guesses without meaning, or an error about shapes."""
    with pytest.raises(InvalidParameter, match=says):
        attack(**{"model": After(TEXTS), **change})
    with pytest.raises(InvalidParameter, match="word of the table"):
        invert_in_context(["zyzzyva"], vocabulary=SMALL, eta=1.0, prior=PRIOR, model=After(TEXTS))
