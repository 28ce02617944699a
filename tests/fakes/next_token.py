"""A language model of some tens of words that reads its prompt, or says what a script tells it. No model library.

A script gives a member's whole sentence, and the engine the token at the position that is reached: what the others
made of the text so far does not matter to it. Every rule of ``Decoding`` holds for scripts too: a banned scripted
token gives way to another one, and a script that is None abstains.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NoReturn

import numpy as np

from langchain_dp._util.validate import number
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token, TokenScores

Script = Callable[[int, Continuation], str | list[str] | None]
"""Place of a member in its call, and the member: its whole sentence or the pieces of it, or None if it abstains."""

WORDS = (
    "Read the review and answer with positive or negative.\nInstruction: Classify this text, that input, its output"
    " label and sentiment.\nClassify a movie, film as good, bad, great, dull.\nSay yes or no; is it only one word?\n"
    "Think about feeling, tone.\nDecide if not!\nInput: Read\nOutput: Say\nLabel: Think\nSentiment: Decide"
)
"""Text whose pieces are the vocabulary."""

_PIECE = re.compile(r" ?\w+| ?[^\w\s]|\s")
_END, _CONTROL = 0, 1
_SCRIPTED, _TEMPTING = 1000.0, 50.0


def pieces(text: str) -> list[str]:
    """Words and marks with the blank before them, which put together are the text again."""
    return _PIECE.findall(text)


def agreeing(sentence: str) -> Script:
    """Every member writes ``sentence``."""
    return lambda place, asked: sentence


def by_member(sentences: Mapping[Hashable, str | None], otherwise: str | None = None) -> Script:
    """Each member writes the sentence under its key."""
    return lambda place, asked: sentences.get(asked.prompt.member, otherwise)


def by_text(sentences: Mapping[str, str | None], otherwise: str | None = None) -> Script:
    """A member writes the sentence of the first marker that its body holds."""

    def script(place: int, asked: Continuation) -> str | None:
        return next((said for marker, said in sentences.items() if marker in asked.prompt.body), otherwise)

    return script


def all_distinct(place: int, asked: Continuation) -> list[str]:
    """Member i of a call writes the i-th token of the vocabulary that is neither an end nor half a letter, for ever.

    It breaks the port's promise, since it looks at the place: use it for votes that never agree.
    """
    said = list(dict.fromkeys(pieces(WORDS)))
    if place >= len(said):
        raise AssertionError(f"Expected at most {len(said)} members for {len(said)} words. Ask fewer.")
    return [said[place]] * (len(asked.written) + 1)


class WordEngine:
    """Writes tokens and scores labels for many members; implements ``NextTokenVoter`` and ``LabelScorer``.

    Token 0 ends a text. Token 1 is a control token that is always the most probable one and must never be taken. The
    next two are the halves of an "é". All others are the pieces of WORDS and ``extra``. The public prompt, which shows
    no record, likes everything alike where there is a script.

    Args:
        script: What members write; None is an n-gram model of each member's own prompt and written text.
        extra: Text whose pieces join the vocabulary.
        spoil: Called with each member that is asked; where it raises, that member abstains.
        during: Called inside each call; what it raises, the call raises.
        max_prompt_tokens: Longest prompt with what was written, in pieces.

    Attributes:
        calls: What was asked of records, call by call.
        decodings: How, call by call.
        cache: Bodies of the members seen and not forgotten.
        forgotten: Members that were to be forgotten, in order.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        extra: str = "",
        spoil: Callable[[MemberPrompt], object] = lambda prompt: None,
        during: Callable[[], object] = lambda: None,
        max_prompt_tokens: int = 2000,
    ) -> None:
        self._pieces = [b"", b"<|control|>", b"\xc3", b"\xa9"]
        self._pieces += [piece.encode() for piece in dict.fromkeys(pieces(WORDS + extra))]
        self._ids = {piece.decode(): i for i, piece in enumerate(self._pieces) if i > 3}
        self._script, self._spoil, self._during = script, spoil, during
        self._max = max_prompt_tokens
        self._lock = threading.Lock()
        self.calls: list[list[Continuation]] = []
        self.decodings: list[Decoding] = []
        self.cache: dict[Hashable, str] = {}
        self.forgotten: list[Hashable] = []

    name = "word-engine-1"

    @property
    def vocabulary_size(self) -> int:
        """Pieces, with those that are never written."""
        return len(self._pieces)

    @property
    def end_tokens(self) -> frozenset[Token]:
        """The one token that ends a text."""
        return frozenset({_END})

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt with what was written, in pieces."""
        return self._max

    @property
    def max_tail_tokens(self) -> int:
        """Half of it."""
        return self._max // 2

    def count_tokens(self, text: str) -> int:
        """Number of pieces."""
        return len(pieces(text))

    def tokenize(self, text: str | list[str]) -> tuple[int, ...]:
        """Tokens of a text, or of its pieces, which are all in the vocabulary."""
        parts = pieces(text) if isinstance(text, str) else text
        unknown = [piece for piece in parts if piece not in self._ids]
        if unknown:
            raise AssertionError(f"Expected {unknown} to be in the vocabulary. Name them in extra=.")
        return tuple(self._ids[piece] for piece in parts)

    def detokenize(self, tokens: Sequence[Token]) -> str:
        """The pieces, put together."""
        return b"".join(self._pieces[int(token)] for token in tokens).decode(errors="replace")

    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, in order."""
        if any(one.prompt.body for one in asked):
            with self._lock:
                self.calls.append(list(asked))
                self.decodings.append(decoding)
        self._during()
        number("temperature", decoding.temperature, at_least=0)
        number("repetition_penalty", decoding.repetition_penalty, at_least=1)
        _equal([one.prompt for one in asked])
        if asked:
            self._check_frame(asked[0].prompt)
        return [self._token(place, one, decoding) for place, one in enumerate(asked)]

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """Log-softmax over the words' pieces, less the mean probability after the content-free tails."""
        self._during()
        _equal(prompts)
        labels = [pieces(word) for word in words]
        if not all(labels) or len(set(words)) < len(words) or not words:
            raise InvalidParameter(f"Expected words={list(words)!r} to be distinct, with at least one token each.")
        for tail in [*(prompt.tail for prompt in prompts[:1]), *content_free]:
            if not 0 < self.count_tokens(tail) <= self.max_tail_tokens:
                raise InvalidParameter(
                    f"Expected a question of {self.count_tokens(tail)} tokens to have 1 to {self.max_tail_tokens}."
                )
        return [self._row(prompt, labels, content_free) for prompt in prompts]

    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        """Log-probabilities of what it would write, of the public prompt's most probable tokens."""
        with self._lock:
            self.calls.append(list(members))
        self._during()
        _equal([one.prompt for one in (public, *members)])
        self._check_frame(public.prompt)
        rows = [self._shares(place, one, chat) for place, one in enumerate(members)]
        known = self._shares(0, public, chat)
        assert known is not None
        order = sorted(range(len(known)), key=lambda token: (-known[token], token))[:candidates]
        tokens = [token for token in order if token != _CONTROL] + [_END] * (_END not in order)
        return TokenScores(
            tuple(tokens),
            np.array([known[token] for token in tokens]),
            tuple(None if row is None else np.array([row[token] for token in tokens]) for row in rows),
        )

    def _check_frame(self, prompt: MemberPrompt) -> None:
        if self.count_tokens(prompt.head + prompt.tail + prompt.response_prefix) > self._max:
            raise InvalidParameter(f"Expected a head and a tail of at most {self._max} tokens, or no member fits.")

    def _shares(self, place: int, asked: Continuation, chat: bool) -> list[float] | None:
        """Log-softmax of a member's logits, of which none is far above the others: a script prefers by ten nats."""
        try:
            logits = self._logits(place, asked, chat)
        except AssertionError:
            raise
        except Exception:
            return None
        if logits is None:
            return None
        low = [min(logit, 10.0) for logit in logits]
        total = math.log(math.fsum(map(math.exp, low)))
        return [logit - total for logit in low]

    def forget(self, *members: Hashable) -> None:
        """Drop what is cached of these members."""
        for member in members:
            self.forgotten.append(member)
            self.cache.pop(member, None)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Cache these members."""
        self.cache.update({prompt.member: prompt.body for prompt in prompts})

    def __repr__(self) -> str:
        return "WordEngine(<private>)"

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError("A WordEngine keeps what it was asked. Build it anew.")

    def _token(self, place: int, asked: Continuation, decoding: Decoding) -> Token | None:
        try:
            logits = self._logits(place, asked, bool(decoding.chat))
        except AssertionError:
            raise
        except Exception:
            return None
        return None if logits is None else taken(logits, asked, decoding, never={_CONTROL})

    def _logits(self, place: int, asked: Continuation, chat: bool) -> list[float] | None:
        self._spoil(asked.prompt)
        whole = asked.prompt.head + asked.prompt.body + asked.prompt.tail + asked.prompt.response_prefix
        if self.count_tokens(whole) + len(asked.written) > self._max:
            return None
        self.cache[asked.prompt.member] = asked.prompt.body
        if self._script is None:
            return self._read(f"<user>{whole}<assistant>" if chat else whole, asked.written)
        if not asked.prompt.body:
            return [0.0] * len(self._pieces)
        said = self._script(place, asked)
        if said is None:
            return None
        sentence = self.tokenize(said)
        logits = [0.0] * len(self._pieces)
        logits[sentence[len(asked.written)] if len(asked.written) < len(sentence) else _END] = _SCRIPTED
        return logits

    def _read(self, text: str, written: Sequence[Token]) -> list[float]:
        """Logits by what followed the last piece in this very text, by what is in it at all, and by its own whims."""
        seen = pieces(text) + [self.detokenize([token]) for token in written]
        last = seen[-1] if seen else ""
        after = Counter(b for a, b in pairwise(seen) if a.strip(" ") == last.strip(" "))
        whole = Counter(seen)
        whims = hashlib.shake_256("".join(seen).encode(errors="surrogatepass")).digest(len(self._pieces))
        logits = [
            4 + math.log(0.05 + after[piece] + 0.02 * whole[piece]) + whim / 200
            for piece, whim in zip((one.decode(errors="replace") for one in self._pieces), whims, strict=True)
        ]
        logits[_END] = 9.0 if last == "." else -5.0
        logits[_CONTROL] = _TEMPTING
        return logits

    def _row(
        self, prompt: MemberPrompt, labels: Sequence[list[str]], content_free: Sequence[str]
    ) -> list[float] | None:
        try:
            self._spoil(prompt)
            if self.count_tokens(prompt.head + prompt.body) + self.max_tail_tokens > self._max:
                return None
        except Exception:
            return None
        self.cache[prompt.member] = prompt.body
        row = self._label_scores(prompt.head + prompt.body + prompt.tail, labels)
        if content_free:
            free = [self._label_scores(prompt.head + prompt.body + tail, labels) for tail in content_free]
            mean = [sum(math.exp(score) for score in column) / len(free) for column in zip(*free, strict=True)]
            row = [score - math.log(share) for score, share in zip(row, mean, strict=True)]
        return row

    def _label_scores(self, text: str, labels: Sequence[list[str]]) -> list[float]:
        """Log-share of the times that a label follows the last piece of the text, in the text."""
        cue = pieces(text)[-1]
        counts = [0.1 + (text + "\n").count(f"{cue}{''.join(label)}\n") for label in labels]
        whims = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        shares = [count + whims[i % 32] / 2000 for i, count in enumerate(counts)]
        return [math.log(share / sum(shares)) for share in shares]


class ClosingEngine(WordEngine):
    """Closes like a real one, and keeps the options that it was made with."""

    closed = False
    options: ClassVar[dict[str, Any]] = {}

    def __enter__(self) -> ClosingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def taken(logits: Sequence[float], asked: Continuation, decoding: Decoding, *, never: set[int]) -> Token | None:
    """One token by the rules of ``Decoding``, in plain Python: what every engine's choice can be compared with."""
    allowed = {i: logit for i, logit in enumerate(logits) if i not in never and i not in decoding.banned}
    for token in set(asked.written) & set(allowed):
        logit, penalty = allowed[int(token)], decoding.repetition_penalty
        allowed[int(token)] = logit / penalty if logit > 0 else logit * penalty
    if not allowed:
        return None
    top = max(allowed.values())
    if decoding.temperature == 0:
        return min(i for i, logit in allowed.items() if logit == top)
    weights = {i: math.exp((logit - top) / decoding.temperature) for i, logit in allowed.items()}
    mark, reached = asked.draw * math.fsum(weights.values()), 0.0
    for i, weight in weights.items():
        reached += weight
        if weight > 0 and reached > mark:
            return i
    return max(i for i, weight in weights.items() if weight > 0)


def _equal(prompts: Sequence[MemberPrompt]) -> None:
    if len({(prompt.head, prompt.tail, prompt.response_prefix) for prompt in prompts}) > 1:
        raise InvalidParameter(
            "Expected prompts of one call to have equal heads, tails and beginnings. Ask in several calls."
        )
