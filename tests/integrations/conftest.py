"""One engine on the tiny model for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from langchain_dp.integrations.llama_cpp.context import import_llama


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


class Direct:
    """llama-cpp-python's high-level class: the whole text, nothing shared."""

    def __init__(self, path: str) -> None:
        self._module = import_llama()
        self.llama = self._module.Llama(path, n_ctx=512, verbose=False, n_threads=1, n_threads_batch=1)

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        return list(self.llama.tokenize(text.encode(), add_bos=False, special=special))

    def logits(self, tokens: list[int], *, kept: int = 0) -> npt.NDArray[Any]:
        """After so many tokens of the text before and these."""
        if not kept:
            self.llama.reset()
        self.llama.n_tokens = kept
        self.llama.eval(tokens)
        row = self._module.llama_get_logits_ith(self.llama.ctx, -1)
        return np.ctypeslib.as_array(row, (self.llama.n_vocab(),)).copy()


@pytest.fixture(scope="session")
def direct(model_path: str) -> Direct:
    return Direct(model_path)
