"""What the engines share: both ports, the checks of a call, and that no private text leaves with an exception."""

from __future__ import annotations

import abc
import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_dp._util.validate import integer
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PrivateDataError
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token, TokenScores
from langchain_dp.redact import redacting

from ._choice import Choice, Logits, is_token, log_softmax
from ._store import BoundedStore

Part = tuple[int, ...]
"""Tokens that are evaluated in one go."""

ENDS = frozenset(
    {"</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"}
)
"""Control tokens that end a text or a turn, whatever else a model's configuration names."""

T = TypeVar("T")
Take = Callable[[Logits, Sequence[int], float], T | None]
"""What is made of a member's logits, given its written tokens and its coin."""


class BaseEngine(abc.ABC):
    """One model behind ``ports.LabelScorer`` and ``ports.NextTokenVoter``.

    A subclass fills in what begins with an underscore. It is called when the engine is open, under the lock, with at
    least one member, and with equal heads and tails. What it raises comes out without text and frames.
    """

    _HOLDS: ClassVar[str] = "private caches"
    _vocabulary_size: int
    _end_tokens: frozenset[Token]
    _max_prompt_tokens: int
    _max_tail_tokens: int

    def __init__(self, name: str, lock: AbstractContextManager[Any] | None = None) -> None:
        self._name = name
        self._lock = lock or nullcontext()
        self._closed = False

    @property
    def name(self) -> str:
        """Name of the model, for certificates."""
        return self._name

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the model can write."""
        return self._vocabulary_size

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Tokens that end a text: of a server, the empty text. Other control tokens are never taken."""
        return self._end_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """Longest head + body + tail + written of one member, in tokens.

        The chat template is taken off already, where it is known.
        """
        return self._max_prompt_tokens

    @property
    def max_tail_tokens(self) -> int:
        """Longest question in tokens, whatever the members hold: half of what one of them may have."""
        return self._max_tail_tokens

    @redacting
    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``, without the special tokens of a beginning.

        Raises:
            ModelUnavailable: The engine is closed, or its server does not tell.
        """
        with self._in_use():
            return self._count(text)

    @redacting
    def detokenize(self, tokens: Sequence[Token]) -> str:
        """Text of ``tokens``, which this engine wrote. Control tokens are no text; broken UTF-8 becomes U+FFFD.

        Raises:
            InvalidParameter: One of them is none of this engine's.
            ModelUnavailable: The engine is closed.
        """
        with self._in_use():
            return self._text(tokens)

    @redacting
    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, in order.

        Args:
            asked: Members to ask, each with its own written tokens; heads and tails are equal within one call.
            decoding: How a token is taken from the distribution.

        Returns:
            A token per member, or None for one that is too long or could not be evaluated (it abstains).

        Raises:
            InvalidParameter: A rule of ``decoding`` is out of bounds, or not known to the server; ``decoding.chat`` and
                the model has no chat template; heads or tails differ; a tail is empty.
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
        """Log-scores of ``words`` after each prompt: one row a prompt, one column a word.

        Words are read exactly as they follow the tail: after a tail that ends in "Sentiment:" pass " positive", with
        its space. If their first tokens differ, a word's score is the log-softmax over those first tokens; if two
        collide, every word is scored by all its tokens, and the log-softmax is over the words. A completions server
        lists first tokens only: its class says what is made of them.

        Args:
            prompts: Members to ask; heads and tails are equal within one call.
            words: Label words, distinct.
            content_free: Tails without a question. When given, the log of the mean label probability after them, under
                the same member, is subtracted (contextual calibration, Zhao et al. 2021); computed once a member.

        Returns:
            A row per prompt, or None for a member that is too long or could not be evaluated (it abstains).

        Raises:
            InvalidParameter: Words are not distinct or empty; heads or tails differ; a tail is empty or longer than
                :attr:`max_tail_tokens`; a server lists no tokens.
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
    def forget(self, *members: Hashable) -> None:
        """Overwrite and drop everything that is kept of these members here, also when the engine is closed."""
        with self._lock:
            self._drop(members)

    @redacting
    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Evaluate head and body of these members, as far as they can be kept. On a server it does nothing.

        A member that cannot be evaluated stays cold, and abstains when it is asked.

        Raises:
            InvalidParameter: The public head is too long.
            ModelUnavailable: The engine is closed, or the public head cannot be evaluated.
        """
        with self._in_use():
            self._warm(prompts)

    def close(self) -> None:
        """Overwrite what is kept and let go of the model. Further calls raise ModelUnavailable."""
        with self._lock:
            self._closed = True
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        # How many members are kept tells how many were drawn.
        return f"{type(self).__name__}({self._name!r}, <private>)"

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError(
            f"A {type(self).__name__} holds {self._HOLDS} and cannot be pickled or copied. Build it anew."
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
        """Check a decoding, and return what takes a token by it."""

    @abc.abstractmethod
    def _written(self, asked: Sequence[Continuation], decoding: Decoding, rules: Any) -> list[Token | None]: ...

    @abc.abstractmethod
    def _scores(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]: ...

    @abc.abstractmethod
    def _drop(self, members: Sequence[Hashable]) -> None: ...

    @abc.abstractmethod
    def _warm(self, prompts: Sequence[MemberPrompt]) -> None: ...

    @abc.abstractmethod
    def _free(self) -> None: ...


class LocalEngine(BaseEngine):
    """An engine that runs its model in this process, one call at a time, and keeps members between calls.

    Implements ``ports.NextTokenScorer`` and ``ports.ReportsThroughput`` too.
    """

    def __init__(self, max_tokens: int, cache_bytes: int) -> None:
        integer("max_tokens", max_tokens, at_least=16, at_most=2**20)
        integer("cache_bytes", cache_bytes, at_least=0, at_most=2**62)
        super().__init__("", threading.RLock())
        self._max_tokens = max_tokens
        self._max_tail_tokens = max_tokens // 2
        self._store: BoundedStore[Any] = BoundedStore(cache_bytes)

    @property
    def cache_bytes(self) -> int:
        """Bytes of members kept at most, as it was set."""
        return self._store.limit

    @property
    def cached_bytes(self) -> int:
        """Bytes of members kept now, at most ``cache_bytes``. PRIVATE: it shows how many subsets were drawn.

        For measurements by whoever may see the records; never log, print or serve it beside released answers.
        """
        return self._store.bytes

    @redacting
    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        """Log-probabilities of the public prompt's most probable next tokens, and of those that end a text.

        Args:
            public: The prompt without a private example.
            members: Members to ask; heads, tails and written tokens are those of ``public``. May be empty.
            candidates: How many tokens beside those that end a text, at least 1.
            chat: Present the prompts as one user turn in the model's chat template.

        Returns:
            The candidates, by the public model's probability, ties to the smaller token; its log-probabilities, and
            those of each member, None for one that is too long or could not be evaluated.

        Raises:
            InvalidParameter: Heads, tails or written tokens differ; a tail is empty; ``chat`` and the model has no chat
                template.
            ModelUnavailable: The engine is closed, or the public prompt could not be evaluated.
        """
        integer("candidates", candidates, at_least=1)
        asked = [public, *members]
        with self._in_use():
            check_common([one.prompt for one in asked])
            check_written(asked)
            first, *rows = self._taken(asked, chat, _kept_row)
            if first is None:
                raise ModelUnavailable("The model could not evaluate the public prompt. Shorten it.")
            tokens = self._likely(first, candidates)
            known, *scored = (None if row is None else log_softmax(row)[tokens] for row in (first, *rows))
            assert known is not None
            return TokenScores(tuple(tokens.tolist()), known, tuple(scored))

    def _likely(self, logits: Logits, count: int) -> npt.NDArray[np.intp]:
        """The most probable tokens, ties to the smaller one, and those that end a text."""
        allowed = np.where(self._never(), -np.inf, logits)
        order = np.argsort(-allowed, kind="stable")[: min(count, int(np.isfinite(allowed).sum()))]
        ends = np.array(sorted(int(token) for token in self.end_tokens), dtype=np.intp)
        return np.concatenate([order, ends[~np.isin(ends, order)]])

    def _written(self, asked: Sequence[Continuation], decoding: Decoding, rules: Choice) -> list[Token | None]:
        return list(self._taken(asked, bool(decoding.chat), rules.token))

    @abc.abstractmethod
    def _taken(self, asked: Sequence[Continuation], chat: bool, take: Take[T]) -> list[T | None]:
        """What ``take`` makes of each member's logits; None of one that is too long or could not be evaluated."""

    @abc.abstractmethod
    def _never(self) -> npt.NDArray[np.bool_]:
        """Per token, whether it is never taken: control tokens that end nothing."""

    def tokens_per_second(self) -> float:
        """Tokens of a prompt evaluated per second, measured now on public ones.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._in_use():
            return self._speed()

    def bytes_per_token(self) -> int:
        """Bytes of the cache that one token of one member takes.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._in_use():
            return self._bytes_per_token()

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

    @abc.abstractmethod
    def _speed(self) -> float: ...

    @abc.abstractmethod
    def _bytes_per_token(self) -> int: ...


