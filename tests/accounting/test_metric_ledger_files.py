"""Every way in which the files of a metric ledger can be wrong, and what is said about it."""

from __future__ import annotations

import hashlib
import hmac
import pathlib
import shutil
import sqlite3
import stat
from collections.abc import Callable

import pytest
from fakes.ledger_files import edited

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import MetricLedger, Owner
from langchain_dp.errors import InvalidParameter, LedgerCorrupt, LedgerError, LedgerMismatch, LedgerUnwritable

TABLE = "small"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("metric") / "metric.db"
    with MetricLedger(3.0, file) as ledger:
        ledger.spend(1.0, [Owner("d", "u"), Owner("e", "u")], table=TABLE, keys=[b"k", b"l"])
        ledger.released().put({b"k": ("word",)})
    return file


@pytest.fixture
def path(made_once: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A closed ledger with two releases, of which one text is kept, and its key."""
    for file in made_once.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / "metric.db"


def _sql(statement: str) -> Callable[[pathlib.Path], None]:
    return lambda path: edited(path, statement)


DAMAGE: dict[str, Callable[[pathlib.Path], object]] = {
    "lowered account": _sql("UPDATE accounts SET spent = 5"),
    "entry removed": _sql("DELETE FROM entries WHERE id = 2; UPDATE accounts SET spent = 0 WHERE account = 3"),
    "all forgotten": _sql("DELETE FROM entries; UPDATE accounts SET spent = 0"),
    "account removed": _sql("PRAGMA foreign_keys = OFF; DELETE FROM accounts WHERE whose = 'user'"),
    "limit lowered below": _sql("UPDATE ledger SET user_limit = 1500000000"),
    "no first row": _sql("DELETE FROM ledger"),
    "no table": _sql("DROP TABLE entries"),
    "no rule": lambda path: sqlite3.connect(path).execute("DROP TRIGGER no_removal").connection.close(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(path: pathlib.Path, damage: str) -> None:
    """If it breaks, a ledger that forgot releases, or is none, is trusted."""
    DAMAGE[damage](path)
    with pytest.raises(LedgerCorrupt) as caught:
        MetricLedger.open(path)
    assert "metric ledger" in str(caught.value)


def key_of(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.key")


@pytest.mark.parametrize("content", [None, "", "00ff", "{} " + "zz" * 32, "{} " + "00" * 32, "0 " + "00" * 32])
def test_a_ledger_whose_key_is_lost_is_refused(path: pathlib.Path, content: str | None) -> None:
    """If it breaks, a new key is made beside an old ledger, and every account begins at zero."""
    file = key_of(path)
    owner = file.read_text().split()[0]
    file.unlink() if content is None else file.write_text(content.format(owner))
    for opened in (lambda: MetricLedger(3.0, path), lambda: MetricLedger.open(path)):
        with pytest.raises((LedgerCorrupt, LedgerMismatch), match=r"(?s)metric\.db\.key.*(Bring|Restore)"):
            opened()
    assert file.exists() == (content is not None)


def test_a_ledger_that_forgot_its_key_makes_no_new_one(path: pathlib.Path) -> None:
    """If it breaks, a damaged first row and a lost key together begin every account anew."""
    _sql("UPDATE ledger SET key_check = x''")(path)
    key_of(path).unlink()
    with pytest.raises(LedgerCorrupt, match="which key"):
        MetricLedger(3.0, path)
    assert not key_of(path).exists()


def test_a_new_ledger_beside_an_old_key_is_refused(path: pathlib.Path) -> None:
    """If it breaks, nobody notices that a key's ledger began anew, or others on the machine read the key."""
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, key_of(path))] == [0o600, 0o600]
    path.unlink()
    with pytest.raises(LedgerMismatch, match="another ledger"):
        MetricLedger(3.0, path)
    key_of(path).unlink()
    MetricLedger(3.0, path).close()


def test_the_ledger_alone_does_not_let_a_guess_be_tested(tmp_path: pathlib.Path) -> None:
    """If it breaks, whoever is shown the file looks a name, a document or a text up in it."""
    path, guesses = tmp_path / "metric.db", ["bob@example.org", "report 7", "the patient has a fever"]
    with MetricLedger(3.0, path) as ledger:
        ledger.spend(1.0, [Owner(guesses[1], guesses[0])], table=TABLE, keys=[ledger.digest("release", guesses[2])])
        known = [ledger.digest("release", guesses[2]), ledger._store.digest("user", guesses[0])]
        digest = ledger._store.digest
    owner, key = key_of(path).read_text().split()
    file = path.read_bytes()
    assert all(each in file for each in known)  # what is searched for would be found
    assert bytes.fromhex(key) not in file
    assert key.encode() not in file
    domains = ["", "document", "user", "release", "other release"]
    for guess in (b"", b"\0" * 32, owner.encode(), bytes.fromhex(owner), file[:32]):
        for text in guesses:
            for domain in domains:
                said = domain.encode() + b"\0" + text.encode()
                assert hmac.new(guess, said, "sha256").digest() not in file
                assert hashlib.sha256(guess + said).digest() not in file
                assert hashlib.sha256(guess + text.encode()).digest() not in file
    for hashed in (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b, hashlib.sha512):
        assert not [text for text in guesses if hashed(text.encode()).digest() in file]
    assert not [text for text in guesses if text.encode() in file]
    assert not [text for text in guesses if digest("user", text) in key_of(path).read_bytes()]


