"""Requests for many members, in which a failure concerns one."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token

from .._engine import Scores
from .dialect import Choice, Dialect, listed

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_KEPT = 100_000

FLOOR = -100.0


def log_shares(words: Sequence[str], listed: Mapping[str, float]) -> list[float | None]:
    """Sum the listed tokens that begin each word and no other."""
    shares: list[float | None] = []
    for word in words:
        own = [value for text, value in listed.items() if text.strip() and _begun(text, words) == word]
        shares.append(float(np.logaddexp.reduce(own)) if own else None)
    return shares


class Calls:
    """Joint requests, or ``in_flight`` parallel ones."""

    def __init__(self, dialect: Dialect, in_flight: int) -> None:
        self._dialect = dialect
        self._in_flight = in_flight

    def next_tokens(
        self, asked: Sequence[Continuation], decoding: Decoding, turn: tuple[str, str]
    ) -> list[Token | None]:
        answers: list[Token | None] = [None] * len(asked)
        groups: dict[tuple[Token, ...], list[int]] = {}
        for place, one in enumerate(asked):
            if all(isinstance(token, str) for token in one.written) and 0 <= one.draw < 1:
                groups.setdefault(tuple(one.written), []).append(place)
        for written, places in groups.items():
            texts = [str(token) for token in written]
            request = functools.partial(
                self._tokens,
                decoding,
                turn[0],
                turn[1] + asked[0].prompt.response_prefix + "".join(texts),
                self._dialect.decoding(decoding, texts),
            )
            # A request has one seed, and each member its own coin.
            taken = self._each(request, [asked[place] for place in places], together=decoding.temperature == 0)
            for place, token in zip(places, taken, strict=True):
                answers[place] = token
        return answers

    def _tokens(
        self, decoding: Decoding, begin: str, end: str, fields: dict[str, Any], some: Sequence[Continuation]
    ) -> list[Token | None]:
        prompts = [begin + _text(one.prompt) + end for one in some]
        seed = self._dialect.seed(some[0].draw) if decoding.temperature else {}
        return [_token(choice, decoding) for choice in self._dialect.request(prompts, **fields, **seed)]

    def listed(self, prompts: Sequence[MemberPrompt]) -> list[dict[str, float] | None]:
        return self._each(lambda some: self._listed_texts([_text(each) for each in some]), prompts, together=True)

    def listed_after(self, asked: Sequence[Continuation], turn: tuple[str, str]) -> list[dict[str, float] | None]:
        return self._each(functools.partial(self.together_after, turn=turn), asked, together=True)

    def together_after(self, asked: Sequence[Continuation], *, turn: tuple[str, str]) -> list[dict[str, float]]:
        ends = [turn[1] + one.prompt.response_prefix + "".join(map(str, one.written)) for one in asked]
        return self._listed_texts([turn[0] + _text(one.prompt) + end for one, end in zip(asked, ends, strict=True)])

    def _listed_texts(self, texts: Sequence[str]) -> list[dict[str, float]]:
        return [listed(choice) for choice in self._dialect.request(texts, listed=self._dialect.listed)]

    def _each(
        self, request: Callable[[Sequence[Item]], Sequence[Answer]], items: Sequence[Item], *, together: bool
    ) -> list[Answer | None]:
        size = self._in_flight if together and self._dialect.lists else 1

        def ask(some: Sequence[Item]) -> list[Answer | None]:
            try:
                return list(request(some))
            except Exception:  # any kind: a member's failure is private
                if len(some) == 1:
                    return [None]
            # One member's failure must not silence the others.
            return [ask([one])[0] for one in some]

        groups = [items[at : at + size] for at in range(0, len(items), size)]
        if size > 1 or len(groups) <= 1 or self._in_flight == 1:
            return [answer for group in groups for answer in ask(group)]
        pool = ThreadPoolExecutor(min(self._in_flight, len(groups)))
        try:
            # Each in a copy of this context, so that it stays quiet.
            waiting = [pool.submit(contextvars.copy_context().run, ask, group) for group in groups]
            return [answer for one in waiting for answer in one.result()]
        finally:
            pool.shutdown(cancel_futures=True)


class Calibrations:
    """Mean label probabilities without a question, by member and content."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Hashable, ...], Scores] = OrderedDict()

    def means(
        self, calls: Calls, prompts: Sequence[MemberPrompt], words: tuple[str, ...], tails: tuple[str, ...]
    ) -> list[Scores | None]:
        keys: list[tuple[Hashable, ...]] = [
            (prompt.member, prompt.head, hashlib.sha256(repr(prompt.body).encode()).digest(), words, tails)
            for prompt in prompts
        ]
        with self._lock:
            means = {key: self._kept[key] for key in keys if key in self._kept}
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in means}
        asked = [dataclasses.replace(prompt, tail=tail) for prompt in new.values() for tail in tails]
        answers = iter(calls.listed(asked))
        for key in new:
            shares = [next(answers) for _ in tails]
            rows = [None if share is None else expected(words, share) for share in shares]
            usable = [row for row in rows if row is not None]
            if len(usable) == len(tails):
                means[key] = np.logaddexp.reduce(np.stack(usable)) - np.log(len(usable))
        with self._lock:
            for key, mean in means.items():
                self._kept[key] = mean
                self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return [means.get(key) for key in keys]

    def forget(self, members: Sequence[Hashable]) -> None:
        with self._lock:
            for key in [key for key in self._kept if key[0] in members]:
                self._kept.pop(key).fill(0)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


def _text(prompt: MemberPrompt) -> str:
    return prompt.head + prompt.body + prompt.tail


def _token(choice: Choice, decoding: Decoding) -> Token | None:
    text = choice.get("text")
    if not isinstance(text, str) or "\ufffd" in text or text in decoding.banned:
        return None
    return text if text or choice.get("finish_reason") == "stop" else None


def scores(words: Sequence[str], listed: Mapping[str, float]) -> Scores | None:
    """Unlisted words have FLOOR."""
    shares = log_shares(words, listed)
    total = [share for share in shares if share is not None]
    if not total:
        return None
    norm = float(np.logaddexp.reduce(total))
    return np.array([FLOOR if share is None else share - norm for share in shares])


def expected(words: Sequence[str], listed: Mapping[str, float]) -> Scores | None:
    """An unlisted word gets the least listed probability."""
    if not listed:
        return None
    least = min(listed.values())
    row = np.array([least if share is None else share for share in log_shares(words, listed)])
    return np.asarray(row - np.logaddexp.reduce(row))


def _begun(text: str, words: Sequence[str]) -> str | None:
    if text in words:
        return text
    begun = [word for word in words if word.startswith(text)]
    return begun[0] if len(begun) == 1 else None
