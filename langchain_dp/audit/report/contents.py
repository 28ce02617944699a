"""The report of a ledger as plain data."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_dp._util.rounding import bound, rounded_up
from langchain_dp.accounting import LedgerPlan, MetricLedger, PartEvent, PrivacyLedger
from langchain_dp.accounting.certificate import library_version
from langchain_dp.accounting.events import event_from_json
from langchain_dp.accounting.metric import WHOLE_TEXTS, MetricEntry, per
from langchain_dp.accounting.store.metric import units
from langchain_dp.accounting.store.plans import LedgerEntry
from langchain_dp.audit.report import names, opening
from langchain_dp.audit.report.names import RELATIONS, TEXTS, WORDS, in_part, kind, label, parameters
from langchain_dp.audit.report.results import ReportedAttack, ReportedPseudonyms, reported_attacks, reported_pseudonyms
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.rapt.pseudonyms import PseudonymReport

_FEW_PARTS = 8  # parts that are shown one by one
_POINTS = 24  # of the curve of what was spent: each is a composition of its own


@dataclasses.dataclass(frozen=True)
class Release:
    """All releases of one kind under one plan.

    Args:
        mechanism: Name of the mechanism.
        parameters: Public parameters in words.
        meaning: Effect of the noise on an answer.
        used: Releases so far.
        most: Releases reserved, or None.
        first: Time of the first release, ISO 8601 in UTC, or "".
        last: Time of the last release.
        chains: Releases by charging chain.
        part: Part of the data that they read, or "" for all.

    Examples:
        >>> [(release.mechanism, release.used) for release in report("privacy.ledger").plans[0].releases]
    """

    mechanism: str
    parameters: str
    meaning: str
    used: int
    most: int | None
    first: str
    last: str
    chains: dict[str, int]
    part: str = ""


@dataclasses.dataclass(frozen=True)
class UserShare:
    """One user's use of a plan: public ``name``, releases ``used``, and the quota ``most``.

    Examples:
        >>> [(user.name, user.most - user.used) for user in report("privacy.ledger").plans[0].quotas]
    """

    name: str
    used: int
    most: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A reserved plan.

    Args:
        name: Its name.
        made: Time of reservation.
        epsilon: Reserved epsilon.
        delta: Reserved delta.
        spent: Epsilon of the releases so far.
        releases: Releases by kind.
        quotas: Quotas of users who are named or have queried.
        each: Quota of every other user, or None.
        model: Name of the model, or "".
        records: Number of records, or users, at the reservation, in words, "" if it is private.

    Examples:
        >>> [(plan.name, plan.epsilon, plan.spent) for plan in report("privacy.ledger").plans]
    """

    name: str
    made: str
    epsilon: float
    delta: float
    spent: float
    releases: tuple[Release, ...]
    quotas: tuple[UserShare, ...] = ()
    each: int | None = None
    model: str = ""
    records: str = ""

    @property
    def lines(self) -> tuple[Release, ...]:
        """Releases for readers, joined over many parts of the data."""
        alike: defaultdict[tuple[str, str], list[Release]] = defaultdict(list)
        for release in self.releases:
            whole = release.mechanism.removesuffix(in_part(release.part)) if release.part else ""
            alike[whole, release.parameters].append(release)
        lines = []
        for (mechanism, _), releases in alike.items():
            lines += [_together(mechanism, releases)] if mechanism and len(releases) > _FEW_PARTS else releases
        return tuple(lines)


def _together(mechanism: str, releases: Sequence[Release]) -> Release:
    chains: Counter[str] = Counter()
    for release in releases:
        chains.update(release.chains)
    return dataclasses.replace(
        releases[0],
        mechanism=f"{mechanism}, on each of {len({release.part for release in releases}):,} disjoint parts of the data",
        used=sum(release.used for release in releases),
        most=sum(release.most or 0 for release in releases),
        first=min((release.first for release in releases if release.first), default=""),
        last=max(release.last for release in releases),
        chains=dict(chains),
        part="",
    )


