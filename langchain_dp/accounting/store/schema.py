"""Tables and rules of ledgers."""

from __future__ import annotations

import dataclasses

from langchain_dp.errors import LedgerCorrupt, LedgerMismatch


@dataclasses.dataclass(frozen=True)
class Rule:
    """The database refuses ``before`` if ``when`` holds (empty: always)."""

    name: str
    before: str
    when: str
    says: str


@dataclasses.dataclass(frozen=True)
class LedgerKind:
    """One kind of ledger."""

    name: str  # in messages
    opener: str  # how a caller opens it
    restore: str  # the remedy for a lost or damaged one
    application_id: int  # the mark of its kind
    version: int  # of its schema
    terms: str  # columns of the one row of ``ledger``, beside its id, its time and the check value of its key
    charges: str  # columns of ``entries``, beside their ids without gaps, their times and their callers
    others: tuple[str, ...]  # statements of the other tables
    refuses: tuple[Rule, ...]  # beside the rules of every ledger
    owner_only: bool = False  # whether it is readable by its owner alone

    @property
    def tables(self) -> tuple[str, ...]:
        return (
            "CREATE TABLE IF NOT EXISTS ledger (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), "
            f"ledger_id TEXT NOT NULL, time TEXT NOT NULL, key_check BLOB NOT NULL, {self.terms})",
            *self.others,
            "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, "
            f"{self.charges}, caller TEXT NOT NULL)",
        )

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*_ALWAYS, *self.refuses)


_ALWAYS = (
    Rule(
        "one_key",
        "UPDATE ON ledger",
        "length(OLD.key_check) > 0 AND NEW.key_check <> OLD.key_check",
        "a ledger has one key",
    ),
    Rule("no_edit", "UPDATE ON entries", "", "entries are never edited"),
    Rule("no_removal", "DELETE ON entries", "", "entries are never removed"),
)

LEDGER = LedgerKind(
    name="ledger",
    opener="PrivacyLedger(budget, path)",
    restore="Restore it from a copy that holds every spend. A new ledger would forget releases.",
    application_id=0x4C445042,  # "LDPB"
    version=5,
    terms="epsilon REAL NOT NULL, delta REAL NOT NULL, neighbors TEXT NOT NULL",
    charges="item INTEGER NOT NULL REFERENCES items, count INTEGER NOT NULL CHECK (count >= 1)",
    others=(
        "CREATE TABLE IF NOT EXISTS plans (plan INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, "
        "epsilon REAL NOT NULL CHECK (epsilon >= 0), delta REAL NOT NULL CHECK (delta >= 0), time TEXT NOT NULL, "
        "settings TEXT)",
        "CREATE TABLE IF NOT EXISTS items (item INTEGER PRIMARY KEY AUTOINCREMENT, plan INTEGER NOT NULL REFERENCES "
        "plans, event TEXT NOT NULL, max_count INTEGER NOT NULL CHECK (max_count >= 1), used INTEGER NOT NULL DEFAULT "
        "0 CHECK (used BETWEEN 0 AND max_count), UNIQUE (plan, event))",
        "CREATE TABLE IF NOT EXISTS checked (item INTEGER PRIMARY KEY REFERENCES items, total INTEGER NOT NULL, "
        "entry INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS journals (plan INTEGER PRIMARY KEY REFERENCES plans, state TEXT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS forgotten (place INTEGER PRIMARY KEY AUTOINCREMENT, plan INTEGER NOT NULL "
        "REFERENCES plans, record BLOB NOT NULL, time TEXT NOT NULL, UNIQUE (plan, record))",
        "CREATE TABLE IF NOT EXISTS answers (plan INTEGER NOT NULL REFERENCES plans, page INTEGER NOT NULL, question "
        "BLOB NOT NULL, answer TEXT NOT NULL, PRIMARY KEY (plan, page, question))",
        "CREATE TABLE IF NOT EXISTS quotas (plan INTEGER NOT NULL REFERENCES plans, user_id TEXT NOT NULL, most "
        "INTEGER NOT NULL, used INTEGER NOT NULL CHECK (used BETWEEN 1 AND most), PRIMARY KEY (plan, user_id))",
    ),
    refuses=(
        Rule(
            "no_refund",
            "UPDATE ON items",
            "NEW.used < OLD.used OR NEW.max_count <> OLD.max_count OR NEW.event <> OLD.event OR NEW.plan <> OLD.plan",
            "a used count never falls and a plan never changes",
        ),
        Rule("checked_on", "UPDATE ON checked", "NEW.total < OLD.total OR NEW.entry < OLD.entry", "sums never fall"),
        Rule("no_item_removal", "DELETE ON items", "", "plans are never removed"),
        Rule("no_plan_edit", "UPDATE ON plans", "", "plans are never edited"),
        Rule("no_plan_removal", "DELETE ON plans", "", "plans are never removed"),
        Rule("no_journal_removal", "DELETE ON journals", "", "journals are never removed"),
        Rule("forgotten_stays", "DELETE ON forgotten", "", "forgotten records stay forgotten"),
        Rule("forgotten_as_it_was", "UPDATE ON forgotten", "", "forgotten records stay forgotten"),
        Rule("answer_stays", "DELETE ON answers", "", "what was released stays"),
        Rule("answered_once", "UPDATE ON answers", "", "what was released stays"),
        Rule(
            "no_quota_refund",
            "UPDATE ON quotas",
            "NEW.used < OLD.used OR NEW.most <> OLD.most OR NEW.user_id <> OLD.user_id OR NEW.plan <> OLD.plan",
            "the use of a user never falls and a share never changes",
        ),
        Rule("no_quota_removal", "DELETE ON quotas", "", "accounts stay"),
    ),
)