def tail_tokens(tokens: Sequence[int], max_tokens: int) -> Part:
    """Tokens of a question, unless they are none or more than half of ``max_tokens``.

    Raises:
        InvalidParameter: They are.
    """
    if not 0 < len(tokens) <= max_tokens // 2:
        raise InvalidParameter(
            f"Expected a question of {len(tokens)} tokens to have 1 to {max_tokens // 2}, half of "
            f"max_tokens={max_tokens}. Shorten it, or raise max_tokens."
        )
    return tuple(tokens)


def check_head(tokens: int, room: int, max_tokens: int) -> None:
    """Raise InvalidParameter if a public head leaves no member room."""
    if tokens > room:
        raise InvalidParameter(
            f"Expected a head of {tokens} tokens to leave room for examples in max_tokens={max_tokens}. Shorten it, or "
            "raise max_tokens."
        )


def check_frame(tokens: int, most: int) -> None:
    """Raise InvalidParameter if a public head and tail leave no member room."""
    if tokens > most:
        raise InvalidParameter(
            f"Expected a head and a tail of {tokens} tokens to have at most {most}, or no member fits. Shorten them, "
            "or raise max_tokens."
        )


def label_tokens(words: Sequence[str], tokens: Callable[[str], Sequence[int]]) -> list[Part]:
    """First tokens of label words, if they differ; else all tokens of all of them.

    Raises:
        InvalidParameter: Words are not distinct or empty.
    """
    labels = [tuple(tokens(word)) for word in words]
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected words={list(words)!r} to be distinct, with at least one token each.")
    return [label[:1] for label in labels] if len({label[0] for label in labels}) == len(labels) else labels


def _kept_row(logits: Logits, written: Sequence[int], draw: float) -> Logits | None:
    """A member's logits, unless one of them is no number: it has none then."""
    return logits.copy() if np.isfinite(logits).all() else None


def body_digest(prompt: MemberPrompt) -> bytes:
    """Hash by which new content under an old key is noticed."""
    return hashlib.sha256(prompt.body.encode(errors="surrogatepass")).digest()


def check_written(asked: Sequence[Continuation]) -> None:
    """Refuse continuations that stand at different places of a text."""
    if any(one.written != asked[0].written for one in asked):
        raise InvalidParameter("Expected all continuations to have the same written tokens. Ask in several calls.")


def check_common(prompts: Sequence[MemberPrompt]) -> None:
    """Refuse prompts of one call that do not have the same public parts."""
    first = prompts[0]
    if any(
        (each.head, each.tail, each.response_prefix) != (first.head, first.tail, first.response_prefix)
        for each in prompts
    ):
        raise InvalidParameter(
            "Expected prompts of one call to have equal heads, tails and beginnings. Ask in several calls."
        )
