"""Public figures of ledgers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from langchain_dp._util import forks, validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.accounting import MetricLedger, PrivacyLedger
from langchain_dp.accounting._account import claims
from langchain_dp.accounting.events import event_from_json
from langchain_dp.accounting.metric import WHOLE_TEXTS
from langchain_dp.accounting.store.metric import units
from langchain_dp.audit.report.contents import Report, report_on
from langchain_dp.audit.report.names import TEXTS, WORDS, kind
from langchain_dp.audit.report.opening import open_ledger
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerCorrupt

Ledger: TypeAlias = PrivacyLedger | MetricLedger
Watchable: TypeAlias = Ledger | str | os.PathLike[str]

PATIENCE = 5.0

_SIDES = {"epsilon": ("epsilon", "delta"), "eta": ("user", "document")}


@dataclasses.dataclass(frozen=True)
class LedgerStats(MadeOfFields):
    """The public figures of a ledger at one moment.

    Args:
        unit: "epsilon", with pairs (epsilon, delta), or "eta", with pairs (user, document) of the fullest accounts.
        budget: The most that may be spent.
        reserved: The most that all plans may cost. In eta, as ``spent``.
        spent: Cost so far, with prepaid releases.
        left: Unreserved budget, or the rest of the fullest account.
        plans: Plans reserved.
        plans_open: Plans with releases left.
        used: Releases so far, by mechanism.
        unused: Reserved releases not made, by mechanism.
        refusals: Refusals by this object in this process. None for a ledger that is only read.

    Examples:
        >>> ledger = PrivacyLedger(PrivacyBudget(3.0))
        >>> plan = ledger.reserve([(NoisyMaxEvent(20.0), 10)], name="tickets")
        >>> plan.spend(NoisyMaxEvent(20.0), 4)
        >>> found = figures(ledger)
        >>> found.releases, dict(found.unused), found.plans_open
        (4, {'Report noisy max': 6}, 1)
    """

    unit: str
    budget: tuple[float, float]
    reserved: tuple[float, float]
    spent: tuple[float, float]
    left: tuple[float, float]
    plans: int
    plans_open: int
    used: Mapping[str, int]
    unused: Mapping[str, int]
    refusals: int | None

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two numbers in each pair."""
        return _SIDES[self.unit]

    @property
    def releases(self) -> int:
        """Releases so far."""
        return sum(self.used.values())


def figures(ledger: PrivacyLedger | MetricLedger) -> LedgerStats:
    """Read the public figures of an open ``ledger``, in one short transaction that writes nothing.

    A ledger that cannot be trusted, or read within 5 seconds, raises LedgerError.

    Examples:
        >>> figures(PrivacyLedger(PrivacyBudget(3.0))).left
        (3.0, 1e-05)
    """
    remedy = "For a path, call report(path), or register_otel_metrics({name: path})."
    validate.instance("ledger", ledger, (PrivacyLedger, MetricLedger), "an open ledger", remedy)
    return _of_texts(ledger) if isinstance(ledger, MetricLedger) else _of_releases(ledger)


def _of_releases(ledger: PrivacyLedger) -> LedgerStats:
    account, budget = ledger._account, ledger.budget
    plans, counts = account.store.glance(wait=PATIENCE)
    used: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    still_open = 0
    for plan in plans:
        more = 0
        for key, (item, most) in plan.items.items():
            name = kind(event_from_json(key), subject=False)
            used[name] += counts[item]
            unused[name] += most - counts[item]
            more += most - counts[item]
        still_open += more > 0
    return LedgerStats(
        "epsilon", (budget.epsilon, budget.delta), claims(plans), account.spent(plans, counts, round_up=False),
        account.left(plans), len(plans), still_open, MappingProxyType(dict(used)),
        MappingProxyType(dict(unused)), None if ledger._store.backend.reading else ledger.refusals,
    )  # fmt: skip


def _of_texts(ledger: MetricLedger) -> LedgerStats:
    releases, document, user, _ = ledger._store.summary(wait=PATIENCE)
    budget = tuple(math.inf if limit is None else limit for limit in (ledger.limit, ledger.document_limit))
    spent = units(user or 0), units(document or 0)
    return LedgerStats(
        "eta", (budget[0], budget[1]), spent, spent,
        (max(budget[0] - spent[0], 0.0), max(budget[1] - spent[1], 0.0)), 0, 0,
        MappingProxyType({TEXTS if ledger.table == WHOLE_TEXTS else WORDS: releases}), MappingProxyType({}),
        None if ledger._store.backend.reading else ledger.refusals,
    )  # fmt: skip


