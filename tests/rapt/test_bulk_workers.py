"""Ray Data with real workers, which are killed; and the other engines that take batches."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.batches import STEPS, KilledAlways, KilledOnce, table_folder
from fakes.ray_cluster import ray_cluster
from langchain_dp.integrations.ray import map_private_batches

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.rapt import SanitizeBatches

ROWS = 120
BATCH = 20
TEXTS = ["the patient has severe pain in the left arm", "a mild fever today", "yesterday no pain in the left leg"]


def sanitizer(folder: Path) -> SanitizeBatches:
    table = folder / "table"
    return SanitizeBatches(
        "text",
        document="id",
        ledger=MetricLedger(None, folder / "account"),
        keep_columns=["id"],
        embeddings=table if table.exists() else table_folder(table),
        eta=1e-6,
        table_folder=folder / "shared",
    )


def rows() -> list[dict[str, Any]]:
    return [{"id": number, "text": TEXTS[number % len(TEXTS)]} for number in range(ROWS)]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_cluster() as ray:
        yield ray


def test_workers_die_and_no_document_has_two_texts(ray: Any, tmp_path: Path) -> None:
    """If it breaks, what Ray does again is a second release of the same document."""
    sanitize = sanitizer(tmp_path)
    killed: Callable[[Any], Any] = sanitize
    for step in STEPS:  # one after the other, in one job
        killed = KilledOnce(killed, step, tmp_path / step)
    dataset = ray.data.from_items(rows(), override_num_blocks=3)
    first = map_private_batches(dataset, killed, workers=2, batch_size=BATCH, cpus=0.5).take_all()
    assert all((tmp_path / step).exists() for step in STEPS)
    texts = {row["id"]: row["text"] for row in first}
    assert len(first) == len(texts) == ROWS
    again = sanitize({"id": list(range(ROWS)), "text": [row["text"] for row in rows()]})
    assert dict(zip(again["id"], again["text"], strict=True)) == texts
    assert len(list(sanitize.ledger.entries())) == ROWS + BATCH  # one batch died between its charge and its store


def test_a_batch_that_kills_its_workers_is_charged_so_often_and_no_more(ray: Any, tmp_path: Path) -> None:
    """If it breaks, one batch that no worker survives empties the account."""
    sanitize = sanitizer(tmp_path)
    killed = KilledAlways(sanitize, "after the charge", tmp_path / "mark")
    dataset = ray.data.from_items([{"id": 1, "text": TEXTS[0]}])
    with pytest.raises(ray.exceptions.RayError):
        map_private_batches(dataset, killed, workers=1, cpus=0.5).take_all()
    assert len(list(sanitize.ledger.entries())) == 4


def test_a_refusal_ends_the_job_and_tells_no_text(ray: Any, tmp_path: Path) -> None:
    """If it breaks, a job goes on without its keys, or its error shows what it was about."""
    dataset = ray.data.from_items([{"id": "", "text": "secretive"} for _ in range(4)])
    with pytest.raises(ray.exceptions.RayError) as caught:
        map_private_batches(dataset, sanitizer(tmp_path), workers=1, cpus=0.5).take_all()
    said = "".join(traceback.format_exception(caught.value))
    assert "InvalidParameter: Expected row 0 of a batch to have a text or a whole number in column 'id'" in said
    assert "secretive" not in said


def test_dataset_map_takes_it(tmp_path: Path) -> None:
    """If it breaks, Hugging Face's datasets cannot be sanitized in columns, over two processes."""
    datasets = pytest.importorskip("datasets")
    sanitize = sanitizer(tmp_path)
    dataset = datasets.Dataset.from_list(rows()[:60])
    new = dataset.map(sanitize, batched=True, batch_size=7, num_proc=2, remove_columns=dataset.column_names)
    assert new.column_names == ["id", "text"]
    batch = {"id": dataset["id"][:], "text": dataset["text"][:]}
    assert sanitize(batch)["text"] == list(new["text"][:])
    assert len(list(sanitize.ledger.entries())) == 60
