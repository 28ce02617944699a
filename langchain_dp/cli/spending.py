"""The ledger that a data file's commands charge."""
# No postponed annotations: typer evaluates inherited ones in the command's module.

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Option

from langchain_dp._util.rounding import bound, room
from langchain_dp.cli.options import JsonOptions, ledger_at
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.runs import check_apart, check_folder
from langchain_dp.cli.show import note, print_json
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerMismatch, PlanError

if TYPE_CHECKING:
    from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
    from langchain_dp.records import PrivateRecords

_ADDS_UP = "A second ledger over these rows would add its epsilon"
_ROUNDING = 1e-9  # the rest is a difference of sums


def _total(values: list[float] | None) -> list[float] | None:
    if values and (len(values) > 2 or values[1:] >= [1.0]):
        raise typer.BadParameter(f"expected EPSILON, or EPSILON and a DELTA below 1, found {len(values)} numbers")
    return values


class SpendingOptions(JsonOptions):
    """The ledger to charge."""

    budget: list[float] | None = Option(
        None, parser=positive, callback=_total, metavar="EPSILON [DELTA]",
        help="total of --data over all commands, fixed with its first one (DELTA: 1e-05, shared as epsilon is)",
    )  # fmt: skip
    ledger: str | None = ledger_at(help="ledger of --data: file or postgresql:// URL (default: DATA.ledger beside it)")

    def account(self, data: Path, out: Path, neighbors: str = "replace-one") -> "DataLedger":
        place = self.ledger or f"{data.resolve() if data.is_symlink() else data}.ledger"
        check_apart(out, place)
        return DataLedger.at(place, data, self.budget, neighbors, ask=not self.json)


