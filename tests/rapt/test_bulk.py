"""Columns of batches: what they cost, what a retry gives, what passes, and what a worker is sent."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.batches import STEPS, KilledOnce, table_folder
from fakes.rapt import CLOSE, FAR, TABLE

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PrivateDataError
from langchain_dp.rapt import RAPTSanitizer, SanitizeBatches
from langchain_dp.rapt.vocabulary import Vocabulary

TEXTS = ["the patient has severe pain in the left arm", "a mild fever today", "yesterday no pain in the left leg"]
BATCH = {"id": ["a", "b", "c"], "text": TEXTS, "ward": ["x", "y", "z"]}
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")


def bulk(folder: Path, *, limit: float | None = None, **options: Any) -> SanitizeBatches:
    table = folder / "table"
    given = {"document": "id", "eta": CLOSE, "table_folder": folder / "shared"} | options
    given.setdefault("ledger", MetricLedger(limit, folder / "account"))
    return SanitizeBatches(
        given.pop("columns", "text"),
        embeddings=table if table.exists() else table_folder(table),
        **given,  # type: ignore[arg-type]
    )


def test_a_retry_gives_the_same_texts_at_no_cost(tmp_path: Path) -> None:
    """If it breaks, a batch that is worked on again, cut elsewhere or by a chain, is a second release of it."""
    sanitize = bulk(tmp_path)
    first = sanitize(BATCH)
    assert first["text"] != TEXTS
    assert pickle.loads(pickle.dumps(sanitize))(BATCH) == first
    chain = RAPTSanitizer(tmp_path / "table", eta=CLOSE, ledger=MetricLedger.open(tmp_path / "account"))
    assert [chain.sanitize(t, document=k) for t, k in zip(TEXTS, BATCH["id"], strict=True)] == first["text"]
    equal = {"id": ["a", "a"], "text": [TEXTS[0]] * 2}
    assert sanitize(equal)["text"] == [first["text"][0]] * 2, "the place of a row in its batch tells nothing"
    assert sanitize.certificate().releases == 3


def test_equal_texts_of_two_documents_or_users_are_releases_of_their_own(tmp_path: Path) -> None:
    """If it breaks, the output says which documents are equal."""
    sanitize = bulk(tmp_path, user="who")
    text = TEXTS[0]
    new = sanitize({"id": [1, 2, 1], "who": ["ann", "ann", "bob"], "text": [text] * 3})["text"]
    assert len(set(new)) == 3
    assert sanitize.ledger.spent(user="ann") == pytest.approx(2 * CLOSE, rel=1e-2)


@forks
@pytest.mark.parametrize("step", STEPS)
def test_whoever_is_killed_no_document_has_two_texts(step: str, tmp_path: Path) -> None:
    """If it breaks, a document leaves twice, or is charged more than what died between charge and store."""
    sanitize = bulk(tmp_path)
    killed = KilledOnce(sanitize, step, tmp_path / "mark")
    child = os.fork()
    if not child:
        killed(BATCH)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    stored = MetricLedger.open(tmp_path / "account")
    charged = {"before the charge": 0, "after the charge": 3, "after the store": 3}[step]
    assert len(list(stored.entries())) == charged
    first = sanitize(BATCH)
    assert [sanitize(BATCH) for _ in range(3)] == [first] * 3
    assert len(list(stored.entries())) == 3 + 3 * (step == "after the charge")


def test_what_nobody_names_is_dropped_and_what_is_missing_stays_missing(tmp_path: Path) -> None:
    """If it breaks, a column passes in clear that nobody chose, or rows lose their places."""
    sanitize = bulk(tmp_path, columns=["text", "title"], keep_columns=["ward"], eta=FAR)
    new = sanitize({**BATCH, "title": ["no pain", None, float("nan")], "name": ["Ann"] * 3})
    assert new == {"text": TEXTS, "ward": ["x", "y", "z"], "title": ["no pain", None, None]}
    assert any("Columns that pass in clear: ward." in note for note in sanitize.certificate().notes)


def test_what_lies_beside_the_columns_of_a_frame_is_dropped(tmp_path: Path) -> None:
    """If it breaks, names that are a frame's index, or what somebody noted on it, leave in clear."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({**BATCH, "at": pandas.to_datetime(["2026-01-01"] * 3)})
    frame["ward"] = frame["ward"].astype(pandas.CategoricalDtype([*"xyz", "of Dr Ann"]))
    frame.index.name = "Ann"
    frame.attrs["cohort"] = "those of Dr Ann"
    frame.columns.name = "Ann"
    sanitize = bulk(tmp_path, keep_columns=["at", "ward"])
    new = sanitize(frame)
    assert list(new.index) == [0, 1, 2]
    assert list(new["ward"].cat.categories) == ["x", "y", "z"]
    assert (new.index.name, new.columns.name, new.attrs) == (None, None, {})
    assert new["at"].dtype == frame["at"].dtype
    assert list(sanitize(frame[1:]).index) == [1, 2]  # so that they find their rows again
    for other in (frame.set_index(pandas.Index(["Ann", "Bob", "Eve"])), frame.sample(frac=1.0, random_state=1)):
        other["text"] = ["a new text", "another", "one more"]
        with pytest.raises(InvalidParameter, match="plain index") as caught:
            sanitize(other)
        assert "Ann" not in str(caught.value)
    with pytest.raises(InvalidParameter, match="column 'at'"):
        sanitize({"id": ["n"], "text": ["a new text"], "ward": ["x"]})
    assert sanitize.certificate().releases == 3  # refused before anything is charged
    twice = pandas.concat([frame, frame[["text"]]], axis=1)
    with pytest.raises(InvalidParameter, match="a name of its own"):
        sanitize(twice)


