"""ClassifyBatches: one label for each question, whatever dies and whatever is done again."""

from __future__ import annotations

import functools
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.voters import VotingChat, classifier, private_examples

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import LedgerPlan, Quotas
from langchain_dp.errors import BudgetExceeded, InvalidParameter
from langchain_dp.icl import ClassifyBatches
from langchain_dp.icl.replicas import Replicas

BUDGET = PrivacyBudget(50.0)


def chain(place: str, **changes: Any) -> Any:
    rows = [{**row, "id": f"case-{i}"} for i, row in enumerate(private_examples(24))]
    settings = {"ledger": PrivacyLedger(BUDGET, place), "examples": rows, "replicas": True} | changes
    return classifier(VotingChat(), **settings)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "labels.ledger")


def charges(place: str) -> int:
    with PrivacyLedger(BUDGET, place) as ledger:
        return sum(entry.count for entry in ledger.entries())


def elsewhere(classify: ClassifyBatches) -> ClassifyBatches:
    """As another worker has it."""
    return pickle.loads(pickle.dumps(classify))  # type: ignore[no-any-return]


def batches() -> list[Any]:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    texts = ["one", None, "two", "one", " ", ""]
    columns = {"id": [1, 2, 3, 4, 5, 6], "text": texts, "ward": list("ABCDEF")}
    return [
        columns,
        pandas.DataFrame(columns, index=list("fedcba")),
        pyarrow.table(columns),
        pyarrow.RecordBatch.from_pydict(columns),
    ]


@pytest.mark.parametrize("kind", range(4), ids=["lists", "pandas", "table", "record batch"])
def test_a_batch_of_any_type_is_labelled_once(place: str, kind: int) -> None:
    """If it breaks, equal questions cost twice, an empty one costs or ends all, or a row gets another row's label."""
    batch = batches()[kind]
    classify = ClassifyBatches(functools.partial(chain, place), "text", label="said", keep_columns=["id"])
    labelled = classify(batch)
    assert type(labelled) is type(batch)
    found = labelled if isinstance(labelled, dict) else {
        name: list(labelled[name]) if kind == 1 else labelled.column(name).to_pylist() for name in ("id", "said")
    }  # fmt: skip
    said = [None if label != "positive" else label for label in found["said"]]
    assert said == ["positive", None, "positive", "positive", None, None]
    assert list(found["id"]) == [1, 2, 3, 4, 5, 6]
    assert kind != 1 or list(labelled.index) == list("fedcba")
    names = list(labelled) if kind < 2 else labelled.column_names
    assert list(names) == ["id", "said"]
    assert charges(place) == 2
    (again,) = elsewhere(classify).in_pandas([batch])
    assert str(again) == str(labelled)
    assert charges(place) == 2
    assert classify.certificate().remaining == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
@pytest.mark.parametrize(("step", "lost"), [("before the charge", 0), ("after the charge", 1), ("after the store", 0)])
def test_a_worker_that_is_killed_leaves_one_label_and_at_most_one_charge_more(
    place: str, step: str, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a retry draws another label for a question that was answered, or a label leaves for nothing."""
    classify = ClassifyBatches(functools.partial(chain, place, not_private_seed=None), "text")
    batch = {"text": ["one", "two"]}
    spend, keep = LedgerPlan.spend, Replicas.keep
    pid = os.fork()
    if pid == 0:
        try:

            def die(at: str) -> None:
                if at == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            def spent(*args: Any, **options: Any) -> None:
                die("before the charge")
                spend(*args, **options)
                die("after the charge")

            def stored(self: Replicas, question: str, epoch: int, answer: Any) -> Any:
                kept = keep(self, question, epoch, "negative")  # noise does so, at random
                die("after the store")
                return kept

            LedgerPlan.spend, Replicas.keep = spent, stored  # type: ignore[method-assign]
            elsewhere(classify)({"text": ["one"]})
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    labels = classify(batch)["label"]
    assert labels == ["negative" if step == "after the store" else "positive", "positive"]
    assert elsewhere(classify)({"text": ["two", "one"]})["label"] == labels[::-1]
    assert charges(place) == 2 + lost


def test_nothing_is_charged_where_a_row_cannot_be_asked(place: str) -> None:
    """If it breaks, one bad row costs what the rows before it cost, and shows what stood in it."""
    classify = ClassifyBatches(functools.partial(chain, place), "text")
    for bad in ("much " * 10_000, 7):
        with pytest.raises(InvalidParameter, match=r"[Rr]ow 1 of a batch") as caught:
            classify({"text": ["my secret", bad]})
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidParameter, match="column 'text'"):
        classify({"other": ["one"]})
    with pytest.raises(InvalidParameter, match="with column 'zz'"):
        ClassifyBatches(functools.partial(chain, place), "text", keep_columns=["zz"])({"text": ["brand new"]})
    assert charges(place) == 0
    with pytest.raises(BudgetExceeded):
        classify({"text": [f"question {i}" for i in range(6)]})
    assert charges(place) == 5


def test_what_a_retry_could_not_find_again_is_refused(place: str) -> None:
    """If it breaks, each worker has a budget of its own, or pays again for what another has released."""
    with pytest.raises(InvalidParameter, match="replicas=True"):
        ClassifyBatches(functools.partial(chain, f"{place}.alone", replicas=False), "text")
    with pytest.raises(InvalidParameter, match="path or a postgresql"):
        ClassifyBatches(functools.partial(chain, place, ledger=PrivacyLedger(BUDGET)), "text")
    with pytest.raises(InvalidParameter, match="without quotas=: a batch names no user"):
        ClassifyBatches(functools.partial(chain, f"{place}.shares", quotas=Quotas(default=1)), "text")
    with pytest.raises(InvalidParameter, match="type int"):
        ClassifyBatches(lambda: 3, "text")  # type: ignore[arg-type, return-value]
    build = functools.partial(chain, place)
    for options in ({"columns": []}, {"columns": "text", "keep_columns": "id"}, {"columns": ["text", ""]},
                    {"columns": "text", "label": "id", "keep_columns": ["id"]}):  # fmt: skip
        with pytest.raises(InvalidParameter):
            ClassifyBatches(build, **options)  # type: ignore[arg-type]
    assert "case" not in repr(ClassifyBatches(build, ["text"]))
    assert len(pickle.dumps(ClassifyBatches(build, ["text"]))) < 1000
