"""Budgets per block of time: parallel composition, and what would break it."""

from __future__ import annotations

import datetime
import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.encoders import WordEncoder

from langchain_dp import DPPrototypeClassifier, PrivacyBlocks, PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.accounting import ExponentialEvent
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerMismatch, PlanError
from langchain_dp.records.blocks import BlocksLedger

BUDGET = PrivacyBudget(2.0, 1e-5)
HALF = PrivacyBudget(1.0, 5e-6)
OCTOBER, NOVEMBER, DECEMBER = "2026-10", "2026-11", "2026-12"
fit = functools.partial(DPPrototypeClassifier.fit, labels=["A", "B"], encoder=WordEncoder(), trust_opaque_model=True)


def rows(month: str, count: int = 20) -> list[dict[str, str]]:
    return [
        {
            "text": f"the nurse was late, {month} case {n}",
            "label": "AB"[n % 2],
            "time": f"{month}-{n % 28 + 1:02}T10:00",
        }
        for n in range(count)
    ]


ALL = [*rows(OCTOBER), *rows(NOVEMBER), *rows(DECEMBER)]


@pytest.fixture
def blocks(request: pytest.FixtureRequest, tmp_path: Path) -> PrivacyBlocks:
    """Blocks in a folder, or, by parameter, in PostgreSQL."""
    if getattr(request, "param", "folder") == "folder":
        return PrivacyBlocks(tmp_path / "ledgers", BUDGET)
    return PrivacyBlocks(request.getfixturevalue("postgres").fresh(tmp_path), BUDGET)


on_both = pytest.mark.parametrize("blocks", ["folder", "postgres"], indirect=True)


def reserved(blocks: PrivacyBlocks, name: str) -> float:
    return round(blocks.ledger([name]).reserved()[0], 9)


@on_both
def test_a_new_month_brings_a_budget_and_leaves_the_old_one_alone(blocks: PrivacyBlocks) -> None:
    """If it breaks, a month that is used up is filled again, or an unused one is charged."""
    for names, name in (([OCTOBER], "a"), ([OCTOBER, NOVEMBER], "b")):
        records, ledger = blocks.select(ALL, names)
        assert len(records) == 20 * len(names)
        fit(records, ledger=ledger, budget=HALF, name=name)
    assert [reserved(blocks, name) for name in (OCTOBER, NOVEMBER, DECEMBER)] == [2.0, 1.0, 0.0]
    records, ledger = blocks.select(ALL, [OCTOBER, NOVEMBER, DECEMBER])
    with pytest.raises(BudgetExceeded):
        fit(records, ledger=ledger, budget=HALF, name="c")
    assert [reserved(blocks, name) for name in (OCTOBER, NOVEMBER, DECEMBER)] == [2.0, 1.0, 0.0]
    records, ledger = blocks.select(ALL, [NOVEMBER, DECEMBER])
    again = [repr(fit(records, ledger=ledger, budget=HALF, name="d")) for _ in range(2)]
    assert again[0] == again[1]
    assert blocks.names() == [OCTOBER, NOVEMBER, DECEMBER]


def test_an_older_block_says_that_it_is_spent(blocks: PrivacyBlocks) -> None:
    """If it breaks, the ledger of a block shows an epsilon below what was released about its records."""
    ledger = blocks.ledger([OCTOBER, NOVEMBER])
    plan = ledger.reserve([(ExponentialEvent(0.125), 4)], name="a", epsilon=1.0, delta=1e-6)
    plan.spend(ExponentialEvent(0.125))
    assert blocks.ledger([OCTOBER]).spent()[0] > 0.9
    assert blocks.ledger([NOVEMBER]).spent()[0] == pytest.approx(0.25, rel=0.01)


