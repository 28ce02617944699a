"""Checks whether company changes an answer's bits. It can refute that, never prove it."""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from langchain_dp.errors import InvalidParameter, ModelUnavailable

from .dialect import Choice, Dialect, listed
from .http import ServerError

COMPANY = 32
"""Least number of other prompts."""

ROUNDS = 4
_COPIES = 3
_LONGEST = 256
_PATIENCE = 60.0
_REMEDY = (
    "Start the server so that it is (vLLM: VLLM_BATCH_INVARIANT=1 vllm serve MODEL, SGLang: "
    "--enable-deterministic-inference), or leave batch_invariant=True out: members are then asked one at a time."
)
_PROSE = (
    "the market opens at eight and bread is sold near the old gate while boats wait for the tide in a quiet harbor "
    "because water boils at a lower temperature on a high mountain where few trees grow and the wind turns north"
)
_WORDS = tuple(_PROSE.split(" "))


def compared(dialect: Dialect, company: int, context: int) -> int:
    """Compare public prompts to the last bit. Return the number of comparisons."""
    if not dialect.listed:
        raise InvalidParameter(
            "Expected a server that lists log-probabilities (logprobs) for batch_invariant=True: tokens alone seldom "
            "show what company moved. Use another server, or leave batch_invariant=True out."
        )
    longest = max(1, min(_LONGEST, context // 4))  # words of the list have one token or two
    total = ROUNDS * (1 + _COPIES * (1 + dialect.lists))
    done = 0
    for turn in range(ROUNDS):
        needle = _text(turn, max(2, longest * turn // (2 * (ROUNDS - 1))))
        others = [_text(turn + i, round(longest ** (i / (company - 1)))) for i in range(company)]
        try:
            alone, *again = [_alone(dialect, needle) for _ in range(2)]
            ways = [("alone for the second time", again)]
            if dialect.lists:
                ways.append((f"in one request with {company} others", _together(dialect, needle, others)))
            ways.append((f"side by side with {company} others", _side_by_side(dialect, needle, others)))
        except (ServerError, threading.BrokenBarrierError) as problem:
            raise ModelUnavailable(
                f"The server failed on public text while batch_invariant=True was checked with {company} prompts "
                f"beside one ({problem}). Check how many requests it takes at once."
            ) from None
        for way, answers in ways:
            for answer in answers:
                done += 1
                if _bits(answer) != _bits(alone):
                    raise InvalidParameter(
                        "Expected the server to be batch-invariant, as batch_invariant=True declares. In comparison "
                        f"{done} of {total}, a public prompt asked {way} got {_difference(alone, answer)}. {_REMEDY}"
                    )
    return done


def _alone(dialect: Dialect, needle: str) -> Choice:
    return dialect.request([needle], listed=dialect.listed)[0]


def _together(dialect: Dialect, needle: str, others: Sequence[str]) -> list[Choice]:
    half = len(others) // 2
    prompts = [needle, *others[:half], needle, *others[half:], needle]
    choices = dialect.request(prompts, listed=dialect.listed)
    return [choice for prompt, choice in zip(prompts, choices, strict=True) if prompt == needle]


def _side_by_side(dialect: Dialect, needle: str, others: Sequence[str]) -> list[Choice]:
    half = len(others) // 2
    asked = [(needle, 1), *((text, 1 + i % 8) for i, text in enumerate(others))]
    asked = [*asked[: half + 1], (needle, 1), *asked[half + 1 :], (needle, 1)]
    start = threading.Barrier(len(asked))

    def ask(prompt: str, tokens: int) -> Choice:
        start.wait(_PATIENCE)  # no answer before all have arrived
        return dialect.request([prompt], listed=dialect.listed, max_tokens=tokens)[0]

    with ThreadPoolExecutor(len(asked)) as pool:
        # Each in a copy of this context, so that it stays quiet.
        waiting = [pool.submit(contextvars.copy_context().run, ask, text, tokens) for text, tokens in asked]
        answers = [one.result() for one in waiting]
    return [answer for (prompt, _), answer in zip(asked, answers, strict=True) if prompt == needle]


def _text(start: int, words: int) -> str:
    # Different beginnings keep the server's cache out.
    return " ".join(_WORDS[(start * 7 + i * (1 + start % 5)) % len(_WORDS)] for i in range(words))


def _bits(choice: Choice) -> str:
    """Comparable even with NaN."""
    return json.dumps({name: choice.get(name) for name in ("text", "finish_reason", "logprobs")}, sort_keys=True)


def _difference(alone: Choice, other: Choice) -> str:
    first, second = _numbers(alone), _numbers(other)
    differences = []
    if alone.get("text") != other.get("text"):
        differences.append("another token")
    moved = max((abs(first[text] - second[text]) for text in first.keys() & second.keys()), default=0.0)
    if moved:
        differences.append(f"log-probabilities that moved by up to {moved:.2g}")
    if first.keys() != second.keys():
        differences.append(f"{len(second.keys() - first.keys())} other tokens of {len(second)} listed")
    return ", ".join(differences) or "an answer of another form"


def _numbers(choice: Choice) -> dict[str, float]:
    try:
        return listed(choice)
    except (LookupError, TypeError, AttributeError):
        return {}
