"""Attribute inference: the author's attribute, guessed from a vector of a text by a small network.

After Li, Tan, Liu 2023, section 4.2 and appendix A.3.1: a perceptron of two layers with 768 hidden units and ReLU, on
mean token embeddings or on contextual representations. The attacker trains on texts with known attributes, privatized
like the attacked ones, which is stronger than training on plain ones.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks.result import AttackResult, Floats, Setting
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.vocabulary import Vocabulary

_LEAST = 10
_BATCH = 64
_PATIENCE = 200  # steps without a gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttributeResult(AttackResult):
    """How often an attribute was guessed; ``by_class`` is the share of each class in the attacked texts."""

    by_class: dict[str, float]


def infer_attribute(
    train: npt.ArrayLike,
    train_classes: Sequence[Any],
    test: npt.ArrayLike,
    test_classes: Sequence[Any],
    *,
    attribute: str = "attribute",
    hidden: int = 768,
    networks: int = 3,
    steps: int = 2_000,
    settings: dict[str, Setting] | None = None,
) -> AttributeResult:
    """Train networks on texts of known class, and guess the class of others.

    The chances of the networks are averaged. Training ends early when guesses on a held-out tenth stop improving. The
    interval is Clopper-Pearson's over the attacked texts; the baseline guesses the most frequent class of
    ``train_classes``.
    """
    known, theirs = np.asarray(train, dtype=float), np.asarray(test, dtype=float)
    labels, truth = list(map(str, train_classes)), list(map(str, test_classes))
    classes = sorted(set(labels))
    mean, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0
    chances = _chances((known - mean) / spread, labels, (theirs - mean) / spread, hidden, networks, steps)
    right = np.array([classes[at] == label for at, label in zip(chances.argmax(axis=1), truth, strict=True)])
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
    )


def _chances(known: Floats, labels: list[str], theirs: Floats, hidden: int, networks: int, steps: int) -> Floats:
    """Return the mean chance of each class, by sorted name, over the networks."""
    # The held-out texts keep the shares of the classes, so each class needs some texts.
    early = min(labels.count(name) for name in set(labels)) >= _LEAST and len(labels) >= 10 * len(set(labels))
    used = math.floor(0.9 * len(labels)) if early else len(labels)
    per_pass = math.ceil(used / _BATCH)
    total = np.zeros((len(theirs), len(set(labels))))
    for number in range(networks):
        network = MLPClassifier(
            (hidden,), alpha=1e-3, batch_size=min(_BATCH, used), max_iter=math.ceil(steps / per_pass),
            early_stopping=early, n_iter_no_change=max(8, math.ceil(_PATIENCE / per_pass)), random_state=number,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of steps is the caller's choice
            network.fit(known.astype(np.float32), labels)
        total += network.predict_proba(theirs.astype(np.float32))
    return np.asarray(total / networks)


def mean_embeddings(texts: Sequence[str], vocabulary: Vocabulary) -> Floats:
    """Return the mean word vector of each text, (texts, d); unknown words count with their public vector."""
    means = np.empty((len(texts), vocabulary.dimension))
    for number, text in enumerate(texts):
        ids = np.array(vocabulary.encode(tokenize.clean(text)) or [-1], dtype=np.int64)
        means[number] = vocabulary.points(ids).mean(axis=0)
    return means
