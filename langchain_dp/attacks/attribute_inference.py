"""Attribute inference: the author's attribute, guessed from a vector of a text by a small network.

After Li, Tan, Liu 2023, section 4.2 and appendix A.3.1: a perceptron of two layers with 768 hidden units and ReLU, on
mean token embeddings or on contextual representations. The attacker trains on texts with known attributes, privatized
like the attacked ones, which is stronger than training on plain ones.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Hashable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util import validate
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp._util.extras import needs
from langchain_dp.attacks import checks
from langchain_dp.attacks.result import AttackResult, Floats, Setting
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import tokenize
from langchain_dp.rapt._tables import model_folder
from langchain_dp.rapt.vocabulary import Vocabulary

_LEAST = 10
_BATCH = 64
_PATIENCE = 200  # steps without a gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttributeResult(AttackResult):
    """How often an attribute was guessed.

    Args:
        by_class: Share guessed of each class in the attacked texts.
        guesses: The guesses, in the order of the attacked texts. Private.

    Examples:
        >>> found = infer_attribute(train, known_genders, test, genders, attribute="gender")
        >>> found.rate, found.by_class
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
        train: Vectors of the attacker's known texts, (m, d); see :func:`mean_embeddings` and
            :class:`SentenceEmbeddings`. Scaled to unit variance here.
        train_classes: Their classes.
        test: Vectors of the attacked texts, (k, d).
        test_classes: Their classes.
        attribute: The guessed attribute, for the name of the result.
        hidden: Hidden units.
        networks: Networks trained from different starts; their chances are averaged.
        steps: Most training steps, of 64 texts each. Training ends early when guesses on a held-out tenth stop
            improving.
        seed: Seed of the attacker's training.
        settings: Public facts to store with the result, such as eta.

    Returns:
        The share of right guesses, with a Clopper-Pearson interval over the attacked texts for the trained networks.
        The baseline always guesses the most frequent class of ``train_classes``.

    Raises:
        InvalidParameter: Shapes do not fit, a vector is not finite, there are fewer than 10 texts on a side, fewer than
            two classes, or no attacked text has a known class.
        MissingExtra: scikit-learn is not installed.

    Examples:
        >>> train, test = mean_embeddings(known_texts, vocabulary), mean_embeddings(released, vocabulary)
        >>> found = infer_attribute(train, known_genders, test, genders, attribute="gender")
        >>> found.rate, found.baseline
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
    if not set(labels) & set(truth):
        raise InvalidParameter(
            f"Expected test_classes (of type {type(test_classes[0]).__name__}) to be classes of train_classes (of type "
            f"{type(train_classes[0]).__name__}), but none is. Give both in one type."
        )
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


def _vectors(name: str, given: npt.ArrayLike, classes: Sequence[Hashable]) -> Floats:
    vectors = validate.numbers(name, given)
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
    known: Floats, labels: list[str], theirs: Floats, hidden: int, networks: int, steps: int, seed: int
) -> Floats:
    """Return the mean chance of each class, by sorted name, over the networks."""
    with needs("attacks", "scikit-learn", why=" to train the attacker"):
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
    # The held-out texts keep the shares of the classes, so each class needs some texts.
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


def mean_embeddings(texts: Sequence[str], vocabulary: Vocabulary) -> Floats:
    """Return the mean word vector of each text, (texts, d); unknown words count with their public vector.

    Args:
        texts: Texts, plain or privatized. A text without words gets the unknown word's vector.
        vocabulary: Public table.

    Raises:
        InvalidParameter: ``vocabulary`` is no Vocabulary, or ``texts`` is no list of str.

    Examples:
        >>> mean_embeddings(["Anna takes prednisone.", "He coughs at night."], load("glove")).shape
        (2, 50)
    """
    checks.table(vocabulary)
    given = checks.texts("texts", texts, at_least=0)
    means = np.empty((len(given), vocabulary.dimension))
    for number, text in enumerate(given):
        ids = np.array(vocabulary.encode(tokenize.clean(text)) or [-1], dtype=np.int64)
        means[number] = vocabulary.points(ids).mean(axis=0)
    return means


class SentenceEmbeddings:
    """An embedding of texts by a transformer: the mean of its last hidden states over a text.

    Calling it with texts gives one vector each, for attribute inference or for the search of leaked rows.

    Args:
        model: "minilm" (all-MiniLM-L6-v2, from an installed package) or a folder that transformers can load.
        batch: Texts per batch, of similar length.
        longest: Most tokens of a text; the rest is cut.

    Raises:
        InvalidParameter: The folder does not exist, or a bound is not met.
        MissingExtra: torch, transformers or the named model is not installed.

    Examples:
        >>> embed = SentenceEmbeddings("minilm")
        >>> embed(["Anna takes prednisone."]).shape
        (1, 384)
    """

    def __init__(self, model: str | PathLike[str] = "minilm", *, batch: int = 32, longest: int = 256) -> None:
        self._batch = validate.integer("batch", batch, at_least=1)
        self._longest = validate.integer("longest", longest, at_least=1)
        folder = model_folder(model, "model", extra="attacks")
        with needs("attacks", "torch", "transformers"):
            import torch  # noqa: F401  # needed by the models
            import transformers
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return one vector per text, (texts, d)."""
        import torch

        given = checks.texts("texts", texts, at_least=0)
        vectors = np.empty((len(given), int(self._model.config.hidden_size)))
        order = sorted(range(len(given)), key=lambda place: len(given[place]))
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            batch = [given[place] for place in places]
            cut = {"padding": True, "truncation": True, "max_length": self._longest}
            tokens = self._tokenizer(batch, return_tensors="pt", **cut)
            with torch.inference_mode():
                hidden = self._model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][:, :, None].to(hidden.dtype)
            vectors[places] = ((hidden * mask).sum(dim=1) / mask.sum(dim=1)).double().numpy()
        return vectors