class Watched:
    """A monitored ledger. A replaced one stays unhealthy, because an older copy forgets charges."""

    def __init__(self, ledger: Watchable) -> None:
        self._place = None if isinstance(ledger, (PrivacyLedger, MetricLedger)) else ledger
        self._ledger = ledger if isinstance(ledger, (PrivacyLedger, MetricLedger)) else None
        self._lock = threading.Lock()
        forks.renew_lock(self)

    def open(self) -> Ledger:
        with self._lock:
            if self._ledger is None:
                assert self._place is not None  # one of the two is there
                with _readable():
                    self._ledger = open_ledger(self._place)
            return self._ledger

    def figures(self) -> LedgerStats:
        with _readable():
            return figures(self.open())

    def report(self) -> Report:
        with _readable():
            return report_on(self.open())

    def look(self) -> tuple[LedgerStats | None, str]:
        """Return figures, or None and the error's type. Its message may hold a path."""
        try:
            return self.figures(), ""
        except (LangChainDPError, OSError) as error:
            return None, type(error).__name__

    def close(self) -> None:
        with self._lock:
            if self._place is not None and self._ledger is not None:
                self._ledger.close()
                self._ledger = None


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except LangChainDPError:
        raise
    except (ValueError, LookupError, TypeError) as error:
        damage = type(error).__name__
    else:
        return
    raise LedgerCorrupt(
        f"Expected the ledger to hold what a ledger holds, but it cannot be made out ({damage}): it is damaged. Stop "
        "what charges it, and look into it."
    )


def named(ledgers: Mapping[str, Watchable | Watched]) -> dict[str, Watched]:
    if not isinstance(ledgers, Mapping) or not ledgers:
        raise InvalidParameter(
            f"Expected ledgers ({type(ledgers).__name__}) to be ledgers by the names under which to show them, such as "
            "{'mailbox': ledger}."
        )
    for name in ledgers:
        validate.short_text("the name of a ledger", name, at_least=1)
    return {name: each if isinstance(each, Watched) else Watched(each) for name, each in ledgers.items()}


Values: TypeAlias = Iterator[tuple[dict[str, str], float]]
PREFIX = "langchain_dp.ledger"


@dataclasses.dataclass(frozen=True)
class Measure:
    """One gauge or counter."""

    name: str  # without the prefix
    what: str  # a sentence
    field: str = ""  # of LedgerStats. Empty: whether the ledger can be read
    unit: str = ""  # of the ledgers that have it, or of all
    side: str = ""  # of the field's pair
    labels: tuple[str, ...] = ()  # names of its labels beside that of the ledger
    counts: bool = False  # whether it only grows

    def of(self, found: LedgerStats | None) -> Values:
        """Yield the values by labels. Infinite ones, without a limit, are left out."""
        if not self.field:
            yield {}, float(found is not None)
        given = getattr(found, self.field, None)
        if found is None or given is None or self.unit not in ("", found.unit):
            return
        if isinstance(given, tuple):
            given = dict(zip(found.sides, given, strict=True))
        if self.side:
            given = given[self.side]
        values = given if isinstance(given, Mapping) else {"": given}
        for label, value in values.items():
            if math.isfinite(value):
                yield dict.fromkeys(self.labels, label), float(value)


MEASURES = (
    Measure("healthy", "1 if the ledger can be read and trusted, else 0. The other figures are absent then."),
    *(
        Measure(f"{name}.{side}", f"{side.capitalize()} {what}", name, "epsilon", side)
        for name, what in (
            ("budget", "that all releases together may cost."),
            ("reserved", "that all plans may cost in the end: the promise."),
            ("spent", "that the releases so far cost, prepaid ones included."),
            ("left", "that no plan has reserved."),
        )
        for side in ("epsilon", "delta")
    ),
    *(
        Measure(f"{name}.eta", f"Eta that {what}", field, "eta", labels=("account",))
        for name, what, field in (
            ("limit", "one account may spend. Absent without a limit.", "budget"),
            ("spent", "the fullest account has spent.", "spent"),
            ("left", "the fullest account has left.", "left"),
        )
    ),
    Measure("plans", "Plans reserved.", "plans", "epsilon"),
    Measure("plans.open", "Plans that have releases left.", "plans_open", "epsilon"),
    Measure("releases", "Releases charged.", "used", labels=("mechanism",), counts=True),
    Measure("releases.left", "Releases reserved and not made.", "unused", labels=("mechanism",)),
    Measure(
        "refusals", "Charges and plans refused by this process. They are not in the ledger.", "refusals", counts=True
    ),
)
