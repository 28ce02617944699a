"""Audits of private texts: who pays for a round, who takes part in it, and how far one record moves a token."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from audits.check import ERROR, Check, Finding, count, excess, worst
from audits.laws import attendance, coins
from audits.stubs import LABELS, at_once, charges, examples
from langchain_dp.accounting import ClippedSumRoundEvent, Neighbors, PrivacyBudget, PrivacyLedger, epsilon
from langchain_dp.ensemble.text_writer import INVENTED
from langchain_dp.errors import ModelUnavailable
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.ports import Continuation, Token, TokenScores
from langchain_dp.synth import DPAnswerGenerator, DPExampleSynthesizer

_UP, _DOWN, _END = 0, 1, 2
_SURE, _NEVER = -1e-9, -60.0


class ScoringEngine:
    """Likes "up" and "down" alike; a member whose record says one of them likes nothing else. Keeps what it sees."""

    name = "stub"
    end_tokens = frozenset[Token]({_END})
    max_prompt_tokens = 10_000

    def __init__(self, charged: Callable[[], int] = lambda: 0) -> None:
        self._charged = charged
        self.stops: set[int] | None = None  # if it is a set: texts that were stopped at their second token, each once
        self._gone = False
        self._open: dict[tuple[str, str], list[frozenset[str]]] = {}  # answers may be under way side by side
        self._begun: list[tuple[int, list[frozenset[str]]]] = []

    @property
    def texts(self) -> list[tuple[int, list[frozenset[str]]]]:
        """Of every text the charges at its beginning, and the records shown at each of its tokens.

        A single call without records is no text, which has several tokens: it asked whether the model answers, alone or
        with as many invented records as there will be members.
        """
        return [text for text in self._begun if text[1] != [frozenset()]]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def detokenize(self, tokens: Sequence[Token]) -> str:
        """The words, and nothing for an end."""
        return "".join({_UP: " up", _DOWN: " down"}.get(int(token), "") for token in tokens)

    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        del candidates, chat
        asked = public.prompt.head, public.prompt.tail
        if not public.written:
            self._open[asked] = []
            self._begun.append((self._charged(), self._open[asked]))
        if self.stops is not None and members and public.written and len(self._begun) not in self.stops:
            self.stops.add(len(self._begun))
            self._gone = True
        if self._gone:
            self._gone = bool(members)  # until it is asked without a record: then the run knows, and stops
            raise ConnectionError
        seen = self._open[asked]
        if len(seen) > len(public.written) and not seen[-1]:
            seen.pop()  # it was asked whether the model answers
        seen.append(frozenset(one.prompt.body for one in members if INVENTED not in one.prompt.body))
        rows = tuple(self._row(one.prompt.body) for one in members)
        return TokenScores((_UP, _DOWN, _END), np.array([math.log(0.5), math.log(0.5), _NEVER]), rows)

    def forget(self, *members: Hashable) -> None:
        """Nothing is kept."""

    def _row(self, body: str) -> Any:
        if "says up" in body:
            return np.array([_SURE, _NEVER, _NEVER])
        return np.array([_NEVER, _SURE, _NEVER] if "says down" in body else [math.log(0.5), math.log(0.5), _NEVER])


_RATE, _RECORDS, _ROUNDS, _TOKENS = 0.3, 60, 40, 3
_ADD = Neighbors.ADD_OR_REMOVE_ONE
_BUDGET = PrivacyBudget(500.0, 0.1)


def _synthesizer(engine: ScoringEngine, ledger: PrivacyLedger, **changes: Any) -> DPExampleSynthesizer:
    settings: dict[str, Any] = {
        "labels": LABELS, "count": _ROUNDS * len(LABELS), "sampling_probability": _RATE, "min_words": 1,
        "max_new_tokens": _TOKENS, "candidates": 3, "ledger": ledger,
    }  # fmt: skip
    return DPExampleSynthesizer(model=engine, **{**settings, **changes})


def _generator(engine: ScoringEngine, ledger: PrivacyLedger) -> DPAnswerGenerator:
    return DPAnswerGenerator(
        model=engine, examples=examples(_RECORDS), ledger=ledger, max_queries=_ROUNDS, sampling_probability=_RATE,
        max_new_tokens=_TOKENS, candidates=3,
    )  # fmt: skip


def _broken_off(engine: ScoringEngine, ledger: PrivacyLedger) -> None:
    """Every answer is left at its first token, and asked for again."""
    generator = _generator(engine, ledger)
    for question in _QUESTIONS:
        pieces = generator.stream(question)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]  # it is a generator
        generator.invoke(question)


def _stopped(engine: ScoringEngine, ledger: PrivacyLedger) -> None:
    """Every text is stopped at its second token, and the run is taken up by another synthesizer."""
    engine.stops = set()
    for _ in range(len(LABELS) * _ROUNDS + 1):
        with contextlib.suppress(ModelUnavailable):
            _synthesizer(engine, ledger).invoke(examples(_RECORDS))
            return


_QUESTIONS = [f"question {number}?" for number in range(_ROUNDS)]
RUNS: dict[str, tuple[int, Callable[[ScoringEngine, PrivacyLedger], Any]]] = {
    "rounds": (len(LABELS), lambda engine, ledger: _synthesizer(engine, ledger).invoke(examples(_RECORDS))),
    "async rounds": (
        len(LABELS), lambda engine, ledger: at_once([_synthesizer(engine, ledger).ainvoke(examples(_RECORDS))])
    ),
    "answers": (1, lambda engine, ledger: [_generator(engine, ledger).invoke(each) for each in _QUESTIONS]),
    "streamed": (1, lambda engine, ledger: [list(_generator(engine, ledger).stream(each)) for each in _QUESTIONS]),
    "async answers": (
        1, lambda engine, ledger: at_once(_generator(engine, ledger).ainvoke(each) for each in _QUESTIONS)
    ),
    "broken off": (1, _broken_off),
    "stopped rounds": (len(LABELS), _stopped),
}  # fmt: skip
"""Texts of a round, and what writes them."""


def rounds(names: Sequence[str] = tuple(RUNS)) -> Finding:
    """Every round is charged before it begins, draws its members once, by its own coins, and writes each text once."""
    return worst(_round_of(name) for name in names)


def _round_of(name: str) -> Finding:
    texts, run = RUNS[name]
    with PrivacyLedger(_BUDGET) as ledger:
        engine = ScoringEngine(functools.partial(charges, ledger))
        run(engine, ledger)
        paid = charges(ledger)
    written = engine.texts
    early = sum(before < place // texts + 1 for place, (before, _) in enumerate(written))
    changing = sum(len(set(seen)) > 1 for _, seen in written)
    long = sum(len(seen) > _TOKENS for _, seen in written)
    drawn = [[body for _, seen in written[at : at + texts] for body in seen[0]] for at in range(0, len(written), texts)]
    twice = sum(len(set(one)) < len(one) for one in drawn)
    chance = coins(attendance(drawn), _RATE)
    wrong = len(written) != paid * texts or early or changing or long or twice
    return Finding(
        bool(wrong or chance < ERROR),
        f"{name}: {paid} charges for {len(written)} texts, {early} too early; {changing} with changing members, "
        f"{long} too long, {twice} rounds with a record in two texts; coins p = {chance:.1g}",
    )


def nobody(runs: int = 100) -> Finding:
    """Under add/remove, no record against one: a text of full length must be possible, and likely, in both."""
    hits = []
    for records in ([], [{"text": "says up", "label": LABELS[0]}]):
        lengths = []
        for _ in range(runs // 50):
            with PrivacyLedger(PrivacyBudget(500.0, 0.1, _ADD)) as ledger:
                made = _synthesizer(ScoringEngine(), ledger, sampling_probability=1.0, count=100).invoke(records)
            released = [*made, *made.dropped]
            lengths += [len(one.text.split()) for one in released if one.label == LABELS[0]]
        hits.append(count(length == _TOKENS for length in lengths))
    return worst(
        excess(pair, runs, epsilon=0.5, delta=0.05, measured="texts of full length") for pair in (hits, hits[::-1])
    )


# A clip of .65 nats: a member that is sure of one of two equal tokens reaches it on either side.
_NOISE = ClippedSum(ClippedSumRoundEvent(1.3, 1, 1.0), members=2)
_LOSS = 0.25  # where fewest runs tell twice the clip: 1,000 with a chance of .999


@functools.cache
def _claim() -> float:
    return epsilon([(_NOISE.event, 1)], _LOSS)


def canary(runs: int = 1_600) -> Finding:
    """The only record is sure of one token, or of the other one; and a token that is all but impossible is not."""
    if (rare := _rare()).broken:
        return rare
    hits = [_said_up([{"text": text, "label": "x"}], runs) for text in ("says up", "says down")]
    return excess(hits, runs, epsilon=_claim(), delta=_LOSS, measured="the token of the only record")


class _Highest:
    """The largest number each time."""

    private = False

    def randbelow(self, upper: int) -> int:
        return upper - 1


def _rare() -> Finding:
    """The last digits of all belong to the last token, however small its chance: floating point has none left for it.

    A token that can be drawn under one record and not under another tells them apart for certain.
    """
    drawn = _NOISE.release([0.0, -100 * math.log(2)], [], rng=_Highest())
    return Finding(drawn != 1, f"a token of chance 2^-100 {'is' if drawn == 1 else 'cannot be'} drawn")


def _said_up(records: Sequence[Any], runs: int, at_once: int = 300) -> int:
    """How often a generator with the noise of this audit answers "up"."""
    said = 0
    for start in range(0, runs, at_once):
        with PrivacyLedger(PrivacyBudget(500.0, 0.99)) as ledger:
            settings = {"members": _NOISE.members, "temperature": 1.0, "candidates": 3}
            ledger.reserve([(_NOISE.event, at_once)], name="answers", settings=settings)
            chain = DPAnswerGenerator(
                model=ScoringEngine(), examples=records, ledger=ledger, max_queries=at_once,
                members=_NOISE.members, max_new_tokens=1, sampling_probability=1.0, candidates=3,
                answer_cache_size=0,
            )  # fmt: skip
            said += count(chain.invoke(f"question {number}?") == "up" for number in range(min(at_once, runs - start)))
    return said


CHECKS = [
    Check("text rounds", "a round pays, once, for whom it draws", rounds),
    Check("text canary", "a record moves a token by its event", canary),
    Check("nobody", "texts are written without members too", nobody),
]
