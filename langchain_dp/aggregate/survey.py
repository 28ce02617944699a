"""Noisy tables of typed questions to private conversations."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import run_in_executor
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.documents import FileForm
from langchain_dp._util.reprs import InNotebooks
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.provenance import MadeWith
from langchain_dp.aggregate.chats import conversations as read_conversations
from langchain_dp.aggregate.counts import VOTE, VoteCounts, consistent_shares, half_width
from langchain_dp.aggregate.features import Floats
from langchain_dp.aggregate.readers import NO_ANSWER, Choices, EncoderReader, Question, Reader, reader_for
from langchain_dp.aggregate.release import DRAWING, Population, Promise, check_encoded, digest_of
from langchain_dp.ensemble.reservation import LedgerOrPath
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import Randomness
from langchain_dp.mechanisms.vector_sum import Whole
from langchain_dp.records import Examples, PrivateRecords, RecordShards
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

FORM = "langchain_dp survey 1"
_MOST_QUESTIONS = 50
_LEAST_LEAD = 3.0  # standard deviations of noise above zero, for finer questions
_WIDE = 0.1


@dataclasses.dataclass(frozen=True)
class Share:
    """One cell of a table, in shares of all conversations.

    Args:
        share: Estimate.
        low: Lower end of its error bar.
        high: Upper end.
    """

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclasses.dataclass(frozen=True)
class SurveyTable:
    """Answers to one question.

    Args:
        question: Its name.
        shares: Choice to share, "no answer" last.
        below: Tables of finer choices, as shares of all conversations.
    """

    question: str
    shares: Mapping[str, Share]
    below: Mapping[str, SurveyTable] = dataclasses.field(default_factory=dict)

    def leading(self) -> list[tuple[str, Share]]:
        """Return the largest shares first, "no answer" last."""
        return sorted(self.shares.items(), key=lambda item: (item[0] == NO_ANSWER, -item[1].share))


@dataclasses.dataclass(frozen=True)
class Survey(InNotebooks):
    """Released tables of a survey.

    Args:
        tables: One table per question.
        records: Number of users or conversations, None if private.
        unit: "conversations" or "users".
        certificate: The promise.

    Examples:
        >>> survey = DPSurvey([Question("mood", ["calm", "angry"])]).run(chats, budget=PrivacyBudget(1.0))
        >>> print(survey)
        >>> survey.to_html("survey.html")
    """

    tables: tuple[SurveyTable, ...]
    records: int | None
    unit: str
    certificate: PrivacyCertificate

    def __getitem__(self, question: str) -> SurveyTable:
        for table in self.tables:
            if table.question == question:
                return table
        raise KeyError(f"No question {question!r}. There are {[table.question for table in self.tables]}.")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per cell, for a DataFrame."""
        tables = [one for table in self.tables for one in (table, *table.below.values())]
        return [
            {"question": table.question, "choice": choice, **dataclasses.asdict(share)}
            for table in tables
            for choice, share in table.shares.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "format": FORM,
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "records": self.records,
            "unit": self.unit,
            "certificate": self.certificate.to_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, whole or not at all."""
        write_whole(Path(path), json.dumps(self.to_dict(), allow_nan=False, indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a survey that :meth:`save` wrote, or raise InvalidParameter."""
        form = _SavedSurvey.load(Path(path), FORM)
        return cls(tuple(form.tables), form.records, form.unit, PrivacyCertificate.from_dict(form.certificate))

    def to_html(self, path: str | os.PathLike[str], *, title: str = "Survey") -> None:
        """Write one HTML page with plots and the promise, without scripts or network."""
        import jinja2

        writer = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        writer.filters |= {"percent": "{:.1%}".format, "whole": "{:,}".format}
        template = files(__package__).joinpath("survey_page.html.j2").read_text(encoding="utf-8")
        # Right guesses of 100 by an attacker who knows all other records and two equally likely values of this one.
        guesses = round(100 / (1 + math.exp(-self.certificate.epsilon)))
        page = writer.from_string(template)
        text = page.render(survey=self, title=title, certificate=self.certificate, guesses=guesses)
        write_whole(Path(path), text)

    def __str__(self) -> str:
        lines = [] if self.records is None else [f"{self.records:,} {self.unit}"]
        for table in self.tables:
            lines += ["", table.question]
            for choice, share in table.leading():
                lines.append(f"  {choice}: {share}")
                finer = table.below.get(choice)
                lines += [f"    {name}: {part}" for name, part in finer.leading()] if finer else []
        lines += ["", "All bars hold together in 95 of 100 surveys. Noise is the only error that they cover."]
        return "\n".join(lines).strip()


class _SavedSurvey(FileForm):
    tables: list[SurveyTable]
    records: int | None
    unit: str
    certificate: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SurveyPlan(InNotebooks):
    """Forecast of a survey's error bars.

    Args:
        records: Number of conversations, or of users.
        budget: The promise.
        votes: Tables that count one record, finer ones included.
        deviation: Standard deviation of one count, in records.
        half_width: Half an error bar, as a share of all records.
    """

    records: int
    budget: PrivacyBudget
    votes: int
    deviation: float
    half_width: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**vars(self), "budget": self.budget.to_dict()}

    def __str__(self) -> str:
        lines = [
            f"{self.records:,} records, tables: {self.votes}, {self.budget}: one release",
            f"noise: {self.deviation:.1f} records per count ({self.deviation / self.records:.1%})",
            f"error bars: plus or minus {self.half_width:.1%}, all together in 95 of 100 surveys",
        ]
        if self.half_width > _WIDE:
            lines.append("Most shares will drown in noise. More records, fewer questions or a larger epsilon help.")
        return "\n".join(lines)


