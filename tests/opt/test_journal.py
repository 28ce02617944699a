"""The journal of a run and its key: damaged, lost, foreign, or held by somebody else. And what one of them tells."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fakes.canary import CANARY
from fakes.fair_semaphore import on_both
from fakes.ledger_files import edited
from fakes.optimizers import (
    ADD_OR_REMOVE,
    SENTENCE,
    Looking,
    calls_of,
    examples,
    journal_fields,
    journal_text,
    journals,
    ledger_in,
    optimizer,
    stopped,
    stopping,
    used,
    write_journal,
)

from langchain_dp import PrivacyBudget, PrivateRecords
from langchain_dp.accounting.store import key_file
from langchain_dp.ensemble.runs import fingerprint, record_digests
from langchain_dp.errors import BudgetExceeded, LedgerError, LedgerMismatch, LedgerUnwritable, PlanError
from langchain_dp.opt import private
from langchain_dp.opt.journal import Journal

DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda fields: fields.update(version=1),
    "no version": lambda fields: fields.pop("version"),
    "no key": lambda fields: fields.pop("key"),
    "short key": lambda fields: fields.update(key="00ff"),
    "strange key": lambda fields: fields.update(key="zz" * 64),
    "no settings": lambda fields: fields.pop("settings"),
    "no templates": lambda fields: fields["settings"].pop("templates"),
    "strange settings": lambda fields: fields.update(settings=[1]),
    "winner too large": lambda fields: fields.update(winner=9),
    "winner below zero": lambda fields: fields.update(winner=-1),
    "strange winner": lambda fields: fields.update(winner="0"),
    "no groups": lambda fields: fields.update(groups=0),
    "strange groups": lambda fields: fields.update(groups="16"),
    "rate above one": lambda fields: fields.update(sampling_probability=1.5),
    "rate of letters": lambda fields: fields.update(sampling_probability="1"),
    "strange candidate": lambda fields: fields["written"].append({"colour": "red"}),
    "unknown end": lambda fields: fields["written"][0].update(ended="tired"),
    "strange tokens": lambda fields: fields["written"][0].update(tokens="Say"),
    "strange token": lambda fields: fields["written"][0].update(tokens=[None]),
    "more tokens than calls": lambda fields: fields["written"][0].update(tokens=[5] * 6),
    "calls below zero": lambda fields: fields["written"][0].update(calls=-5, tokens=[]),
    "unknown message": lambda fields: fields["written"][0].update(message=4),
    "strange pending": lambda fields: fields["written"][0].update(pending=1),
    "strange data": lambda fields: fields.update(data=None),
}


NO_JOURNALS = ["{", "[]", "null", "7", "[" * 100_000, '{"version": 4}']


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    """If it breaks, a run goes on from nonsense, dies with a traceback after it has paid, or overwrites it."""
    stopped(tmp_path, stopping(2))
    sound = journal_text(tmp_path)
    damaged = []
    for damage in DAMAGES.values():
        damage(fields := json.loads(sound))
        damaged.append(json.dumps(fields))
    for text in [*damaged, *NO_JOURNALS]:
        write_journal(tmp_path, text)
        refused(tmp_path, PlanError, r"the journal of the run 'dp-opt' to be one.*another name=")
        assert journal_text(tmp_path) == text


def refused(folder: Path, kind: type[Exception], said: str) -> None:
    engine = Looking()
    with ledger_in(folder) as ledger:
        with pytest.raises(kind, match=said):
            optimizer(engine, ledger=ledger).invoke(examples())
        assert used(ledger) == {"training": 3, "validation": 0}
    assert engine.shown == []


def key_of(folder: Path) -> Path:
    return folder / "ledger.db.key"


KEYS = ["zz" * 32, "00" * 33, "00" * 32]


@pytest.mark.parametrize("content", [None, "", "00ff", "\xe9", *(f"{{}} {key}" for key in KEYS), f"0 {'00' * 32}"])
def test_a_key_that_is_lost_or_damaged_is_refused(content: str | None, tmp_path: Path) -> None:
    """If it breaks, a run goes on with another split: a record of the training part is read again for validation."""
    stopped(tmp_path, stopping(2))
    path = key_of(tmp_path)
    owner = path.read_text().split()[0]
    path.unlink() if content is None else path.write_text(content.format(owner), encoding="latin-1")
    refused(tmp_path, LedgerError, r"(?s)ledger\.db\.key.*Bring|belongs to another ledger")
    with ledger_in(tmp_path) as ledger, pytest.raises(LedgerError, match="key"):  # nor does a new run make a new key
        optimizer(ledger=ledger, name="other", budget=PrivacyBudget(1.0, 1e-3)).invoke(examples())
    assert path.exists() == (content is not None)


def test_the_ledger_alone_does_not_let_a_guess_be_tested(tmp_path: Path) -> None:
    """If it breaks, whoever is shown the ledger's file can check a guess at all records against a hash in it."""
    stopped(tmp_path, stopping(2))
    owner, master = key_of(tmp_path).read_text().split()
    file, fields = (tmp_path / "ledger.db").read_bytes(), journal_fields(tmp_path)
    assert fields["data"].encode() in file  # what is searched for would be found
    with ledger_in(tmp_path) as ledger:
        plan = ledger.plan("dp-opt")
        assert plan is not None
        run = Journal.load(ledger, plan)
    assert run is not None
    assert len(bytes.fromhex(master)) == len(run.key) == 32
    records = PrivateRecords(examples())
    right = fingerprint(record_digests(records, run.key, ["text"]), run.key)
    assert right == fields["data"]
    keys = (bytes.fromhex(master), run.key)
    # Whatever the file itself offers for a key opens nothing: not the mask, its halves, the ledger's id, or no key.
    mask = bytes.fromhex(fields["key"])
    for guess in (b"", mask, mask[:32], mask[32:], owner.encode(), bytes.fromhex(owner)):
        assert fingerprint(record_digests(records, guess, ["text"]), guess) != right
    for key in keys:
        assert key not in file
        assert key.hex().encode() not in file
    for hashed in (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b, hashlib.sha512):
        for row in examples():
            for said in (row["text"], json.dumps(row), json.dumps(row, sort_keys=True), repr(row)):
                assert hashed(said.encode()).digest() not in file
                assert hashed(said.encode()).hexdigest().encode() not in file
    assert stat.S_IMODE(key_of(tmp_path).stat().st_mode) == 0o600