@dataclasses.dataclass
class DataLedger:
    """A data file's ledger. ``plans``: reserved epsilon and delta."""

    place: str
    data: Path
    budget: "PrivacyBudget | None"
    neighbors: "Neighbors"
    may_ask: bool
    plans: dict[str, tuple[float, float]]
    made: bool
    again: bool = False

    @classmethod
    def at(cls, place: str, data: Path, given: Sequence[float] | None, neighbors: str, *, ask: bool) -> "DataLedger":
        """Refuse a --budget that differs."""
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.accounting.budget import neighbors_from
        from langchain_dp.accounting.store.base import file_at, is_there, is_url

        relation = neighbors_from(neighbors)
        asked = None if given is None else PrivacyBudget(given[0], (*given[1:], 1e-5)[0], relation)
        if not is_there(place):
            if not is_url(place):
                check_folder(Path(file_at(place)), "--ledger")
            return cls(place, data, asked, relation, ask, {}, made=False)
        with _opened(place) as ledger:
            budget, plans = ledger.budget, {plan.name: (plan.epsilon, plan.delta) for plan in ledger.plans()}
        found = cls(place, data, budget, relation, ask, plans, made=True)
        if given is not None and list(given) != [budget.epsilon, budget.delta][: len(given)]:
            raise LedgerMismatch(
                f"Expected no --budget {' '.join(f'{value:g}' for value in given)}: {found.name} was made with epsilon "
                f"{budget.epsilon:g} and delta {budget.delta:g}, for good. Leave --budget out. {_ADDS_UP}."
            )
        if relation is not budget.neighbors:
            raise LedgerMismatch(
                f"Expected neighbors {neighbors} to be {budget.neighbors.name.lower().replace('_', '-')}, as of "
                f"{found.name}: promises for two relations do not add up. Name another --ledger, and count both."
            )
        return found

    @property
    def name(self) -> str:
        """The place in messages, without a URL, which may hold secrets."""
        from langchain_dp.accounting.store.base import is_url

        return "the ledger in the database" if is_url(self.place) else self.place

    def left(self) -> tuple[float, float]:
        assert self.budget is not None
        taken = self.plans.values()

        def rest(total: float, used: float) -> float:
            return total - used if total - used > total * _ROUNDING else 0.0

        return (
            rest(self.budget.epsilon, math.fsum(epsilon for epsilon, _ in taken)),
            rest(self.budget.delta, math.fsum(delta for _, delta in taken)),
        )

    def share(self, epsilon: float, name: str, *, plan: bool = False) -> "PrivacyBudget":
        """Return the command's epsilon with a proportional delta. A stored run keeps its delta."""
        from langchain_dp.accounting import PrivacyBudget

        if plan and self.budget is None:
            return PrivacyBudget(epsilon, neighbors=self.neighbors)
        self.budget = self.budget or self._asked()
        self.again = name in self.plans
        if self.again:
            return dataclasses.replace(self.budget, epsilon=epsilon, delta=self.plans[name][1])
        left = self.left()
        if epsilon > left[0] * (1 + _ROUNDING):
            raise InvalidParameter(
                f"Expected --epsilon {epsilon:g} to be at most {room(left[0])}: that is left of "
                f"{bound(self.budget.epsilon)} for {self.data}. Ask for less. {_ADDS_UP}."
            )
        if not left[1]:
            raise InvalidParameter(f"No delta is left in {self.name}, which all on {self.data} share. {_ADDS_UP}.")
        delta = min(self.budget.delta * (epsilon / self.budget.epsilon), left[1])
        return dataclasses.replace(self.budget, epsilon=epsilon, delta=delta)

    def after(self, share: "PrivacyBudget", name: str) -> "DataLedger":
        return dataclasses.replace(self, plans={name: (share.epsilon, share.delta)} | self.plans)

    def _asked(self) -> "PrivacyBudget":
        from langchain_dp.accounting import PrivacyBudget

        if not (self.may_ask and sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidParameter(
                f"Expected --budget: {self.data} has no ledger yet. Give the total epsilon that all commands on it may "
                "spend together, as in --budget 3."
            )
        print(f"Total epsilon that all commands on {self.data} may ever spend: ", end="", file=sys.stderr, flush=True)
        try:
            return PrivacyBudget(positive(sys.stdin.readline().strip()), neighbors=self.neighbors)
        except typer.BadParameter as error:
            raise WrongArguments(f"Expected a total: {error.message}.") from None

    @contextlib.contextmanager
    def opened(self, records: "PrivateRecords", *, quiet: bool) -> "Iterator[PrivacyLedger]":
        from langchain_dp.accounting import PrivacyLedger
        from langchain_dp.ensemble.splits import holds_other_rows

        assert self.budget is not None  # share() asked for it
        with explained(), PrivacyLedger(self.budget, self.place) as ledger:
            if not (self.made or quiet):
                note(f"Made {self.name} of {self.budget}, for all commands on {self.data}.")
            if self.made and holds_other_rows(records, ledger):
                note(
                    f"Warning: {self.name} was charged for other rows, and for none of {self.data}. If no row is in "
                    "both, name another --ledger. Otherwise these rows have what the others left."
                )
            yield ledger
            self.made, self.plans = True, {plan.name: (plan.epsilon, plan.delta) for plan in ledger.plans()}

    def __str__(self) -> str:
        if self.budget is None:
            return f"no ledger yet for {self.data}: --budget names the total epsilon of all commands on it"
        again = "The epsilon of this release was taken before, not again: " if self.again else ""
        return f"{again}epsilon {room(self.left()[0])} of {bound(self.budget.epsilon)} left for {self.data}"

    def in_json(self) -> dict[str, Any]:
        left = None if self.budget is None else dict(zip(("epsilon", "delta"), self.left(), strict=True))
        return {"left": left}


def show_forecast(forecast: Any, after: DataLedger, *, as_json: bool) -> int:
    if as_json:
        print_json(forecast.to_dict() | after.in_json())
    else:
        print(f"{forecast}\n\nNothing was spent. It would leave: {after}")
    return DONE


@contextlib.contextmanager
def _opened(place: str) -> "Iterator[PrivacyLedger]":
    from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
    from langchain_dp.audit.report.opening import open_ledger
    from langchain_dp.errors import LedgerUnwritable

    try:
        ledger = open_ledger(place)
    except LedgerUnwritable:
        # Opening it to write rolls back an unfinished write, even with a wrong budget.
        with contextlib.suppress(LedgerMismatch):
            PrivacyLedger(PrivacyBudget(1.0), place).close()
        ledger = open_ledger(place)
    with ledger:
        if not isinstance(ledger, PrivacyLedger):
            raise LedgerMismatch(
                "Expected --ledger to count in epsilon, but it counts in eta (sanitized texts). Name another."
            )
        yield ledger


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Add the remedy for a run that was started with other options."""
    try:
        yield
    except (BudgetExceeded, LedgerMismatch, PlanError) as error:
        error.args = (
            f"{error} To go on with that run, give the options it was started with. Another --name starts a new one, "
            "and both epsilons are taken from the total.",
        )
        raise
