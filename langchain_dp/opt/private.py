"""The private run of DP-OPT, from plan to selected prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from langchain_dp._util import forks
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyCertificate,
)
from langchain_dp.accounting.budget import (
    LABELS_FROM_DATA,
    warn_mostly_noise,
    warn_weak_promise,
    weak_promise_reasons,
)
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.provenance import ReleaseCost
from langchain_dp.ensemble.reservation import about_run, affordable
from langchain_dp.ensemble.runs import (
    CANCELLED,
    Halted,
    PrivateRun,
    changed_settings,
    check_settings,
    fingerprint,
    record_digests,
    run_lock,
)
from langchain_dp.ensemble.splits import note_ledger
from langchain_dp.ensemble.subsets import KEYED, Scheme, SubsetSampler
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import Exponential
from langchain_dp.opt.candidates import PromptChoice, choices, echo_of
from langchain_dp.opt.data import Data, prepare, scheme_for
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.handover import OptimizedPrompt, described
from langchain_dp.opt.journal import Journal
from langchain_dp.opt.plan import Written
from langchain_dp.opt.reservation import (
    VALIDATION,
    PromptReservation,
    check_reachable,
    choose_noise,
    reserve,
    selection_event,
    votes_needed,
)
from langchain_dp.opt.run import Run
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.text import Text
from langchain_dp.opt.verdict import choice_note, choice_verdict
from langchain_dp.opt.voters import Demonstrations, PrivateVote, SubsetVotes
from langchain_dp.ports import NextTokenVoter
from langchain_dp.records import PrivateRecords

_WRITTEN = "DP-OPT: LimitedDomain votes for every token, exponential mechanism among the candidates"
_CHOSEN = "exponential mechanism among public prompts, by their right answers"


class PrivateRuns(PrivateRun):
    """The one private run of an optimizer, and its released values."""

    _engine: NextTokenVoter
    _settings: Settings

    def __init__(
        self, engine: NextTokenVoter, settings: Settings, *, progress: bool | None, costs: Sequence[ReleaseCost] = (),
        **charged: Any,
    ) -> None:  # fmt: skip
        super().__init__(engine, settings, **charged)
        self.agreement = 1.0
        """Share of the votes with which a token must be able to win."""
        self._costs = tuple(costs)
        self._progress = progress
        self._forward = Forward.of(engine, settings)
        self._text = Text(engine, settings.decoding, settings.candidate_options.stop, never=echo_of(settings))
        self._journal: Journal | None = None
        self._reservation: PromptReservation | None = None
        # For this process only, so that a record can be forgotten in a run.
        self._split: tuple[dict[str, bytes], list[str], list[str]] | None = None
        if settings.rows is not None and not count_is_public(self.neighbors):
            raise InvalidParameter(
                f"Expected rows={settings.rows} with replace-one or zero-out: under add/remove the number of rows is "
                "private, and none can be left out by it. Leave rows= out, or use a budget of replace-one."
            )
        self._undrawn: tuple[int, int] | None = None  # process that has charged the choice and not drawn it
        self._drawn: int | None = None  # a choice that is drawn and could not be kept yet

    def prospect(self, records: int) -> tuple[PrivacyBudget, LimitedDomainEvent | None, ExponentialEvent]:
        if (attached := self._attached()) is not None:
            reservation, _ = attached
            return reservation.budget, reservation.token, reservation.selection
        share = affordable(self._ledger, self._budget)
        return share, *choose_noise(share, scheme_for(self._settings, self.neighbors, records), self._settings)

    def check_reachable(
        self, token: LimitedDomainEvent | None, share: PrivacyBudget, scheme: Scheme, records: int, *,
        warn: bool = False,
    ) -> None:  # fmt: skip
        """Refuse noise that no token can win against, or a random choice after ``auto()``."""
        settings = self._settings
        if token is not None:
            given = settings.candidate_options.epsilon0 is not None
            check_reachable(token, share, scheme, settings.calls, given=given, agreement=self.agreement)
        elif scheme.even:
            rows, selection = settings.taking_part(records), selection_event(share)
            verdict = choice_verdict(selection, share, prompts=settings.choices, rows=rows)
            if verdict.rating == "no" and self.agreement < 1:
                raise InvalidParameter(f"Expected rows and epsilon to be enough for a choice: {verdict.message}.")
            if verdict.rating == "no" and warn:
                warn_mostly_noise(f"the choice is one at random, {verdict.message}")

    def run(self, records: PrivateRecords, *, halted: Halted = lambda: False) -> OptimizedPrompt:
        self._unit_notes = records.unit_notes()
        with run_lock(self._ledger, self._name, "optimizer"):
            return self._run(records, halted)

    def _run(self, records: PrivateRecords, halted: Halted) -> OptimizedPrompt:
        journal = self._opened(records)
        seen = record_digests(records, journal.key, self._settings.prompts.variables)
        data = self._seated(records, seen, journal)
        if journal.winner is None:
            for choice in dict.fromkeys(reversed(choices(self._settings, []))):  # the initial one first
                self._forward.check(choice.instruction, choice.words)
        scheme = self._scheme(journal)
        self._reservation = reservation = self._reserved(journal, scheme, records)
        self._journal = journal
        if self._rng.private:
            note_ledger(records, self._ledger)
        budget = reservation.budget
        warn_weak_promise(weak_promise_reasons(budget.epsilon, budget.delta, *scheme.least_records(len(records))))
        if journal.winner is None and not self._may_choose(reservation):
            remedy = "The candidates are released: see released(), and take one by public criteria. Or give"
            remedy = remedy if self._settings.writes else "Give"
            raise PlanError(
                f"The choice among the candidates of the run {self._name!r} is charged, but the process that made it "
                f"ended before its outcome was kept. To draw it again would be a release that nobody paid for. "
                f"{remedy} a new run another name= and a budget of its own."
            )
        candidates = self._write(data, journal, reservation, halted)
        if journal.winner is None:
            if self._drawn is None:
                mechanism = Exponential(reservation.selection)
                charged = PartEvent(VALIDATION, mechanism.event)
                if self._undrawn != forks.process():
                    if halted():  # later the end of this process would lose the charged selection
                        raise PlanError(CANCELLED)
                    self._forward.watch(self._settings.instruction)  # a server that is gone already costs nothing
                    reservation.plan.spend(charged, caller=self._name)
                    self._undrawn = forks.process()
                counts = candidates.counts(self._forward, data.rows(data.validation))
                self._undrawn = None  # first: an interruption from here on loses the selection
                self._drawn = mechanism.release(counts, rng=self._rng)
            chosen = self._drawn
            prompt = candidates.choices()[chosen]
            journal.complete(chosen, fingerprint(seen, journal.key), (prompt.instruction, prompt.words))
        assert journal.winner is not None
        handed = candidates.choices()[journal.winner] if journal.handed is None else PromptChoice(*journal.handed)
        return described(
            self._engine, self._settings, handed, self.certificate(),
            candidates.written(), groups=scheme.groups, rate=scheme.sampling_probability,
        )  # fmt: skip

    def _seated(self, records: PrivateRecords, seen: dict[str, bytes], journal: Journal) -> Data:
        """Return the split from the start of the run, without forgotten records.

        A record that changed its part would be read twice for one charge.
        """
        if fingerprint(seen, journal.key) == journal.data:
            data = prepare(records, self._settings, self.neighbors, journal.key)
            self._split = seen, data.training, data.validation
            return data
        if journal.winner is not None:
            raise PlanError(
                f"The run {self._name!r} is complete, and was over other examples. Give the optimizer another name= "
                "and a budget of its own: a release of other examples is a new one."
            )
        if self._split is None or not seen.items() <= self._split[0].items():
            raise PlanError(
                f"The run {self._name!r} was started with other examples, and goes on over the same ones only. Give "
                "them in the same order (PrivateRecords may forget some of them in the process that holds the run), or "
                "give the new run another name=."
            )
        training, validation = ([name for name in part if name in seen] for part in self._split[1:])
        return Data(records, training, validation)

    def _reserved(self, journal: Journal, scheme: Scheme, records: PrivateRecords | None) -> PromptReservation:
        reservation = reserve(
            self._ledger, self._budget, self._settings, scheme, name=self._name, journal=journal.text(),
            about={} if records is None else about_run(self._engine.name, records, self.neighbors),
            check=lambda token, share: self.check_reachable(token, share, scheme, len(records or ()), warn=True),
        )  # fmt: skip
        plan = reservation.plan
        if journal.plan is None:
            journal.plan, journal.kept = plan, journal.text()
        charged = reservation.calls - reservation.left()
        chosen = journal.winner is not None and plan.remaining(reservation.charged_selection)
        if journal.calls > charged or chosen:
            raise PlanError(
                f"The journal of the run {self._name!r} holds {journal.calls} calls, but the ledger has charged "
                f"{charged}: it is older, or another one. Bring the right ledger back, or give this run another name=."
            )
        return reservation

    def _may_choose(self, reservation: PromptReservation) -> bool:
        """True if the selection is uncharged, or still held by this process."""
        uncharged = reservation.plan.remaining(reservation.charged_selection) > 0
        return uncharged or self._drawn is not None or self._undrawn == forks.process()

    def _opened(self, records: PrivateRecords) -> Journal:
        plan = self._ledger.plan(self._name)
        if plan is not None:
            journal = Journal.load(self._ledger, plan)
            check_settings(self._name, journal.settings, self._public_settings())
            return journal
        scheme = scheme_for(self._settings, self.neighbors, len(records))
        return Journal(
            **self._new_journal(records),
            groups=scheme.groups,
            sampling_probability=scheme.sampling_probability,
            records=len(records) if scheme.even else None,
        )

    def _write(self, data: Data, journal: Journal, reservation: PromptReservation, halted: Halted) -> Run:
        run = Run(
            self._settings, text=self._text, end_tokens=self._engine.end_tokens, journal=journal, rng=self._rng,
            progress=self._progress, halted=halted,
        )  # fmt: skip
        if journal.winner is None and self._settings.writes:
            engine, settings = self._engine, self._settings
            shown = Demonstrations(data.records, self._forward, settings, engine)
            sampler = SubsetSampler(data.training, reservation.scheme, self._rng)
            votes = SubsetVotes(
                engine, sampler, shown, watch=lambda: self._forward.watch(settings.instruction), text=self._text,
                rng=self._rng,
            )  # fmt: skip
            kbar = settings.candidate_options.kbar
            source = PrivateVote(votes, reservation=reservation, kbar=kbar, chain=self._name, rng=self._rng)
            run.write(source, spent=lambda: reservation.plan.spent(round_up=True)[0])
        return run

    def _attached(self) -> tuple[PromptReservation, Journal] | None:
        """Return the run under these settings, of any process."""
        if self._reservation is not None and self._journal is not None:
            return self._reservation, self._journal
        plan = self._ledger.plan(self._name)
        journal = Journal.load(self._ledger, plan) if plan is not None and plan.journal else None
        if journal is None or changed_settings(journal.settings, self._public_settings()):
            return None
        return self._reserved(journal, self._scheme(journal), None), journal

    def _scheme(self, journal: Journal) -> Scheme:
        even = count_is_public(self.neighbors)
        return Scheme(self._settings.sampling.scheme, journal.groups, journal.sampling_probability, even)

    def released(self) -> list[str]:
        attached = self._attached()
        written = [] if attached is None else attached[1].written
        return [text for text in (self._text.instruction(each.tokens) for each in written) if text]

    def certificate(self) -> PrivacyCertificate:
        attached = self._attached()
        if attached is None:
            raise InvalidParameter("Expected a run to have started. Call invoke(examples) first, or plan(examples).")
        reservation, journal = attached
        budget, least = reservation.budget, self._scheme(journal).least_records(journal.records or 0)
        weak = weak_promise_reasons(budget.epsilon, budget.delta, *least)
        settings, seeded = self._settings, not self._rng.private
        writes, token, noise = settings.writes, reservation.token, {}
        if token is not None:
            needed = math.ceil(votes_needed(token, self.neighbors))
            noise = {"epsilon0": token.epsilon0, "delta0": token.delta0, "votes_needed": needed}
        return reservation.plan.certificate(
            None if token is None else reservation.charged_call,
            mechanism=_WRITTEN if writes else _CHOSEN,
            model=self._engine.name,
            private=not seeded,
            reason="drawn from not_private_seed: anybody who knows the seed can remove the noise" if seeded else "",
            notes=(
                "the local model sees the examples. The prompt alone leaves",
                "only the reserved epsilon and delta are a promise, used or not",
                *(["training and validation records are disjoint: their costs combine by the larger"] * writes),
                choice_note(reservation.selection, settings.choices),
                KEYED,
                *self._unit_notes,
                *[LABELS_FROM_DATA] * settings.labels_from_data,
                *weak,
                *getattr(self._engine, "notes", ()),
            ),
            parameters={
                **noise,
                "epsilon_selection": reservation.selection.epsilon,
                **({"alternatives": len(settings.alternatives)} if settings.alternatives else {}),
                **(_writing(reservation, journal.written) if writes else {}),
            },
        ).including(self._costs)


def _writing(reservation: PromptReservation, written: Sequence[Written]) -> dict[str, Any]:
    return {
        "sampling": reservation.scheme.sampling,
        "sampling_probability": reservation.scheme.sampling_probability,
        "groups": reservation.scheme.groups,
        "max_calls": reservation.calls,
        "prompts": len(written),
        "tokens_released": sum(len(each.tokens) for each in written),
        "bottoms": sum(each.bottoms for each in written),
        "retries": sum(each.retries for each in written),
    }
