"""DP-OPT: the private run, from the ledger's plan to the selected prompt."""

from __future__ import annotations

import math
import re
import secrets
from pathlib import Path

from langchain_dp._checks import unreserved
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    PrivacyBudget,
    PrivacyCertificate,
    PrivacyLedger,
)
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import Randomness, exponential
from langchain_dp.opt import journal as journals
from langchain_dp.opt.data import Data, fingerprint, prepare, scheme_for
from langchain_dp.opt.ensemble import Ensemble
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.handover import OptimizedPrompt, described
from langchain_dp.opt.journal import Journal
from langchain_dp.opt.reservation import Reservation, choose_noise, reserve
from langchain_dp.opt.run import Run, Text
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.voters import Demonstrations, Electorate, PrivateVote
from langchain_dp.ports import VotesNextToken
from langchain_dp.records import PrivateRecords
from langchain_dp.scheme import Scheme


class PrivateRuns:
    """The one private run of an optimizer, and what of it is released. Not thread-safe: its owner holds a lock.

    Args:
        engine: The local model.
        settings: Public settings.
        ledger: Ledger to charge.
        budget: Share of it; None is all that is not reserved.
        name: Name of the plan.
        progress: Show progress.
        rng: Source of coins and noise.
    """

    def __init__(
        self,
        engine: VotesNextToken,
        settings: Settings,
        *,
        ledger: PrivacyLedger,
        budget: PrivacyBudget | None,
        name: str,
        progress: bool | None,
        rng: Randomness,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._ledger = ledger
        self._budget = budget
        self._name = name
        self._progress = progress
        self._rng = rng
        self._forward = Forward.of(engine, settings)
        self._text = Text(engine, settings.stop)
        self._journal: Journal | None = None
        self._reservation: Reservation | None = None

    @property
    def neighbors(self) -> Neighbors:
        """Neighbours of the promise."""
        return self._ledger.budget.neighbors

    def prospect(self, records: int) -> tuple[PrivacyBudget, LimitedDomainEvent, ExponentialEvent]:
        """Share of the ledger and noise that a run over so many records would reserve."""
        share = self._budget or unreserved(self._ledger)
        scheme = scheme_for(self._settings, self.neighbors, records)
        return (share, *self._noise(share, scheme))

    def _noise(self, share: PrivacyBudget, scheme: Scheme) -> tuple[LimitedDomainEvent, ExponentialEvent]:
        settings = self._settings
        return choose_noise(
            share, scheme=scheme, max_calls=settings.max_calls, epsilon0=settings.epsilon0, delta0=settings.delta0
        )

    def run(self, records: PrivateRecords) -> OptimizedPrompt:
        """Start a run, or take up the one that was started."""
        journal = self._opened(records)
        if journal.winner is not None and fingerprint(records, journal.split_key) != journal.data:
            raise PlanError(
                f"The run {self._name!r} is complete, and was over other examples. Give the optimizer another name= "
                "and a budget of its own: what is released of other examples is a new release."
            )
        data = prepare(records, self._settings, self.neighbors, journal.split_key)
        even = self.neighbors is not Neighbors.ADD_OR_REMOVE_ONE
        scheme = Scheme(self._settings.sampling, journal.groups, journal.sampling_probability, even)
        self._reservation = reservation = self._reserved(journal, scheme)
        self._journal = journal
        candidates = self._write(data, journal, reservation)
        if journal.winner is None:
            journal.winner = self._select(data, candidates, reservation)
            journal.save()
        return described(
            self._engine, self._settings, candidates.candidates()[journal.winner], self.certificate(),
            groups=scheme.groups, rate=scheme.sampling_probability,
        )  # fmt: skip

    def _reserved(self, journal: Journal, scheme: Scheme) -> Reservation:
        new = self._ledger.plan(self._name) is None
        journal.save()  # first: a plan without its journal could not be taken up
        try:
            return reserve(
                self._ledger,
                self._budget,
                name=self._name,
                scheme=scheme,
                max_calls=self._settings.max_calls,
                epsilon0=self._settings.epsilon0,
                delta0=self._settings.delta0,
            )
        except BaseException:
            if new and self._ledger.plan(self._name) is None:
                journal.discard()
            raise

    def _opened(self, records: PrivateRecords) -> Journal:
        settings = {**self._settings.public(), "name": self._name, "model": self._engine.name}
        path = self._journal_path()
        found = self._journal or (None if path is None else journals.read(path, settings))
        if found is not None:
            return found
        if self._ledger.plan(self._name) is not None:
            raise PlanError(
                f"The ledger holds a plan {self._name!r}, but the journal of its run is not there"
                + (f" ({path.name})" if path is not None else "")
                + ": what it released cannot be taken up. Bring the journal back, or give this run another name=."
            )
        scheme = scheme_for(self._settings, self.neighbors, len(records))
        key = secrets.token_bytes(32)
        return Journal(settings, key, fingerprint(records, key), scheme.groups, scheme.sampling_probability, path=path)

    def _journal_path(self) -> Path | None:
        if self._ledger.path is None:
            return None
        return Path(f"{self._ledger.path}.{re.sub(r'[^A-Za-z0-9_.-]', '_', self._name)}.run.json")

    def _write(self, data: Data, journal: Journal, reservation: Reservation) -> Run:
        settings = self._settings
        demonstrations = Demonstrations(data.records, self._forward, settings)
        ensemble = Ensemble(data.training, reservation.scheme, self._rng)
        source = PrivateVote(
            Electorate(self._engine, ensemble, demonstrations, settings, rng=self._rng),
            reservation=reservation,
            kbar=settings.kbar,
            chain=self._name,
            rng=self._rng,
        )
        run = Run(
            settings,
            text=self._text,
            end_tokens=self._engine.end_tokens,
            source=source,
            journal=journal,
            rng=self._rng,
            progress=self._progress,
        )
        if journal.winner is None:
            run.write(spent=lambda: reservation.plan.spent(quick=True)[0])
        return run

    def _select(self, data: Data, run: Run, reservation: Reservation) -> int:
        reservation.plan.spend(reservation.charged_selection, chain=self._name)
        counts = run.counts(self._forward, data.rows(data.validation))
        return exponential(counts, reservation.selection.epsilon, rng=self._rng)

    def released(self) -> list[str]:
        """Candidates released so far, complete or not."""
        written = [] if self._journal is None else self._journal.written
        return [text for text in (self._text.instruction(each.tokens) for each in written) if text]

    def certificate(self) -> PrivacyCertificate:
        """The promise of the run as it stands."""
        reservation, journal = self._reservation, self._journal
        if reservation is None or journal is None:
            raise InvalidParameter("Expected a run to have started. Call invoke(examples) first, or plan(examples).")
        seeded = not self._rng.private
        written = journal.written
        return reservation.plan.certificate(
            reservation.charged_token,
            mechanism="DP-OPT: LimitedDomain votes for every token, exponential mechanism among the candidates",
            model=self._engine.name,
            private=not seeded,
            reason="drawn from not_private_seed: whoever knows the seed can remove the noise" if seeded else "",
            notes=(
                "the local model sees the examples; the prompt alone leaves",
                "only the reserved epsilon and delta are a promise, whatever was used of them",
                "training and validation records are disjoint: their costs combine by the larger",
                *getattr(self._engine, "notes", ()),
            ),
            parameters={
                "epsilon0": reservation.token.epsilon0,
                "delta0": reservation.token.delta0,
                "epsilon_selection": reservation.selection.epsilon,
                "sampling": reservation.scheme.sampling,
                "sampling_probability": reservation.scheme.sampling_probability,
                "groups": reservation.scheme.groups,
                "max_calls": reservation.max_calls,
                "votes_needed": math.ceil(reservation.votes_needed),
                "prompts": len(written),
                "tokens_released": sum(len(each.tokens) for each in written),
                "bottoms": sum(each.bottoms for each in written),
                "retries": sum(each.retries for each in written),
            },
        )
