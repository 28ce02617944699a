"""Public encoders of texts. Any LangChain ``Embeddings`` is one."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from scipy import sparse

from langchain_dp._util.extras import missing_extra, needs
from langchain_dp.aggregate.features import Floats, Projection
from langchain_dp.ensemble.engine_calls import ask_together, asked_publicly
from langchain_dp.errors import InvalidParameter
from langchain_dp.isolation.accept import check_encoder

AT_ONCE = 2000
MOST_COMPONENTS = 256
_CALLS = 8


@functools.cache
def public_texts() -> tuple[str, ...]:
    """Return 1,100 short public texts."""
    return tuple(_file("public_texts.txt").splitlines())


@functools.cache
def public_topics() -> dict[str, str]:
    """Return 200 public topics with descriptions. The last is "none of these".

    Examples:
        >>> "billing" in public_topics()
        True
    """
    return dict(line.split(": ", 1) for line in _file("topics.txt").splitlines())


def _file(name: str) -> str:
    return (resources.files("langchain_dp.aggregate") / name).read_text(encoding="utf-8")


class StaticEncoder(Embeddings):
    """Sentence vectors without a neural network: the mean of word vectors, scaled to unit length.

    256 dimensions, 19 MB, some 20,000 short texts a second on one core. Weights and tokenizer come from ``wordllama``
    (MIT license). Sums are exact, so a vector depends on its text alone, to the last bit.

    Raises:
        MissingExtra: The extra ``encoder`` is not installed.

    Examples:
        >>> encoder = StaticEncoder()
        >>> len(encoder.embed_query("Nobody called me back."))
        256
    """

    batch_invariant: ClassVar[bool] = True
    name: ClassVar[str] = "wordllama l2_supercat_256"

    def __init__(self) -> None:
        self._table, self._tokenizer = _tables()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return several texts' vectors."""
        rows: list[list[float]] = self.array(texts).tolist()
        return rows

    def embed_query(self, text: str) -> list[float]:
        """Return one text's vector."""
        return self.embed_documents([text])[0]

    def array(self, texts: Sequence[str]) -> Floats:
        """Return an array, with zeros for texts without known tokens."""
        rows = np.zeros((len(texts), self._table.shape[1]))
        for start in range(0, len(texts), AT_ONCE):
            part = self._tokenizer.encode_batch_fast(list(texts[start : start + AT_ONCE]), add_special_tokens=False)
            ids = [tokens.ids for tokens in part]
            ends = np.cumsum([0, *map(len, ids)])
            flat = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64)
            counts = sparse.csr_array((np.ones(len(flat)), flat, ends), shape=(len(ids), len(self._table)))
            rows[start : start + len(ids)] = counts @ self._table
        lengths = np.sqrt((rows * rows).sum(axis=1))
        scale: Floats = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return np.asarray(rows * scale[:, None])

    def vocabulary(self) -> Floats:
        """Return all tokens' vectors."""
        return self._table

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticEncoder, ()


@functools.cache
def _tables() -> tuple[Floats, Any]:
    # The package imports more than its data needs, so its files are read without importing it.
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise missing_extra("encoder", "wordllama", why=" for the default encoder")
    with needs("encoder", "safetensors", "tokenizers", why=" for the default encoder"):
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    folder = Path(next(iter(found.submodule_search_locations)))
    table = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].astype(np.float64)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    table.setflags(write=False)
    return table, tokenizer


def encoder_name(encoder: Embeddings) -> str:
    for field in ("name", "model_name", "model", "deployment"):
        value = getattr(encoder, field, None)
        if isinstance(value, str) and value and "://" not in value and not Path(value).is_absolute():
            return value[:200]
    return type(encoder).__name__


def probe(encoder: Embeddings, dimensions: int) -> None:
    """Check with a public text, because an outage would leave only noise."""
    check_dimensions(encode_publicly(encoder, public_texts()[:1]), dimensions)


