"""Audits of private sums over public encoders: what one record or user moves, exactly, and the noise."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
from fakes.optimizers import optimizer
from fakes.synthesizers import synthesizer
from langchain_core.embeddings import Embeddings
from scipy import stats

from audits.check import Check, Finding, likely, worst
from audits.stubs import LogRecorder
from langchain_dp import DPLabelNamer, DPPrototypeClassifier
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.aggregate import names, public_texts
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness, VectorSum, exponential_choice
from langchain_dp.mechanisms.vector_sum import NORM
from langchain_dp.records import PrivateRecords

LABELS = ("a", "b", "c")
DIMENSIONS = 12
_R1, _ADD = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE
Row = dict[str, str]


class SignedEncoder(Embeddings):
    """A vector per text, drawn by its words; "not x" has the opposite one of "x", and "unencodable" has none.

    Public texts come in opposite pairs, so their mean is zero.
    """

    batch_invariant = True
    keeps_no_prompts = True

    def __init__(self) -> None:
        self._places = {text: place for place, text in enumerate(public_texts()[: len(public_texts()) // 2 * 2])}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any("unencodable" in text for text in texts):
            raise ValueError("this text cannot be encoded")
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    def _vector(self, text: str) -> list[float]:
        place = self._places.get(text)
        sign = -1.0 if text.startswith("not ") or (place or 0) % 2 else 1.0
        seed = list(f"pair {place // 2}".encode() if place is not None else text.removeprefix("not ").encode())
        return list(sign * np.random.default_rng(seed).normal(size=DIMENSIONS))


ENCODER = SignedEncoder()


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two neighbors under a relation, and what is asked of both."""

    name: str
    neighbors: Neighbors
    sides: tuple[Sequence[Row], Sequence[Row]]
    user_key: str | None = None
    ask: Callable[[PrivateRecords, PrivacyLedger], Any] = lambda records, ledger: _fit(records, ledger)


def _rows(count: int, *, user: str | None = None) -> list[Row]:
    rows = [{"text": f"text {place}", "label": LABELS[place % 2]} for place in range(count)]
    return [{**row, "user": user or f"u{place}"} for place, row in enumerate(rows)]


def pairs() -> list[Pair]:
    """Neighbors that differ in one text, one label, one failing text, an empty label, one user of many records."""
    rest = _rows(6)
    of_one = [{"text": f"own {place}", "label": LABELS[place % 3], "user": "x"} for place in range(40)]
    opposite = [{**row, "text": f"not {row['text']}"} for row in of_one]
    texts = [
        Pair(f"opposite text {number}", _R1, ([*rest, _one(f"w{number}")], [*rest, _one(f"not w{number}")]))
        for number in range(12)
    ]
    return [
        *texts,
        Pair("another label", _R1, ([*rest, _one("w")], [*rest, _one("w", "b")])),
        Pair("the only one of its label", _R1, ([*rest, _one("w", "c")], [*rest, _one("w", "a")])),
        Pair("a text that breaks the encoder", _R1, ([*rest, _one("w")], [*rest, _one("unencodable")])),
        Pair("one more", _ADD, (rest, [*rest, _one("w", "c")])),
        Pair("a user of 40 records for another", _R1, ([*rest, *of_one], [*rest, *opposite]), "user"),
        Pair("a user of 40 records for one of 1", _R1, ([*rest, *of_one], [*rest, _one("w")]), "user"),
        Pair("a user of 40 records more", _ADD, (rest, [*rest, *of_one]), "user"),
    ]


def _one(text: str, label: str = "a") -> Row:
    return {"text": text, "label": label, "user": "x"}


@contextlib.contextmanager
def _spied(outcomes: list[Any] | None = None) -> Iterator[tuple[list[Any], list[Any]]]:
    """Totals that meet the noise, with their mechanism, and logged lines; ``outcomes`` are drawn on both sides."""
    totals: list[Any] = []
    real = VectorSum.release

    def release(mechanism: VectorSum, total: Any, **options: Any) -> Any:
        place = len(totals)
        totals.append((mechanism, total.copy()))
        if outcomes is not None and place == len(outcomes):
            outcomes.append(real(mechanism, total, **options))
        same = outcomes is not None and place < len(outcomes) and outcomes[place].shape == total.shape
        return outcomes[place] if outcomes and same else real(mechanism, total, **options)

    with mock.patch.object(VectorSum, "release", release), LogRecorder() as log:
        yield totals, log.lines


