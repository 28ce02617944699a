"""Models and tokenizers from a folder."""

from __future__ import annotations

import os
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter

DTYPES = ("float32", "bfloat16", "float16")


def import_transformers() -> Any:
    with needs("transformers", "torch", "transformers"):
        import torch  # noqa: F401  # transformers alone imports without it, and fails later with a text of its own
        import transformers
    return transformers


def from_folder(
    path: str, tokenizer: Any, kind: str = "AutoModel", what: str = "a model of transformers", **options: Any
) -> tuple[Any, Any]:
    """Download nothing, run no code of the folder."""
    transformers = import_transformers()
    if not os.path.isdir(path):
        raise InvalidParameter(
            f"Expected model={path!r} to be a folder that exists. Save the model with save_pretrained, or download it."
        )
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = getattr(transformers, kind).from_pretrained(path, **local, **options)
        if tokenizer is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, **local)
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidParameter(
            f"Expected model={path!r} to hold {what} and its tokenizer ({type(problem).__name__})."
        ) from problem
    return model, tokenizer


def prepared(model: Any, tokenizer: Any, device: str, dtype: str) -> Any:
    transformers = import_transformers()
    import torch

    if not isinstance(model, transformers.PreTrainedModel) or model.config.is_encoder_decoder:
        raise InvalidParameter(
            f"Expected model of type {type(model).__name__} to be a folder or a causal language model of transformers."
        )
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        raise InvalidParameter(
            "Expected model to be one that is not compiled: a compiled one takes kernels by the lengths that it "
            "saw before, of other members. Load it again, without compile()."
        )
    if tokenizer is None:
        raise InvalidParameter("Expected tokenizer=None only with a folder. Give the tokenizer of the loaded model.")
    try:
        model.to(device=device, dtype=getattr(torch, dtype))
    except RuntimeError as problem:
        raise InvalidParameter(f"Expected device={device!r} to be one that torch can use.") from problem
    return model.eval()


def ends(model: Any) -> set[int]:
    named: set[int] = set()
    for config in (model.config, model.generation_config):
        value = getattr(config, "eos_token_id", None)
        named |= {value} if isinstance(value, int) else set(value or ())
    return named
