"""A run of the synthesizer. Not thread-safe: its owner holds a lock."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from langchain_dp.accounting import ClippedSumRoundEvent, LedgerPlan, PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import warn_small_clip, warn_weak_promise
from langchain_dp.ensemble.engine_calls import LEAST, PromptBudget, count_publicly, forget_members, opaque
from langchain_dp.ensemble.reservation import about_run, affordable, check_same
from langchain_dp.ensemble.runs import CANCELLED, Halted, PrivateRun, check_settings, run_lock
from langchain_dp.ensemble.splits import note_ledger
from langchain_dp.ensemble.subsets import KeyedCoins
from langchain_dp.ensemble.text_writer import INVENTED, TextWriter, public_prompt
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.ports import NextTokenScorer, Token
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.journal import SynthesisJournal, WrittenText
from langchain_dp.synth.report import certified, weak
from langchain_dp.synth.settings import Design, SynthesisSettings, coin_names


@dataclasses.dataclass(frozen=True, repr=False)
class _Opened:
    plan: LedgerPlan
    design: Design
    journal: SynthesisJournal

    @property
    def is_complete(self) -> bool:
        return len(self.journal.there()) == self.design.rounds * len(self.journal.labels)


class SynthesisRuns(PrivateRun):
    """The run of a synthesizer."""

    _engine: NextTokenScorer
    _settings: SynthesisSettings

    def __init__(self, engine: NextTokenScorer, settings: SynthesisSettings, **charged: Any) -> None:
        super().__init__(engine, settings, **charged)
        self._opened: _Opened | None = None
        self._last_writer: TextWriter | None = None

    def _attached(self) -> _Opened | None:
        plan = None if self._opened is not None else self._ledger.plan(self._name)
        return self._opened if plan is None else self._load(plan)

    def _load(self, plan: LedgerPlan) -> _Opened:
        journal = SynthesisJournal.load(self._ledger, plan)
        check_settings(self._name, journal.settings, self._public_settings())
        check_same(plan, {}, self._budget, "run")
        return _Opened(plan, Design.from_dict(journal.design), journal)

    def prospect(self, records: int) -> tuple[PrivacyBudget, Design]:
        opened = self._attached()
        if opened is not None:
            return PrivacyBudget(opened.plan.epsilon, opened.plan.delta, self.neighbors), opened.design
        share = affordable(self._ledger, self._budget)
        settings = self._settings
        design = settings.design(share, records=records, rounds=settings.rounds, texts=len(settings.labels))
        self._check_room(self._writer(design.noise))
        return share, design

    def run(self, records: PrivateRecords, *, advance: Callable[[WrittenText], None], halted: Halted) -> None:
        """Run or resume. ``advance`` gets every released text."""
        self._unit_notes = records.unit_notes()
        with run_lock(self._ledger, self._name):
            opened = self._take_up(self._ledger.plan(self._name) or self._reserved(records))
            self._check_data(opened, records)
            if self._rng.private:
                note_ledger(records, self._ledger)
            for text in opened.journal.written:
                advance(text)
            for text in self._write_rest(opened, records, halted):
                advance(text)

    def _take_up(self, plan: LedgerPlan) -> _Opened:
        """Load a plan's run. Give up a text whose last token is unknown."""
        before, opened = self._opened, self._load(plan)
        if before is not None and not opened.journal.follows(before.journal):
            raise PlanError(
                f"The ledger holds an older state of the run {self._name!r} than this process has seen: a copy was put "
                "in its place. Restore the newest one: later draws may not be drawn again."
            )
        if opened.journal.under_way is not None and opened.journal.under_way.drawing:
            opened.journal.give_up()
        self._opened = opened
        return opened

    def _reserved(self, records: PrivateRecords) -> LedgerPlan:
        share, design = self.prospect(len(records))
        self._check_model(self._writer(design.noise), next(iter(self._settings.labels)))
        warn_weak_promise(weak(design, share))
        warn_small_clip(design.noise.clip)
        journal = SynthesisJournal(**self._new_journal(records), design=dataclasses.asdict(design))
        events = [(design.noise.event, design.rounds)]
        return self._ledger.reserve(
            events, name=self._name, epsilon=share.epsilon, delta=share.delta, journal=journal.text(),
            settings=about_run(self._engine.name, records, self.neighbors),
        )  # fmt: skip

    def _check_data(self, opened: _Opened, records: PrivateRecords) -> None:
        """Refuse other records for a complete run or begun round."""
        journal = opened.journal
        now = self._digest(records, journal.key)
        if now == journal.data:
            return
        if opened.is_complete:
            raise PlanError(
                f"The run {self._name!r} is complete, and was over other examples, or over the same ones in another "
                "order: released() has its texts. To write new ones give another name= and a budget of its own."
            )
        if journal.has_begun():
            raise PlanError(
                f"The run {self._name!r} was started with other examples, and its round has begun: it goes on over the "
                "same ones only, in the same order. Give those. Or call give_up_round(), which loses the rest of "
                "that round for any examples."
            )
        journal.update(data=now, under_way=None)

    def _write_rest(self, opened: _Opened, records: PrivateRecords, halted: Halted) -> Iterator[WrittenText]:
        """Write missing texts round by round: charge, draw the members, write, store, yield."""
        if opened.is_complete:  # the model may be gone
            return
        design, journal, writer = opened.design, opened.journal, self._writer(opened.design.noise)
        self._check_room(writer)
        coins, room = KeyedCoins(journal.key, coin_names(records, self.neighbors)), PromptBudget(self._engine)
        secret, shown = secrets.token_bytes(32), set[Hashable]()
        there = journal.there()
        try:
            for number in range(design.rounds):
                missing = [label for label in journal.labels if (number, label) not in there]
                if not missing:
                    continue
                _check_halted(halted)
                if not journal.drawn(number, missing[0]):
                    self._check_model(writer, missing[0])
                # Not again if an earlier process has charged it.
                opened.plan.spend_up_to(design.noise.event, number + 1, caller=self._name)
                rows = {
                    opaque(secret, journal.data, name): records.get(name) for name in coins.drawn(number, design.rate)
                }
                for label in missing:
                    head, tail = self._public_parts(label)
                    most = room.remaining(
                        self._engine.max_prompt_tokens, head, tail, more=self._settings.max_new_tokens
                    )
                    bodies: dict[Hashable, str] = {
                        key: self._settings.prompts.shown(row, room=room, tokens=most)
                        for key, row in rows.items()
                        if row["label"] == label
                    }
                    shown.update(bodies)
                    self._write(journal, writer, number, label, bodies, halted)
                    yield journal.written[-1]
        finally:
            if shown:
                forget_members(self._engine, *shown)

    def _write(
        self, journal: SynthesisJournal, writer: TextWriter, number: int, label: str, bodies: Mapping[Hashable, str],
        halted: Halted,
    ) -> None:  # fmt: skip
        head, tail = self._public_parts(label)
        drawn = journal.drawn(number, label)
        if not (writer.can_go_on(public_prompt(head, tail), drawn) and journal.take_up(number, label)):
            journal.give_up()  # these tokens break the model, or one of its members does
            return
        mark = functools.partial(journal.draw, number, label)
        for token in writer.tokens(head, tail, bodies, before=drawn, mark=mark):
            journal.add(token)
            _check_halted(halted)
        journal.keep(_written(number, label, writer, journal.drawn(number, label)))

    def _writer(self, noise: ClippedSum) -> TextWriter:
        """Return the last writer if it fits: it knows that the model answers."""
        if self._last_writer is None or self._last_writer.noise != noise:
            self._last_writer = self._settings.writer(self._engine, noise, self._rng)
        return self._last_writer

    def _check_room(self, writer: TextWriter) -> None:
        kept = LEAST + count_publicly(self._engine, self._settings.prompts.shown_as(""))
        for label in self._settings.labels:
            writer.check_room(*self._public_parts(label), kept=kept)

    def _check_model(self, writer: TextWriter, label: str) -> None:
        """Check before a charge that the model answers public prompts."""
        writer.check_answers(public_prompt(*self._public_parts(label)), self._settings.prompts.shown_as(INVENTED))

    def _public_parts(self, label: str) -> tuple[str, str]:
        prompts = self._settings.prompts
        return prompts.described(self._settings.labels[label]), prompts.tail

    def released(self) -> list[WrittenText]:
        opened = self._attached()
        written = [] if opened is None else opened.journal.written
        return [text for text in written if text.ended != "lost"]

    def lost(self) -> int:
        opened = self._attached()
        return 0 if opened is None else sum(text.ended == "lost" for text in opened.journal.written)

    def give_up_round(self) -> None:
        with run_lock(self._ledger, self._name):
            if plan := self._ledger.plan(self._name):
                self._take_up(plan).journal.give_up_round()

    def public(self) -> Iterator[WrittenText]:
        settings = self._settings
        event = ClippedSumRoundEvent(1.0, settings.max_new_tokens)  # charged nowhere: no member moves a token
        noise = ClippedSum(event, settings.members, settings.temperature)
        writer = settings.writer(self._engine, noise, self._rng)
        for label in settings.labels:
            writer.check_room(*self._public_parts(label))
            writer.check_answers(public_prompt(*self._public_parts(label)))
        for number in range(settings.rounds):
            for label in settings.labels:
                yield _written(number, label, writer, list(writer.tokens(*self._public_parts(label), {})))

    def certificate(self) -> PrivacyCertificate:
        opened = self._attached()
        if opened is None:
            raise InvalidParameter("Expected a run to have started. Call invoke(examples) first.")
        return certified(
            opened.plan, opened.design, self._engine, self._rng,
            "the local model sees the examples. The texts alone leave, and may be shown to anybody and kept",
            *self._unit_notes,
            *self._settings.notes,
        )  # fmt: skip


def _check_halted(halted: Halted) -> None:
    if halted():
        raise PlanError(CANCELLED)


def _written(number: int, label: str, writer: TextWriter, tokens: Sequence[Token]) -> WrittenText:
    return WrittenText(number, label, writer.text(tokens), "end" if writer.ended(tokens) else "length")
