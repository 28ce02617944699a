"""The embedded model in other types, made once a session, for the two files that need what a real model says."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("contracts.common", "contracts.labels", "contracts.next_token")


@pytest.fixture(scope="session")
def float32_gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The embedded model's weights, unpacked: both engines then read the same numbers."""
    with unpacked(tmp_path_factory, "F32") as path:
        yield path


@pytest.fixture(scope="session")
def float16_gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The embedded model in the type that llama.cpp evaluates fastest."""
    with unpacked(tmp_path_factory, "F16") as path:
        yield path


@contextlib.contextmanager
def unpacked(folders: pytest.TempPathFactory, kind: str) -> Iterator[Path]:
    """The embedded model in another type, for the time of a session: pytest keeps the folders of three."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from langchain_dp.integrations.llama_cpp import embedded_model_path
    from langchain_dp.integrations.llama_cpp.context import import_llama

    import_llama()  # silences its log
    path = folders.mktemp(kind) / f"SmolLM2-135M-Instruct.{kind}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"F32": llama_cpp.LLAMA_FTYPE_ALL_F32, "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16}[kind]
    params.allow_requantize = True
    source = os.fsencode(embedded_model_path())
    assert llama_cpp.llama_model_quantize(source, os.fsencode(path), ctypes.byref(params)) == 0
    yield path
    path.unlink()