_ABOVE_THE_LIMIT = "NEW.spent > (SELECT CASE NEW.whose WHEN 'user' THEN user_limit ELSE document_limit END FROM ledger)"

METRIC_LEDGER = LedgerKind(
    name="metric ledger",
    opener="MetricLedger(limit, path)",
    restore="Restore it from a copy that holds every release. A new one would forget releases.",
    application_id=0x4C44504D,  # "LDPM"
    version=3,
    terms="user_limit INTEGER, document_limit INTEGER, metric TEXT, key_given INTEGER NOT NULL DEFAULT 0",
    charges=(
        'document INTEGER NOT NULL REFERENCES accounts, "user" INTEGER REFERENCES accounts, '
        "eta INTEGER NOT NULL CHECK (eta >= 1)"
    ),
    others=(
        "CREATE TABLE IF NOT EXISTS accounts (account INTEGER PRIMARY KEY AUTOINCREMENT, whose TEXT NOT NULL CHECK "
        "(whose IN ('document', 'user')), hash BLOB NOT NULL, spent INTEGER NOT NULL CHECK (spent >= 0), "
        "UNIQUE (whose, hash))",
        "CREATE TABLE IF NOT EXISTS releases (key BLOB PRIMARY KEY, texts TEXT) WITHOUT ROWID",
    ),
    refuses=(
        Rule(
            "no_refund",
            "UPDATE ON accounts",
            "NEW.spent < OLD.spent OR NEW.hash <> OLD.hash OR NEW.whose <> OLD.whose",
            "an account never falls",
        ),
        Rule("limited", "UPDATE ON accounts", _ABOVE_THE_LIMIT, "an account never exceeds its limit"),
        Rule("limited_at_first", "INSERT ON accounts", _ABOVE_THE_LIMIT, "an account never exceeds its limit"),
        Rule(
            "one_metric",
            "UPDATE ON ledger",
            "OLD.metric IS NOT NULL AND (NEW.metric IS NULL OR NEW.metric <> OLD.metric)",
            "a ledger counts in one metric",
        ),
        Rule("no_account_removal", "DELETE ON accounts", "", "accounts stay"),
        Rule("released_once", "UPDATE ON releases", "OLD.texts IS NOT NULL", "what was released stays"),
    ),
    owner_only=True,
)

BLOCKS = LedgerKind(
    name="register of blocks",
    opener="PrivacyBlocks(folder, budget)",
    restore="Restore it from a copy that holds every record. A new one would let a record into two blocks.",
    application_id=0x4C445052,  # "LDPR"
    version=1,
    terms="length TEXT NOT NULL",
    charges="mark BLOB NOT NULL UNIQUE, block TEXT NOT NULL",
    others=(),
    refuses=(),
    owner_only=True,
)

KINDS = {kind.application_id: kind for kind in (LEDGER, METRIC_LEDGER)}


def of_another_kind(path: str | None, mark: int, kind: LedgerKind) -> LedgerMismatch | None:
    other = BLOCKS if mark == BLOCKS.application_id else KINDS.get(mark)
    if other is None:
        return None
    return LedgerMismatch(
        f"Expected {path} to be a {kind.name}, of {kind.opener}, but it is a {other.name}, of {other.opener}. Give "
        "another place."
    )


def check_version(path: str | None, version: int, kind: LedgerKind) -> None:
    if version != kind.version:
        raise LedgerCorrupt(
            f"Expected schema={version} of the {kind.name} {path} to be {kind.version}. Use the version of this "
            "package that wrote it."
        )
