"""Base classes of the engines, and what they share: kept members, and the choice of a token."""

from __future__ import annotations

import abc
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Integral
from types import TracebackType
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_dp._util.validate import integer
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PrivateDataError
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token, TokenScores
from langchain_dp.redact import redacting

Calibration = tuple[tuple[str, ...], tuple[str, ...]]


class _Entry(Protocol):
    """One kept member of a fixed size."""

    @property
    def digest(self) -> bytes: ...

    @property
    def nbytes(self) -> int: ...

    def wipe(self) -> None: ...


E = TypeVar("E", bound=_Entry)


class BoundedStore(Generic[E]):
    """Members by (opening, member), at most ``limit`` bytes.

    Evicted entries may still be in use: call :meth:`wipe_put_out` afterwards.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[Hashable, Hashable], E] = OrderedDict()
        self._put_out: list[E] = []

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        found = self._kept.get((opening, member))
        if found is None:
            return None
        if found.digest != digest:
            # New content came under an old key: never answer from the old entry.
            self._put_out.append(self._taken((opening, member)))
            return None
        self._kept.move_to_end((opening, member))
        return found

    def take(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        """Remove an entry whose size may change."""
        found = self.get(opening, member, digest)
        return None if found is None else self._taken((opening, member))

    def put(self, opening: Hashable, member: Hashable, entry: E) -> None:
        if (opening, member) in self._kept:
            self._put_out.append(self._taken((opening, member)))
        if entry.nbytes > self.limit:
            self._put_out.append(entry)
            return
        while self.bytes + entry.nbytes > self.limit:
            self._put_out.append(self._taken(next(iter(self._kept))))
        self._kept[(opening, member)] = entry
        self.bytes += entry.nbytes

    def wipe_put_out(self) -> None:
        while self._put_out:
            self._put_out.pop().wipe()

    def forget(self, members: Sequence[Hashable]) -> None:
        for key in [key for key in self._kept if key[1] in members]:
            self._taken(key).wipe()

    def clear(self) -> None:
        for key in list(self._kept):
            self._taken(key).wipe()

    def _taken(self, key: tuple[Hashable, Hashable]) -> E:
        entry = self._kept.pop(key)
        self.bytes -= entry.nbytes
        return entry


Logits = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


class Choice:
    """Chooses tokens by one ``Decoding``, never those marked in ``never``."""

    def __init__(self, decoding: Decoding, never: npt.NDArray[np.bool_]) -> None:
        self._temperature = decoding.temperature
        self._penalty = decoding.repetition_penalty
        for token in decoding.banned:
            if not is_token(token, len(never)):
                raise InvalidParameter(
                    f"Expected decoding.banned to hold whole numbers in [0, {len(never) - 1}], the tokens of this "
                    f"model, not one of type {type(token).__name__}. Take them from the engine that is asked."
                )
        self._never = never.copy()
        self._never[np.array(sorted(decoding.banned), dtype=np.intp)] = True

    def token(self, logits: Logits, written: Sequence[int], draw: float) -> int | None:
        """None if a logit or coin is invalid, or no token is allowed."""
        if not np.isfinite(logits).all() or not 0 <= draw < 1:
            return None
        repeated = np.unique(np.array(written, dtype=np.intp))
        repeated = repeated[~self._never[repeated]]
        values = logits[repeated].astype(np.float64)
        with np.errstate(all="ignore"):  # an overflow is caught below
            values = np.where(values > 0, values / self._penalty, values * self._penalty)
            if self._temperature == 0:
                masked = logits.copy()  # single precision: twice as fast, and exact
                masked[self._never] = -np.inf
                masked[repeated] = -np.inf
                first = int(masked.argmax())
                best = [(-float(masked[first]), first), *zip((-values).tolist(), repeated.tolist(), strict=True)]
                value, token = min(best)
                return token if np.isfinite(value) else None
            wide = logits.astype(np.float64)
            wide[repeated] = values
            wide[self._never] = -np.inf
            return self._drawn(wide, draw)

    def _drawn(self, wide: npt.NDArray[np.float64], draw: float) -> int | None:
        top = wide.max()
        if not np.isfinite(top):
            return None
        wide -= top
        wide /= self._temperature
        np.exp(wide, out=wide)
        reached = np.cumsum(wide, out=wide)
        # The first token at which the sum exceeds the mark has a weight above zero. So has the last that raises it.
        mark = draw * reached[-1]
        at = int(reached.searchsorted(mark, side="right"))
        return at if at < len(reached) else int(reached.searchsorted(reached[-1], side="left"))


def is_token(token: object, vocabulary: int) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocabulary


def log_softmax(logits: Logits) -> Scores:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


Part = tuple[int, ...]

ENDS = frozenset(
    {"</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"}
)
"""Control tokens that end a text in every model."""

T = TypeVar("T")
Take = Callable[[Logits, Sequence[int], float], T | None]


class BaseEngine(abc.ABC):
    """One model behind ``ports.LabelScorer``, ``ports.NextTokenVoter`` and ``ports.NextTokenScorer``.

    Underscore methods run on an open engine, under the lock, with equal heads and tails.
    """

    _HOLDS: ClassVar[str] = "private caches"
    name: str
    """Name of the model, for certificates."""
    vocabulary_size: int
    """Number of tokens that the model can write."""
    end_tokens: frozenset[Token]
    """Tokens that end a text."""
    max_prompt_tokens: int
    """Longest head + body + tail + written of one member, in tokens."""
    max_tail_tokens: int
    """Longest question in tokens."""

    def __init__(self, name: str, lock: AbstractContextManager[Any] | None = None) -> None:
        self.name = name
        self._lock = lock or nullcontext()
        self._closed = False

    @redacting
    def count_tokens(self, text: str) -> int:
        """Number of tokens in ``text``, without special tokens of a beginning."""
        with self._in_use():
            return self._count(text)

    @redacting
    def detokenize(self, tokens: Sequence[Token]) -> str:
        """Text of ``tokens``. Control tokens have none, and broken UTF-8 becomes U+FFFD."""
        with self._in_use():
            return self._text(tokens)

    @redacting
    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, None for an abstention. See ``ports.NextTokenVoter``.

        Raises:
            InvalidParameter: ``decoding`` is invalid, heads or tails differ, or a tail is empty.
            ModelUnavailable: The engine is closed, or fails on the public parts.
        """
        with self._in_use():
            rules = self._rules(decoding)
            if not asked:
                return []
            check_common([one.prompt for one in asked])
            return self._written(asked, decoding, rules)

    @redacting
    def score_labels(
        self,
        prompts: Sequence[MemberPrompt],
        words: Sequence[str],
        *,
        content_free: Sequence[str] = (),
    ) -> list[list[float] | None]:
        """Log-scores of ``words`` after each prompt, None for an abstention. See ``ports.LabelScorer``.

        Words follow the tail exactly: after "Sentiment:" pass " positive", with its space. If first tokens differ, a
        score is the log-softmax over them. Otherwise all tokens of a word count.

        Raises:
            InvalidParameter: Words are not distinct or empty, heads or tails differ, or a tail is empty or too long.
            ModelUnavailable: The engine is closed, or fails on the public parts.
        """
        with self._in_use():
            for name, texts in (("words", words), ("content_free", content_free)):
                if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                    raise InvalidParameter(f"Expected {name} of type {type(texts).__name__} to be a list of str.")
            if not prompts:
                return []
            check_common(prompts)
            return self._scores(prompts, words, content_free)

    @redacting
    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        """Log-probabilities of the public prompt's most probable next tokens. See ``ports.NextTokenScorer``.

        Ties go to the smaller token. A member that is too long or fails has None.

        Raises:
            InvalidParameter: Heads, tails or written tokens differ, or a tail is empty.
            ModelUnavailable: The engine is closed, or fails on the public prompt.
        """
        integer("candidates", candidates, at_least=1)
        asked = [public, *members]
        with self._in_use():
            check_common([one.prompt for one in asked])
            if any(one.written != public.written for one in members):
                raise InvalidParameter(
                    "Expected all continuations to have the same written tokens. Ask in several calls."
                )
            return self._token_scores(asked, candidates, chat)

    @redacting
    def forget(self, *members: Hashable) -> None:
        """Overwrite and drop all state of these members."""
        with self._lock:
            self._drop(members)

    @redacting
    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Evaluate and keep head and body of these members. No effect on a server."""
        with self._in_use():
            self._warm(prompts)

    def close(self) -> None:
        """Overwrite kept members and free the model. Further calls raise ModelUnavailable."""
        with self._lock:
            self._closed = True
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        # The number of kept members is private.
        return f"{type(self).__name__}({self.name!r}, <private>)"

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError(
            f"A {type(self).__name__} holds {self._HOLDS} and cannot be pickled or copied. Build another one."
        )

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed():
                raise ModelUnavailable(f"This {type(self).__name__} is closed. Build a new one.")
            yield

    def _is_closed(self) -> bool:
        return self._closed

    @abc.abstractmethod
    def _count(self, text: str) -> int: ...

    @abc.abstractmethod
    def _text(self, tokens: Sequence[Token]) -> str: ...

    @abc.abstractmethod
    def _rules(self, decoding: Decoding) -> Any:
        """Return checked rules for :meth:`_written`."""

    @abc.abstractmethod
    def _written(self, asked: Sequence[Continuation], decoding: Decoding, rules: Any) -> list[Token | None]: ...

    @abc.abstractmethod
    def _scores(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]: ...

    @abc.abstractmethod
    def _token_scores(self, asked: Sequence[Continuation], candidates: int, chat: bool) -> TokenScores:
        """The first continuation is public."""

    @abc.abstractmethod
    def _drop(self, members: Sequence[Hashable]) -> None: ...

    def _warm(self, prompts: Sequence[MemberPrompt]) -> None:  # noqa: B027  # a server keeps no member
        """Do nothing."""

    @abc.abstractmethod
    def _free(self) -> None: ...


class LocalEngine(BaseEngine):
    """An engine in this process, one call at a time, which keeps members between calls."""

    def __init__(self, max_tokens: int, cache_bytes: int) -> None:
        integer("max_tokens", max_tokens, at_least=16, at_most=2**20)
        integer("cache_bytes", cache_bytes, at_least=0, at_most=2**62)
        super().__init__("", threading.RLock())
        self._max_tokens = max_tokens
        self.max_tail_tokens = max_tokens // 2
        self._store: BoundedStore[Any] = BoundedStore(cache_bytes)

    @property
    def cache_bytes(self) -> int:
        """Bound of the kept members, in bytes."""
        return self._store.limit

    def _token_scores(self, asked: Sequence[Continuation], candidates: int, chat: bool) -> TokenScores:
        first, *rows = self._taken(asked, chat, lambda row, *_: row.copy() if np.isfinite(row).all() else None)
        if first is None:
            raise ModelUnavailable("The model could not evaluate the public prompt. Shorten it.")
        allowed = np.where(self._never(), -np.inf, first)
        order = np.argsort(-allowed, kind="stable")[: min(candidates, int(np.isfinite(allowed).sum()))]
        ends = np.array(sorted(int(token) for token in self.end_tokens), dtype=np.intp)
        tokens = np.concatenate([order, ends[~np.isin(ends, order)]])
        known, *scored = (None if row is None else log_softmax(row)[tokens] for row in (first, *rows))
        assert known is not None
        return TokenScores(tuple(tokens.tolist()), known, tuple(scored))

    def _rules(self, decoding: Decoding) -> Choice:
        return Choice(decoding, self._never())

    def _written(self, asked: Sequence[Continuation], decoding: Decoding, rules: Choice) -> list[Token | None]:
        return list(self._taken(asked, bool(decoding.chat), rules.token))

    @abc.abstractmethod
    def _taken(self, asked: Sequence[Continuation], chat: bool, take: Take[T]) -> list[T | None]:
        """Return ``take`` of each member's logits."""

    @abc.abstractmethod
    def _never(self) -> npt.NDArray[np.bool_]: ...

    @abc.abstractmethod
    def tokens_per_second(self) -> float:
        """Prompt tokens per second, measured now on public tokens."""

    @abc.abstractmethod
    def bytes_per_token(self) -> int:
        """Bytes of the cache per token of one member."""

    def _check_trained_on(self, trained_on: int | None) -> None:
        if trained_on is not None and self._max_tokens > trained_on:
            raise InvalidParameter(
                f"Expected max_tokens={self._max_tokens} to be at most {trained_on}, the length this model was trained "
                "on."
            )

    def _text(self, tokens: Sequence[Token]) -> str:
        if not all(is_token(token, self.vocabulary_size) for token in tokens):
            raise InvalidParameter(
                f"Expected tokens to be whole numbers in [0, {self.vocabulary_size - 1}]. "
                "Take them from the engine that wrote them."
            )
        return self._spelt([int(token) for token in tokens])

    def _drop(self, members: Sequence[Hashable]) -> None:
        self._store.forget(members)

    @abc.abstractmethod
    def _spelt(self, tokens: Sequence[int]) -> str: ...


