"""Attribute inference: who wrote a text, guessed from a vector of it by a small network that was trained on others.

After Li, Tan, Liu 2023, section 4.2 and appendix A.3.1: a perceptron of two layers with 768 hidden units and ReLU, on
mean token embeddings or on contextual representations. The attacker trains on texts whose attribute it knows,
privatised as the attacked ones are, which is stronger than training on plain ones.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util import validate
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks import _given
from langchain_dp.attacks._representations import SentenceEmbeddings, mean_embeddings
from langchain_dp.attacks._result import AttackResult, Setting
from langchain_dp.errors import InvalidParameter, MissingExtra

__all__ = ["AttributeResult", "SentenceEmbeddings", "infer_attribute", "mean_embeddings"]

_LEAST = 10
_BATCH = 64
_PATIENCE = 200  # steps without a gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttributeResult(AttackResult):
    """How often an attribute was guessed.

    Args:
        by_class: Share guessed of each class that the attacked texts hold.
        guesses: The guesses, in the order of the attacked texts. Private.
    """

    by_class: dict[str, float]
    guesses: tuple[str, ...] = dataclasses.field(repr=False)


def infer_attribute(
    train: npt.ArrayLike,
    train_classes: Sequence[Hashable],
    test: npt.ArrayLike,
    test_classes: Sequence[Hashable],
    *,
    attribute: str = "attribute",
    hidden: int = 768,
    networks: int = 3,
    steps: int = 2_000,
    seed: int = 0,
    settings: dict[str, Setting] | None = None,
) -> AttributeResult:
    """Train networks on texts of known class, and guess the class of others.

    Args:
        train: Vectors of the texts that the attacker knows, (m, d); see :func:`mean_embeddings` and
            :class:`SentenceEmbeddings`. Scaled to unit variance here.
        train_classes: Their classes.
        test: Vectors of the attacked texts, (k, d).
        test_classes: Their classes.
        attribute: What is guessed, for the name of the result.
        hidden: Hidden units.
        networks: Networks that are trained from different starts; their chances are averaged.
        steps: Most steps of training, of 64 texts each. A tenth of the texts is held back, and training ends when the
            guesses on them no longer improve.
        seed: Of the attacker's training.
        settings: Public facts to keep with the result, such as eta.

    Returns:
        The share of right guesses, with a Clopper-Pearson interval over the attacked texts for the trained networks.
        The baseline always guesses the most frequent class of ``train_classes``.

    Raises:
        InvalidParameter: Shapes do not fit, a vector is not finite, there are fewer than 10 texts on a side, or fewer
            than two classes.
        MissingExtra: scikit-learn is not installed.
    """
    validate.integer("hidden", hidden, at_least=1)
    validate.integer("networks", networks, at_least=1)
    validate.integer("steps", steps, at_least=1)
    known, theirs = _vectors("train", train, train_classes), _vectors("test", test, test_classes)
    if known.shape[1] != theirs.shape[1]:
        raise InvalidParameter(
            f"Expected train and test to hold vectors of one length, got {known.shape[1]} and {theirs.shape[1]}. Use "
            "one representation for both."
        )
    labels, truth = [str(label) for label in train_classes], [str(label) for label in test_classes]
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise InvalidParameter(f"Expected train_classes to hold at least two classes, got {len(classes)}.")
    mean, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0
    chances = _chances((known - mean) / spread, labels, (theirs - mean) / spread, hidden, networks, steps, seed)
    guesses = [classes[place] for place in chances.argmax(axis=1)]
    right = np.array([guess == label for guess, label in zip(guesses, truth, strict=True)])
    usual = max(classes, key=labels.count)
    return AttributeResult(
        name=f"attribute inference ({attribute})",
        rate=float(right.mean()),
        interval=clopper_pearson(int(right.sum()), len(right)),
        baseline=truth.count(usual) / len(truth),
        n=len(right),
        measure="texts guessed",
        interval_method="Clopper-Pearson over texts",
        settings={"classes": len(classes), "known_texts": len(labels), "networks": networks, **(settings or {})},
        by_class={name: float(right[[label == name for label in truth]].mean()) for name in sorted(set(truth))},
        guesses=tuple(guesses),
    )


def _vectors(name: str, given: npt.ArrayLike, classes: Sequence[Hashable]) -> npt.NDArray[np.float64]:
    vectors = _given.numbers(name, given)
    if vectors.ndim != 2 or len(vectors) != len(classes):
        raise InvalidParameter(
            f"Expected {name} to hold one vector for each of {len(classes)} classes, got an array of shape "
            f"{vectors.shape}."
        )
    if len(vectors) < _LEAST:
        raise InvalidParameter(f"Expected {name} to hold at least {_LEAST} texts, got {len(vectors)}. Give more.")
    if not np.isfinite(vectors).all():
        raise InvalidParameter(f"Expected {name} to be finite, but some numbers are NaN or infinite.")
    return vectors


def _chances(
    known: npt.NDArray[np.float64],
    labels: list[str],
    theirs: npt.NDArray[np.float64],
    hidden: int,
    networks: int,
    steps: int,
    seed: int,
) -> npt.NDArray[np.float64]:
    """Mean chance of each class, by sorted name, over the networks."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
    except ImportError:
        raise MissingExtra(
            "Expected the package scikit-learn to train the attacker. Install it with: "
            "pip install 'langchain-dp[attacks]'."
        ) from None
    # What is held back keeps the shares of the classes, for which each needs some texts.
    early = min(labels.count(name) for name in set(labels)) >= _LEAST and len(labels) >= 10 * len(set(labels))
    used = math.floor(0.9 * len(labels)) if early else len(labels)
    per_pass = math.ceil(used / _BATCH)
    total = np.zeros((len(theirs), len(set(labels))))
    for number in range(networks):
        network: Any = MLPClassifier(
            (hidden,),
            alpha=1e-3,
            batch_size=min(_BATCH, used),
            max_iter=math.ceil(steps / per_pass),
            early_stopping=early,
            n_iter_no_change=max(8, math.ceil(_PATIENCE / per_pass)),
            random_state=seed + number,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of steps is the caller's choice
            network.fit(known.astype(np.float32), labels)
        total += network.predict_proba(theirs.astype(np.float32))
    return np.asarray(total / networks)
