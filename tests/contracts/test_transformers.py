"""The contracts, kept by TransformersEnsemble on random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fakes.tiny_model import one_thread, tiny_model, tiny_tokenizer

from contracts.labels import LabelContract
from contracts.next_token import NextTokenContract
from contracts.token_scores import TokenScoreContract

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from langchain_dp.integrations.transformers import TransformersEnsemble


@pytest.fixture(scope="module")
def roomy() -> Iterator[TransformersEnsemble]:
    with one_thread(), TransformersEnsemble(tiny_model(), tiny_tokenizer(), max_tokens=256, name="tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def cramped() -> Iterator[TransformersEnsemble]:
    tokenizer = tiny_tokenizer(template=None)
    options: dict[str, Any] = {"max_tokens": 256, "cache_bytes": 0, "name": "tiny"}
    with one_thread(), TransformersEnsemble(tiny_model(), tokenizer, **options) as engine:
        yield engine


class TestTransformers(NextTokenContract, TokenScoreContract, LabelContract):
    """Members that are evaluated one at a time on torch."""

    reads = False

    @pytest.fixture
    def engine(self, roomy: Any) -> Any:
        return roomy


class TestWithoutRoom(TestTransformers):
    """The same where no member can be kept, and the tokenizer carries no chat template."""

    chats = False

    @pytest.fixture
    def engine(self, cramped: Any) -> Any:
        return cramped
