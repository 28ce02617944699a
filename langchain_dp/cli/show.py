"""How a plan is shown, to people and to programs: the same in ``plan`` and in the commands that run it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from langchain_dp._util.rounding import rounded_up
from langchain_dp.cli.parts import columns, print_json

if TYPE_CHECKING:
    from langchain_dp.cli.options import JsonOptions
    from langchain_dp.icl import ICLPlanReport
    from langchain_dp.opt import OptPlanReport
    from langchain_dp.rapt import Calibration
    from langchain_dp.synth import SynthesisPlan


def show(
    found: ICLPlanReport | OptPlanReport | SynthesisPlan, options: JsonOptions, *, counted_by: str, on_rows: bool = True
) -> None:
    """Show what a run would cost, and by whose tokens, on what rows, that was counted."""
    if on_rows:
        counted_by += ", on the private rows: keep these figures to yourself"
    if options.json:
        print_json(found.to_dict() | {"tokens_counted_by": counted_by})
    else:
        lines = [options.in_options(line) if "WARNING" in line else line for line in str(found).split("\n")]
        print("\n".join([*lines, f"  counted by   {counted_by}"]))


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