def test_other_limits_and_the_other_kind_of_ledger_are_refused(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If it breaks, a ledger is read under a weaker promise than it was made for, or eta is charged to an epsilon."""
    for limits in [{"limit": 2.0}, {"limit": None}, {"limit": 3.0, "document_limit": 1.0}]:
        with pytest.raises(LedgerMismatch, match="limit=3"):
            MetricLedger(path=path, **limits)
    with pytest.raises(LedgerMismatch, match=r"a ledger, of PrivacyLedger\(.*\), but it is a metric ledger, of Metric"):
        PrivacyLedger(PrivacyBudget(1.0), path)
    PrivacyLedger(PrivacyBudget(1.0), tmp_path / "epsilon.db").close()
    with pytest.raises(LedgerMismatch, match=r"a metric ledger, of MetricLedger\(.*\), but it is a ledger, of Privacy"):
        MetricLedger(3.0, tmp_path / "epsilon.db")


def test_what_cannot_be_written_says_so_at_once(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If it breaks, a missing folder or a lost file is noticed only after a text was released."""
    with pytest.raises(LedgerUnwritable, match="folder"):
        MetricLedger(path=tmp_path / "nowhere" / "metric.db")
    with pytest.raises(InvalidParameter, match="nothing is there"):
        MetricLedger.open(tmp_path / "none.db")
    with MetricLedger(3.0, path) as ledger:
        path.unlink()
        with pytest.raises(LedgerError, match="vanished"):
            ledger.spend(1.0, [Owner("x")], table=TABLE)


def test_an_older_copy_put_in_its_place_is_noticed(path: pathlib.Path) -> None:
    """If it breaks, a backup gives back what was released since, or a text leaves whose charge it took back."""
    said = {"mechanism": "laplace", "eta": 0.5, "table": TABLE}
    with MetricLedger(3.0, path) as ledger:
        older = path.read_bytes()  # "l" is charged there, and its text unknown
        ledger.spend(0.5, [Owner("e", "u")], table=TABLE, keys=[b"l"])
        newest = path.read_bytes()
        path.write_bytes(older)
        for use in (
            lambda: ledger.spend(0.5, [Owner("f", "u")], table=TABLE),
            lambda: ledger.released().put({b"l": ("word",)}),
            lambda: ledger.spent(user="u"),
            lambda: ledger.certificate(**said),
            lambda: list(ledger.entries()),
        ):
            with pytest.raises(LedgerCorrupt, match="older copy"):
                use()
        with MetricLedger(3.0, path) as again:
            assert again.released().get([b"l"]) == {}
        path.write_bytes(newest)
        assert ledger.spent(user="u") == 2.5


def test_the_file_itself_refuses_a_refund(path: pathlib.Path) -> None:
    """If it breaks, one stray statement lowers an account, edits history or lifts a limit without a trace."""
    statements = [
        "UPDATE accounts SET spent = 0",
        "UPDATE accounts SET spent = spent + 9000000000",
        "DELETE FROM accounts",
        "UPDATE entries SET eta = 1",
        "DELETE FROM entries",
        "UPDATE ledger SET metric = 'other'",
        "UPDATE ledger SET metric = NULL",
        "UPDATE ledger SET key_check = x''",
        "UPDATE releases SET texts = 'other' WHERE texts IS NOT NULL",
        "INSERT INTO accounts (whose, hash, spent) VALUES ('user', x'00', 9000000000)",
    ]
    connection = sqlite3.connect(path)
    for statement in statements:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.close()


def test_a_closed_ledger_is_refused(path: pathlib.Path) -> None:
    """If it breaks, something is released against an account that nobody watches any more."""
    ledger = MetricLedger(3.0, path)
    kept = ledger.released()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.spend(1.0, [Owner("x")], table=TABLE)
    with pytest.raises(LedgerError, match="closed"):
        kept.get([b"k"])


def test_another_metric_ledger_in_the_same_file_is_noticed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If this fails, another ledger copied over a running one is charged, under hashes that match nobody in it."""
    with MetricLedger(3.0, tmp_path / "other.db") as other:
        for _ in range(3):
            other.spend(0.5, [Owner("d", "u")], table=TABLE)
    with MetricLedger(3.0, path) as ledger:
        path.write_bytes((tmp_path / "other.db").read_bytes())
        for _ in range(2):
            with pytest.raises(LedgerMismatch, match=r"replaced by another one.*restore the file that was there"):
                ledger.spend(0.5, [Owner("f", "u")], table=TABLE)
    path.with_name("metric.db.key").write_bytes((tmp_path / "other.db.key").read_bytes())
    with MetricLedger(3.0, path) as ledger:
        assert len(list(ledger.entries())) == 3


def test_only_the_owner_can_read(path: pathlib.Path) -> None:
    """If it breaks, others on the machine read the key of the hashes, or the hashes."""
    for file in (path, key_of(path)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
