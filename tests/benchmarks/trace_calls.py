"""Count the functions and files of the package that one query of a classifier passes.

Run ``python tests/benchmarks/trace_calls.py``; add ``--list`` to see the functions by file. Ten subsets vote, and the
model is a fake. Threads are traced too. A generator counts as one function and as one call per resumption.
Comprehensions belong to the function around them.
"""

from __future__ import annotations

import collections
import pathlib
import statistics
import sys
import threading
import time
from types import FrameType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.voters import VotingChat, classifier, private_examples  # noqa: E402  # needs the path above

INNER = ("comp>", "genexpr>")
FOLDERS = [str(ROOT / name) + "/" for name in ("langchain_dp", "integrations")]


def traced(work: Any) -> collections.Counter[tuple[str, str]]:
    """Count the calls by (file, qualified name) while ``work`` runs."""
    calls: collections.Counter[tuple[str, str]] = collections.Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        name = frame.f_code.co_qualname
        if event == "call" and path.startswith(tuple(FOLDERS)) and not name.endswith(INNER):
            calls[path.removeprefix(f"{ROOT}/"), name] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is taken
    return calls


def main() -> None:
    """Print the counts, and the median time of a query and of its bare model calls."""
    started = time.perf_counter()
    chain = classifier(
        examples=private_examples(40, labels=("positive", "negative")), subsets=10, partitions=10, shots=4,
        max_queries=200,
    )  # fmt: skip
    built = time.perf_counter() - started
    chain.invoke("Warm up.")
    calls = traced(lambda: chain.invoke("How was it?"))
    files = collections.Counter(path for path, _ in calls)
    print(f"{len(calls)} functions in {len(files)} files, {sum(calls.values())} calls; built in {built:.2f} s")
    if "--list" in sys.argv:
        for path in sorted(files):
            print(path)
            for (_, name), count in sorted(item for item in calls.items() if item[0][0] == path):
                print(f"    {count:4} {name}")
    times = []
    for number in range(60):
        started = time.perf_counter()
        chain.invoke(f"Question {number}.")
        times.append(time.perf_counter() - started)
    bare = []
    model = VotingChat()
    for _ in range(60):
        started = time.perf_counter()
        for _ in range(11):
            model.invoke("How was it?\nLabel:")
        bare.append(time.perf_counter() - started)
    print(f"a query {statistics.median(times) * 1e3:.2f} ms, its bare calls {statistics.median(bare) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
