"""Audits of noisy counts, of whole surveys and scores: what one record or user moves in all rounds, and the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from fakes.readers import CHOICES, ReadingChat, colors

from audits import aggregate
from audits.aggregate import ENCODER, Pair
from audits.check import Check, Finding
from langchain_dp import DPExampleSelector, DPSurvey, PrivateRecords, private_accuracy
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.aggregate.counts import VOTE, VoteCounts

_R1, _ADD = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE
Row = dict[str, str]
BELOW = {"red": ["green", "blue"], "green": ["red", "blue"]}


def survey(records: PrivateRecords, ledger: PrivacyLedger) -> Any:
    """Four questions, the first with finer choices."""
    return DPSurvey(colors(4, below=BELOW), model=ReadingChat()).run(records, ledger=ledger)


def scores(records: PrivateRecords, ledger: PrivacyLedger) -> Any:
    """Three chains on the same records."""
    return private_accuracy([ReadingChat()] * 3, records, labels=CHOICES, ledger=ledger)


def candidates(records: PrivateRecords, ledger: PrivacyLedger) -> Any:
    """Forty candidates, three labels."""
    selector = DPExampleSelector([f"candidate {place}" for place in range(40)], encoder=ENCODER)
    return selector.select(records, labels=CHOICES, ledger=ledger)


def _voting() -> list[Pair]:
    """Neighbors that differ in one text, one label, a failing text, or a user of many."""
    rest = _rows("one", "two", "three", "four")
    one, other, failing = _rows("this", user="x"), _rows("that", user="x"), _rows("unencodable", user="x")
    relabelled = [{**row, "label": "blue"} for row in other]
    mixed = [{**row, "label": CHOICES[place % 3]} for place, row in enumerate(_rows(*"abcdefghijkl" * 4, user="x"))]
    return [
        Pair("candidates: a text", _R1, ([*rest, *one], [*rest, *other]), None, candidates),
        Pair("candidates: a label", _R1, ([*rest, *one], [*rest, *relabelled]), None, candidates),
        Pair("candidates: a failing text", _R1, ([*rest, *one], [*rest, *failing]), None, candidates),
        Pair("candidates: one more", _ADD, (rest, [*rest, *one]), None, candidates),
        Pair("candidates: a user of 48", _R1, ([*rest, *mixed], [*rest, *one]), "user", candidates),
        Pair("candidates: a user of 48 more", _ADD, (rest, [*rest, *mixed]), "user", candidates),
    ]


def _rows(*answers: str, user: str = "") -> list[Row]:
    return [
        {"text": f"chat {place} says {answer}", "label": "red", "user": user or f"u{place}"}
        for place, answer in enumerate(answers)
    ]


def pairs() -> list[Pair]:
    """Neighbors that differ in one record that answers otherwise everywhere, fails, or is a user of many."""
    rest = _rows("rgbr", "grrb", "bbgr", "rrrr", "xxxx", "gggg")
    red, green = _rows("rrrr", user="x"), _rows("gbgb", user="x")
    failing, mixed = _rows("xxxx", user="x"), _rows(*["rgbr", "gbrg"] * 20, user="x")
    several = [
        ("every answer", red, green),
        ("a failing text", red, failing),
        ("the only failing text", green, failing),
    ]
    asked = (("survey", survey), ("scores", scores))
    without = [row for row in rest if "x" not in row["text"].rpartition(" ")[2]]
    reds = _rows(*["rrrr"] * 8)
    return [
        *_voting(),
        Pair("survey: the only one of its choice", _R1, ([*reds, *red], [*reds, *green]), None, survey),
        *(
            Pair(f"{kind}: {name}", _R1, ([*without, *one], [*without, *other]), None, ask)
            for kind, ask in asked
            for name, one, other in several
        ),
        *(Pair(f"{kind}: one more", _ADD, (rest, [*rest, *green]), None, ask) for kind, ask in asked),
        *(Pair(f"{kind}: a user of 40", _R1, ([*rest, *mixed], [*rest, *red]), "user", ask) for kind, ask in asked),
        *(Pair(f"{kind}: a user of 40 more", _ADD, (rest, [*rest, *mixed]), "user", ask) for kind, ask in asked),
    ]


def moved(chosen: Sequence[Pair] | None = None) -> Finding:
    """The same as for sums, where finer questions are asked of few records."""
    return aggregate.moved(pairs() if chosen is None else chosen, PrivacyBudget(30.0, 1e-5))


def noise(runs: int = 12) -> Finding:
    """The released counts differ from the totals by fresh noise of the charged scale, once."""
    residuals = []
    for _ in range(runs):
        ledger = PrivacyLedger(PrivacyBudget(1.0))
        drawn: list[Any] = []
        real = VoteCounts.release

        def release(counts: Any, total: Any, rng: Any, drawn: list[Any] = drawn, real: Any = real) -> Any:
            noisy = real(counts, total, rng)
            drawn.append((counts.deviation, total / VOTE, noisy))
            return noisy

        with mock.patch.object(VoteCounts, "release", release):
            survey(PrivateRecords(_rows("rrrr", "rrrr", "rrrr")), ledger)
        [(event, _)] = ledger.plans()[0].events
        scale = event.noise_multiplier * math.sqrt(5)  # the root of four questions and one finer one
        residuals.append(np.concatenate([(noisy - total) / scale for _, total, noisy in drawn[:1]]))
    return aggregate.fresh_noise(residuals)


CHECKS = (
    Check("counts", "counts move as far as charged", moved, once=True),
    Check("count noise", "noise as charged, once and fresh", noise),
)
