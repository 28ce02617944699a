"""Tokens per second of privatised text, beside the matrix product that nobody can do without, and other packages.

On the tables of both installed packages (400,000 x 50 and 30,522 x 384), at the eta that replaces half of the words:

- floor: the product of the noisy tokens with the table alone, in the same blocks and threads, without noise or argmax;
- laplace, exponential: ``TextPrivatiser.release`` on token ids; the exponential mechanism also cold, without any table
  of chances;
- text: ``TextPrivatiser.privatise``, with tokenising and joining;
- mldp-text and pypantera: their noise mechanism on the same table and words. They pin other versions of NumPy, so that
  each gets an environment of its own, built once under ``--cache`` with pip; left out with a message where it cannot be
  built.

Repetitions are interleaved, so that a busy machine slows all of them, and ratios are of medians.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from made import keep, made

from langchain_dp.mechanisms import _nearest as nearest
from langchain_dp.mechanisms.metric_exponential import MetricExponential
from langchain_dp.rapt import TextPrivatiser, Vocabulary, load
from langchain_dp.rapt._english import TEXTS

ETA = {
    ("glove", "laplace"): 9.3,
    ("glove", "exponential"): 4.1,
    ("minilm", "laplace"): 74.5,
    ("minilm", "exponential"): 14.0,
}
PEERS = {"mldp-text": "mldp-text==0.1.2", "pypantera": "pypantera==1.0.2"}
WORKER = Path(__file__).with_name("peers_rapt.py")


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def running_words(vocabulary: Vocabulary, count: int) -> np.ndarray:
    """Ids of running English, as many as asked for."""
    ids = np.array([i for text in TEXTS for i in vocabulary.encode(text) if i >= 0])
    return np.resize(ids, count)


def floor(vocabulary: Vocabulary, ids: np.ndarray, threads: int | None) -> None:
    """The product alone."""
    table = vocabulary.table._table
    columns = nearest._COLUMNS

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(ids), nearest.ROWS):
            points = vocabulary.points(ids[start : start + nearest.ROWS])
            yield np.concatenate([points, np.ones((len(points), 1))], axis=1).astype(np.float32)

    def product(asked: np.ndarray) -> int:
        scores = np.empty((len(asked), columns), dtype=np.float32)
        for start in range(0, len(table), columns):
            block = table[start : start + columns]
            np.matmul(asked, block.T, out=scores[:, : len(block)])
        return len(asked)

    list(nearest.sharded(product, blocks(), threads))


def peer_python(name: str, cache: Path) -> Path | None:
    """Interpreter of an environment that holds one peer, or None with a message."""
    home = cache / name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (home / ".ready").exists():
        return python
    print(f"building an environment for {name} ...", flush=True)
    try:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEERS[name]], check=True, timeout=1_800)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{name}: left out, its environment cannot be built ({type(error).__name__})")
        return None
    (home / ".ready").touch()
    return python


def peer_speed(name: str, python: Path, table: Path, ids: np.ndarray, eta: float) -> float | None:
    """Tokens per second of a peer, or None with a message."""
    words = table.with_suffix(".ids.npy")
    np.save(words, ids)
    try:
        done = subprocess.run(
            [python, WORKER, name, table, words, str(eta)], check=True, timeout=1_800, capture_output=True, text=True
        )
    except subprocess.SubprocessError as error:
        print(
            f"{name}: left out, it does not run ({type(error).__name__}: {str(getattr(error, 'stderr', ''))[-200:]!r})"
        )
        return None
    return float(done.stdout.split()[-1])


def written(vocabulary: Vocabulary, cache: Path) -> Path:
    """The table as a text file, one word and its numbers a line: what the peers read."""
    path = cache / f"{vocabulary.name}.txt"
    if not path.exists():
        with path.with_suffix(".part").open("w", encoding="utf-8") as file:
            for word, vector in zip(vocabulary.words, vocabulary.vectors, strict=True):
                file.write(f"{''.join(word.split())} {' '.join(f'{x:.6g}' for x in vector)}\n")
        path.with_suffix(".part").rename(path)
    return path


def measure(name: str, options: argparse.Namespace) -> None:
    """Print one table's figures."""
    vocabulary = load(name)
    ids = running_words(vocabulary, options.tokens)
    many = running_words(vocabulary, 20 * options.tokens)
    threads = options.threads
    laplace = TextPrivatiser(vocabulary, ETA[name, "laplace"], threads=threads)
    exponential = TextPrivatiser(vocabulary, ETA[name, "exponential"], mechanism="exponential", threads=threads)
    texts = list(TEXTS) * max(1, options.tokens // 1_000)
    in_texts = sum(result.tokens for result in exponential.privatise(texts))
    exponential.release(many)  # warm from here on

    def cold() -> None:
        mechanism = MetricExponential(vocabulary.table, ETA[name, "exponential"], threads=threads)
        mechanism.draw(ids, vocabulary.points)

    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "floor, product alone": (len(ids), lambda: floor(vocabulary, ids, threads)),
        "laplace": (len(ids), lambda: laplace.release(ids)),
        "laplace, from text": (in_texts, lambda: laplace.privatise(texts)),
        "exponential, cold": (len(ids), cold),
        "exponential, warm": (len(many), lambda: exponential.release(many)),
        "exponential, from text": (in_texts, lambda: exponential.privatise(texts)),
    }
    times: dict[str, list[float]] = {run: [] for run in runs}
    for _ in range(options.repetitions):
        for run, (_, call) in runs.items():
            times[run].append(seconds(call))
    speed = {run: runs[run][0] / statistics.median(times[run]) for run in runs}
    if options.peers:
        for peer in PEERS:
            python = peer_python(peer, options.cache)
            few = ids[: options.peer_tokens]
            found = python and peer_speed(peer, python, written(vocabulary, options.cache), few, ETA[name, "laplace"])
            if found:
                speed[peer] = found
    base = speed["floor, product alone"]
    print(
        f"\n{name}: {len(vocabulary):,} x {vocabulary.dimension}, {len(np.unique(ids))} distinct of {len(ids):,} tokens"
    )
    for run, value in speed.items():
        print(f"  {run:<24} {value:12,.1f} tokens/s  {base / value:8.3g} x the floor's time")
    settings = {"table": name, "threads": threads, "tokens": options.tokens, "repetitions": options.repetitions}
    keep(options.out, "rapt", settings, speed)


def main() -> None:
    """Print tokens per second and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--peer-tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tables", nargs="*", default=["glove", "minilm"])
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "langchain-dp" / "bench")
    parser.add_argument("--out", type=Path, help="results file to append tokens per second to")
    options = parser.parse_args()
    made()
    options.cache.mkdir(parents=True, exist_ok=True)
    if nearest._BLAS.at_one_thread() is None:
        print("threadpoolctl is not installed: blocks run one after the other, with BLAS's own threads")
    for name in options.tables:
        measure(name, options)
    # Linux counts ru_maxrss in kilobytes, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"\npeak memory {peak / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
