"""An engine that scores next tokens over a dozen words: the public model likes all of them, a member its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from fakes.stops import press_ctrl_c
from langchain_dp.ensemble.text_writer import INVENTED
from langchain_dp.ports import Continuation, MemberPrompt, Token, TokenScores

WORDS = (" late", " parcel", " invoice", " paid", " refund", " broken", " thanks", " today", " please", ".")
END = len(WORDS)
NEWLINE = END + 1


def of_records(members: Sequence[Continuation]) -> list[Continuation]:
    """Those that show a record, and not an invented one."""
    return [one for one in members if INVENTED not in one.prompt.body]


class WordScorer:
    """Scores next tokens, and labels by the words of a text; notes what it was asked of records.

    Args:
        before: Called at the beginning of every call, with the private bodies that were asked.
        length: Words after which the public model wants to end.
        poison: A member whose body holds this breaks the call.
    """

    name = "words"
    vocabulary_size = len(WORDS) + 2
    end_tokens = frozenset[Token]({END})
    max_prompt_tokens = 10_000
    max_tail_tokens = 5_000
    draws_only = False

    def __init__(
        self, before: Callable[[list[str]], None] | None = None, *, length: int = 4, poison: str = "\0"
    ) -> None:
        self._before = before or (lambda bodies: None)
        self._length = length
        self._poison = poison
        self.asked: list[list[Continuation]] = []
        self.forgotten: set[Hashable] = set()

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def detokenize(self, tokens: Sequence[Token]) -> str:
        spelt = dict(enumerate(WORDS)) | {END: "", NEWLINE: "\n"}
        return "".join(spelt[int(token)] for token in tokens)

    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        private = of_records(members)
        if private or not self.draws_only:
            self.asked.append(private)
            self._before([one.prompt.body for one in private])
        if any(self._poison in one.prompt.body for one in members):
            raise ValueError(f"cannot read {[one.prompt.body for one in members]}")
        order = np.argsort(-self._row(public), kind="stable")[:candidates]
        tokens = np.array([*order, *([] if END in order else [END])])
        rows = tuple(self._row(one)[tokens] for one in members)
        return TokenScores(tuple(tokens.tolist()), self._row(public)[tokens], rows)

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        return [[0.0 if "parcel" in prompt.tail and i == 0 else -float(i) for i, _ in enumerate(words)]
                for prompt in prompts]  # fmt: skip

    def forget(self, *members: Hashable) -> None:
        self.forgotten.update(members)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        return

    def _row(self, one: Continuation) -> np.ndarray:
        logits = np.zeros(self.vocabulary_size)
        logits[NEWLINE] = -30.0
        logits[END] = 12.0 if len(one.written) >= self._length else -8.0
        for i, word in enumerate(WORDS):
            logits[i] += 6.0 * (word.strip() in one.prompt.body)
        return np.asarray(logits - np.log(np.exp(logits).sum()))


class ClosingScorer(WordScorer):
    """Closes like a real one."""

    def __enter__(self) -> ClosingScorer:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Draws(WordScorer):
    """Notes no call that shows no record, as those which ask before a charge whether the model is there."""

    draws_only = True


class Panic(BaseException):
    """As a library raises whose own language panicked."""


def stop_at(call: int) -> Callable[[list[str]], None]:
    """Ctrl-C at the n-th question."""
    calls = itertools.count(1)

    def stop(bodies: list[str]) -> None:
        if next(calls) == call:
            press_ctrl_c()

    return stop
