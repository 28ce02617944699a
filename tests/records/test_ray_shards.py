"""Records in a Ray dataset: the same release as in memory, also after the death of a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.encoders import WordEncoder
from fakes.ray_cluster import ray_cluster

from langchain_dp import DPPrototypeClassifier, PrivacyBudget, RecordShards
from langchain_dp.errors import InvalidParameter

LABELS = ["praise", "complaint"]
ROWS = [{"body": f"the nurse was kind, case {n}", "kind": LABELS[n % 2]} for n in range(200)]
KEYS = {"text_key": "body", "label_key": "kind"}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_cluster() as ray:
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray


def fitted(examples: Any, **options: Any) -> DPPrototypeClassifier[str]:
    fit = {"labels": LABELS, "budget": PrivacyBudget(1.0, 1e-6), "encoder": WordEncoder(), "trust_opaque_model": True}
    return DPPrototypeClassifier.fit(examples, not_private_seed=3, **{**fit, **options})


class KillsOnce(WordEncoder):
    """An encoder whose process is killed at one private text, the first time."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark = mark

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any("case 77" in text for text in texts) and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed_documents(texts)


def test_a_dataset_gives_the_same_release_as_memory_though_a_worker_dies(ray: Any, tmp_path: Path) -> None:
    """If it breaks, a batch is counted twice after a death, or lost."""
    in_memory = fitted([{"text": row["body"], "label": row["kind"]} for row in ROWS])
    dataset = ray.data.from_items(ROWS, override_num_blocks=4)
    mark = tmp_path / "mark"
    sums = fitted(RecordShards(dataset, **KEYS, workers=2, batch_size=20), encoder=KillsOnce(mark))
    assert mark.exists()
    assert repr(sums).replace("KillsOnce", "WordEncoder") == repr(in_memory)


def test_a_bad_row_ends_the_job_and_is_not_shown(ray: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """If it breaks, Ray's logs quote a record."""
    dataset = ray.data.from_items([*ROWS, {"body": "secretive", "kind": "secret kind"}])
    with pytest.raises(InvalidParameter, match="to be one of labels=") as caught:
        fitted(RecordShards(dataset, **KEYS, workers=2))
    assert "secret" not in f"{caught.value} {capfd.readouterr()}"