def test_a_key_that_a_crash_left_before_its_ledger_knew_it_is_taken(tmp_path: Path) -> None:
    """If it breaks, a crash between the two files makes every run of the ledger impossible."""
    with ledger_in(tmp_path) as ledger, pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_file, "check_value", lambda key: os_dies())
        with pytest.raises(SystemExit):
            optimizer(ledger=ledger).invoke(examples())
    left = key_of(tmp_path).read_text()
    with ledger_in(tmp_path) as ledger:
        assert optimizer(ledger=ledger).invoke(examples()) is not None
    assert key_of(tmp_path).read_text() == left


def test_a_plan_without_a_journal_is_refused(tmp_path: Path) -> None:
    """If it breaks, a run whose tokens are lost starts anew inside a plan that is half spent, with another split."""
    stopped(tmp_path, stopping(2))
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection,
        pytest.raises(sqlite3.IntegrityError, match="never removed"),
    ):
        connection.execute("DELETE FROM journals")
    edited(tmp_path / "ledger.db", "DELETE FROM journals")
    refused(tmp_path, PlanError, "no journal of its run")


@pytest.mark.parametrize("complete", [False, True])
def test_a_ledger_that_was_deleted_does_not_begin_anew(complete: bool, tmp_path: Path) -> None:
    """If it breaks, deleting the ledger gives the whole budget back to a run that has used it."""
    with ledger_in(tmp_path) as ledger:
        made = optimizer(Looking() if complete else stopping(2), ledger=ledger)
        try:
            made.invoke(examples())
        except KeyboardInterrupt:
            assert not complete
    gc.collect()
    (tmp_path / "ledger.db").unlink()
    engine = Looking()
    with ledger_in(tmp_path) as ledger:
        with pytest.raises(LedgerMismatch, match=r"ledger\.db\.key belongs to another ledger.*Restore"):
            optimizer(engine, ledger=ledger).invoke(examples())
        assert ledger.plans() == []
    assert engine.shown == []


