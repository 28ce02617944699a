"""Vectors of texts by a transformer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import vocabularies
from fakes.tiny_model import one_thread

from langchain_dp.attacks import SentenceEmbeddings
from langchain_dp.errors import InvalidParameter, MissingExtra


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
        with pytest.raises(MissingExtra, match=r"\.\[attacks\]"):
            SentenceEmbeddings("minilm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"\.\[attacks\]"):
        SentenceEmbeddings(tmp_path)
