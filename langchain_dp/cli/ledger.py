"""``langchain-dp ledger``: what a ledger holds and what is left of it. Read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer import Argument

from langchain_dp.cli.options import JsonOptions
from langchain_dp.cli.parts import DONE, columns, paths, print_json

if TYPE_CHECKING:
    from langchain_dp.audit.report import Plan, Release, Report

Parts = list[dict[str, float]]
_MOST_PARTS = 8  # that are shown one by one
"""For every plan: epsilon that each part of the data has spent."""


class Ledger(JsonOptions):
    """Shows it."""

    path = "ledger"
    what = "What a ledger holds: budget, spent, left, every release."
    examples = """\
  langchain-dp ledger privacy.ledger
  langchain-dp ledger privacy.ledger --json
"""
    notes = """\
A file, or a schema of PostgreSQL by its URL without a password, "postgresql://user@host/database?schema=name".
Both kinds: counted in epsilon (DP-ICL, DP-OPT), or in eta (sanitized texts). It is read and not changed, also while
others charge it. No text of a record is in it; names of plans and chains that read like a text are not shown. Spent is
what the releases so far cost inside their plans; reserved is the promise. The two are never added.
--json: {"kind", "unit", "budget", "reserved", "spent", "left", "total", "plans": [{"name", "made", "epsilon", "delta",
"spent", "parts", "releases": [{"mechanism", "parameters", "used", "most", "left", "first", "last", "chains"}],
"askers": [{"name", "used", "most"}], "each"}], "facts"}; "each" is the share of an asker without a name; budget,
reserved, spent and left by "epsilon" and "delta". Of a ledger in eta these are by the fullest account of a "user" and
of a "document", and its one plan has name, made and releases.
"""
    file: str = Argument(
        metavar="PLACE", autocompletion=paths, help="file or postgresql:// URL of a ledger, of either kind"
    )

    def run(self) -> int:
        """Run the command; returns the exit code."""
        from langchain_dp.audit.report import report

        found = report(self.file)
        parts = _parts(self.file, found)
        if self.json:
            print_json(_plain(found, parts))
        else:
            print(_text(found, parts))
        return DONE


def _parts(path: str, found: Report) -> Parts:
    """What each part of a plan's data has spent, for the counts that the report holds."""
    from langchain_dp.accounting import MetricLedger, PartEvent, epsilon
    from langchain_dp.audit.report.names import label
    from langchain_dp.audit.report.opening import open_ledger

    spent: Parts = []
    with open_ledger(path) as ledger:
        if isinstance(ledger, MetricLedger):
            return [{} for _ in found.plans]
        for shown, plan in zip(found.plans, ledger.plans(), strict=False):  # a plan may have come since
            used: dict[str, list[Any]] = {}
            of_all = []  # what was read of all parts, each pays for too
            for release, (event, _) in zip(shown.releases, plan.events, strict=True):
                made = [(event, release.used)] if release.used else []
                if isinstance(event, PartEvent):
                    used.setdefault(event.part, []).extend(made)
                else:
                    of_all += made
            neighbors = ledger.budget.neighbors
            spent.append(
                {
                    label(name): min(epsilon(events, plan.delta, neighbors=neighbors), plan.epsilon) if events else 0.0
                    for name, events in ((name, events + of_all) for name, events in used.items())
                }
            )
    return spent


def _plain(found: Report, parts: Parts) -> dict[str, Any]:
    whole = found.to_dict(curve=False)
    plans = []
    for plan, spent in zip(whole["plans"], parts, strict=True):
        for release in plan["releases"]:
            release["left"] = None if release["most"] is None else release["most"] - release["used"]
            del release["meaning"]
        plans.append(plan if found.unit == "eta" else plan | {"parts": spent})
    names = ("kind", "file", "made", "read", "neighbors", "unit", "budget", "reserved", "spent", "left", "total")
    return {**{name: whole[name] for name in names}, "plans": plans, "facts": dict(found.facts)}


def _text(found: Report, parts: Parts) -> str:
    metric = found.unit == "eta"
    rows = [("neighbours", found.neighbors)]
    if metric:
        rows += [
            (f"fullest {whose}", f"eta = {spent:g} of {budget:g} spent, {left:g} left")
            for whose, spent, budget, left in zip(found.sides, found.spent, found.budget, found.left, strict=True)
        ]
    else:
        rows += [
            ("budget", _pair(found.budget)),
            ("reserved", _pair(found.reserved)),
            ("spent so far", _pair(found.spent)),
            ("left to reserve", _pair(found.left)),
        ]
    rows += [("releases", f"{found.total:,}"), *((name.lower(), value) for name, value in found.facts)]
    plans = [_plan(plan, spent, metric=metric) for plan, spent in zip(found.plans, parts, strict=True)]
    head = f"{found.file}: {found.kind}, made {found.made}"
    return "\n\n".join([f"{head}\n{columns(rows)}", *(plans or ["  Nothing was reserved or released yet."])])


def _pair(values: tuple[float, float]) -> str:
    return f"epsilon = {values[0]:g}, delta = {values[1]:g}"


def _plan(plan: Plan, parts: dict[str, float], *, metric: bool) -> str:
    lines = [plan.name]
    if not metric:
        reserved = f"epsilon = {plan.epsilon:g}, delta = {plan.delta:g} reserved"
        lines = [f"Plan {plan.name}, made {plan.made}", f"  {reserved}; epsilon = {plan.spent:g} spent so far"]
        if len(parts) > _MOST_PARTS:
            largest = max(parts.values())
            lines.append(f"  {len(parts):,} parts: epsilon = {largest:g} of {plan.epsilon:g} spent in the fullest")
        else:
            lines += [f"  part {name}: epsilon = {spent:g} of {plan.epsilon:g} spent" for name, spent in parts.items()]
        lines += [
            f"  asker {asker.name}: {asker.used:,} of {asker.most:,} used, {asker.most - asker.used:,} left"
            for asker in plan.askers
        ]
        lines += [f"  each other asker: {plan.each:,}"] if plan.each else []
        if plan.askers or plan.each:
            lines.append("  (askers can pool their answers: the promise is the whole plan's)")
    return "\n".join([*lines, *(_release(release) for release in plan.lines)])


def _release(release: Release) -> str:
    made = f"{release.used:,} releases"
    if release.most is not None:
        made = f"{release.used:,} of {release.most:,} used, {release.most - release.used:,} left"
    when = release.first if release.first == release.last else f"{release.first} to {release.last}"
    chains = ", ".join(f"{name} ({number:,})" for name, number in release.chains.items())
    below = [release.parameters, made, *([when, f"asked for by {chains}"] if release.used else [])]
    return "\n    ".join([f"  {release.mechanism}", *below])