@on_both
@pytest.mark.parametrize("other", [[NOVEMBER, DECEMBER], [DECEMBER]], ids=["more blocks", "one block"])
def test_a_plan_of_other_blocks_is_not_taken_up(blocks: PrivacyBlocks, other: list[str]) -> None:
    """If it breaks, a release over two blocks is charged in one of them: planted by a plan of the newer one alone."""
    event, claim = ExponentialEvent(0.25), {"epsilon": 0.5, "delta": 1e-6}
    blocks.ledger(other).reserve([(event, 1)], name="a", **claim)
    ledger = blocks.ledger([OCTOBER, NOVEMBER, DECEMBER])
    with pytest.raises(PlanError, match=r"was not reserved in the block 2026-1[01]"):
        ledger.reserve([(event, 1)], name="a", **claim)
    with pytest.raises(PlanError, match="another name="):
        ledger.plan("a")


@on_both
def test_a_plan_that_a_crash_left_in_one_block_goes_on(blocks: PrivacyBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a kill between two blocks lets a release go out that one of them does not know."""
    claim = {"name": "a", "epsilon": 0.5, "delta": 1e-6}
    with monkeypatch.context() as patch:
        real = PrivacyLedger.reserve

        def killed(self: PrivacyLedger, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, BlocksLedger):
                raise KeyboardInterrupt
            return real(self, *args, **kwargs)

        patch.setattr(PrivacyLedger, "reserve", killed)
        with pytest.raises(KeyboardInterrupt):
            blocks.ledger([OCTOBER, NOVEMBER]).reserve([(ExponentialEvent(0.25), 1)], **claim)  # type: ignore[arg-type]
    blocks.ledger([OCTOBER, NOVEMBER]).reserve([(ExponentialEvent(0.25), 1)], **claim)  # type: ignore[arg-type]
    assert [reserved(blocks, name) for name in (OCTOBER, NOVEMBER)] == [0.5, 0.5]


@on_both
def test_a_record_that_returns_in_another_block_is_refused(blocks: PrivacyBlocks) -> None:
    """If it breaks, a record that is moved to a fresh month is charged there anew, and has two budgets."""
    blocks.select(ALL, [OCTOBER])
    moved = [*rows(NOVEMBER), {**rows(OCTOBER)[3], "text": rows(OCTOBER)[3]["text"], "time": "2026-11-05"}]
    with pytest.raises(InvalidParameter, match="Expected example 20 to be in one block") as caught:
        blocks.select(moved, [NOVEMBER])
    assert "nurse" not in str(caught.value)
    blocks.select([{**row, "time": row["time"].replace("2026-11", "2026-12")} for row in rows(NOVEMBER)], [DECEMBER])
    named = [{**row, "id": f"{n} {row['time'][:7]}"} for n, row in enumerate([*rows(OCTOBER), *moved])]
    assert len(blocks.select(named, [OCTOBER, NOVEMBER])[0]) == 41


def test_the_folder_holds_no_text(blocks: PrivacyBlocks, tmp_path: Path) -> None:
    """If it breaks, fingerprints can be read, or guessed by everybody on the machine."""
    blocks.select([{**row, "text": f"{CANARY} {row['text']}"} for row in ALL], [OCTOBER])
    files = [tmp_path / "ledgers" / name for name in ("records.sqlite", "records.sqlite.key")]
    register, key = (file.read_bytes() for file in files)
    assert CANARY.encode() not in register
    assert key.split()[1] not in register
    assert [file.stat().st_mode & 0o077 for file in files] == [0, 0]


def test_the_database_of_blocks_holds_no_key(postgres: Any, tmp_path: Path) -> None:
    """If it breaks, blocks on several machines see each other's records as new, or a dump lets guesses be tested."""
    url = postgres.fresh(tmp_path)
    one, two = (PrivacyBlocks(url, BUDGET) for _ in range(2))
    one.select(ALL, [OCTOBER])
    with pytest.raises(InvalidParameter, match="in one block"):
        two.select([{**rows(OCTOBER)[0], "time": "2026-11-05"}], [NOVEMBER])
    assert two.select([{**rows(NOVEMBER)[0], "time": "2026-12-05"}], [DECEMBER])[0].ids()
    [key] = tmp_path.glob("*.key")
    secret = bytes.fromhex(key.read_text().split()[1])
    schema = key.name.removesuffix(".key")
    assert postgres.ask(f"SELECT count(*) FROM {schema}.entries") == [(21,)]
    assert secret not in b"".join(bytes(mark) for (mark,) in postgres.ask(f"SELECT mark FROM {schema}.entries"))
    with pytest.raises(LedgerMismatch, match="one month each"):
        PrivacyBlocks(url, BUDGET, by="day")
    with pytest.raises(LedgerMismatch, match="it is a register of blocks"):
        PrivacyLedger(BUDGET, url)


@pytest.mark.parametrize(
    ("by", "day", "name"),
    [("day", "2027-01-01", "2027-01-01"), ("week", "2027-01-01", "2026-W53"), ("month", "2027-01-31 23:59", "2027-01"),
     ("year", datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC), "2027")],
)  # fmt: skip
def test_a_block_has_the_name_of_its_time(tmp_path: Path, by: str, day: Any, name: str) -> None:
    """If it breaks, a record lands in a block that its day is not in."""
    blocks = PrivacyBlocks(tmp_path, BUDGET, by=by)
    assert len(blocks.select([{"text": "a", "label": "A", "time": day}], [name])[0]) == 1


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda b, p: PrivacyBlocks(p, BUDGET, by="hour"), InvalidParameter, "by='hour'"),
        (lambda b, p: PrivacyBlocks(p, 3.0), InvalidParameter, "PrivacyBudget"),
        (lambda b, p: PrivacyBlocks(p, BUDGET, time_key="text"), InvalidParameter, "public time"),
        (lambda b, p: PrivacyBlocks(p / "ledgers", BUDGET, by="day"), LedgerMismatch, "one month each"),
        (lambda b, p: b.select(ALL, [OCTOBER], text_key="time"), InvalidParameter, "time_key='time' to be neither"),
        (lambda b, p: b.select(ALL, [OCTOBER], label_key="time"), InvalidParameter, "time_key='time' to be neither"),
        (lambda b, p: b.select(ALL, "2026-10"), InvalidParameter, "list of names"),
        (lambda b, p: b.select(ALL, ["../2026"]), InvalidParameter, "list of names"),
        (lambda b, p: b.select(ALL, []), InvalidParameter, "list of names"),
        (lambda b, p: b.select([{"text": "a", "label": "A"}], [OCTOBER]), InvalidParameter, "example 0 to have a date"),
        (lambda b, p: b.select([{"text": "a", "label": "A", "time": "soon"}], [OCTOBER]), InvalidParameter, "ISO date"),
        (
            lambda b, p: b.select(PrivateRecords([{**row, "u": "1"} for row in ALL], user_key="u"), [OCTOBER]),
            InvalidParameter,
            "user_key",
        ),
    ],
)
def test_what_blocks_refuse(
    blocks: PrivacyBlocks, tmp_path: Path, make: Any, error: type[Exception], says: str
) -> None:
    """If it breaks, a mistake makes budgets that hold for nobody."""
    with pytest.raises(error, match=says):
        make(blocks, tmp_path)


@on_both
def test_a_copy_in_another_process_charges_all_blocks(blocks: PrivacyBlocks) -> None:
    """If it breaks, a worker charges the newest block alone."""
    copy = pickle.loads(pickle.dumps(blocks.ledger([OCTOBER, NOVEMBER])))  # made here
    copy.reserve([(ExponentialEvent(0.25), 1)], name="a", epsilon=0.5, delta=1e-6)
    again = pickle.loads(pickle.dumps(blocks))  # made here
    assert again.names() == [OCTOBER, NOVEMBER]
    assert [reserved(blocks, name) for name in (OCTOBER, NOVEMBER)] == [0.5, 0.5]