@dataclasses.dataclass(frozen=True)
class Report:
    """The contents of a ledger in public parameters. Names that look like a text are not shown.

    Args:
        kind: "ledger", in epsilon, or "metric ledger", in eta.
        file: Name of the file.
        made: Time of creation, ISO 8601 in UTC.
        read: Time of reading.
        library: Version of this package.
        neighbors: Neighbors in words.
        meaning: The promise in plain words.
        budget: (epsilon, delta), or the limits (per user, per document).
        reserved: (epsilon, delta) of all plans. In eta, as ``spent``.
        spent: (epsilon, delta) so far, or the largest accounts.
        total: Releases so far.
        plans: Plans in order.
        facts: Further rows (name, value).
        limits: Limits of the protection.
        attacks: Results of attacks.
        pseudonyms: Results of pseudonyms, which are not in the ledger.
        composed: Computes :attr:`curve`.

    Examples:
        >>> found = report("privacy.ledger")
        >>> found.budget, found.spent
    """

    kind: str
    file: str
    made: str
    read: str
    library: str
    neighbors: str
    meaning: str
    budget: tuple[float, float]
    reserved: tuple[float, float]
    spent: tuple[float, float]
    total: int
    plans: tuple[Plan, ...]
    facts: tuple[tuple[str, str], ...]
    limits: tuple[str, ...]
    attacks: tuple[ReportedAttack, ...] = ()
    pseudonyms: tuple[ReportedPseudonyms, ...] = ()
    composed: Callable[[], Sequence[tuple[str, float]]] = dataclasses.field(default=tuple, repr=False, compare=False)

    @functools.cached_property
    def curve(self) -> tuple[tuple[str, float], ...]:
        """(time, spent), or the largest account, at up to 24 times. Composed at first use."""
        return tuple(self.composed())

    @property
    def unit(self) -> str:
        """Unit of the counts, "epsilon" or "eta"."""
        return "eta" if self.kind == "metric ledger" else "epsilon"

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two numbers in each pair."""
        return ("user", "document") if self.unit == "eta" else ("epsilon", "delta")

    @property
    def left(self) -> tuple[float, float]:
        """Unreserved budget, or the rest of the fullest accounts."""
        return max(self.budget[0] - self.reserved[0], 0.0), max(self.budget[1] - self.reserved[1], 0.0)

    def to_dict(self, *, curve: bool = True) -> dict[str, Any]:
        """Return plain values for strict JSON, with "inf" for infinity."""
        values = dataclasses.asdict(dataclasses.replace(self, composed=tuple))
        del values["composed"]
        values["unit"] = self.unit
        for attack, row in zip(self.attacks, values["attacks"], strict=True):
            row |= {name: getattr(attack, name) for name in ("bound", "better", "contradicts")}
        for name in ("budget", "reserved", "spent", "left"):
            values[name] = dict(zip(self.sides, getattr(self, name), strict=True))
        if self.unit == "eta":
            for plan in values["plans"]:  # a stand-in for all releases: nothing was reserved, and eta has no delta
                for name in ("epsilon", "delta", "spent", "quotas", "each", "model", "records"):
                    del plan[name]
        if curve:
            values["curve"] = self.curve
        return {name: _plain(value) for name, value in values.items()}


def report(
    path: str | os.PathLike[str], *, attacks: Iterable[Any] = (),
    pseudonyms: PseudonymReport | Iterable[PseudonymReport] = (),
) -> Report:  # fmt: skip
    """Read a ledger of either kind, without writing, budget or key.

    Args:
        path: The ledger's file or URL.
        attacks: Results of attacks to show beside it, or their ``to_dict()``.
        pseudonyms: Reports of conversations under pseudonyms, summed over equal settings.

    Examples:
        >>> found = report("privacy.ledger")
        >>> found.spent, found.left, found.total
    """
    if isinstance(path, (PrivacyLedger, MetricLedger)):
        raise InvalidParameter("Expected the path of a ledger, not one that is open. Call report_on(ledger).")
    hidden, attempts = reported_pseudonyms(pseudonyms), reported_attacks(attacks)
    with opening.open_ledger(path) as ledger:
        return dataclasses.replace(report_on(ledger), pseudonyms=hidden, attacks=attempts)


def report_on(ledger: PrivacyLedger | MetricLedger) -> Report:
    file = "in memory" if ledger.path is None else label(opening.name_of(ledger.path))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with ledger._store.read() as connection:
        made = str(connection.execute("SELECT time FROM ledger").fetchone()[0])
    head = file, made, now, library_version()
    return _of_metric(ledger, head) if isinstance(ledger, MetricLedger) else _of_ledger(ledger, head)


def _release(
    mechanism: str, parameters: str, meaning: str, charges: Sequence[LedgerEntry | MetricEntry],
    most: int | None = None, part: str = "",
) -> Release:  # fmt: skip
    chains: Counter[str] = Counter()
    for entry in charges:
        chains[label(entry.caller) if entry.caller else "(no name)"] += getattr(entry, "count", 1)
    first, last = (charges[0].time, charges[-1].time) if charges else ("", "")
    return Release(mechanism, parameters, meaning, chains.total(), most, first, last, dict(chains), part)


def _of_ledger(ledger: PrivacyLedger, head: tuple[str, str, str, str]) -> Report:
    budget = ledger.budget
    entries = list(ledger.entries())
    account = ledger._account
    stored = account.store.plans()
    used: Counter[int] = Counter()
    marks = {round(place * (len(entries) - 1) / (_POINTS - 1)) for place in range(_POINTS)} if entries else set()
    rows = {(plan.name, event): item for plan in stored for event, (item, _) in plan.items.items()}
    points: list[tuple[str, Counter[int]]] = []
    for place, entry in enumerate(entries):
        used[rows[entry.plan, entry.event]] += entry.count
        if place in marks:
            points.append((entry.time, used.copy()))
    plans = []
    for plan in stored:
        releases = []
        for key, (_, most) in plan.items.items():
            event = event_from_json(key)
            charges = [entry for entry in entries if (entry.plan, entry.event) == (plan.name, key)]
            part = label(event.part) if isinstance(event, PartEvent) else ""
            meaning = names.calibration(event, budget.neighbors)
            releases.append(_release(kind(event), parameters(event), meaning, charges, most, part))
        cost = account.spent([plan], used, round_up=False)[0]
        shares, each = _shares(LedgerPlan(account, plan))
        about = dict(plan.settings or {})
        plans.append(
            Plan(
                label(plan.name), plan.time, plan.epsilon, plan.delta, cost, tuple(releases), shares, each,
                label(str(about["model"])) if about.get("model") else "", _counted(about),
            )
        )  # fmt: skip
    spent = account.spent(stored, used, round_up=False)
    return Report(
        "ledger",
        *head,
        RELATIONS[budget.neighbors],
        names.meaning(budget.epsilon, budget.delta, budget.neighbors, spent=spent),
        (budget.epsilon, budget.delta),
        ledger.reserved(),
        spent,
        sum(used.values()),
        tuple(plans),
        (),
        tuple(names.limits(budget.neighbors)),
        # The account computes and reads no file, so this works after the ledger is closed.
        composed=lambda: [(time, account.spent(stored, counts, round_up=False)[0]) for time, counts in points],
    )


def _counted(about: Mapping[str, Any]) -> str:
    if isinstance(about.get("users"), int):
        return f"{about['users']:,} users, all records of one protected together"
    return f"{about['records']:,} records" if isinstance(about.get("records"), int) else ""


def _shares(plan: LedgerPlan) -> tuple[tuple[UserShare, ...], int | None]:
    if plan.quotas is None:
        return (), None
    used = plan.used_by()
    names = sorted(plan.quotas.overrides.keys() | used.keys(), key=lambda name: (-used.get(name, 0), name))
    shares = [UserShare(label(name), used.get(name, 0), plan.quotas.of(name) or 0) for name in names]
    return tuple(shares), plan.quotas.default


_TWO_WORDS = "for two words at distance 1 in the table, no word is released"
_TWO_TEXTS = "for any two texts, no paraphrase is released"


def _of_metric(ledger: MetricLedger, head: tuple[str, str, str, str]) -> Report:
    entries = list(ledger.entries())
    whole = ledger.table == WHOLE_TEXTS
    table = label(ledger.table) if ledger.table else "none yet"
    curve = _largest(entries)
    releases = []
    for eta in sorted({entry.eta for entry in entries}):
        charges = [entry for entry in entries if entry.eta == eta]
        effect = (
            f"At eta {bound(eta, 4)}, {_TWO_TEXTS if whole else _TWO_WORDS} more than {_factor(eta)} times as often "
            "from the one as from the other."
        )
        unit = f"eta {bound(eta, 4)} nats {per(table)}"
        releases.append(_release(TEXTS if whole else WORDS, unit, effect, charges))
    meaning = (
        f"Two texts of equal length that differ in one word, at distance d in the table {table}, give any released "
        "text with chances that differ by a factor of at most e^(eta d). Releases of the same text, and losses of "
        "several words, add up in the exponent."
    )
    if whole:
        meaning = (
            "Any two texts give any released text with chances that differ by a factor of at most e^eta, a local "
            "epsilon. Releases of the same text add up in the exponent."
        )
    sums = {whose: [units(value) for value in values] for whose, values in opening.accounts(ledger).items()}
    most = tuple(max(sums[whose], default=0.0) for whose in ("user", "document"))
    limits = tuple(math.inf if limit is None else limit for limit in (ledger.limit, ledger.document_limit))
    plan = Plan("all releases", head[1], limits[0], 0.0, most[0], tuple(releases))
    return Report(
        "metric ledger",
        *head,
        "any two texts" if whole else "two texts of equal length, by the distances of their words in a public table",
        meaning,
        (limits[0], limits[1]),
        (most[0], most[1]),
        (most[0], most[1]),
        len(entries),
        (plan,) if releases else (),
        (
            ("Table", table),
            ("Users with an account", f"{len(sums['user']):,}"),
            ("Documents with an account", f"{len(sums['document']):,}"),
            ("Releases that named no user", f"{sum(entry.user is None for entry in entries):,}"),
        ),
        tuple(names.TEXT_LIMITS if whole else names.METRIC_LIMITS),
        composed=lambda: curve,
    )


def _largest(entries: Sequence[MetricEntry]) -> list[tuple[str, float]]:
    whose = "user" if any(entry.user for entry in entries) else "document"
    spent: defaultdict[str, float] = defaultdict(float)
    curve: list[tuple[str, float]] = []
    for entry in entries:
        owner = getattr(entry, whose)
        if owner is None:
            continue
        spent[owner] += entry.eta
        if not curve or spent[owner] > curve[-1][1]:
            curve.append((entry.time, spent[owner]))
    return [*curve, (entries[-1].time, curve[-1][1])] if curve else []


def _factor(eta: float) -> str:
    factor = math.exp(min(eta, 10.0))
    return f"e^{bound(eta, 4)}" if eta > 10 else f"{math.ceil(factor):,}" if factor > 100 else f"{rounded_up(factor):g}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
