"""How fast many short texts are sanitized: Ray's workers against the plain loop of one process.

Reads LANGCHAIN_DP_DATA/sst2/train.jsonl; texts are its rows, cut to eight words, as often as it takes. Every arm has an
account of its own in a file, and charges every text. Arms run one after the other, each in a process of its own, and
the time of a pool's start is told apart: it is the same for ten texts and for ten millions. Every arm is appended to
the results file, and a restart skips it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from made import made, so_far

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.rapt import SanitizeBatches
from langchain_dp.rapt.release import Unit
from langchain_dp.records import read_jsonl

_ARMS = ["plain", "ray 1", "ray 2"]


def main() -> None:
    """Time what is missing, a line each."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ (train.jsonl).")
    for arm in options.arms:
        key = [arm, options.texts, options.batch, options.mechanism]
        if any(row["key"] == key for row in so_far(options.out)):
            continue
        asked = [sys.executable, __file__, "--only", arm, "--texts", str(options.texts), "--batch", str(options.batch)]
        done = subprocess.run([*asked, "--mechanism", options.mechanism], check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **made(), **found}) + "\n")
        print(key, found, flush=True)


def _timed(arm: str, texts: int, batch: int, mechanism: Any) -> dict[str, Any]:
    rows = [" ".join(row["text"].split()[:8]) for row in read_jsonl(_train())]
    units = [Unit((rows[number % len(rows)],), None, str(number)) for number in range(texts)]
    cut = [units[at : at + batch] for at in range(0, texts, batch)]
    with tempfile.TemporaryDirectory() as folder:
        ledger = MetricLedger(None, Path(folder) / "account")
        sanitize = SanitizeBatches(
            "text", document="document", ledger=ledger, target_replacement=0.5, mechanism=mechanism
        )
        kind, _, number = arm.partition(" ")
        steps = _steps(kind, int(number or 1), sanitize, cut)
        began = time.perf_counter()
        next(steps)  # every worker has done a batch
        warm = time.perf_counter()
        done = sum(steps)
        ended = time.perf_counter()
        assert len(list(ledger.entries())) == texts
    return {
        "start": round(warm - began, 2),
        "seconds": round(ended - warm, 2),
        "a_second": round(done / (ended - warm)),
    }


def _steps(kind: str, workers: int, sanitize: SanitizeBatches, cut: list[list[Unit]]) -> Iterator[int]:
    """First once every worker has begun, then after each batch how many texts it had."""
    if kind == "plain":
        yield len(sanitize.release(cut[0]))
        for batch in cut[1:]:
            yield len(sanitize.release(batch))
        return
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actors = [ray.remote(num_cpus=1)(_Worker).remote(sanitize) for _ in range(workers)]
    yield sum(map(len, ray.get([actor.do.remote(batch) for actor, batch in zip(actors, cut, strict=False)])))
    waiting: deque[Any] = deque()
    for turn, batch in enumerate(cut[workers:]):
        waiting.append(actors[turn % workers].do.remote(batch))
        if len(waiting) > 2 * workers:  # one under way, one that waits
            yield len(ray.get(waiting.popleft()))
    while waiting:
        yield len(ray.get(waiting.popleft()))
    ray.shutdown()


class _Worker:
    def __init__(self, sanitize: SanitizeBatches) -> None:
        self._sanitize = sanitize

    def do(self, batch: list[Unit]) -> Any:
        return self._sanitize.release(batch)


def _train() -> Path:
    return Path(os.environ["LANGCHAIN_DP_DATA"]) / "sst2" / "train.jsonl"


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--mechanism", choices=["exponential", "laplace"], default="exponential")
    parser.add_argument("--arms", nargs="+", default=_ARMS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bulk.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    if given.only:
        print(json.dumps(_timed(given.only, given.texts, given.batch, given.mechanism)))
    else:
        main()
