"""The contracts, kept by LlamaCppEnsemble on the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.labels import LabelContract
from contracts.next_token import NextTokenContract

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble


@pytest.fixture(scope="module")
def built(float16_gguf: Path) -> Iterator[LlamaCppEnsemble]:
    with LlamaCppEnsemble(model_path=str(float16_gguf), slots=4, max_tokens=256, n_threads=1) as engine:
        yield engine


class TestLlamaCpp(NextTokenContract, LabelContract):
    """Members that share batches of llama.cpp."""

    @pytest.fixture
    def engine(self, built: LlamaCppEnsemble) -> LlamaCppEnsemble:
        return built