def check_dimensions(rows: Floats, dimensions: int) -> None:
    if rows.shape[1] != dimensions:
        raise InvalidParameter(
            f"Expected the encoder to return vectors of {dimensions} numbers, as it did for fit(), not of "
            f"{rows.shape[1]}. Give the same encoder."
        )


def encode_publicly(encoder: Embeddings, texts: Sequence[str]) -> Floats:
    rows = asked_publicly(lambda: _array(encoder, list(texts)))
    if rows.ndim != 2 or len(rows) != len(texts) or not rows.size or not np.isfinite(rows).all():
        raise InvalidParameter(
            f"Expected the encoder to return {len(texts)} vectors of finite numbers of one length for as many public "
            f"texts, but it returned an array of shape {rows.shape}. Use another encoder."
        )
    return rows


def projection_for(encoder: Embeddings, texts: Sequence[str] | None = None) -> Projection:
    if type(encoder) is StaticEncoder and texts is None:
        return _static_projection()
    return _projection(encoder, public_texts() if texts is None else texts)


def _projection(encoder: Embeddings, texts: Sequence[str]) -> Projection:
    public = encode_publicly(encoder, texts)
    vocabulary = encoder.vocabulary() if isinstance(encoder, StaticEncoder) else None
    return Projection.of(public, min(MOST_COMPONENTS, public.shape[1]), vocabulary)


_static_projection = functools.cache(lambda: _projection(StaticEncoder(), public_texts()))


def encode_privately(encoder: Embeddings, texts: Sequence[str], dimensions: int) -> Iterator[Floats]:
    """Yield vectors in blocks, in order, with NaN where the encoder fails.

    Batches can change rounding, so each text is encoded alone unless the encoder's class declares
    ``batch_invariant = True``. Calls are isolated, and their errors are dropped.
    """

    def encode(part: Sequence[str]) -> list[Floats | None]:
        rows = _array(encoder, list(part))
        if rows.shape != (len(part), dimensions):
            raise ValueError  # one text may be the cause, so each is then encoded alone
        return list(rows)

    def alone(text: str) -> Floats | None:
        return ask_together(encode, [text])[0]

    together = vars(type(encoder)).get("batch_invariant") is True
    pool = ThreadPoolExecutor(1 if together else _CALLS)
    try:
        for start in range(0, len(texts), AT_ONCE):
            part = texts[start : start + AT_ONCE]
            rows = ask_together(encode, part) if together else list(pool.map(alone, part))
            yield np.array([np.full(dimensions, np.nan) if row is None else row for row in rows])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C waits for no server


class CheckedEncoder:
    """Checked encoder with public projection."""

    def __init__(self, encoder: Embeddings | None, *, trusted: bool) -> None:
        self._encoder: Embeddings = StaticEncoder() if encoder is None else encoder
        self.notes = check_encoder(self._encoder, trusted=trusted)
        self.name = encoder_name(self._encoder)
        self._projection = projection_for(self._encoder)
        self._dimensions = len(self._projection.mean)

    def probe(self) -> None:
        probe(self._encoder, self._dimensions)

    def public_vectors(self, texts: Sequence[str]) -> Floats:
        return self._projection.vectors(encode_publicly(self._encoder, texts)).astype(np.float64)

    def private_vectors(self, texts: Sequence[str]) -> Iterator[Floats]:
        """Yield blocks in order, with zeros where the encoder fails."""
        for block in encode_privately(self._encoder, texts, self._dimensions):
            yield self._projection.vectors(block).astype(np.float64)


def nearest(rows: Floats, table: Floats, count: int) -> NDArray[np.int64]:
    """Return the places of similar rows, nearest first."""
    return np.argsort(-(rows @ table.T), axis=1, kind="stable")[:, :count]  # whole numbers below 2^53: exact


def described(entries: Mapping[str, str]) -> list[str]:
    return [f"{name}: {about}" if about else name for name, about in entries.items()]


def _array(encoder: Embeddings, texts: list[str]) -> Floats:
    if type(encoder) is StaticEncoder:
        return encoder.array(texts)
    return np.array(encoder.embed_documents(texts), dtype=np.float64)
