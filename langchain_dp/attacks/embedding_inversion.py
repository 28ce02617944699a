"""Embedding inversion: guess a word from the output of a metric mechanism (Song and Raghunathan 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from langchain_dp._util import validate
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks import checks
from langchain_dp.attacks.result import AttackResult
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import ROWS
from langchain_dp.mechanisms.metric_noise import checked_eta, noise
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness
from langchain_dp.rapt.posterior import (
    Channel,
    ExponentialChannel,
    Ids,
    LaplaceChannel,
    UnigramPrior,
    VectorChannel,
    known_words,
    likeliest,
)
from langchain_dp.rapt.privatize import Mechanism, TextPrivatizer
from langchain_dp.rapt.vocabulary import Vocabulary

__all__ = ["InversionResult", "UnigramPrior", "invert_vectors", "invert_words", "unigram_prior"]

_DRAWS = 5_000
_INTERVAL = "Clopper-Pearson over words"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InversionResult(AttackResult):
    """Success of guessing words. PRIVATE inside: ``side_by_side`` shows the words, ``repr`` and ``str`` do not.

    Args:
        replaced: Share of words released as another word, or, for vectors, nearer to another.
        words: (true word, released word, guess) per word. Private.

    Examples:
        >>> found = invert_words(texts, vocabulary=vocabulary, eta=4.0)
        >>> found.rate, found.replaced
    """

    replaced: float
    words: tuple[tuple[str, str, str], ...] = dataclasses.field(repr=False)

    def side_by_side(self, count: int = 20) -> str:
        """Return words, releases and guesses in columns. PRIVATE."""
        rows = [("stood there", "came out", "guess"), *self.words[:count]]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)


def unigram_prior(vocabulary: Vocabulary, texts: Sequence[str]) -> UnigramPrior:
    """Return word frequencies in PUBLIC ``texts`` like the private ones.

    Unseen words share the frequency of words seen once (Good 1953), evenly. The attacker guesses one only if it is
    released. ``vocabulary`` is a public table from :func:`langchain_dp.rapt.load`.

    Examples:
        >>> prior = unigram_prior(load("glove"), public_texts)
        >>> invert_words(texts, vocabulary=load("glove"), eta=4.0, prior=prior)
    """
    known = _attacked(texts, vocabulary)
    counts = np.bincount(known)
    # If no word occurs once, the next running word may still be a new one.
    unseen = max(int((counts == 1).sum()), 1) / (len(known) + 1)
    ids = np.flatnonzero(counts)
    return UnigramPrior(ids, np.log(counts[ids] / counts.sum()), unseen)


def invert_words(
    texts: Sequence[str],
    *,
    vocabulary: Vocabulary,
    eta: float,
    mechanism: Mechanism = "laplace",
    prior: UnigramPrior | None = None,
    draws: int = _DRAWS,
    rng: Randomness | None = None,
    name: str | None = None,
) -> InversionResult:
    """Release the words of texts and guess them back.

    Args:
        texts: Texts to attack. Words outside the table are left out.
        vocabulary: Public table, from :func:`langchain_dp.rapt.load`.
        eta: Privacy loss per unit of distance and word.
        mechanism: "laplace" or "exponential".
        prior: From :func:`unigram_prior`: guess the likeliest word, simulated for "laplace". None: guess the released
            word.
        draws: Simulated releases.
        rng: Source of the noise.
        name: Name of the result.

    Returns:
        The rate of the better attacker (``settings["better"]``), with a Clopper-Pearson interval for both together. The
        baseline always guesses the most frequent word of the prior, or of the texts.

    Examples:
        >>> prior = unigram_prior(vocabulary, public_texts)
        >>> found = invert_words(texts, vocabulary=vocabulary, eta=4.0, mechanism="exponential", prior=prior)
        >>> found.rate, found.interval, found.baseline  # share of words guessed; without the release
    """
    validate.one_of("mechanism", mechanism, get_args(Mechanism))
    true = _attacked(texts, vocabulary)
    released = TextPrivatizer(vocabulary, eta, mechanism=mechanism, rng=rng or SystemRandomness()).release(true)
    guesses = {"nearest": released}
    if prior is not None:
        prior = checks.frequencies(prior, vocabulary).including(released, vocabulary)
        guesses = {"map": likeliest(word_channel(vocabulary, prior, eta, mechanism, draws), prior, released), **guesses}
    attacker = next(iter(guesses))
    name = name or f"inversion, words ({mechanism}, {attacker})"
    settings = {"eta": float(eta), "mechanism": mechanism, "attacker": attacker}
    return words_guessed(name, vocabulary, true, released, guesses, prior, **settings)


def invert_vectors(
    texts: Sequence[str],
    *,
    vocabulary: Vocabulary,
    eta: float,
    prior: UnigramPrior | None = None,
    rng: Randomness | None = None,
    name: str | None = None,
) -> InversionResult:
    """Add noise to the words' vectors and guess them back from the noisy vectors, which the sanitizer never releases.

    Exact inversion succeeds far more often than the share of replaced words suggests. ``texts``, ``vocabulary``,
    ``eta``,
    ``prior``, ``rng``, ``name`` and the result are as for :func:`invert_words`, and the likeliest word is exact.

    Examples:
        >>> found = invert_vectors(texts, vocabulary=vocabulary, eta=4.0, prior=unigram_prior(vocabulary, public_texts))
        >>> found.rate, found.replaced
    """
    eta = checked_eta(eta)
    true = _attacked(texts, vocabulary)
    if prior is not None:
        checks.frequencies(prior, vocabulary)
    source = rng or SystemRandomness()
    nearest = np.empty_like(true)
    guesses = {"nearest": nearest} if prior is None else {"map": np.empty_like(true), "nearest": nearest}
    for start in range(0, len(true), ROWS):
        block = slice(start, start + ROWS)
        noisy = vocabulary.points(true[block])
        noisy += noise(len(noisy), vocabulary.dimension, eta, source)
        nearest[block] = vocabulary.table.find(noisy)
        if prior is not None:
            known = prior.including(nearest[block], vocabulary)
            guesses["map"][block] = likeliest(VectorChannel(vocabulary, known, eta), known, noisy)
    attacker = next(iter(guesses))
    name = name or f"inversion, noisy vectors ({attacker})"
    settings = {"eta": eta, "mechanism": "laplace", "attacker": attacker}
    return words_guessed(name, vocabulary, true, nearest, guesses, prior, **settings)


def word_channel(
    vocabulary: Vocabulary, prior: UnigramPrior, eta: float, mechanism: Mechanism, draws: int = _DRAWS
) -> Channel:
    validate.integer("draws", draws, at_least=0)
    if mechanism == "exponential":
        return ExponentialChannel(vocabulary, prior, eta)
    return LaplaceChannel(vocabulary, prior, eta, draws)


def _attacked(texts: Sequence[str], vocabulary: Vocabulary) -> Ids:
    ids = known_words(checks.table(vocabulary), checks.texts("texts", texts))
    if not len(ids):
        raise InvalidParameter("Expected texts to hold a word of the table, got none. Use the table of their language.")
    return ids


def words_guessed(
    name: str,
    vocabulary: Vocabulary,
    true: Ids,
    released: Ids,
    guesses: Mapping[str, Ids],
    prior: UnigramPrior | None,
    **settings: Any,
) -> InversionResult:
    hits = {attacker: int((guessed == true).sum()) for attacker, guessed in guesses.items()}
    better = max(hits, key=hits.__getitem__)
    commonest = int(np.bincount(true).argmax()) if prior is None else prior.likeliest
    replaced = float((released != true).mean())
    words = vocabulary.words
    return InversionResult(
        name=name,
        rate=hits[better] / len(true),
        interval=clopper_pearson(hits[better], len(true), error=0.05 / len(guesses)),
        baseline=float((true == commonest).mean()),
        n=len(true),
        measure="words guessed",
        interval_method=_INTERVAL if len(guesses) == 1 else f"{_INTERVAL}, {len(guesses)} together",
        settings={
            "table": vocabulary.name,
            **settings,
            "better": better,
            "replaced": replaced,
            "candidates": len(vocabulary) if prior is None else len(prior.ids),
        },
        replaced=replaced,
        words=tuple((words[a], words[b], words[c]) for a, b, c in zip(true, released, guesses[better], strict=True)),
    )
