"""One peer's noise mechanism, timed in its own environment: NAME TABLE IDS ETA. Started by ``bench_rapt.py``.

Loading is not timed. Prints tokens per second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np


def read(path: str) -> tuple[list[str], np.ndarray]:
    """Words and vectors of a text table."""
    words, rows = [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            word, _, rest = line.rstrip("\n").partition(" ")
            words.append(word)
            rows.append(np.array(rest.split(" "), dtype=np.float32))
    return words, np.stack(rows)


def mldp_text(path: str, asked: list[str], eta: float) -> Callable[[], object]:
    """Word by word, exact search."""
    from gensim.models import KeyedVectors
    from mldp_text.mechanisms import MultivariateCalibrated

    words, vectors = read(path)
    table = KeyedVectors(vectors.shape[1])
    table.add_vectors(words, vectors)
    mechanism = MultivariateCalibrated(eta, embedding_matrix=table, dim=vectors.shape[1], use_faiss=False)
    return lambda: [mechanism.replace_word(word) for word in asked]


def pypantera(path: str, asked: list[str], eta: float) -> Callable[[], object]:
    """Texts of four words: its distances of a text to the table are one array."""
    import pandas as pd
    from src.EmbeddingPerturbationMechanism.cmp import CMP  # the name that its wheel installs

    mechanism = CMP({"embPath": path, "epsilon": eta})
    texts = [" ".join(asked[start : start + 4]) for start in range(0, len(asked), 4)]
    return lambda: mechanism.obfuscateText(pd.DataFrame({"id": range(len(texts)), "text": texts}), 1)


def main() -> None:
    """Print tokens per second."""
    name, path, ids, eta = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        words = [line.partition(" ")[0] for line in file]
    asked = [words[i] for i in np.load(ids)]
    make = {"mldp-text": mldp_text, "pypantera": pypantera}[name]
    run = make(path, asked, float(eta))
    began = time.perf_counter()
    run()
    print(len(asked) / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
