"""The account of metric privacy: what adds up, what is refused, and what survives a kill."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle
import random
from collections import Counter
from collections.abc import Callable

import pytest
from fakes.fair_semaphore import on_both, path_of
from fakes.kills import killed_often
from fakes.racing import Attempt, outcome, race
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.accounting.metric import AlreadyReleased, MetricLedger, Owner
from langchain_dp.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupt,
    LedgerError,
    PlanError,
    PrivateDataError,
)

TABLE = "small (3 x 2, 0011aabb)"
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def spend(ledger: MetricLedger, document: str = "d", user: str | None = None, eta: float = 1.0) -> None:
    ledger.spend(eta, [Owner(document, user)], table=TABLE)


@pytest.fixture
def path(place: str) -> pathlib.Path | str:
    return path_of(place)


@on_both
def test_k_releases_of_a_document_cost_k_times_eta(path: pathlib.Path) -> None:
    """If it breaks, privatizing the same text again and again looks free, while the noise averages out."""
    with MetricLedger(path=path) as ledger:
        for _ in range(5):
            spend(ledger, "d", "u", eta=14.2)
        spend(ledger, "other", "u", eta=0.8)
        assert ledger.spent(document="d") == pytest.approx(71.0)
        assert ledger.spent(document="other") == pytest.approx(0.8)
        assert ledger.spent(user="u") == pytest.approx(71.8)
        assert ledger.spent(user="d") == ledger.spent(document="u") == 0.0
    with MetricLedger(path=path) as again:
        assert again.spent(user="u") == pytest.approx(71.8)


def test_sums_are_exact() -> None:
    """If it breaks, three releases at 0.1 do not fit into a limit of 0.3, or a fourth does."""
    ledger = MetricLedger(0.3)
    for number in range(3):
        spend(ledger, f"d{number}", "u", eta=0.1)
    with pytest.raises(BudgetExceeded) as caught:
        spend(ledger, "d3", "u", eta=1e-9)
    assert (caught.value.spent, caught.value.budget, caught.value.fits) == ((0.3, 0.0), (0.3, 0.0), 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None]), st.floats(1e-12, 5.0))))
@settings(max_examples=30, deadline=None)
def test_no_account_ever_exceeds_its_limit(releases: list[tuple[str, str | None, float]]) -> None:
    """If it breaks, some order of releases gets more out of a user or a document than its limit."""
    ledger = MetricLedger(9.0, document_limit=6.0)
    documents: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for document, user, eta in releases:
        try:
            spend(ledger, document, user, eta)
        except BudgetExceeded:
            continue
        documents[document] += eta  # type: ignore[assignment]  # a sum of floats
        if user is not None:
            users[user] += eta  # type: ignore[assignment]
    for kind, sums, limit in (("document", documents, 6.0), ("user", users, 9.0)):
        for key, total in sums.items():
            spent = ledger.spent(**{kind: key})
            assert total <= spent + 1e-9  # charged at least what was released
            assert spent <= limit


def test_a_request_is_charged_whole_or_not_at_all() -> None:
    """If it breaks, a refused batch has cost its first documents something, or is told that too little is left."""
    ledger = MetricLedger(2.0)
    spend(ledger, "full", eta=2.0)
    with pytest.raises(BudgetExceeded, match="document at position 2"):
        ledger.spend(1.0, [Owner("a", "u"), Owner("b", "u"), Owner("full")], table=TABLE)
    assert ledger.spent(document="a") == ledger.spent(user="u") == 0.0
    assert len(list(ledger.entries())) == 1
    with pytest.raises(BudgetExceeded, match="3 x eta 1; 2 of 2 is left for the user at position 2") as refused:
        ledger.spend(1.0, [Owner("a", "u"), Owner("b", "u"), Owner("c", "u")], table=TABLE)
    assert (refused.value.fits, refused.value.spent[0]) == (2, 0.0)  # as before the request
    assert ledger.spent(user="u") == 0.0
    with pytest.raises(InvalidParameter, match="to be strings"):
        ledger.spent(user=7)  # type: ignore[arg-type]


def test_distances_of_two_tables_are_not_added() -> None:
    """If it breaks, nats per unit of two different distances are added up to a number without meaning."""
    ledger = MetricLedger()
    spend(ledger)
    with pytest.raises(PlanError, match="another table"):
        ledger.spend(1.0, [Owner("d")], table="other (3 x 2, 0011aabb)")
    assert ledger.table == TABLE
    assert ledger.spent(document="d") == 1.0


def test_the_file_shows_no_name_and_no_text(path: pathlib.Path) -> None:
    """If it breaks, the file, its entries or its repr tell whose texts were released."""
    with MetricLedger(path=path) as ledger:
        spend(ledger, "the secret diagnosis", "alice@example.org")
        shown = repr([*ledger.entries(), ledger, Owner("the secret diagnosis")])
        entry = next(ledger.entries())
    for text in ("secret", "alice"):
        assert text not in shown
        assert text.encode() not in path.read_bytes()
    assert len(bytes.fromhex(entry.document)) == len(bytes.fromhex(str(entry.user))) == 32


def test_a_key_of_ones_own_is_not_in_the_file(path: pathlib.Path) -> None:
    """If it breaks, whoever gets the file can test guesses although the key was kept elsewhere."""
    key = bytes(range(32))
    with MetricLedger(path=path, key=key) as ledger:
        spend(ledger, "d", "u")
        with pytest.raises(PrivateDataError):
            pickle.dumps(ledger)
    assert key not in path.read_bytes()
    with MetricLedger.open(path, key=key) as again:
        assert again.spent(user="u") == 1.0
    for wrong in (None, bytes(32)):
        with pytest.raises(LedgerError, match="key"):
            MetricLedger(path=path, key=wrong)


@on_both
def test_copies_are_the_same_account(path: pathlib.Path) -> None:
    """If it breaks, a copied or unpickled ledger has an account of its own."""
    memory = MetricLedger(1.0)
    assert copy.deepcopy(memory) is memory
    assert copy.copy(memory) is memory
    with pytest.raises(PrivateDataError):
        pickle.dumps(memory)
    with MetricLedger(1.0, path) as ledger:
        spend(ledger)
        with pickle.loads(pickle.dumps(ledger)) as twin, pytest.raises(BudgetExceeded):
            spend(twin)


@on_both
def test_what_was_released_first_stays(path: pathlib.Path) -> None:
    """If it breaks, two processes give out two releases of one text, or a restart forgets what may be reused."""
    for where in (None, path):
        with MetricLedger(path=where) as ledger:
            kept = ledger.released()
            for _ in range(2):  # two users, each of whom has charged before the other has drawn
                ledger.spend(1.0, [Owner("d"), Owner("e")], table=TABLE, keys=[b"k", b"l"])
            assert kept.get([b"k", b"l"]) == {}
            assert kept.put({b"k": ("one", "two")}) == {b"k": ("one", "two")}
            assert kept.put({b"k": ("other",), b"l": ("\ud800",)}) == {b"k": ("one", "two"), b"l": ("\ud800",)}
            assert kept.get([b"k", b"none"]) == {b"k": ("one", "two")}
            assert kept is ledger.released()
    with MetricLedger(path=path) as again:
        assert again.released().get([bytes([i]) for i in range(255)]) == {b"k": ("one", "two"), b"l": ("\ud800",)}


@on_both
def test_a_text_is_kept_with_its_charge_or_not_at_all(path: pathlib.Path) -> None:
    """If it breaks, a text leaves that no account paid for, or is paid for again when it was given out before."""
    for where in (None, path):
        with MetricLedger(1.0, where) as ledger:
            kept = ledger.released()
            with pytest.raises(LedgerCorrupt, match="older copy"):
                kept.put({b"k": ("never charged",)})
            ledger.spend(1.0, [Owner("d")], table=TABLE, keys=[b"k"])
            kept.put({b"k": ("word",)})
            with pytest.raises(AlreadyReleased):
                ledger.spend(1.0, [Owner("x"), Owner("y")], table=TABLE, keys=[b"new", b"k"])
            assert [ledger.spent(document=name) for name in "dxy"] == [1.0, 0.0, 0.0]
            with pytest.raises(BudgetExceeded):
                ledger.spend(1.0, [Owner("d")], table=TABLE, keys=[b"new"])
            with pytest.raises(LedgerCorrupt):
                kept.put({b"new": ("what was refused",)})


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": 0.0},
        {"limit": float("inf")},
        {"limit": "3"},
        {"document_limit": -1.0},
        {"path": 7},
        {"key": b"short"},
        {"key": "x" * 40},
    ],
)
def test_bad_parameters_are_refused(bad: dict[str, object]) -> None:
    """If it breaks, a ledger starts with a limit that holds nothing back, or a key that anyone can guess."""
    with pytest.raises(InvalidParameter, match="Expected"):
        MetricLedger(**bad)  # type: ignore[arg-type]


def test_bad_spends_are_refused_and_cost_nothing() -> None:
    """If it breaks, a release is recorded under a nonsensical price or owner, or a label carries text into the file."""
    ledger = MetricLedger(1.0)
    for eta in (0.0, -1.0, float("nan"), 1e7):
        with pytest.raises(InvalidParameter):
            spend(ledger, eta=eta)
    for bad in (7, None, b"d"):
        with pytest.raises(InvalidParameter):
            Owner(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        Owner("d", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        ledger.spend(1.0, [Owner("d")], table=TABLE, caller="two\nlines")
    for keys in ({}, {"user": "a", "document": "b"}):
        with pytest.raises(InvalidParameter):
            ledger.spent(**keys)
    ledger.spend(1.0, [], table=TABLE)
    assert list(ledger.entries()) == []


def spend_at(path: pathlib.Path) -> Callable[[], object]:
    ledger = MetricLedger(path=path)
    return lambda: spend(ledger, "d", "u", eta=0.5)


@forks
@on_both
def test_kill_at_any_moment_forgets_no_release(path: pathlib.Path) -> None:
    """If it breaks, a text that left the process before it was killed is not in the account: a free release."""

    def used() -> int:
        with MetricLedger(path=path) as ledger:  # opening checks that accounts and entries agree
            assert ledger.spent(document="d") == ledger.spent(user="u")
            return round(ledger.spent(user="u") / 0.5)

    killed_often(lambda: spend_at(path), used, 15, random.Random(5))


@forks
@on_both
def test_the_last_releases_go_to_exactly_as_many_racers(path: pathlib.Path) -> None:
    """If it breaks, processes and threads that share a file release more than the limit, or lose what was left."""
    with MetricLedger(20.0, path) as ledger:
        spend(ledger, "first", "u", eta=7.0)

    def enter(process: int) -> Attempt:
        own = MetricLedger(20.0, path)
        return lambda number: (outcome(spend, own, f"{process}-{number}-{turn}", "u") for turn in range(2))

    assert race(2, 8, enter) == {"done": 13, "refused": 2 * 8 * 2 - 13}
    with MetricLedger.open(path) as ledger:
        assert ledger.spent(user="u") == ledger.limit == 20.0


def test_a_refusal_reads_like_a_sentence_and_the_repr_shows_what_is_left() -> None:
    """If it breaks, who has used up an account reads neither what a text would cost nor what is left."""
    ledger = MetricLedger(2.0, document_limit=3.0)
    assert repr(ledger) == "MetricLedger(limit=2.0, document_limit=3.0, path=None, releases=0)"
    spend(ledger, "d", "u", eta=1.5)
    with pytest.raises(BudgetExceeded) as refused:
        spend(ledger, "e", "u", eta=0.75)
    assert str(refused.value).startswith(
        "This text would cost eta 0.75; 0.5 of 2 is left for the user at position 0 of the request. Nothing was "
        "charged and nothing released, and 0 more would fit into this account."
    )
    assert repr(ledger).endswith("releases=1, user_spent=1.5, user_left=0.5, document_spent=1.5, document_left=1.5)")
    ledger.close()
    assert repr(ledger).endswith("closed or in use)")
