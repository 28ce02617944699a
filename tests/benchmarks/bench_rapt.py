"""Tokens per second of privatized text, beside the matrix product that nobody can do without, and other packages.

On the tables of both installed packages (400,000 x 50 and 30,522 x 384), at the eta that replaces half of the words.
The noise mechanism, on a page of running English, where every token costs the same:

- floor: the product of the noisy tokens with the table alone, in the same blocks and threads, without noise or argmax;
- laplace: ``TextPrivatizer.release`` on token ids; from text: ``privatize``, with tokenizing and joining;
- mldp-text and pypantera: their noise mechanism on the same table and words. They pin other versions of NumPy, so that
  each gets an environment of its own, built once under ``--cache`` with pip; left out with a message where it cannot be
  built.

The exponential mechanism, on lines of LANGCHAIN_DP_DATA (a folder of folders with train.jsonl) in random order, where a
word costs a pass over the table when it is met first; left out with a message without such a folder:

- floor: the product of every distinct token with the table alone, once;
- cold: ``TextPrivatizer.release`` on token ids, nothing kept before; warm: the same tokens again; from text: warm, with
  tokenizing and joining;
- ``langchain-dp sanitize`` as a process of its own, start included: seconds and peak memory by length of the text.

Repetitions are interleaved, so that a busy machine slows all of them, and ratios are of medians.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from made import keep, made

from langchain_dp.mechanisms import _nearest as nearest
from langchain_dp.rapt import TextPrivatizer, Vocabulary, load
from langchain_dp.rapt.calibrate import english_texts
from langchain_dp.records import read_jsonl

Row = tuple[str, dict[str, Any], dict[str, float]]
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
    ids = np.array([i for text in english_texts() for i in vocabulary.encode(text) if i >= 0])
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


def measure(name: str, options: argparse.Namespace) -> Row:
    """Print what the noise mechanism and its peers do on one table."""
    vocabulary = load(name)
    ids = running_words(vocabulary, options.tokens)
    threads = options.threads
    laplace = TextPrivatizer(vocabulary, ETA[name, "laplace"], threads=threads)
    texts = list(english_texts()) * max(1, options.tokens // 1_000)
    in_texts = sum(len(vocabulary.encode(text)) for text in texts)
    speed = rates(
        {
            "floor, product alone": (len(ids), lambda: floor(vocabulary, ids, threads)),
            "laplace": (len(ids), lambda: laplace.release(ids)),
            "laplace, from text": (in_texts, lambda: laplace.privatize(texts)),
        },
        options.repetitions,
    )
    if options.peers:
        for peer in PEERS:
            python = peer_python(peer, options.cache)
            few = ids[: options.peer_tokens]
            found = python and peer_speed(peer, python, written(vocabulary, options.cache), few, ETA[name, "laplace"])
            if found:
                speed[peer] = found
    show(vocabulary, ids, speed)
    settings = {"table": name, "threads": threads, "tokens": options.tokens, "repetitions": options.repetitions}
    return "rapt", settings, speed


def rates(runs: dict[str, tuple[int, Callable[[], object]]], repetitions: int) -> dict[str, float]:
    """Tokens per second of each run, given with its number of tokens."""
    times: dict[str, list[float]] = {run: [] for run in runs}
    for _ in range(repetitions):
        for run, (_, call) in runs.items():
            times[run].append(seconds(call))
    return {run: runs[run][0] / statistics.median(times[run]) for run in runs}


def show(vocabulary: Vocabulary, ids: np.ndarray, speed: dict[str, float]) -> None:
    """Print tokens per second and ratios to the first run."""
    print(
        f"\n{vocabulary.name}: {len(vocabulary):,} x {vocabulary.dimension}, {len(np.unique(ids)):,} distinct of "
        f"{len(ids):,} tokens"
    )
    base = next(iter(speed.values()))
    for run, value in speed.items():
        print(f"  {run:<24} {value:12,.1f} tokens/s  {base / value:8.3g} x the floor's time")


def lines_of(folder: Path, megabytes: float) -> list[str]:
    """So many megabytes of lines of every training file of a folder, in an order that is always the same."""
    texts = [row["text"] for path in sorted(folder.glob("*/train.jsonl")) for row in read_jsonl(path)]
    random.Random(0).shuffle(texts)
    lines, left = [], megabytes * 1e6
    for text in texts:
        if left <= 0:
            return lines
        lines.append(" ".join(text.split()))
        left -= len(lines[-1].encode()) + 1
    raise SystemExit(f"Expected {folder} to hold {megabytes} MB of texts, but it holds fewer.")


def measure_text(name: str, options: argparse.Namespace) -> Row:
    """Print what the exponential mechanism does on a long text."""
    vocabulary, threads, eta = load(name), options.threads, ETA[name, "exponential"]
    lines = lines_of(options.data, options.megabytes)
    ids = np.array([i for line in lines for i in vocabulary.encode(line)], dtype=np.int64)
    some = lines[: len(lines) // 4]
    kept = [TextPrivatizer(vocabulary, eta, mechanism="exponential", threads=threads)]

    def cold() -> None:
        kept[0] = TextPrivatizer(vocabulary, eta, mechanism="exponential", threads=threads)
        kept[0].release(ids)

    speed = rates(
        {
            "floor, distinct tokens": (len(ids), lambda: floor(vocabulary, np.unique(ids), threads)),
            "exponential, cold": (len(ids), cold),
            "exponential, warm": (len(ids), lambda: kept[0].release(ids)),
            "exponential, from text": (
                sum(len(vocabulary.encode(line)) for line in some),
                lambda: kept[0].privatize(some),
            ),
        },
        options.repetitions,
    )
    show(vocabulary, ids, speed)
    settings = {
        "table": name,
        "threads": threads,
        "megabytes": options.megabytes,
        "tokens": len(ids),
        "distinct": len(np.unique(ids)),
        "repetitions": options.repetitions,
    }
    return "rapt_text", settings, speed


def measure_command(options: argparse.Namespace) -> Row:
    """Print seconds and peak memory of the command with its defaults, by length of the text."""
    print("\nlangchain-dp sanitize, from its start to its end")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        given, written = Path(folder) / "in.txt", Path(folder) / "out.txt"
        for megabytes in options.command_megabytes:
            given.write_text("\n".join(lines_of(options.data, megabytes)) + "\n", encoding="utf-8")
            began = time.perf_counter()
            asked = ["sanitize", "--in", str(given), "--out", str(written), "--overwrite"]
            process = subprocess.Popen([sys.executable, "-m", "langchain_dp", *asked], stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            took = time.perf_counter() - began
            if status:
                raise SystemExit("The command failed.")
            figures |= {
                f"seconds, {megabytes:g} MB": took,
                f"processor seconds, {megabytes:g} MB": used.ru_utime + used.ru_stime,
                f"peak, {megabytes:g} MB": in_bytes(used.ru_maxrss),
            }
            print(
                f"  {megabytes:g} MB: {took:.0f} s, {used.ru_utime + used.ru_stime:.0f} processor seconds, peak "
                f"{in_bytes(used.ru_maxrss) / 2**20:.0f} MiB"
            )
    return "rapt_command", {"table": "glove"}, figures


def in_bytes(peak: int) -> int:
    """Linux counts ru_maxrss in kilobytes, macOS in bytes."""
    return peak * (1 if sys.platform == "darwin" else 1024)


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
    parser.add_argument("--data", type=Path, default=os.environ.get("LANGCHAIN_DP_DATA"))
    parser.add_argument("--megabytes", type=float, default=1.0, help="of text for the rates")
    parser.add_argument("--command-megabytes", type=float, nargs="*", default=[1.0, 2.5, 5.0])
    parser.add_argument(
        "--parts", nargs="*", choices=("noise", "text", "command"), default=["noise", "text", "command"]
    )
    parser.add_argument("--out", type=Path, help="results file to append tokens per second to")
    options = parser.parse_args()
    made()
    options.cache.mkdir(parents=True, exist_ok=True)
    if nearest._BLAS.at_one_thread() is None:
        print("threadpoolctl is not installed: blocks run one after the other, with BLAS's own threads")
    if options.data is None:
        print("the exponential mechanism is left out: LANGCHAIN_DP_DATA names no folder of texts")
        options.parts = [part for part in options.parts if part == "noise"]
    work: list[Callable[[], Row]] = []
    for name in options.tables:
        work += [functools.partial(measure, name, options)] if "noise" in options.parts else []
        work += [functools.partial(measure_text, name, options)] if "text" in options.parts else []
    work += [functools.partial(measure_command, options)] if "command" in options.parts else []
    for part in work:
        keep(options.out, *part())
    print(f"\npeak memory {in_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