def _fit(records: PrivateRecords, ledger: PrivacyLedger) -> Any:
    components = 8 if ledger.budget.neighbors is _ADD else None
    return DPPrototypeClassifier.fit(records, labels=LABELS, ledger=ledger, encoder=ENCODER, components=components)


def sums(chosen: Sequence[Pair] | None = None) -> Finding:
    """No record or user moves the total farther than the charged event says, and nothing else hangs on one."""
    return moved(pairs() if chosen is None else chosen, PrivacyBudget(1.0, 1e-5))


def moved(chosen: Iterable[Pair], budget: PrivacyBudget) -> Finding:
    """No record or user moves all totals together farther than the one charged event says."""
    return worst(_moved(pair, dataclasses.replace(budget, neighbors=pair.neighbors)) for pair in chosen)


def _moved(pair: Pair, budget: PrivacyBudget) -> Finding:
    outcomes: list[Any] = []
    sides, seen = [], []
    for rows in pair.sides:
        ledger = PrivacyLedger(budget)
        with _spied(outcomes) as (totals, lines):
            pair.ask(PrivateRecords(rows, user_key=pair.user_key), ledger)
        plan = ledger.plans()[0]
        [(event, count)] = plan.events
        charged = sum(entry.count for entry in plan.entries())
        if count != 1 or charged != 1 or not totals or any(mechanism.event != event for mechanism, _ in totals):
            return Finding(True, f"{pair.name}: {len(totals)} draws, {charged} charged of {count}, at {event}")
        sides.append([total for _, total in totals])
        seen.append((event, [total.shape for _, total in totals], lines))
        norm = totals[0][0].norm
    if seen[0] != seen[1]:
        return Finding(True, f"{pair.name}: events, shapes or logs differ: {str(seen)[:200]}")
    square = sum(int(((one - other) ** 2).sum()) for one, other in zip(*sides, strict=True))
    most = event.distance(pair.neighbors) * norm
    return Finding(
        math.sqrt(square) > most * (1 + 1e-9), f"{pair.name}: moved {math.sqrt(square):.1f} of {most:.1f} grid steps"
    )


def noise(fits: int = 40) -> Finding:
    """The released sums differ from the total by fresh noise of the charged scale, once."""
    rows, residuals = _rows(7), []
    for _ in range(fits):
        ledger = PrivacyLedger(PrivacyBudget(1.0, 1e-5))
        with _spied() as (spied, _):
            classifier = _fit(PrivateRecords(rows), ledger)
        [(event, _)] = ledger.plans()[0].events
        total = sum(total for _, total in spied)
        residual = (classifier._releases[0].sums - total) / (event.noise_multiplier * NORM)
        residuals.append(residual.ravel())
    return fresh_noise(residuals)


def fresh_noise(residuals: Sequence[Any]) -> Finding:
    """Whether the noise of several releases, in units of what was charged, has variance 1 and is drawn anew."""
    values = np.concatenate(residuals)
    square, spread = float((values**2).sum()), stats.chi2(len(values))
    repeats = np.corrcoef(np.array(residuals[:-1]).ravel(), np.array(residuals[1:]).ravel())[0, 1]
    return likely(
        {
            f"variance {statistics.pvariance(values):.3f} of 1": 2 * min(spread.cdf(square), spread.sf(square)),
            f"correlation {repeats:.3f} of one release with the next": float(
                2 * stats.norm.sf(abs(repeats) * math.sqrt(len(values) - residuals[0].size))
            ),
        }
    )


def prompts(seeds: int = 30) -> Finding:
    """Under the same coins, no user moves more than one prompt of a vote, and shows no more than one record there.

    Nor more than one record of a run of DP-OPT or of the synthesizer.
    """
    users = [pair for pair in pairs() if pair.user_key]
    findings = [_prompted(pair, sampling, seed) for pair in users if pair.neighbors is _R1
                for sampling in ("fixed", "resample") for seed in range(seeds)]  # fmt: skip
    return worst([*findings, *(_read(pair, run) for pair in users for run in (optimizer(), synthesizer()))])