def test_a_journal_that_holds_more_than_was_charged_is_refused(tmp_path: Path) -> None:
    """If it breaks, calls are made again whose tokens are out already."""
    stopped(tmp_path, stopping(4))
    more = journal_text(tmp_path)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    stopped(fresh, stopping(2))
    key_of(fresh).write_text(key_of(tmp_path).read_text())
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        owner, check = connection.execute("SELECT ledger_id, key_check FROM ledger").fetchone()
    edited(fresh / "ledger.db", "UPDATE ledger SET ledger_id = ?, key_check = ?", owner, check)
    write_journal(fresh, more)
    refused(fresh, PlanError, r"journal .* holds 4 calls, but the ledger has charged 3")


def test_a_process_that_dies_before_its_plan_leaves_no_journal(tmp_path: Path) -> None:
    """If it breaks, a process that died before its plan was reserved blocks the name, or leaves it another's split."""
    with ledger_in(tmp_path) as ledger:
        made = optimizer(ledger=ledger)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private, "reserve", lambda *args, **settings: os_dies())
            with pytest.raises(SystemExit):
                made.invoke(examples())
    assert journals(tmp_path / "ledger.db") == []
    with ledger_in(tmp_path) as ledger:
        other = optimizer(ledger=ledger, temperature=0.5, partitions=10)
        first = other.invoke(examples(30))
        assert used(ledger) == {"training": 12, "validation": 1}
    with ledger_in(tmp_path) as ledger:
        again = optimizer(ledger=ledger, temperature=0.5, partitions=10)
        assert again.invoke(examples(30)).format_messages(text="t") == first.format_messages(text="t")
        assert used(ledger) == {"training": 12, "validation": 1}


def os_dies() -> None:
    raise SystemExit(1)


def test_a_refused_plan_leaves_no_journal(tmp_path: Path) -> None:
    """If it breaks, a budget that is too small leaves a journal that stops the next attempt."""
    with ledger_in(tmp_path) as ledger:
        optimizer(ledger=ledger, name="first", budget=PrivacyBudget(150.0, 0.09)).invoke(examples())
        with pytest.raises(BudgetExceeded):
            optimizer(ledger=ledger, budget=PrivacyBudget(100.0, 0.01), delta0=1e-4).invoke(examples())
    assert [json.loads(text)["settings"]["name"] for text in journals(tmp_path / "ledger.db")] == ["first"]


def test_the_key_is_for_its_owner_and_no_file_holds_a_record(tmp_path: Path) -> None:
    """If it breaks, every user of the machine can read the key of the split, or the records themselves."""
    umask = os.umask(0)
    try:
        with ledger_in(tmp_path) as ledger:
            optimizer(ledger=ledger).invoke(examples())
    finally:
        os.umask(umask)
    assert stat.S_IMODE(key_of(tmp_path).stat().st_mode) == 0o600
    assert "note" not in journal_text(tmp_path)
    for file in tmp_path.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file.name
    assert {file.name for file in tmp_path.iterdir()} == {"ledger.db", "ledger.db.key", "ledger.db.dp-opt.run.lock"}


