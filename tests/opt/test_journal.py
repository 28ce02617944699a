"""The journal of a run: damaged, lost, foreign, older, or held by somebody else. And who may read it."""

from __future__ import annotations

import gc
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fakes.canary import CANARY
from fakes.optimizers import (
    ADD_OR_REMOVE,
    SENTENCE,
    Looking,
    calls_of,
    examples,
    journal_fields,
    journal_of,
    ledger_in,
    optimizer,
    stopped,
    stopping,
    used,
)

from langchain_dp import PrivacyBudget
from langchain_dp.errors import BudgetExceeded, PlanError
from langchain_dp.opt import journal, private
from langchain_dp.opt.journal import Journal

DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda fields: fields.update(version=1),
    "no version": lambda fields: fields.pop("version"),
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


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_refused(damage: str, tmp_path: Path) -> None:
    """If it breaks, a run goes on from nonsense, or dies with a traceback after it has paid."""
    stopped(tmp_path, stopping(2))
    path, fields = journal_of(tmp_path), journal_fields(tmp_path)
    DAMAGES[damage](fields)
    path.write_text(json.dumps(fields))
    refused(tmp_path, path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}'])
def test_a_file_that_is_no_journal_is_refused(content: bytes, tmp_path: Path) -> None:
    """If it breaks, a foreign file in the journal's place ends in a traceback, or is overwritten."""
    stopped(tmp_path, stopping(2))
    path = journal_of(tmp_path)
    path.write_bytes(content)
    refused(tmp_path, path)
    assert path.read_bytes() == content


def refused(folder: Path, path: Path) -> None:
    engine = Looking()
    with ledger_in(folder) as ledger:
        with pytest.raises(PlanError, match=rf"{re.escape(path.name)} to be the journal of a run.*another name="):
            optimizer(engine, ledger=ledger).invoke(examples())
        assert used(ledger) == {"training": 3, "validation": 0}
    assert engine.shown == []


@pytest.mark.parametrize("content", [None, "", "00ff", "zz" * 32, "00" * 33, "\xe9"])
def test_a_key_that_is_lost_or_damaged_is_refused(content: str | None, tmp_path: Path) -> None:
    """If it breaks, a run goes on with another split: a record of the training part is read again for validation."""
    stopped(tmp_path, stopping(2))
    path = key_of(tmp_path)
    path.unlink() if content is None else path.write_text(content, encoding="latin-1")
    engine = Looking()
    with ledger_in(tmp_path) as ledger:
        with pytest.raises(PlanError, match=rf"{re.escape(path.name)} to hold .*key.*another name="):
            optimizer(engine, ledger=ledger).invoke(examples())
        assert used(ledger) == {"training": 3, "validation": 0}
    assert engine.shown == []


def test_a_journal_alone_does_not_let_a_guess_be_tested(tmp_path: Path) -> None:
    """If it breaks, whoever is shown the journal can check a guess at all records against their hash."""
    stopped(tmp_path, stopping(2))
    key = key_of(tmp_path).read_text()
    assert len(bytes.fromhex(key)) == 32
    assert key not in journal_of(tmp_path).read_text()
    assert stat.S_IMODE(key_of(tmp_path).stat().st_mode) == 0o600


def test_a_key_that_a_crash_left_alone_is_replaced(tmp_path: Path) -> None:
    """If it breaks, a crash between the two files makes the run's name unusable, or mixes two keys."""
    stopped(tmp_path, stopping(2))
    left = key_of(tmp_path).read_text()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / key_of(tmp_path).name).write_text(left)
    stopped(fresh, stopping(2))
    assert key_of(fresh).read_text() != left
    with ledger_in(fresh) as ledger:
        assert optimizer(ledger=ledger).invoke(examples()) is not None


def key_of(folder: Path) -> Path:
    path = journal_of(folder)
    return path.with_name(f"{path.name}.key")


def test_a_lost_journal_is_refused(tmp_path: Path) -> None:
    """If it breaks, a run whose tokens are lost starts anew inside a plan that is half spent, with another split."""
    stopped(tmp_path, stopping(2))
    journal_of(tmp_path).unlink()
    with ledger_in(tmp_path) as ledger, pytest.raises(PlanError, match="journal of its run is not there"):
        optimizer(ledger=ledger).invoke(examples())


@pytest.mark.parametrize("complete", [False, True])
def test_a_journal_without_its_ledger_is_refused(complete: bool, tmp_path: Path) -> None:
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
        with pytest.raises(PlanError, match=r"no such plan in the ledger.*another name="):
            optimizer(engine, ledger=ledger).invoke(examples())
        assert ledger.plans() == []
    assert engine.shown == []


def test_a_ledger_that_is_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    """If it breaks, an old copy of the ledger gives calls back whose tokens are out already."""
    stopped(tmp_path, stopping(0))
    old = (tmp_path / "ledger.db").read_bytes()
    stopped(tmp_path, stopping(4))
    (tmp_path / "ledger.db").write_bytes(old)
    with ledger_in(tmp_path) as ledger:
        with pytest.raises(PlanError, match=r"journal .* holds 4 calls, but the ledger has charged 1"):
            optimizer(ledger=ledger).invoke(examples())
        assert used(ledger) == {"training": 1, "validation": 0}