def test_batches_of_every_kind_come_back_in_their_type(tmp_path: Path) -> None:
    """If it breaks, one of the engines that bulk work is for cannot use it."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    sanitize = bulk(tmp_path, keep_columns=["ward"])
    expected = sanitize(BATCH)
    arrays = sanitize({name: np.array(values, dtype=object) for name, values in BATCH.items()})
    assert {name: list(values) for name, values in arrays.items()} == expected
    table = sanitize(arrow.table(BATCH))
    assert isinstance(table, arrow.Table)
    assert table.to_pydict() == expected
    cut = sanitize(arrow.table(BATCH).to_batches()[0])
    assert isinstance(cut, arrow.RecordBatch)
    frames = list(sanitize.in_pandas(iter([pandas.DataFrame(BATCH), pandas.DataFrame(BATCH)[:0]])))
    assert frames[0].to_dict("list") == expected
    assert frames[0].columns.name is None
    assert list(frames[1].columns) == ["text", "ward"]
    wards = arrow.table({**BATCH, "ward": arrow.array(["x", "y", "z"]).dictionary_encode()})[:1]
    assert sanitize(wards).column("ward").chunk(0).dictionary.to_pylist() == ["x"]
    assert len(frames[1]) == 0
    assert sanitize.certificate().releases == 3


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"text": ["secretive"]}, "column 'id'"),
        ({"id": [None], "text": ["secretive"]}, "row 0 of a batch .* 'id'"),
        ({"id": [True], "text": ["secretive"]}, "got bool"),
        ({"id": ["a"], "text": [["secretive"]]}, "got list in row 0"),
        ({"id": ["a"], "secretive": ["b"]}, "column 'text'"),
        (["secretive"], "of type list"),
    ],
)
def test_what_cannot_be_read_costs_nothing_and_is_not_repeated(batch: Any, says: str, tmp_path: Path) -> None:
    """If it breaks, a wrong column costs budget, or its texts stand in the log of a worker."""
    sanitize = bulk(tmp_path)
    with pytest.raises(InvalidParameter, match=says) as caught:
        sanitize(batch)
    assert "secretive" not in str(caught.value)
    assert caught.value.__context__ is None
    assert sanitize.certificate().releases == 0


def test_a_limit_holds_over_all_workers(tmp_path: Path) -> None:
    """If it breaks, each worker has a budget of its own."""
    sanitize = bulk(tmp_path, limit=2.5, eta=1.0)
    workers = [pickle.loads(pickle.dumps(sanitize)) for _ in range(3)]
    for worker, text in zip(workers[:2], TEXTS, strict=False):
        worker({"id": ["one"], "text": [text]})
    with pytest.raises(BudgetExceeded):
        workers[2]({"id": ["one"], "text": [TEXTS[2]]})


def test_ledgers_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    """If it breaks, every worker charges a copy of its own."""
    with pytest.raises(InvalidParameter, match=r"a new budget\. Give MetricLedger\(limit, path\) .* postgresql://"):
        bulk(tmp_path, ledger=MetricLedger(3.0))
    with pytest.raises(PrivateDataError, match="key of its own"):
        bulk(tmp_path, ledger=MetricLedger(3.0, tmp_path / "keyed", key=b"k" * 32))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": []}, "at least one"),
        ({"columns": "id"}, "whose a row is"),
        ({"keep_columns": "ward"}, "lists of names"),
        ({"keep_columns": ["text"]}, r"found \['text'\]"),
    ],
)
def test_what_no_retry_could_repeat_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    """If it breaks, a job ends in its middle, or draws anew what was released."""
    with pytest.raises(InvalidParameter, match=says):
        bulk(tmp_path, **options)
    with pytest.raises(InvalidParameter, match="a path for every worker"):
        SanitizeBatches("text", document="id", ledger=MetricLedger(1.0, tmp_path / "b"), embeddings=TABLE, eta=1.0)  # type: ignore[arg-type]


def test_a_worker_with_another_table_is_refused(tmp_path: Path) -> None:
    """If it breaks, a retry on a machine with another version draws a second text."""
    sanitize = bulk(tmp_path)
    pickled = pickle.dumps(sanitize)
    np.save(tmp_path / "table" / "vectors.npy", TABLE.vectors * 2)
    with pytest.raises(InvalidParameter, match="of this worker"):
        pickle.loads(pickled)(BATCH)
    assert sanitize.certificate().releases == 0


def test_what_a_worker_is_sent_is_small_and_its_table_is_shared(tmp_path: Path) -> None:
    """If it breaks, each worker gets the table by mail, or holds a copy of it."""
    sanitize = bulk(tmp_path)
    assert len(pickle.dumps(sanitize)) < 4096
    one, other = (pickle.loads(pickle.dumps(sanitize))._open().engine.vocabulary for _ in range(2))
    for vocabulary in (one, other):
        base = vocabulary.vectors
        while base is not None and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)
        assert not vocabulary.vectors.flags.writeable
    assert len(list((tmp_path / "shared").iterdir())) == 1
    np.testing.assert_array_equal(one.vectors, TABLE.vectors)


def test_a_shared_file_that_holds_something_else_is_not_taken(tmp_path: Path) -> None:
    """If it breaks, words are drawn by distances of a table that nobody chose."""
    mine = Vocabulary(TABLE.words, TABLE.vectors, name="mine")
    mine.share(tmp_path)
    [file] = tmp_path.iterdir()
    for content in (b"short", file.read_bytes()[:-4] + b"\1\2\3\4"):
        file.unlink()
        file.write_bytes(content)
        again = Vocabulary(TABLE.words, TABLE.vectors, name="mine")
        again.share(tmp_path)
        np.testing.assert_array_equal(again.vectors, TABLE.vectors)
        assert file.read_bytes() != content
    Vocabulary(TABLE.words, TABLE.vectors).share(Path(os.devnull) / "nowhere")  # then it stays where it is
