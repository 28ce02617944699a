"""One engine on the tiny model for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble


@pytest.fixture(scope="session")
def model_path(tiny_gguf: str) -> str:
    return tiny_gguf


@pytest.fixture(scope="session")
def shared_engine(model_path: str) -> Iterator[LlamaCppEnsemble]:
    # 1536 tokens: bodies may be longer than one step (256) of llama.cpp's cache, which is where padding changes.
    with LlamaCppEnsemble(model_path=model_path, slots=4, max_tokens=1536, n_threads=1) as built:
        yield built


@pytest.fixture
def engine(shared_engine: LlamaCppEnsemble) -> LlamaCppEnsemble:
    shared_engine._store.clear()
    shared_engine._context.clear()
    return shared_engine