def tail_tokens(tokens: Sequence[int], max_tokens: int) -> Part:
    if not 0 < len(tokens) <= max_tokens // 2:
        raise InvalidParameter(
            f"Expected a question of {len(tokens)} tokens to have 1 to {max_tokens // 2}, half of "
            f"max_tokens={max_tokens}. Shorten it, or raise max_tokens."
        )
    return tuple(tokens)


def check_public(tokens: int, most: int, what: str = "a head and a tail") -> None:
    if tokens > most:
        raise InvalidParameter(
            f"Expected {what} of {tokens} tokens to have at most {most}, or no member fits. Shorten it, or raise "
            "max_tokens."
        )


def label_tokens(words: Sequence[str], tokens: Callable[[str], Sequence[int]]) -> list[Part]:
    labels = [tuple(tokens(word)) for word in words]
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected words={list(words)!r} to be distinct, with at least one token each.")
    return [label[:1] for label in labels] if len({label[0] for label in labels}) == len(labels) else labels


def body_digest(prompt: MemberPrompt) -> bytes:
    """Hash that reveals new content under an old key."""
    return hashlib.sha256(prompt.body.encode(errors="surrogatepass")).digest()


def check_common(prompts: Sequence[MemberPrompt]) -> None:
    first = prompts[0]
    if any(
        (each.head, each.tail, each.response_prefix) != (first.head, first.tail, first.response_prefix)
        for each in prompts
    ):
        raise InvalidParameter(
            "Expected prompts of one call to have equal heads, tails and beginnings. Ask in several calls."
        )
