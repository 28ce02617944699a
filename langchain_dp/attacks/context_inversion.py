"""Contextual inversion: a masked language model guesses a word from the released text around it.

After the mask-token inference attack of Yue et al. 2021, "Differential privacy for text analytics via natural text
sanitization". Here the model's guess is weighed against the released word itself, so that the attacker uses both, and
further rounds read the guesses of the round before. The model never sees the true words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from langchain_dp._util import validate
from langchain_dp.attacks import checks
from langchain_dp.attacks.embedding_inversion import InversionResult, word_channel, words_guessed
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness
from langchain_dp.rapt.posterior import Channel, Floats, Ids, LaplaceChannel, UnigramPrior, known_words, likeliest
from langchain_dp.rapt.privatize import Mechanism, TextPrivatizer
from langchain_dp.rapt.vocabulary import Vocabulary


@runtime_checkable
class PredictsMasked(Protocol):
    """A masked language model over the ids of a vocabulary.

    Examples:
        >>> model: PredictsMasked = NeighborsMasked(vocabulary, public_texts)
        >>> model.log_probabilities(ids, [1]).shape  # (1, words of the vocabulary)
    """

    @property
    def name(self) -> str:
        """Name of the model, for reports."""
        ...

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> npt.ArrayLike:
        """Return the log-probability of every word of the vocabulary at each place when that place alone is masked.

        Args:
            ids: A text, without marks of its beginning and end.
            places: Places in it.

        Returns:
            One row per place, one column per word of the vocabulary.
        """
        ...


class TransformersMasked:
    """A masked language model of the package transformers, whose tokens are the words of the vocabulary.

    Args:
        model: The model with its head, for example from ``AutoModelForMaskedLM``.
        mask: Id that masks a place.
        before: Ids that begin every text, such as that of ``[CLS]``.
        after: Ids that end every text, such as that of ``[SEP]``.
        name: Name for reports.
        batch: Masked copies of a text per batch.
        longest: Most ids of a text around a place; the rest is cut.

    Raises:
        InvalidParameter: A bound is not met, or ``model`` is no model.

    Examples:
        >>> model = AutoModelForMaskedLM.from_pretrained(folder)
        >>> ends = {"before": [tokenizer.cls_token_id], "after": [tokenizer.sep_token_id]}
        >>> masked = TransformersMasked(model, mask=tokenizer.mask_token_id, **ends)
        >>> invert_in_context(texts, vocabulary=vocabulary, eta=4.0, model=masked, prior=prior)
    """

    def __init__(
        self,
        model: Any,
        *,
        mask: int,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        name: str = "masked language model",
        batch: int = 16,
        longest: int = 254,
    ) -> None:
        if not hasattr(model, "eval"):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to be a masked model of the package transformers. Load "
                "it with AutoModelForMaskedLM.from_pretrained."
            )
        self.name = name
        self._model = model.eval()
        self._mask = validate.integer("mask", mask, at_least=0)
        self._before, self._after = list(before), list(after)
        self._batch = validate.integer("batch", batch, at_least=1)
        self._longest = validate.integer("longest", longest, at_least=1)

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> npt.ArrayLike:
        """See :class:`PredictsMasked`."""
        import torch

        blocks = []
        for start in range(0, len(places), self._batch):
            lines, at = [], []
            for place in places[start : start + self._batch]:
                first = max(0, min(place - self._longest // 2, len(ids) - self._longest))
                line = list(ids[first : first + self._longest])
                line[place - first] = self._mask
                lines.append([*self._before, *line, *self._after])
                at.append(len(self._before) + place - first)
            with torch.inference_mode():
                logits = self._model(input_ids=torch.tensor(lines)).logits
                rows = logits[torch.arange(len(at)), torch.tensor(at)].float().log_softmax(dim=-1)
            blocks.append(rows.numpy())
        return np.concatenate(blocks)


class NeighborsMasked:
    """A ``PredictsMasked`` that guesses a word from the word before and the word after.

    The chance of x between l and r is proportional to P(x | l) P(r | x), each the share in the texts mixed with the
    plain frequencies as if these had been seen ``strength`` times (a Dirichlet prior). It replaces a masked model,
    which reads more than two neighbors and guesses better.

    Args:
        vocabulary: Public table.
        texts: PUBLIC texts like those to attack.
        strength: Weight of the plain frequencies, above 0.

    Raises:
        InvalidParameter: The texts hold no two neighboring words of the table, or ``strength`` is out of bounds.

    Examples:
        >>> model = NeighborsMasked(vocabulary, public_texts)
        >>> invert_in_context(texts, vocabulary=vocabulary, eta=4.0, model=model, prior=prior)
    """

    name = "neighbours in public texts"

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str], *, strength: float = 20.0) -> None:
        checks.table(vocabulary)
        self._strength = validate.number("strength", strength, above=0.0)
        size = len(vocabulary)
        lines = [known_words(vocabulary, [text]) for text in checks.texts("texts", texts)]
        before = np.concatenate([line[:-1] for line in lines])
        after = np.concatenate([line[1:] for line in lines])
        if not len(before):
            raise InvalidParameter("Expected texts to hold two neighbouring words of the table, got none. Give more.")
        # Every allowed word has some chance, however rare: half a count.
        self._plain = np.bincount(np.concatenate(lines), minlength=size) + 0.5 * vocabulary.allowed
        self._plain /= self._plain.sum()
        pairs, counts = np.unique(before * size + after, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._before, self._after = pairs // size, pairs % size
        self._by_after = np.argsort(self._after, kind="stable")
        self._followed = np.bincount(before, minlength=size).astype(np.float64)

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> Floats:
        """Return the log-probability of every word at each place; -inf for a word that is never written."""
        table = np.empty((len(places), len(self._plain)))
        for row, place in enumerate(places):
            left = ids[place - 1] if place else None
            right = ids[place + 1] if place + 1 < len(ids) else None
            weight = self._follows(left) * self._precedes(right)
            with np.errstate(divide="ignore"):
                table[row] = np.log(weight / weight.sum())
        return table

    def _follows(self, left: int | None) -> Floats:
        """Return P(x | left) for every x."""
        if left is None:
            return self._plain
        weight = self._strength * self._plain
        some = slice(*np.searchsorted(self._before, [left, left + 1]))
        weight[self._after[some]] += self._counts[some]
        return np.asarray(weight / (self._followed[left] + self._strength))

    def _precedes(self, right: int | None) -> Floats:
        """Return P(right | x) for every x."""
        if right is None:
            return np.ones_like(self._plain)
        weight = np.full_like(self._plain, self._strength * self._plain[right])
        ends = np.searchsorted(self._after[self._by_after], [right, right + 1])
        some = self._by_after[ends[0] : ends[1]]
        weight[self._before[some]] += self._counts[some]
        return np.asarray(weight / (self._followed + self._strength))


def invert_in_context(
    texts: Sequence[str],
    *,
    vocabulary: Vocabulary,
    eta: float,
    model: PredictsMasked,
    prior: UnigramPrior,
    mechanism: Mechanism = "laplace",
    weight: float = 0.5,
    see_word: bool = True,
    rounds: int = 1,
    draws: int = 5_000,
    rng: Randomness | None = None,
    name: str | None = None,
) -> InversionResult:
    """Release the words of texts and guess them back from the released words and the context.

    Args:
        texts: Texts to attack. Words outside the table are left out.
        vocabulary: Public table; its ids are the model's.
        eta: Privacy loss per unit of distance and word.
        model: Masked language model; its context is the released words around.
        prior: Frequencies of words, which also define the candidates.
        mechanism: "laplace" or "exponential".
        weight: Weight of the model's log-probability against the frequencies, in [0, 1]. A model that reads noise is
            too confident. 0 is the attack without context.
        see_word: Whether the released word itself counts. Otherwise only its neighbors do, as in Yue et al.
        rounds: How often all places are guessed; from the second round on, the context is the guesses.
        draws: As for :func:`invert_words`.
        rng: Source of the mechanism's noise; operating-system entropy by default.
        name: Name of the result; the mechanism by default.

    Returns:
        The rate with a Clopper-Pearson interval: of the guesses or, if these are worse and the word is seen, of the
        released words themselves. ``settings["without_context"]`` is the rate of :func:`invert_words` on the same
        releases.

    Raises:
        InvalidParameter: A value is out of bounds, an object is not of its type, the texts hold no word of the table,
            or the model's rows do not fit it.

    Examples:
        >>> model = NeighborsMasked(vocabulary, public_texts)
        >>> prior = unigram_prior(vocabulary, public_texts)
        >>> found = invert_in_context(texts, vocabulary=vocabulary, eta=4.0, model=model, prior=prior)
        >>> found.rate, found.settings["without_context"]
    """
    validate.one_of("mechanism", mechanism, get_args(Mechanism))
    validate.number("weight", weight, at_least=0.0, at_most=1.0)
    validate.integer("rounds", rounds, at_least=1)
    checks.frequencies(prior, checks.table(vocabulary))
    if not isinstance(model, PredictsMasked):
        raise InvalidParameter(
            f"Expected model of type {type(model).__name__} to predict masked words. Give TransformersMasked(...) or "
            "NeighborsMasked(vocabulary, texts)."
        )
    lines = [line for text in checks.texts("texts", texts) if len(line := known_words(vocabulary, [text]))]
    if not lines:
        raise InvalidParameter("Expected texts to hold a word of the table, got none. Use the table of their language.")
    true = np.concatenate(lines)
    source = rng or SystemRandomness()
    released = TextPrivatizer(vocabulary, eta, mechanism=mechanism, rng=source).release(true)
    prior = prior.including(released, vocabulary)
    channel = word_channel(vocabulary, prior, eta, mechanism, draws)
    alone = likeliest(channel, prior, released)
    ends = np.cumsum([len(line) for line in lines])
    weighed = channel.to_weigh() if isinstance(channel, LaplaceChannel) else channel
    attack = _Context(vocabulary, weighed, prior, model, weight, see_word, rounds)
    guesses = np.concatenate([attack.guess(line) for line in np.split(released, ends[:-1])])
    # An attacker who sees the released word can also take it unchanged.
    tried = {"context": guesses, "nearest": released} if see_word else {"context": guesses}
    without = max(float((guess == true).mean()) for guess in (alone, released))
    return words_guessed(
        name or f"inversion in context ({mechanism})",
        vocabulary,
        true,
        released,
        tried,
        prior,
        eta=float(eta),
        mechanism=mechanism,
        model=model.name,
        weight=float(weight),
        see_word=see_word,
        rounds=rounds,
        without_context=without,
    )


@dataclasses.dataclass(frozen=True)
class _Context:
    vocabulary: Vocabulary
    channel: Channel
    prior: UnigramPrior
    model: PredictsMasked
    weight: float
    see_word: bool
    rounds: int

    def guess(self, released: Ids) -> Ids:
        """Return the words of one text."""
        score = (1 - self.weight) * self.prior.log
        seen = self.channel.log_likelihood(released) if self.see_word else np.zeros((len(released), len(score)))
        context = released
        for _ in range(self.rounds):
            total = seen + score
            if self.weight:
                total = total + self.weight * self._read(context)
            context = np.asarray(self.prior.ids[total.argmax(axis=1)])
        return context

    def _read(self, context: Ids) -> Floats:
        figures = self.model.log_probabilities(context.tolist(), range(len(context)))
        rows = validate.numbers("what model returned", figures)
        if rows.shape != (len(context), len(self.vocabulary)) or np.isnan(rows).any():
            raise InvalidParameter(
                f"Expected model {self.model.name!r} to give {len(context)} rows of {len(self.vocabulary)} numbers, "
                f"but it gave an array of shape {rows.shape}. Use the model that belongs to the table."
            )
        return np.maximum(rows[:, self.prior.ids], -1e4)
