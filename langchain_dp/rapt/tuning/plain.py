"""Plain tokens: random public words before every text, privatized by the sanitizer's mechanism for free."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import forks
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import MetricExponential, MetricLaplace
from langchain_dp.mechanisms.metric_exponential import BUCKETS
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness, Randomness
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.privatize import TextPrivatizer
from langchain_dp.rapt.tuning.settings import PlainTokens
from langchain_dp.rapt.tuning.wire import Kind, Plain, PrivatizedText
from langchain_dp.rapt.vocabulary import Vocabulary

Ids = NDArray[np.int64]

_COMMON = 30_000  # tables list common words first
_LETTERS = re.compile("(?:##)?\u2581?\u0120?[A-Za-z]{2,}")  # with the marks of tokenizers
_KEPT = 4 * BUCKETS + 1024  # bytes a word
_BYTES = 2**27
_SIZES = 2  # different |T| whose tables a sanitizer keeps
_BLOCK = 8_192  # tokens whose vectors are in memory together
_SHARED: weakref.WeakKeyDictionary[TextPrivatizer, OrderedDict[int, MetricExponential]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
forks.renew_lock(sys.modules[__name__], "_LOCK")


class PlainSource:
    """Rows of plain tokens: ids, or words under "text". ``engine`` privatizes them."""

    def __init__(
        self, vocabulary: Vocabulary, settings: PlainTokens, engine: TextPrivatizer | None, kind: Kind
    ) -> None:
        self.settings = settings
        self._vocabulary, self._engine, self._kind = vocabulary, engine, kind
        coins = np.random.default_rng([settings.seed, 0])
        allowed = np.flatnonzero(vocabulary.allowed)[:_COMMON]
        letters = [i for i in allowed.tolist() if _LETTERS.fullmatch(vocabulary.words[i])]
        common = np.array(letters if len(letters) >= 2 else allowed, dtype=np.int64)
        size = min(settings.vocabulary, len(common))
        self.candidates: Ids = np.sort(coins.choice(common, size=size, replace=False))
        self.rows: Ids = coins.integers(0, size, size=(settings.rows, settings.length))

    def restore(self, settings: PlainTokens, candidates: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
        named = len(candidates) > 0 and all(0 <= one < len(candidates) for row in rows for one in row)
        self.settings, self.candidates = settings, _places(self._vocabulary, candidates)
        if not named or len(rows) != settings.rows or any(len(row) != settings.length for row in rows):
            raise InvalidParameter(
                f"Expected {settings.rows} rows of {settings.length} candidates as plain tokens. Save the client again."
            )
        self.rows = np.array(rows, dtype=np.int64).reshape(settings.rows, settings.length)

    def to_dict(self) -> Mapping[str, Any]:
        return {"candidates": [self._vocabulary.words[i] for i in self.candidates.tolist()], "rows": self.rows.tolist()}

    def __len__(self) -> int:
        return len(self.candidates)

    def draw(self, count: int, coins: np.random.Generator, noise: Randomness | None = None) -> tuple[Ids, list[Plain]]:
        """Draw targets in T, (count, m), and rows. ``coins`` are public."""
        if self.settings.choice == "fresh":
            targets = coins.integers(0, len(self.candidates), size=(count, self.settings.length))
        else:
            targets = self.rows[coins.integers(0, len(self.rows), size=count)]
        ids: Ids = self.candidates[targets]
        if self._engine is not None and ids.size:
            ids = _privatized(self._engine, len(self), noise, ids.reshape(-1)).reshape(ids.shape)
        if self._kind == "tokens":
            return targets, ids.tolist()
        words = self._vocabulary.decode
        return targets, [["".join(words([i])).replace(tokenize.GLUE, "") for i in row] for row in ids.tolist()]

    def before(self, inputs: Sequence[PrivatizedText]) -> list[Plain]:
        """Return rows from the public seed and the privatized text only."""
        rows: dict[int, Plain] = {}
        numbers = []
        for text in inputs:
            digest = hashlib.sha256(json.dumps([self.settings.seed, self._kind, text]).encode()).digest()
            numbers.append(number := int.from_bytes(digest, "big"))
            if number not in rows:
                # The seed draws public words only.
                coins, noise = np.random.default_rng(number), NotPrivateSeededRandomness(number)
                [rows[number]] = self.draw(1, coins, noise)[1]
        return [rows[number] for number in numbers]


def _privatized(engine: TextPrivatizer, size: int, noise: Randomness | None, ids: Ids) -> Ids:
    table, points = engine.vocabulary.table, engine.vocabulary.points
    noise = noise or engine._rng
    if engine.mechanism == "laplace":
        blocks = [ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK)]
        noisy = MetricLaplace(engine.event, table, threads=engine.threads)
        return np.concatenate([noisy.release(points(block), rng=noise) for block in blocks])
    with _LOCK:  # all clients of one sanitizer share these tables, which take long to compute
        shared = _SHARED.setdefault(engine, OrderedDict())
        if size not in shared:
            while len(shared) >= _SIZES:
                shared.popitem(last=False)
            most = min(_KEPT * size, _BYTES)
            shared[size] = MetricExponential(engine.event, table, cache_bytes=most, threads=engine.threads)
        shared.move_to_end(size)
        words = shared[size]
    return words.release(ids, points, rng=noise)


def _places(vocabulary: Vocabulary, words: Sequence[str]) -> Ids:
    places = [vocabulary.index.get(word, -1) for word in words]
    for word, place in zip(words, places, strict=True):
        if place < 0 or not vocabulary.allowed[place]:
            raise InvalidParameter(
                f"Expected the plain token {word!r} to be a word of {vocabulary.name} that may be written. "
                "Give words of the client's table."
            )
    return np.array(places, dtype=np.int64)
