"""A run of the synthesizer: from the ledger's plan to released texts. Not thread-safe: its owner holds a lock."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from langchain_dp.accounting import ClippedSumRoundEvent, LedgerPlan, PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import warn_small_clip, warn_weak_promise
from langchain_dp.ensemble.engine_calls import count_publicly, forget_members, opaque
from langchain_dp.ensemble.prompt_budget import LEAST, PromptBudget
from langchain_dp.ensemble.reservation import affordable, check_same
from langchain_dp.ensemble.runs import CANCELLED, Halted, PrivateRun, check_settings, run_lock
from langchain_dp.ensemble.text_writer import INVENTED, TextWriter, public_prompt
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.ports import NextTokenScorer, Token
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.journal import SynthesisJournal, WrittenText
from langchain_dp.synth.members import Members, slots_of
from langchain_dp.synth.promise import certified, weak
from langchain_dp.synth.settings import Design, SynthesisSettings, designed


@dataclasses.dataclass(frozen=True, repr=False)
class _Opened:
    """A run that has started: where it is charged, its constants, and what it has written."""

    plan: LedgerPlan
    design: Design
    journal: SynthesisJournal


@dataclasses.dataclass(frozen=True, repr=False)
class _Work:
    """What is at hand while texts are written: the run, its records and writer, and whose prompts the engine holds."""

    opened: _Opened
    records: PrivateRecords
    halted: Halted
    writer: TextWriter
    members: Members
    room: PromptBudget
    shown: set[Hashable] = dataclasses.field(default_factory=set)
    secret: bytes = dataclasses.field(default_factory=lambda: secrets.token_bytes(32))

    def go_on(self) -> None:
        """Raise PlanError where the caller has ended the run."""
        if self.halted():
            raise PlanError(CANCELLED)


class SynthesisRuns(PrivateRun):
    """The one run of a synthesizer, and what of it is released; arguments as of the base."""

    _engine: NextTokenScorer
    _settings: SynthesisSettings

    def __init__(self, engine: NextTokenScorer, settings: SynthesisSettings, **charged: Any) -> None:
        super().__init__(engine, settings, **charged)
        self._opened: _Opened | None = None
        self._made: tuple[Design, TextWriter] | None = None

    def _attached(self) -> _Opened | None:
        """The run that has started, in this process or an earlier one.

        Raises:
            PlanError: It was started with other settings or another budget: what it wrote would have a certificate
                that is not its own.
        """
        plan = None if self._opened is not None else self._ledger.plan(self._name)
        return self._opened if plan is None else self._found(plan)

    def _found(self, plan: LedgerPlan) -> _Opened:
        journal = SynthesisJournal.load(self._ledger, plan)
        check_settings(self._name, journal.settings, self._public_settings())
        check_same(plan, {}, self._budget, "run")
        return _Opened(plan, Design.from_dict(journal.design), journal)

    def prospect(self, records: int) -> tuple[PrivacyBudget, Design]:
        """Share of the ledger and design that a run over so many records would reserve, or has.

        Raises:
            InvalidParameter: Public text and the longest text that may be written do not fit into the model's context.
        """
        opened = self._attached()
        if opened is not None:
            return PrivacyBudget(opened.plan.epsilon, opened.plan.delta, self.neighbors), opened.design
        share = affordable(self._ledger, self._budget)
        design = designed(self._settings, share, records)
        self._check_room(self._designed_writer(design))
        return share, design

    def run(
        self,
        records: PrivateRecords,
        *,
        advance: Callable[[WrittenText], None],
        halted: Halted = lambda: False,
    ) -> None:
        """Start a run, or take up the one that was started.

        Args:
            records: The records.
            advance: Is told of every text that is released, those of an earlier process first.
            halted: Asked before every round and after every token; True ends the run there, to be taken up later.
        """
        with run_lock(self._ledger, self._name):
            opened = self._take_up(self._ledger.plan(self._name) or self._reserved(records))
            self._check_data(opened, records)
            for one in opened.journal.written:
                advance(one)
            for one in self._write_rest(opened, records, halted):
                advance(one)

    def _take_up(self, plan: LedgerPlan) -> _Opened:
        """The run of a plan, of which a text whose last token is not known is given up: see the journal."""
        before, opened = self._opened, self._found(plan)
        if before is not None and not opened.journal.follows(before.journal):
            raise PlanError(
                f"The ledger holds an older state of the run {self._name!r} than this process has seen: a copy was put "
                "in its place. Bring the newest one back: what was drawn since may not be drawn again."
            )
        if opened.journal.under_way is not None and opened.journal.under_way.drawing:
            opened.journal.give_up()
        self._opened = opened
        return opened

    def _reserved(self, records: PrivateRecords) -> LedgerPlan:
        share, design = self.prospect(len(records))
        self._check_model(self._designed_writer(design), next(iter(self._settings.labels)))
        warn_weak_promise(weak(design, share.epsilon, share.delta))
        warn_small_clip(design.noise.clip)
        journal = SynthesisJournal(**self._new_journal(records), design=dataclasses.asdict(design))
        return self._ledger.reserve(
            design.events(), name=self._name, epsilon=share.epsilon, delta=share.delta, journal=journal.text()
        )

    def _check_data(self, opened: _Opened, records: PrivateRecords) -> None:
        """Other records than before: groups cannot be cut anew, and what is complete is not of them."""
        journal = opened.journal
        now = self._digest(records, journal.key)
        if now == journal.data:
            return
        if self._is_complete(opened):
            raise PlanError(
                f"The run {self._name!r} is complete, and was over other examples, or over the same ones in another "
                "order: released() has what it wrote. To write anew give another name= and a budget of its own."
            )
        if opened.design.scheme == "groups" and (journal.written or journal.has_begun()):
            raise PlanError(
                f"The run {self._name!r} was started with other examples, and was cut into groups: it goes on over the "
                "same ones only, in the same order. Give the new run another name= and a budget of its own."
            )
        if journal.has_begun():
            raise PlanError(
                f"The run {self._name!r} was started with other examples, and its round has begun: it goes on over the "
                "same ones only, in the same order. Give those; or call give_up_round(), which loses what is missing "
                "of that round, whatever the examples are."
            )
        journal.over(now)

    def _is_complete(self, opened: _Opened) -> bool:
        return len(opened.journal.there()) == opened.design.rounds * len(self._settings.labels)

    def _write_rest(self, opened: _Opened, records: PrivateRecords, halted: Halted) -> Iterator[WrittenText]:
        """Write what is missing, round by round: charge, draw who takes part, write, keep; then it may leave."""
        if self._is_complete(opened):  # the model may be gone
            return
        design, journal = opened.design, opened.journal
        at = _Work(
            opened, records, halted, self._designed_writer(design),
            Members(journal.key, slots_of(records, self.neighbors)), PromptBudget(self._engine),
        )  # fmt: skip
        self._check_room(at.writer)
        there = journal.there()
        try:
            for number in range(design.rounds):
                missing = [label for label in journal.labels if (number, label) not in there]
                if missing:
                    at.go_on()
                    if not journal.drawn(number, missing[0]):
                        self._check_model(at.writer, missing[0])
                    self._charge(opened, number)
                for label in missing:
                    self._write(at, number, label)
                    yield journal.written[-1]
        finally:
            if at.shown:
                forget_members(self._engine, *at.shown)

    def _write(self, at: _Work, number: int, label: str) -> None:
        """Write one text, or the rest of it, and keep it; or keep that it is lost."""
        journal, writer = at.opened.journal, at.writer
        head, tail = self._asking(label)
        bodies = self._bodies(at, number, label, head, tail)
        drawn = journal.drawn(number, label)
        if not (writer.can_go_on(public_prompt(head, tail), drawn) and journal.take_up(number, label)):
            journal.give_up()  # these tokens break the model, or one of its members does
            return
        mark = functools.partial(journal.draw, number, label)
        for token in writer.tokens(head, tail, bodies, before=drawn, mark=mark):
            journal.add(token)
            at.go_on()
        journal.keep(_written(number, label, writer, journal.drawn(number, label)))

    def _bodies(self, at: _Work, number: int, label: str, head: str, tail: str) -> dict[Hashable, str]:
        """What the members of a text show, by what the engine may keep them under."""
        design, data = at.opened.design, at.opened.journal.data
        most = at.room.remaining(self._engine.max_prompt_tokens, head, tail, more=design.noise.event.tokens)
        bodies: dict[Hashable, str] = {}
        for names in at.members.of_text(design, number, label):
            rows = {name: row for name in names if (row := at.records.get(name))["label"] == label}
            if rows:
                key = opaque(at.secret, data, *rows)
                bodies[key] = self._settings.prompts.body(list(rows.values()), room=at.room, tokens=most)
        at.shown.update(bodies)
        return bodies

    def _designed_writer(self, design: Design) -> TextWriter:
        """The writer of a design: one for all its texts, since it remembers that the model answered."""
        if self._made is None or self._made[0] != design:
            self._made = design, self._writer(design.noise)
        return self._made[1]

    def _writer(self, noise: ClippedSum) -> TextWriter:
        settings = self._settings
        return TextWriter(
            self._engine, settings.prompts.after, noise,
            candidates=settings.candidates, chat=settings.chat, rng=self._rng,
        )  # fmt: skip

    def _check_room(self, writer: TextWriter) -> None:
        prompts = self._settings.prompts
        empty = prompts.body([dict.fromkeys(prompts.variables, "")])
        kept = self._settings.shots * (LEAST + count_publicly(self._engine, empty))
        for label in self._settings.labels:
            writer.check_room(*self._asking(label), kept=kept)

    def _check_model(self, writer: TextWriter, label: str) -> None:
        """See that the model answers, once also as many members, before anything is charged: it sees no record."""
        prompts = self._settings.prompts
        invented = prompts.body([dict.fromkeys(prompts.variables, INVENTED)])
        writer.check_answers(public_prompt(*self._asking(label)), invented)

    def _asking(self, label: str) -> tuple[str, str]:
        """Public texts before and after the records of one text."""
        prompts = self._settings.prompts
        return prompts.described(self._settings.labels[label]), prompts.tail

    def _charge(self, opened: _Opened, number: int) -> None:
        """Charge a round before it begins; one that an earlier process has charged is not charged again."""
        design = opened.design
        opened.plan.spend_up_to(design.charged(number), design.due(number), caller=self._name)

    def released(self) -> list[WrittenText]:
        """Texts released so far."""
        opened = self._attached()
        written = [] if opened is None else opened.journal.written
        return [one for one in written if one.ended in ("end", "length")]

    def give_up_round(self) -> None:
        """Lose what is missing of the round that has begun."""
        with run_lock(self._ledger, self._name):
            if plan := self._ledger.plan(self._name):
                opened = self._take_up(plan)
                if opened.design.scheme == "groups":
                    raise PlanError(
                        f"Expected the run {self._name!r} to be by rounds, but it cut its records into groups, and "
                        "never goes on over others: to give up would only lose texts. Invoke with the same ones, or "
                        "give the new run another name= and a budget of its own."
                    )
                opened.journal.give_up_round()

    def lost(self) -> int:
        """How many texts were given up."""
        opened = self._attached()
        return 0 if opened is None else sum(one.ended == "lost" for one in opened.journal.written)

    def public(self) -> Iterator[WrittenText]:
        """As many texts in which no record takes part: what the model says under what is public.

        Raises:
            InvalidParameter: A text of the largest length does not fit into the model's context.
            ModelUnavailable: The model did not answer.
        """
        settings = self._settings
        event = ClippedSumRoundEvent(1.0, settings.max_new_tokens)  # charged to nobody: no member moves a token
        writer = self._writer(ClippedSum(event, settings.members, settings.temperature))
        for label in settings.labels:
            writer.check_room(*self._asking(label))
            writer.check_answers(public_prompt(*self._asking(label)))
        for number in range(settings.rounds):
            for label in settings.labels:
                yield _written(number, label, writer, list(writer.tokens(*self._asking(label), {})))

    def certificate(self) -> PrivacyCertificate:
        """The promise of the run as it stands."""
        opened = self._attached()
        if opened is None:
            raise InvalidParameter("Expected a run to have started. Call invoke(examples) first.")
        return certified(
            opened.plan, opened.design, self._engine, self._rng,
            "the local model sees the examples; the texts alone leave, and may be shown to anybody and kept",
            *self._settings.notes,
        )  # fmt: skip


def _written(number: int, label: str, writer: TextWriter, tokens: Sequence[Token]) -> WrittenText:
    return WrittenText(number, label, writer.text(tokens), "end" if writer.ended(tokens) else "length")