class DPSurvey:
    """Asks typed questions of private conversations and releases noisy tables of the answers.

    A model in isolated calls, or a public encoder, reads each conversation alone. A failed or unclear answer counts as
    "no answer". No quote, example or extreme value is released.

    Args:
        questions: The questions, 1 to 50.
        model: Chat model or engine that answers. Its operator sees the conversations.
        encoder: Public encoder that chooses the nearest description instead, by default
            :class:`~langchain_dp.aggregate.StaticEncoder`. It suits topics, not moods.
        leaders: Most choices of a question that get finer questions.
        trust_opaque_model: Accept your own model or encoder, on your word that it keeps no text.

    Formal guarantee:
        (epsilon, delta)-DP in the conversations, with the budget's neighbors: in all conversations of a user if there
        is a ``user_key``. A record has one vote per question, and a user's conversations share one vote equally.
        Replacing a record moves at most two cells per question by one, so the tables move by at most sqrt(2 votes).
        Finer questions follow from released counts, and the charged release includes their votes. Shares, bars and
        leaders are post-processing.

    References:
        Dwork and Roth 2014, Appendix A (Gaussian mechanism). Canonne, Kamath and Steinke 2020 (discrete noise).
        Dong, Roth and Su 2022 (adaptive Gaussian releases compose).

    Examples:
        >>> topics = Question("topic", {"billing": "invoices and refunds", "delivery": "parcels that are late"})
        >>> survey = DPSurvey([topics]).run(tickets, budget=PrivacyBudget(1.0), user_key="customer")
        >>> survey["topic"].shares["billing"].share
        0.41
    """

    def __init__(
        self,
        questions: Sequence[Question],
        *,
        model: Any = None,
        encoder: Embeddings | None = None,
        leaders: int = 5,
        trust_opaque_model: bool = False,
    ) -> None:
        listed = list(questions) if isinstance(questions, Sequence) else []
        if not 1 <= len(listed) <= _MOST_QUESTIONS or not all(isinstance(one, Question) for one in listed):
            raise InvalidParameter(
                f"Expected questions to be a list of 1 to {_MOST_QUESTIONS} Question objects. Give e.g. "
                "[Question('mood', ['calm', 'angry'])]."
            )
        names = [question.name for question in listed]
        if len({*names}) < len(names):
            raise InvalidParameter(f"Expected questions of different names, got {names}. Rename one.")
        self.questions = tuple(listed)
        self.leaders = validate.integer("leaders", leaders, at_least=1)
        self._refined = [question for question in listed if question.below]
        self._reader: Reader = reader_for(model, encoder, trusted=trust_opaque_model)
        self._chain = digest_of(model)[0] if isinstance(model, Runnable) else None  # a prompt may be part of it

    def _counts(self, budget: PrivacyBudget) -> VoteCounts:
        return VoteCounts.of(budget, votes=len(self.questions) + len(self._refined))

    def plan(self, records_count: int, *, budget: PrivacyBudget) -> SurveyPlan:
        """Forecast the error bars for a number of records. Spends nothing.

        Cells of finer questions, not known yet, widen all bars a little more.
        """
        validate.integer("records_count", records_count, at_least=1)
        counts, cells = self._counts(budget), sum(len(question.described) + 1 for question in self.questions)
        width = half_width(counts.deviation, cells) / records_count
        return SurveyPlan(records_count, budget, counts.votes, counts.deviation, width)

    @validate.reject_unknown_arguments
    @hold_arguments("conversations")
    def run(
        self,
        conversations: Examples | RecordShards,
        *,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "survey",
        text_key: str = "text",
        user_key: str | None = None,
        records_per_user: int | None = None,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> Survey:
        """Release the tables. A ledger in a file returns them again, and an interrupted survey resumes, free.

        ``conversations``, ``text_key``, ``user_key`` and ``records_per_user`` are as in
        :func:`~langchain_dp.aggregate.conversations`. An encoder also reads :class:`~langchain_dp.RecordShards`. Other
        arguments and errors are as in :meth:`DPPrototypeClassifier.fit`.
        """
        keys = {"text_key": text_key, "user_key": user_key, "records_per_user": records_per_user}
        read = functools.partial(read_conversations, **keys)  # type: ignore[arg-type]
        check_encoded(PrivateArgs.of(conversations), isinstance(self._reader, EncoderReader))
        records = run_redacted(_population, PrivateArgs(PrivateArgs.of(conversations), read, user_key), READING)
        del conversations
        described = [question.to_dict() for question in self.questions]
        model = self._reader.name
        promise = Promise.of(budget, ledger, name, not_private_seed, described, model=model, made_with=made_with)
        share = promise.share()
        counts = self._counts(share)
        self._reader.probe(self.questions)

        answers = PrivateArgs()  # of the first part, unless another process drew it

        def first(rng: Randomness) -> list[list[float]]:
            return run_redacted(self._first, PrivateArgs(records, counts, rng, answers), DRAWING)

        def draw(rng: Randomness, noisy: list[list[float]]) -> list[dict[str, Any]]:
            finer = [self._finer(*of, counts.deviation) for of in zip(self.questions, noisy, strict=True)]
            below = run_redacted(self._finished, PrivateArgs(records, counts, rng, answers, finer), DRAWING)
            rows = zip(self.questions, noisy, below, strict=True)
            return [_cells(question, row) | {"below": cells} for question, row, cells in rows]

        settings = {"questions": described, "reader": model, "leaders": self.leaders, "chain": self._chain}
        value = promise.release_once(counts.event, draw, first=first, records=records, settings=settings, share=share)
        certificate = promise.certificate(
            mechanism="noisy counts of answers",
            parameters={"noise_multiplier": counts.event.noise_multiplier, "tables": counts.votes},
            notes=[*self._reader.notes, *records.unit_notes()],
        )
        users = records.count_users() if count_is_public(share.neighbors) else None
        unit = "conversations" if records.user_key is None else "users"
        return Survey(_tables(value, counts.deviation, users), users, unit, certificate)

    @hold_arguments("conversations")
    async def arun(self, conversations: Examples | RecordShards, **arguments: Any) -> Survey:
        """Run :meth:`run` in a thread."""
        held = PrivateArgs.of(conversations)
        return await run_in_executor(None, lambda: self.run(held, **arguments))  # type: ignore[arg-type]

    def _first(
        self, records: Population, counts: VoteCounts, rng: Randomness, answers: PrivateArgs
    ) -> list[list[float]]:
        total = records.total(self._step(_question_totals, answers if isinstance(records, PrivateRecords) else None))
        self._reader.probe(self.questions)
        cells = [len(question.described) + 1 for question in self.questions]
        return _rows(counts.release(total, rng), cells)

    def _finished(
        self,
        records: Population,
        counts: VoteCounts,
        rng: Randomness,
        answers: PrivateArgs,
        finer: Sequence[Mapping[int, Question]],
    ) -> list[list[dict[str, Any]]]:
        cells = [len(question.described) + 1 for asked in finer for question in asked.values()]
        if not cells:
            return [[] for _ in finer]
        total = records.total(self._step(_finer_totals, answers.values, finer=finer))
        self._reader.probe(self.questions)
        noisy = iter(_rows(counts.release(total, rng), cells))
        return [
            [{"place": place, **_cells(question, next(noisy))} for place, question in asked.items()] for asked in finer
        ]

    def _step(self, step: Callable[..., Whole], answers: Any, **more: Any) -> Callable[[PrivateRecords], Whole]:
        questions = [dataclasses.replace(question, below=None) for question in self.questions]
        return functools.partial(step, reader=self._reader, questions=questions, answers=answers, **more)

    def _finer(self, question: Question, noisy: Sequence[float], deviation: float) -> dict[int, Question]:
        """Return finer questions by leading choice, from released counts alone."""
        if not question.below:
            return {}
        names = list(question.described)
        leading = sorted(range(len(names)), key=lambda place: -noisy[place])[: self.leaders]
        asked = {place: question.finer(names[place]) for place in leading if noisy[place] > _LEAST_LEAD * deviation}
        return {place: finer for place, finer in asked.items() if finer is not None}


def _population(conversations: PrivateArgs, read: Callable[[Any], PrivateRecords], user_key: str | None) -> Population:
    [given] = conversations.values
    if isinstance(given, RecordShards):
        if user_key is not None:
            raise InvalidParameter(
                "Expected RecordShards without user_key=: conversations of one user may lie in several parts. Join "
                "each user's conversations into one text first, or give them in memory."
            )
        return given.read_by(read, None)
    records = read(given)
    if not len(records):
        raise InvalidParameter("Expected at least one conversation. Give texts, or lists of messages.")
    return records


def _question_totals(
    records: PrivateRecords, *, reader: Reader, questions: Sequence[Question], answers: PrivateArgs | None
) -> Whole:
    """With ``answers``, fill it and show progress."""
    texts, sizes = _texts(records)
    hidden = True if answers is None else None
    with tqdm(total=len(texts) * len(questions), unit="answer", desc="survey", disable=hidden, delay=2) as bar:
        chosen = reader.choose(questions, texts, bar.update)
    if answers is not None:
        answers.values = tuple(chosen)
    cells = [len(question.described) + 1 for question in questions]
    return np.concatenate([_total(sizes, choices, count) for choices, count in zip(chosen, cells, strict=True)])


def _finer_totals(
    records: PrivateRecords,
    *,
    reader: Reader,
    questions: Sequence[Question],
    answers: Sequence[Choices],
    finer: Sequence[Mapping[int, Question]],
) -> Whole:
    """Count below leading choices, one vote per text."""
    texts, sizes = _texts(records)
    chosen = answers or reader.choose(questions, texts, _unshown)
    totals = []
    for asked, choices in zip(finer, chosen, strict=True):
        for place, question in asked.items():
            own = [at for at, choice in enumerate(choices) if choice == place]
            [below] = reader.choose([question], [texts[at] for at in own], _unshown)
            cells = len(question.described) + 1
            votes: list[int | None] = [cells] * len(texts)  # a cell of its own, for texts of another choice
            for at, answer in zip(own, below, strict=True):
                votes[at] = cells - 1 if answer is None else answer
            totals.append(_total(sizes, votes, cells + 1)[:cells])
    return np.concatenate(totals)


def _rows(noisy: Floats, cells: Sequence[int]) -> list[list[float]]:
    return [row.tolist() for row in np.split(noisy, np.cumsum(cells)[:-1])]


def _texts(records: PrivateRecords) -> tuple[list[str], list[int]]:
    users = records.users()
    return [records.get(name)["text"] for group in users for name in group], [len(group) for group in users]


def _unshown(answers: int) -> None:
    """Show no progress, because a leading choice's number of texts is private."""


def _cells(question: Question, noisy: Sequence[float]) -> dict[str, Any]:
    return {"name": question.name, "choices": [*question.described, NO_ANSWER], "counts": list(noisy)}


def _total(sizes: Sequence[int], choices: Sequence[int | None], cells: int) -> Whole:
    """Sum users' mean votes in grid steps, rounded down."""
    places = np.array([cells - 1 if choice is None else choice for choice in choices], dtype=np.int64)
    if max(sizes, default=1) == 1:
        return VOTE * np.bincount(places, minlength=cells).astype(np.int64)
    total, start = np.zeros(cells, dtype=np.int64), 0
    for size in sizes:
        total += VOTE * np.bincount(places[start : start + size], minlength=cells) // size
        start += size
    return total


def _tables(value: Sequence[Mapping[str, Any]], deviation: float, users: int | None) -> tuple[SurveyTable, ...]:
    """Return tables with bars that all hold together."""
    below = [finer for table in value for finer in table["below"]]
    width = half_width(deviation, sum(len(table["counts"]) for table in [*value, *below]))
    total, spread = float(users or 0), 0.0
    if users is None:  # estimate it: every table adds up to the number of records
        counts = [count for table in value for count in table["counts"]]
        total, spread = max(sum(counts) / len(value), 1.0), width * len(counts) ** 0.5 / len(value)

    def shares(cells: Mapping[str, Any], of: float) -> dict[str, Share]:
        raw = np.array(cells["counts"]) / total
        half = np.sqrt(width**2 + (np.clip(raw, 0, 1) * spread) ** 2) / total
        low, high = np.clip(raw - half, 0.0, 1.0), np.clip(raw + half, 0.0, 1.0)
        estimates = consistent_shares(raw, low, high, of)
        rows = zip(estimates.tolist(), low.tolist(), high.tolist(), strict=True)
        return {choice: Share(*row) for choice, row in zip(cells["choices"], rows, strict=True)}

    tables = []
    for table in value:
        whole = shares(table, 1.0)
        parts = {
            table["choices"][finer["place"]]: SurveyTable(
                finer["name"], shares(finer, whole[table["choices"][finer["place"]]].share)
            )
            for finer in table["below"]
        }
        tables.append(SurveyTable(table["name"], whole, parts))
    return tuple(tables)
