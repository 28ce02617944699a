"""Audits of budgets per block: a release is charged to the block of each record that it reads, by a public time alone.

Faults for them are below. NOT PRIVATE.
"""

from __future__ import annotations

import collections
import re
import tempfile
from collections.abc import Mapping
from typing import Any

from audits.check import Check, Finding, worst
from audits.planted import StandIn, Swap, method
from langchain_dp import PrivacyBlocks, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import ExponentialEvent
from langchain_dp.accounting.store.blocks import BlockStore
from langchain_dp.errors import InvalidParameter
from langchain_dp.records import blocks as of_blocks

BUDGET = PrivacyBudget(8.0, 1e-5)
MONTHS = ("2026-10", "2026-11", "2026-12")
RELEASES = ((0,), (0, 1), (1, 2), (0, 1, 2), (2,), (0, 2))
"""Blocks that each release reads."""
ROWS = [
    {"id": f"{month} {n}", "text": f"case {n} of {month}", "label": "A", "time": f"{month}-0{n + 1}"}
    for month in MONTHS
    for n in range(2)
]


def paid() -> Finding:
    """Chains over several blocks, while one record comes back each time under another month."""
    lost: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        blocks = PrivacyBlocks(folder, BUDGET)
        for number, chosen in enumerate(RELEASES):
            months, epsilon = [MONTHS[place] for place in chosen], (number + 1) / 8
            moved = [{**ROWS[0], "time": f"{months[-1]}-28"}, *ROWS[1:]]
            try:
                records, ledger = blocks.select(moved, months)
            except InvalidParameter:
                records, ledger = blocks.select(ROWS, months)
            plan = ledger.reserve(
                [(ExponentialEvent(epsilon / 2), 1)], name=f"release {number}", epsilon=epsilon, delta=1e-6
            )
            plan.spend(ExponentialEvent(epsilon / 2))
            ledger.close()
            for record in records.ids():
                lost[record] += int(epsilon * 8)
        reserved = {month: round(blocks.ledger([month]).reserved()[0] * 8) for month in MONTHS}
    record = max(lost, key=lambda name: lost[name] - reserved[name[:7]])
    return Finding(
        lost[record] > reserved[record[:7]],
        f"{len(RELEASES)} releases, {len(ROWS)} records: one lost {lost[record] / 8} where its block has reserved "
        f"{reserved[record[:7]] / 8}",
    )


def followed() -> Finding:
    """Neighbors that differ in the text of one record: no record may change its block."""
    found = []
    for text in ("nothing of note", "she came on 2026-12-24"):
        with tempfile.TemporaryDirectory() as folder:
            blocks = PrivacyBlocks(folder, BUDGET)
            rows = [{**ROWS[0], "text": text}, *ROWS[1:]]
            found.append([sorted(blocks.select(rows, [month])[0].ids()) for month in MONTHS])
    moved = sum(one != other for one, other in zip(*found, strict=True))
    return Finding(moved > 0, f"{moved} of {len(MONTHS)} blocks change with the text of a record")


CHECKS = (Check("blocks", "each block pays for all that reads it", lambda: worst([paid(), followed()]), once=True),)


def _never_elsewhere(real: StandIn, store: BlockStore, records: Any) -> list[int]:
    """A record may come back under another month."""
    return []


def _by_the_text(real: StandIn, row: Any) -> Mapping[str, Any]:
    """The block of a record is that of a date in its text."""
    fields = real(row)
    dates = re.findall(r"\d{4}-\d\d-\d\d", fields["text"])
    return {**fields, "time": dates[0]} if dates else fields  # type: ignore[no-any-return]  # of the real one


FAULTS: dict[str, list[Swap]] = {
    "a record in two blocks": [(BlockStore, "enter", method(_never_elsewhere))],
    "one block of two is charged": [(of_blocks.BlocksLedger, "reserve", lambda real: PrivacyLedger.reserve)],
    "a block read off the text": [(of_blocks, "fields_of", method(_by_the_text))],
}