def _read(pair: Pair, run: Any) -> Finding:
    """Records that a run reads of each side, by their texts."""
    labels = list(run.settings.labels)
    sides = []
    for rows in pair.sides:
        named = [{**row, "label": labels[LABELS.index(row["label"]) % len(labels)]} for row in rows]
        records = run._checked(PrivateRecords(named, user_key=pair.user_key))
        sides.append(Counter(records.get(name)["text"] for name in records.ids()))
    gone, new = (sum((one - other).values()) for one, other in itertools.permutations(sides))
    return Finding(max(gone, new) > 1, f"{pair.name}, {type(run).__name__}: {gone} records go, {new} come")


def _prompted(pair: Pair, sampling: Any, seed: int) -> Finding:
    drawn = []
    for rows in pair.sides:  # the user in question comes last, so that the others have the same coins
        records = PrivateRecords(rows, user_key=pair.user_key)
        scheme = Scheme(sampling, 4, 0.7, even=False)
        rng = NotPrivateSeededRandomness(seed)
        subsets = SubsetPrompts(records, scheme, lambda row: (row["text"], ""), rng)
        drawn.append([prompt.shots for prompt in subsets.draw("?")])
    moved = sum(one != other for one, other in itertools.zip_longest(*drawn))
    most = max(
        (sum(text.startswith(("own", "not own")) for text, _ in shots) for shots in itertools.chain(*drawn)), default=0
    )
    return Finding(moved > 1 or most > 1, f"{pair.name}, {sampling}: {moved} prompts differ, {most} records in one")


WORDS = ("north", "south", "east", "west", "home", "away", "up", "down")


def named(chosen: Sequence[Pair] | None = None) -> Finding:
    """No record makes any outcome of the names likelier than the certificate's epsilon says, by the exact law."""
    return worst(_told(pair) for pair in (pairs() if chosen is None else chosen))


def _told(pair: Pair) -> Finding:
    laws = []
    for rows in pair.sides:
        drawn: list[Any] = []
        real = names._chosen

        def chosen(mechanism: Any, counts: Any, rng: Any, drawn: list[Any] = drawn, real: Any = real) -> Any:
            drawn.append((mechanism, [list(row) for row in counts]))
            return real(mechanism, counts, rng)

        records = PrivateRecords(rows, user_key=pair.user_key)
        with mock.patch.object(names, "_chosen", chosen):
            found = DPLabelNamer(WORDS, encoder=ENCODER).fit(
                records, labels=LABELS, budget=PrivacyBudget(1.0, 1e-5, pair.neighbors)
            )
        [(mechanism, counts)] = drawn
        laws.append(_law(mechanism, counts))
    worst_ratio = max(
        abs(laws[0].get(outcome, -math.inf) - laws[1].get(outcome, -math.inf)) for outcome in laws[0] | laws[1]
    )
    claimed = found.certificate.epsilon
    return Finding(worst_ratio > claimed + 1e-9, f"{pair.name}: log ratio {worst_ratio:.4f}, claimed {claimed:.4f}")


def _law(mechanism: Any, counts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], float]:
    """Log-probability of every sequence of names: the code that draws is led through all of its outcomes."""
    law: dict[tuple[int, ...], float] = {}
    for script in itertools.product(range(len(counts[0])), repeat=len(counts)):
        steps, total = iter(script), [0.0]

        def draw(
            rng: Any, base: Any, exponents: Sequence[int], factors: Any, steps: Any = steps, total: Any = total
        ) -> int:
            place = next(steps)
            if place >= len(exponents):
                raise IndexError
            weights = math.log(base) * np.array(exponents, dtype=np.float64)
            total[0] += float(weights[place] - np.logaddexp.reduce(weights))
            return place

        with mock.patch.object(exponential_choice, "draw", draw), contextlib.suppress(IndexError):
            outcome = tuple(names._chosen(mechanism, counts, SystemRandomness()))
            law[outcome] = total[0]
    return law


CHECKS = (
    Check("sums", "a user moves a sum as far as charged", sums, once=True),
    Check("sum noise", "noise as charged, once and fresh", noise),
    Check("users", "a user moves one vote, by one record", prompts, once=True),
    Check("names", "no user moves a name's chance farther", named, once=True),
)
