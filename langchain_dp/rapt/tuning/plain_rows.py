"""Plain tokens as they are sent: privatized by the sanitizer's law, with noise of any source, since they are public."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from langchain_dp._util import forks
from langchain_dp.mechanisms import MetricExponential, MetricLaplace
from langchain_dp.mechanisms.metric_exponential import BUCKETS
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness, Randomness
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.privatize import TextPrivatizer
from langchain_dp.rapt.tuning.plain import Ids, PlainSource
from langchain_dp.rapt.tuning.wire import Kind, Plain, PrivatizedText
from langchain_dp.rapt.vocabulary import Vocabulary

_KEPT = 4 * BUCKETS + 1024  # bytes a word
_BYTES = 2**27
_SIZES = 2  # of |T|: a sanitizer keeps the tables of those that were used last
_BLOCK = 8_192  # tokens whose vectors are in memory together
_SHARED: weakref.WeakKeyDictionary[TextPrivatizer, OrderedDict[int, MetricExponential]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
forks.renew_lock(sys.modules[__name__], "_LOCK")


class PlainRows:
    """Writes rows of plain tokens for requests.

    Args:
        vocabulary: The client's public table.
        engine: Of the sanitizer, whose law is used; None: plain tokens stay as they are.
        kind: "tokens" for ids of the table, "text" for words.
    """

    def __init__(self, vocabulary: Vocabulary, engine: TextPrivatizer | None, kind: Kind) -> None:
        self._vocabulary = vocabulary
        self._engine = engine
        self._kind = kind

    def draw(
        self, source: PlainSource, count: int, coins: np.random.Generator, noise: Randomness | None = None
    ) -> tuple[Ids, list[Plain]]:
        """Rows for so many texts: what is to be reconstructed, (count, m), and what is sent.

        Args:
            source: Which tokens.
            count: Number of texts.
            coins: Public coins that choose among the rows.
            noise: Where the noise comes from; None: from where the sanitizer's does.
        """
        privatize = (
            None if self._engine is None else functools.partial(self._privatized, self._engine, len(source), noise)
        )
        targets, ids = source.draw(count, coins, privatize)
        if self._kind == "tokens":
            return targets, ids.tolist()
        return targets, [[self._word(i) for i in row] for row in ids.tolist()]

    def before(self, source: PlainSource, inputs: Sequence[PrivatizedText], seed: int | None) -> list[Plain]:
        """Rows before privatized texts: new ones, or, with a public seed, those that seed and text determine."""
        if seed is None:
            return self.draw(source, len(inputs), np.random.default_rng())[1]
        found: dict[int, Plain] = {}
        numbers = []
        for text in inputs:
            said = json.dumps([seed, self._kind, text]).encode()
            number = int.from_bytes(hashlib.sha256(said).digest(), "big")
            numbers.append(number)
            if number not in found:
                # The seed never meets a private word: only public ones are drawn with it.
                coins, noise = np.random.default_rng(number), NotPrivateSeededRandomness(number)
                [found[number]] = self.draw(source, 1, coins, noise)[1]
        return [found[number] for number in numbers]

    def _privatized(self, engine: TextPrivatizer, size: int, noise: Randomness | None, ids: Ids) -> Ids:
        """M on public ids. The tables of the exponential mechanism stay in memory: there are only |T| words."""
        privatizer, table, points = engine, self._vocabulary.table, self._vocabulary.points
        noise = noise or privatizer._rng
        if privatizer.mechanism != "exponential":
            blocks = [ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK)]
            noisy = MetricLaplace(engine.event, table, threads=privatizer.threads)
            return np.concatenate([noisy.release(points(b), rng=noise) for b in blocks])
        return _words(engine, size).release(ids, points, rng=noise)

    def _word(self, place: int) -> str:
        return "".join(self._vocabulary.decode([place])).replace(tokenize.GLUE, "")


def _words(engine: TextPrivatizer, size: int) -> MetricExponential:
    """The mechanism on |T| words. Its tables take long to work out: all clients of one sanitizer share them."""
    with _LOCK:
        shared = _SHARED.setdefault(engine, OrderedDict())
        if size not in shared:
            while len(shared) >= _SIZES:
                shared.popitem(last=False)
            table, threads = engine.vocabulary.table, engine.threads
            most = min(_KEPT * size, _BYTES)
            shared[size] = MetricExponential(engine.event, table, cache_bytes=most, threads=threads)
        shared.move_to_end(size)
        return shared[size]
