"""One F16 copy of the embedded model for the whole session, and engines on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, embedded_model_path
from langchain_dp.integrations.llama_cpp.model_files import _quantize


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("llama_cpp")
    path: Path = tmp_path_factory.mktemp("model") / "SmolLM2-135M-Instruct.F16.gguf"
    assert _quantize(embedded_model_path(), path, "F16")
    return str(path)


@pytest.fixture(scope="session")
def shared_engine(model_path: str) -> Iterator[LlamaCppEnsemble]:
    # 768 tokens: bodies may be longer than one step (256) of llama.cpp's cache, which is where padding changes.
    with LlamaCppEnsemble(model_path=model_path, slots=4, max_tokens=768, n_threads=1) as built:
        yield built


@pytest.fixture
def engine(shared_engine: LlamaCppEnsemble) -> LlamaCppEnsemble:
    shared_engine._store.clear()
    shared_engine._context.clear()
    return shared_engine
