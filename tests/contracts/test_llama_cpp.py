"""The contracts, kept by LlamaCppEnsemble on random weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contracts.labels import LabelContract
from contracts.next_token import NextTokenContract
from contracts.token_scores import TokenScoreContract

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble


@pytest.fixture(scope="module")
def built(tiny_gguf: str) -> Iterator[LlamaCppEnsemble]:
    with LlamaCppEnsemble(model_path=tiny_gguf, slots=4, max_tokens=512, n_threads=1) as engine:
        yield engine


class TestLlamaCpp(NextTokenContract, TokenScoreContract, LabelContract):
    """Members that share batches of llama.cpp."""

    reads = False

    @pytest.fixture
    def engine(self, built: LlamaCppEnsemble) -> LlamaCppEnsemble:
        return built
