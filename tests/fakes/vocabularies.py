"""Small public tables for tests: whole words, WordPiece files, and an object that cuts texts itself."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from langchain_dp.rapt import Vocabulary

_LINES = """the a of to and in is was it for on with he she they we you not but at
doctor nurse patient illness cancer flu heart pain pill dose
dog cat bird house garden street river bridge city sea
, . ! ? ( ) " ' - 's n't do 2024 7 paris u.s. well-known known"""
WORDS = tuple(_LINES.split())
PIECES = (
    *("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "doctor", "saw", "play", "##ing", "##ed", "a", "##b", ".", ",", "'", "s", "t", "don"),
)


def small(dimension: int = 8, scale: float = 1.0) -> Vocabulary:
    """Some sixty words with random vectors, the same every time."""
    vectors = np.random.default_rng(1).standard_normal((len(WORDS), dimension)) * scale
    return Vocabulary(WORDS, vectors, name="small")


def wordpiece_folder(folder: Path, *, kind: str = "F32", model: str = "WordPiece") -> Path:
    """A BERT-like model's folder: tokenizer.json and model.safetensors, written by hand."""
    special = [token for token in PIECES if token.startswith("[") and "unused" not in token]
    tokenizer = {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 4},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [
            dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            | {"id": PIECES.index(token), "content": token, "special": True}
            for token in special
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": model,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(PIECES)},
        },
    }
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    matrix = piece_vectors()
    raw = {
        "F32": matrix.astype("<f4").tobytes(),
        "F16": matrix.astype("<f2").tobytes(),
        "BF16": (matrix.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes(),
    }[kind]
    ahead = np.zeros(3, dtype="<f4").tobytes()
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, len(ahead)]},
            "embeddings.word_embeddings.weight": {
                "dtype": kind,
                "shape": list(matrix.shape),
                "data_offsets": [len(ahead), len(ahead) + len(raw)],
            },
        }
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + ahead + raw)
    return folder


def piece_vectors() -> np.ndarray:
    """Vectors of the pieces, exact in 16 bits."""
    return np.random.default_rng(2).integers(-8, 8, (len(PIECES), 6)) / 8.0


class Letters:
    """A table of single letters that cuts texts itself, as byte pairs do; spaces are letters too."""

    name = "letters"
    unknown_id: int | None = 0
    special_ids: Collection[int] = (0, 1)

    def __init__(self, dimension: int = 5) -> None:
        self.words = ["<unk>", "<pad>", *"abcdefghijklmnopqrstuvwxyz "]
        self.vectors = np.random.default_rng(3).standard_normal((len(self.words), dimension))
        self.vectors[2:] *= 4

    def encode(self, text: str) -> Sequence[int]:
        """One id a letter."""
        return [self.words.index(letter) if letter in self.words else 0 for letter in text.lower()]

    def decode(self, ids: Sequence[int]) -> str:
        """The letters."""
        return "".join(self.words[i] for i in ids)
