"""Memory without names: what the store keeps, what comes back, and what nobody can restore after it was erased."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from langchain_dp import Pseudonymizer
from langchain_dp.errors import PrivateDataError
from langchain_dp.rapt.pseudonyms import PseudonymStore

ANN, BOB, MAIL = "Ann Smith", "Bob Jones", "ann@example.org"
KEY = Fernet.generate_key()
SETTINGS = Pseudonymizer(terms={ANN: "person", BOB: "person"})
NOTE = {"text": f"{ANN} ({MAIL}) likes tea.", "likes": ["tea", {ANN: 3}], "age": 40}


def opened(inner: BaseStore, key: bytes | None = KEY) -> PseudonymStore:
    return PseudonymStore(inner, SETTINGS, key=key)


def kept(inner: BaseStore) -> str:
    """Everything that the store behind it holds."""
    spaces = inner.list_namespaces(limit=1000)
    return json.dumps([[item.dict() for item in inner.search(space, limit=1000)] for space in spaces])


def put_two(store: PseudonymStore) -> PseudonymStore:
    store.put(("users", ANN), f"about {ANN}", NOTE)
    store.put(("users", BOB), "note", {"text": f"{BOB} knows {ANN}."})
    return store


def finds_both(store: PseudonymStore, inner: BaseStore) -> None:
    """What was put comes back, and is kept without names."""
    assert store.get(("users", ANN), f"about {ANN}").value == NOTE  # type: ignore[union-attr]  # it is there
    assert {item.namespace for item in store.search(("users",))} == {("users", ANN), ("users", BOB)}
    [found] = store.search(("users",), filter={"text": f"{BOB} knows {ANN}."})
    assert (found.key, found.namespace) == ("note", ("users", BOB))
    assert set(store.list_namespaces(prefix=("users",))) == {("users", ANN), ("users", BOB)}
    assert set(store.list_namespaces(suffix=(ANN,))) == {("users", ANN)}
    assert [name for name in (ANN, MAIL, BOB) if name in kept(inner)] == []  # also after it was read


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_what_is_put_comes_back_and_is_kept_without_names(key: bytes | None) -> None:
    """If it breaks, a database of memories holds names, or an agent forgets them."""
    inner = InMemoryStore()
    store = put_two(opened(inner, key))
    finds_both(store, inner)
    store.delete(("users", BOB), "note")
    assert store.get(("users", BOB), "note") is None


def test_another_process_with_the_key_reads_it_and_goes_on_counting() -> None:
    """If it breaks, memories are lost with a process, or two people share a placeholder."""
    inner = InMemoryStore()
    opened(inner).put(("n",), "a", NOTE)
    again = opened(inner)
    assert again.get(("n",), "a").value == NOTE  # type: ignore[union-attr]  # it is there
    again.put(("n",), "b", {"text": BOB})
    assert inner.get(("n",), "b").value == {"text": "<PERSON_2>"}  # type: ignore[union-attr]  # it is there
    with pytest.raises(PrivateDataError, match="has another key"):
        opened(inner, Fernet.generate_key())
    assert opened(inner, None).get(("n",), "b").value == {"text": "<PERSON_2>"}  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_who_is_erased_cannot_be_restored_by_anybody(key: bytes | None) -> None:
    """If it breaks, a person who asked to be forgotten is shown again, or the number goes to somebody else."""
    inner = InMemoryStore()
    store = opened(inner, key)
    store.put(("n",), "a", {"text": f"{ANN} met {BOB}."})
    assert store.erase("ann smith") == 1
    assert store.erase(ANN) == 0
    for reader in [store, *([opened(inner)] if key else [])]:
        assert reader.get(("n",), "a").value == {"text": f"<PERSON_1> met {BOB}."}  # type: ignore[union-attr]
        reader.put(("n",), "b", {"text": ANN})
        assert inner.get(("n",), "b").value["text"] not in ("<PERSON_1>", "<PERSON_2>")  # type: ignore[union-attr]
        assert reader.get(("n",), "b").value == {"text": ANN}  # type: ignore[union-attr]
        reader.erase(ANN)


def test_async_calls_hide_as_well() -> None:
    """If it breaks, an async agent stores names."""
    inner = InMemoryStore()
    store = opened(inner)

    async def work() -> Any:
        await store.aput(("n",), "a", NOTE)
        return await store.aget(("n",), "a"), await store.asearch(("n",))

    item, found = asyncio.run(work())
    assert item.value == NOTE
    assert [one.value for one in found] == [NOTE]
    assert ANN not in kept(inner)


def test_a_database_of_several_machines_holds_no_name(postgres: Any) -> None:
    """If it breaks, a store on PostgreSQL holds names, loses memories, or shows a person who was erased."""
    store_of = pytest.importorskip("langgraph.store.postgres").PostgresStore.from_conn_string
    postgres.ask("CREATE DATABASE memories")
    place = re.sub("dbname=[^ ]*", "dbname=memories", postgres.conninfo)
    with store_of(place) as inner:
        inner.setup()
        put_two(opened(inner))
    with store_of(place) as inner:
        store = opened(inner)
        finds_both(store, inner)
        assert store.erase(ANN) == 1
        assert opened(inner).get(("users", BOB), "note").value == {"text": f"{BOB} knows <PERSON_1>."}  # type: ignore[union-attr]


def test_the_file_of_a_store_holds_no_name(tmp_path: Path) -> None:
    """If it breaks, who copies the database has the names."""
    sqlite = pytest.importorskip("langgraph.store.sqlite")
    path = tmp_path / "memory.sqlite"
    for _ in range(2):
        with sqlite.SqliteStore.from_conn_string(str(path)) as inner:
            inner.setup()
            store = opened(inner)
            store.put(("users", ANN), "a", NOTE)
            assert store.get(("users", ANN), "a").value == NOTE  # type: ignore[union-attr]  # it is there
            assert [item.value for item in store.search(("users",), limit=5)] == [NOTE]
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"<PERSON_1>" in held
    assert not [name for name in (ANN, "Ann", MAIL) if name.encode() in held]
