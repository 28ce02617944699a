"""A budget per block of records."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from langchain_dp.accounting import LedgerPlan, PrivacyBudget, PrivacyLedger, Quotas
from langchain_dp.accounting.store.base import backend_at, is_url
from langchain_dp.accounting.store.blocks import BlockStore
from langchain_dp.accounting.store.schema import BLOCKS
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.records.files import READING, RowErrors, fields_of, rows_of
from langchain_dp.records.private import Examples, PrivateRecords, id_of
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

_NAMES: dict[str, Callable[[datetime.date], str]] = {
    "day": lambda day: day.isoformat(),
    "week": lambda day: "{}-W{:02}".format(*day.isocalendar()),
    "month": lambda day: f"{day:%Y-%m}",
    "year": lambda day: f"{day:%Y}",
}


class PrivacyBlocks:
    """Budgets for records that keep coming in: one ledger per block of time, which is public. Nothing is refilled.

    Args:
        place: Folder of the ledgers, made if absent, with one file per block. Or a URL as of :class:`PrivacyLedger`.
        budget_per_block: The most that all releases about the records of one block may cost.
        by: Length of a block: "day", "week", "month" or "year".
        time_key: Key of a record's time, which ledgers show: a date, a datetime, or an ISO str.

    Raises:
        LedgerMismatch: The place holds blocks of another length.
        LedgerError: The register of records cannot be trusted or written.

    Formal guarantee:
        All releases together are (epsilon, delta)-differentially private in any one record, with the budget of its
        block: neighbors differ in a record, not in its time. A release over several blocks reserves its whole claim in
        each of them first. A record that returns under another block is refused by a keyed fingerprint of its id or
        text.

    References:
        McSherry 2009 (parallel composition). Luo, Pan, Tholoniat, Cidon, Geambasu, Lécuyer 2021 (budgets per block).

    Examples:
        >>> blocks = PrivacyBlocks("ledgers", PrivacyBudget(3.0), by="month", time_key="received")
        >>> records, ledger = blocks.select(tickets, ["2026-10", "2026-11"])
        >>> DPPrototypeClassifier.fit(records, labels=QUEUES, ledger=ledger, budget=PrivacyBudget(1.0))
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        budget_per_block: PrivacyBudget,
        *,
        by: str = "month",
        time_key: str = "time",
    ) -> None:
        if by not in _NAMES:
            raise InvalidParameter(f"Expected by={by!r} to be one of {list(_NAMES)}.")
        if not isinstance(budget_per_block, PrivacyBudget):
            raise InvalidParameter("Expected budget_per_block to be a PrivacyBudget. Give PrivacyBudget(3.0).")
        if not isinstance(time_key, str) or time_key in ("", "text", "label"):
            raise InvalidParameter(
                f"Expected time_key={time_key!r} to name the key of a public time, not of text or label: a block that "
                "follows from private content tells of it."
            )
        self._budget, self._by, self._time_key = budget_per_block, by, time_key
        self._place: str | Path = str(place) if is_url(place) else Path(place).expanduser().resolve()
        if isinstance(self._place, Path):
            self._place.mkdir(parents=True, exist_ok=True)
            place = self._place / "records.sqlite"
        self._register = BlockStore(by, backend_at(place, BLOCKS))

    def names(self) -> list[str]:
        """Return names of charged blocks."""
        if isinstance(self._place, Path):
            return sorted(path.stem for path in self._place.glob("*.ledger"))
        from langchain_dp.accounting.store.postgres import names_beside

        return sorted(name for name in names_beside(self._place) if _is_name(name, self._by))

    def _ledger_at(self, name: str) -> str | Path:
        if isinstance(self._place, Path):
            return self._place / f"{name}.ledger"
        from langchain_dp.accounting.store.postgres import beside

        return beside(self._place, name)

    @hold_arguments("examples")
    def select(
        self,
        examples: Examples,
        blocks: Sequence[str],
        *,
        text_key: str = "text",
        label_key: str = "label",
        label: str | None = None,
    ) -> tuple[PrivateRecords, PrivacyLedger]:
        """Return the records of some blocks, and the ledger that charges each of them.

        ``blocks`` are names such as "2026-11" or "2026-W48". Other arguments are as of :class:`PrivateRecords`.

        Raises:
            InvalidParameter: A record has no time, or belongs to another block already. The message gives positions,
                never content.
        """
        names = self._checked(blocks)
        if self._time_key in (text_key, label_key):
            raise InvalidParameter(
                f"Expected time_key={self._time_key!r} to be neither text_key={text_key!r} nor label_key="
                f"{label_key!r}, since a block that follows from private content reveals it. Name the key of a public "
                "time."
            )
        read = PrivateArgs(PrivateArgs.of(examples), {*names}, text_key)
        rows = PrivateArgs(run_redacted(self._rows, read, READING))
        keys: dict[str, Any] = {"text_key": text_key, "label_key": label_key, "label": label}
        records = run_redacted(lambda kept: PrivateRecords(kept, **keys), rows, READING)
        return records, self.ledger(names)

    def ledger(self, blocks: Sequence[str]) -> PrivacyLedger:
        """Return the ledger that charges each of these blocks."""
        paths = {name: self._ledger_at(name) for name in self._checked(blocks)}
        return BlocksLedger(self._budget, paths, str(self._place))

    def _checked(self, blocks: Sequence[str]) -> list[str]:
        names = [] if isinstance(blocks, str) else sorted({*blocks})
        example = _NAMES[self._by](datetime.date(2026, 11, 30))
        if not names or not all(isinstance(name, str) and _is_name(name, self._by) for name in names):
            raise InvalidParameter(f"Expected blocks={blocks!r} to be a list of names such as {example!r}.")
        return names

    def _rows(self, examples: PrivateArgs, names: set[str], text_key: str) -> list[Any]:
        """Return the blocks' rows. Note all fingerprints, or none."""
        [given] = examples.values
        if isinstance(given, PrivateRecords):
            if given.user_key is not None:
                raise InvalidParameter(
                    "Expected PrivateRecords without user_key=: a user may have records in several blocks, whose "
                    "budgets then add up. Blocks protect single records."
                )
            given = [given.get(name) for name in given.ids()]
        faults, kept, positions, marks = RowErrors(), [], [], []
        for position, row in enumerate(rows_of(given)):
            fields = fields_of(row) or {}
            day = _day(fields.get(self._time_key))
            if day is None:
                faults.add(
                    position,
                    f"Expected {{where}} to have a date, or a str that begins with an ISO date, under "
                    f"{self._time_key!r}. Repair it, or name another key with time_key=.",
                )
            elif (block := _NAMES[self._by](day)) in names:
                known = id_of(fields.get("id"))
                content = f"id {known}" if isinstance(known, str) else f"text {fields.get(text_key)}"
                positions.append(position)
                marks.append((self._register.digest("record", content), block))
                kept.append(row)
        faults.raise_any()
        for at in self._register.enter(marks):
            faults.add(
                positions[at],
                "Expected {where} to be in one block, but it was in another one before. Leave it out: its budget would "
                "be charged twice and count as two. Where texts repeat, give each record an id.",
            )
        faults.raise_any()
        return kept

    def __repr__(self) -> str:
        return f"PrivacyBlocks({str(self._place)!r}, {self._budget}, by={self._by!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        again = functools.partial(PrivacyBlocks, by=self._by, time_key=self._time_key)
        return again, (self._place, self._budget)