def test_a_journal_without_a_release_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """If it breaks, a process that died before its plan was reserved blocks the name for ever."""
    with ledger_in(tmp_path) as ledger:
        made = optimizer(ledger=ledger)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private, "reserve", lambda *args, **settings: os_dies())
            patch.setattr(Journal, "discard", lambda self: None)
            with pytest.raises(SystemExit):
                made.invoke(examples())
    assert calls_of(journal_fields(tmp_path)) == 0
    with ledger_in(tmp_path) as ledger:
        other = optimizer(ledger=ledger, temperature=0.5, partitions=10)
        first = other.invoke(examples(30))
        assert used(ledger) == {"training": 12, "validation": 1}
    with ledger_in(tmp_path) as ledger:  # with the key of that run, not of the one that died
        again = optimizer(ledger=ledger, temperature=0.5, partitions=10)
        assert again.invoke(examples(30)).format_messages(text="t") == first.format_messages(text="t")
        assert used(ledger) == {"training": 12, "validation": 1}


def os_dies() -> None:
    raise SystemExit(1)


def test_a_refused_plan_leaves_no_journal(tmp_path: Path) -> None:
    """If it breaks, a budget that is too small leaves a file that stops the next attempt."""
    with ledger_in(tmp_path) as ledger:
        optimizer(ledger=ledger, name="first", budget=PrivacyBudget(150.0, 0.09)).invoke(examples())
        with pytest.raises(BudgetExceeded):
            optimizer(ledger=ledger, budget=PrivacyBudget(100.0, 0.01), delta0=1e-4).invoke(examples())
    assert [path.name for path in tmp_path.glob("*.run.json")] == ["ledger.db.first.run.json"]


def test_the_journal_is_for_its_owner_and_holds_no_record(tmp_path: Path) -> None:
    """If it breaks, every user of the machine can read the key of the split, or the records themselves."""
    umask = os.umask(0)
    try:
        with ledger_in(tmp_path) as ledger:
            optimizer(ledger=ledger).invoke(examples())
    finally:
        os.umask(umask)
    path = journal_of(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert CANARY not in text
    assert "note" not in text
    for file in tmp_path.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file.name
    assert {file.name for file in tmp_path.iterdir()} == {
        "ledger.db",
        path.name,
        f"{path.name}.key",
        f"{path.name}.lock",
    }


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
        fields["winner"] = 0
        for candidate in fields["written"]:
            candidate["message"] = 0
        lengths.add(len(json.dumps(fields)))
    assert len(lengths) == 1


@pytest.mark.parametrize("name", ["my run", "a/b", "../up", "日本語", "x" * 200, ".", "dp-opt"])
def test_any_name_of_a_plan_gives_a_journal_beside_the_ledger(name: str, tmp_path: Path) -> None:
    """If it breaks, a name leads out of the folder, or is too long for a file, or two names share one."""
    other = name[:-1] + "?"
    for each in (name, other):
        with ledger_in(tmp_path) as ledger:
            optimizer(ledger=ledger, name=each, budget=PrivacyBudget(100.0, 0.05)).invoke(examples())
    assert len(list(tmp_path.glob("ledger.db.*.run.json"))) == 2


def test_two_optimizers_on_one_run_take_turns(tmp_path: Path) -> None:
    """If it breaks, two processes overwrite each other's tokens, or each makes its own choice for one charge."""
    refusals: list[BaseException] = []
    prompts: list[str] = []

    def look(bodies: list[str]) -> None:
        with ledger_in(tmp_path) as second:
            other = optimizer(ledger=second)
            with pytest.raises(PlanError, match="another process or optimizer is at it") as caught:
                other.invoke(examples())
            refusals.append(caught.value)

    with ledger_in(tmp_path) as ledger:
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
        monkeypatch.setattr(journal, "write_whole", Mock(side_effect=PermissionError(13, "no")))
        with pytest.raises(PermissionError):
            made.invoke(examples())
        assert ledger.plans() == []
    assert engine.shown == []


def test_runs_of_two_names_on_one_ledger_are_two_runs(tmp_path: Path) -> None:
    """If it breaks, two optimizers of different names share tokens, a split or a charge."""
    half = PrivacyBudget(100.0, 0.05)
    with ledger_in(tmp_path) as ledger:
        for name in ("one", "two"):
            optimizer(ledger=ledger, name=name, budget=half).invoke(examples())
        assert used(ledger, "one") == used(ledger, "two") == {"training": 12, "validation": 1}
        keys = {path.read_text() for path in tmp_path.glob("*.run.json.key")}
        assert len(keys) == 2
        assert ledger.reserved() == (200.0, 0.1)


def test_what_a_killed_process_left_beside_the_journal_is_gone_once_the_run_is_taken_up(tmp_path: Path) -> None:
    """If it breaks, a choice that nobody was given, or candidates of another moment, stay on disk for good."""
    with ledger_in(tmp_path) as ledger:
        optimizer(ledger=ledger).invoke(examples())
        kept = journal_of(tmp_path)
        left = kept.with_name(f".{kept.name}.part")
        left.write_text("{}")
        optimizer(ledger=ledger).invoke(examples())  # complete: nothing is written any more
        assert not left.exists()