def test_the_journal_says_nothing_of_a_private_number_of_records(tmp_path: Path) -> None:
    """If it breaks, the number of records can be read off the journal under add/remove."""
    lengths = set()
    for count in (24, 333):
        folder = tmp_path / str(count)
        folder.mkdir()
        with ledger_in(folder, ADD_OR_REMOVE) as ledger:
            optimizer(ledger=ledger, not_private_seed=None).invoke(examples(count))
        fields = journal_fields(folder)
        assert (fields["groups"], fields["sampling_probability"]) == (16, 1.0)
        fields["winner"], fields["handed"] = 0, []  # released, as are the requests that the texts were written for
        for candidate in fields["written"]:
            candidate["message"] = 0
        lengths.add(len(json.dumps(fields)))
    assert len(lengths) == 1


@pytest.mark.parametrize("name", ["my run", "a/b", "../up", "日本語", "x" * 200, ".", "dp-opt"])
def test_any_name_of_a_plan_gives_a_run_beside_the_others(name: str, tmp_path: Path) -> None:
    """If it breaks, a name leads out of the folder, or two names share tokens, a split or a charge."""
    other = name[:-1] + "?"
    for each in (name, other):
        with ledger_in(tmp_path) as ledger:
            optimizer(ledger=ledger, name=each, budget=PrivacyBudget(100.0, 0.05)).invoke(examples())
    assert len(list(tmp_path.glob("ledger.db.*.run.lock"))) == 2
    assert [json.loads(text)["settings"]["name"] for text in journals(tmp_path / "ledger.db")] == [name, other]
    with ledger_in(tmp_path) as ledger:
        assert used(ledger, name) == used(ledger, other) == {"training": 12, "validation": 1}
        runs = [Journal.load(ledger, plan) for plan in ledger.plans()]
        assert len({run.key for run in runs if run is not None}) == 2
        assert len({run.masked_key for run in runs if run is not None}) == 2
        assert ledger.reserved() == (200.0, 0.1)


@on_both
def test_two_optimizers_on_one_run_take_turns(place: str) -> None:
    """If it breaks, two processes overwrite each other's tokens, or each makes its own choice for one charge."""
    refusals: list[BaseException] = []
    prompts: list[str] = []

    def look(bodies: list[str]) -> None:
        with ledger_in(place) as second:
            other = optimizer(ledger=second)
            with pytest.raises(PlanError, match="another process or optimizer is at it") as caught:
                other.invoke(examples())
            refusals.append(caught.value)

    with ledger_in(place) as ledger:
        engine = Looking(look)
        prompts.append(optimizer(engine, ledger=ledger, num_prompts=1).optimize(examples()).instruction)
        spent = used(ledger)
        assert spent == {"training": 6, "validation": 1}
        assert len(refusals) > 6
        again = optimizer(ledger=ledger, num_prompts=1).optimize(examples())
        assert again.instruction == prompts[0]
        assert used(ledger) == spent


def test_two_optimizers_that_take_turns_share_one_run(tmp_path: Path) -> None:
    """If it breaks, an optimizer goes on from its memory, and overwrites what another one has released since."""
    ledger = ledger_in(tmp_path)
    first = optimizer(stopping(2), ledger=ledger)
    second = optimizer(stopping(3), ledger=ledger)
    for made in (first, second):
        with pytest.raises(KeyboardInterrupt):
            made.invoke(examples())
    assert calls_of(journal_fields(tmp_path)) == 5
    final = first.optimize(examples())
    assert used(ledger) == {"training": 14, "validation": 1}
    assert second.optimize(examples()).instruction == final.instruction
    assert first.released() == second.released() == [SENTENCE, SENTENCE]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, tokens are paid for that cannot be kept."""
    engine = Looking()
    with ledger_in(tmp_path) as ledger:
        made = optimizer(engine, ledger=ledger)
        monkeypatch.setattr(key_file, "write_whole", Mock(side_effect=PermissionError(13, "no")))
        with pytest.raises(LedgerUnwritable, match="cannot be written durably"):
            made.invoke(examples())
        assert ledger.plans() == []
    assert engine.shown == []