class BlocksLedger(PrivacyLedger):
    """The ledgers of several blocks as one. The newest counts releases. Each other one is charged in full."""

    def __init__(self, budget: PrivacyBudget, paths: Mapping[str, str | Path], family: str) -> None:
        self._paths = dict(paths)
        *others, newest = sorted(paths)
        super().__init__(budget, paths[newest])
        self._newest = newest
        self._others = {name: PrivacyLedger(budget, paths[name]) for name in others}
        self._account.family = family

    def reserved(self) -> tuple[float, float]:
        all_reserved = [super().reserved(), *(other.reserved() for other in self._others.values())]
        return max(epsilon for epsilon, _ in all_reserved), max(delta for _, delta in all_reserved)

    def plan(self, name: str) -> LedgerPlan | None:
        found = super().plan(name)
        if found is not None:
            for block, other in self._others.items():
                copy = other.plan(self._copy(name))
                if copy is None or any(copy.remaining(event) for event, _ in copy.events):
                    raise PlanError(
                        f"The plan {name!r} of the block {self._newest} was not reserved in the block {block}. Give "
                        "the chain over these blocks another name=."
                    )
        return found

    def _copy(self, name: str) -> str:
        return f"{name} ({self._newest})"

    def reserve(
        self,
        events: Sequence[tuple[DpEvent, int]],
        *,
        name: str,
        epsilon: float | None = None,
        delta: float | None = None,
        settings: Mapping[str, float | int | str | None] | None = None,
        journal: str = "",
        quotas: Quotas | None = None,
    ) -> LedgerPlan:
        """Reserve the plan in each block, the newest one last."""
        if delta is None:
            delta = self.budget.delta - self.reserved()[1]
        newest_is_full = epsilon is not None and epsilon > self.budget.epsilon - super().reserved()[0]
        # The fullest block first: its refusal charges none.
        fullest_first = sorted(self._others.values(), key=lambda other: -other.reserved()[0])
        for other in [] if newest_is_full or self.plan(name) is not None else fullest_first:
            copy = other.reserve(events, name=self._copy(name), epsilon=epsilon, delta=delta)
            for event, _ in copy.events:
                if left := copy.remaining(event):
                    copy.spend(event, left, caller=self._newest)
        return super().reserve(
            events, name=name, epsilon=epsilon, delta=delta, settings=settings, journal=journal, quotas=quotas
        )

    def close(self) -> None:
        for other in self._others.values():
            other.close()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlocksLedger, (self.budget, self._paths, self._account.family)


def _day(value: Any) -> datetime.date | None:
    if isinstance(value, datetime.date):
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return datetime.date.fromisoformat(value.strip()[:10])
    return None


def _is_name(name: str, by: str) -> bool:
    first = {"day": name, "week": None, "month": f"{name}-01", "year": f"{name}-01-01"}[by]
    with contextlib.suppress(ValueError):
        day = datetime.date.fromisocalendar(int(name[:4]), int(name[6:]), 1) if first is None else _day(first)
        return day is not None and _NAMES[by](day) == name
    return False
