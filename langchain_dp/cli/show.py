"""How a plan is shown, to people and to programs: the same in ``plan`` and in the commands that run it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from langchain_dp._util.rounding import rounded_up
from langchain_dp.cli.parts import columns, print_json

if TYPE_CHECKING:
    from langchain_dp.icl import ICLPlanReport
    from langchain_dp.opt import OptPlanReport
    from langchain_dp.rapt import Calibration
    from langchain_dp.synth import SynthesisPlan


def show(found: ICLPlanReport | OptPlanReport | SynthesisPlan, *, counted_by: str, as_json: bool) -> None:
    """Show what a run would cost, and by whose tokens that was counted."""
    if as_json:
        print_json(_plain(found) | {"tokens_counted_by": counted_by})
    else:
        print(f"{found}\n  counted by   {counted_by}")


def _plain(found: Any) -> dict[str, Any]:
    if hasattr(found, "to_dict"):
        return dict(found.to_dict())
    return _opt_plain(found) if hasattr(found, "token") else _icl_plain(found)


def _icl_plain(found: Any) -> dict[str, Any]:
    price = found.price_per_query
    return {
        "epsilon": found.budget.epsilon,
        "delta": found.budget.delta,
        "neighbors": found.budget.neighbors.name.lower(),
        "queries": found.queries,
        **dataclasses.asdict(found.scheme),
        "sigma": found.event.sigma,
        "noise_share": found.noise_share,
        "epsilon_total": found.epsilon_total,
        "epsilon_first_query": found.epsilon_first_query,
        "calls_per_query": found.calls_per_query,
        "tokens_per_query": found.tokens_per_query,
        "calls": found.calls_per_query * found.queries,
        "tokens": found.tokens_per_query * found.queries,
        "price": None if price is None else price * found.queries,
        "survival": found.survival,
        "survival_doubled": found.survival_doubled,
        "warning": found.warning,
        "weak": found.weak,
    }


def _opt_plain(report: Any) -> dict[str, Any]:
    """The plan as plain values for JSON."""
    fields = dataclasses.asdict(report)
    budget = fields.pop("budget")
    scheme = fields.pop("scheme")
    return {
        **{name: str(value.name).lower() if name == "neighbors" else value for name, value in budget.items()},
        **scheme,
        "epsilon0": getattr(report.token, "epsilon0", None),
        "delta0": getattr(report.token, "delta0", None),
        "epsilon_selection": report.selection.epsilon,
        "votes_needed": report.votes_needed,
        **{name: value for name, value in fields.items() if name not in ("token", "selection")},
    }


def show_calibration(calibration: Calibration, *, as_json: bool, releases: int | None = None) -> None:
    """Show what an eta means."""
    needed = None if releases is None else releases * calibration.eta
    if as_json:
        fields = dataclasses.asdict(calibration) | {"neighbor_loss": calibration.neighbor_loss}
        print_json(fields if needed is None else fields | {"releases": releases, "limit": needed})
        return
    print(calibration)
    if needed is not None:
        print(columns([(f"{releases:,} releases", f"need --limit {rounded_up(needed, digits=6):.12g}")], indent=0))
    factor = math.exp(min(calibration.neighbor_loss, 700.0))
    print(
        f"\nOf two words {calibration.neighbor_distance:.3g} apart, no word comes out more than {factor:,.4g} times as "
        "often from the one as\nfrom the other. This is metric privacy: eta is no epsilon. Words near one another in "
        "the table are hidden among each\nother, far ones less. Releases of one text, and of one user's texts, add up."
    )
