"""Attribute inference where the best possible rate is known, and vectors of texts by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from fakes import vocabularies
from fakes.tiny_model import one_thread

from langchain_dp.attacks import SentenceEmbeddings, infer_attribute, mean_embeddings
from langchain_dp.errors import InvalidParameter, MissingExtra

SMALL = vocabularies.small()


def shifted(count: int, by: float, seed: int) -> tuple[np.ndarray, list[str]]:
    """Half of the texts lie ``by`` further along one direction."""
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % 2
    vectors = rng.normal(size=(count, 6))
    vectors[:, 2] += by * classes
    return vectors * 0.01 + 5, ["ab"[place] for place in classes]


@pytest.mark.statistical
def test_the_attacker_reaches_what_can_be_reached_and_no_more() -> None:
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
    assert "('a'," not in repr(done)


def test_the_network_is_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the attacker is not the perceptron of two layers, 768 hidden units and ReLU."""
    from sklearn import neural_network

    made: list[Any] = []

    class Watched(neural_network.MLPClassifier):  # type: ignore[misc]  # untyped
        def fit(self, *given: Any) -> Any:
            made.append(self)
            return super().fit(*given)

    monkeypatch.setattr(neural_network, "MLPClassifier", Watched)
    infer_attribute(*shifted(40, 2.0, 0), *shifted(40, 2.0, 1), steps=1)
    assert [(net.n_layers_, net.hidden_layer_sizes, net.activation) for net in made] == [(3, (768,), "relu")] * 3
    assert len({net.coefs_[0][0, 0] for net in made}) == 3


def test_more_than_two_classes_and_one_unknown_to_the_attacker() -> None:
    """If it breaks, age bins cannot be attacked, or a class nobody was trained on raises."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(90, 4)) + 6 * np.eye(4)[np.arange(90) % 3]
    classes = [f"bin {i % 3}" for i in range(90)]
    done = infer_attribute(vectors[:60], classes[:60], vectors[60:], [*classes[60:89], "bin 9"], hidden=256)
    assert done.rate > 0.85
    assert done.by_class["bin 9"] == 0.0
    assert done.settings["classes"] == 3


def test_mean_embeddings_are_means_over_words() -> None:
    """If it breaks, the attacked vector is not that of the paper."""
    found = mean_embeddings(["the doctor zyzzyva", ""], SMALL)
    the, doctor = (SMALL.vectors[SMALL.index[word]].astype(float) for word in ("the", "doctor"))
    assert found[0] == pytest.approx((the + doctor + SMALL.unknown) / 3)
    assert found[1] == pytest.approx(SMALL.unknown)


def tiny_folder(folder: Path) -> Path:
    """A BERT of two thousand random weights with a WordPiece tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabularies.PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabularies.PIECES) + "\n")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_sentence_embeddings_do_not_depend_on_their_company(tmp_path: Path) -> None:
    """If it breaks, padding leaks into the mean, or vectors come back in another order."""
    texts = ["the doctor saw", "a", "the doctor saw the doctor. the doctor playing", "play, a doctor"]
    folder = tiny_folder(tmp_path / "model")
    with one_thread():
        embed = SentenceEmbeddings(folder, batch=3)
        together = embed(texts)
        alone = np.concatenate([embed([text]) for text in texts])
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.abs(together[0] - together[1]).max() > 0.01
    assert embed([]).shape == (0, 8)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, an attack without its packages ends in a bare ImportError."""
    with pytest.raises(InvalidParameter, match="a folder of save_pretrained that exists"):
        SentenceEmbeddings(tmp_path / "none")
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda module: None)
        with pytest.raises(MissingExtra, match=r"langchain-dp\[attacks\]"):
            SentenceEmbeddings("minilm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"langchain-dp\[attacks\]"):
        SentenceEmbeddings(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.neural_network", None)
    with pytest.raises(MissingExtra, match=r"langchain-dp\[attacks\]"):
        infer_attribute(*shifted(20, 1.0, 0), *shifted(20, 1.0, 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: np.zeros((40, 3))}, "one length"),
        ({0: np.zeros((39, 6))}, "one vector for each of 40"),
        ({0: np.full((40, 6), np.nan)}, "finite"),
        ({1: ["a"] * 40}, "two classes"),
        ({2: np.zeros((3, 6)), 3: ["a"] * 3}, "at least 10"),
    ],
)
def test_bad_input_is_named(change: dict[int, Any], says: str) -> None:
    """If it breaks, a wrong argument ends in a message of a library, or in a rate without meaning."""
    given: list[Any] = [*shifted(40, 1.0, 0), *shifted(40, 1.0, 1)]
    for place, value in change.items():
        given[place] = value
    with pytest.raises(InvalidParameter, match=says):
        infer_attribute(*given)


def test_classes_of_another_type_are_refused() -> None:
    """If it breaks, 1 and 1.0 are different classes, and a total leak reads as none."""
    known = np.array([0, 1] * 10)
    vectors = known[:, None] * np.ones(3)
    with pytest.raises(InvalidParameter, match=r"of type float.*of type int.*Give both in one type"):
        infer_attribute(vectors, known.tolist(), vectors, known.astype(float).tolist())
