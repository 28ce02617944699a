"""Private examples that are too many for memory."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from langchain_dp._util import validate
from langchain_dp._util.machine import processors
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.records.files import READING, read_file, read_span, rows_of
from langchain_dp.records.private import PrivateRecords, check_records
from langchain_dp.redact import PrivateArgs, run_redacted

T = TypeVar("T")
Part = Callable[[], Iterable[Any]]
Step = Callable[[PrivateRecords], T]

_PART_BYTES = 4 << 20
_RESTARTS = 3  # of the workers, without one part done in between
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class RecordShards:
    """Private examples in many parts, for sums over more records than fit into memory.

    Worker processes read the parts and add up. This process draws noise once, on the exact sums. A killed worker's part
    is read again, and counted once. :class:`~langchain_dp.aggregate.DPPrototypeClassifier`, ``DPLabelNamer`` and
    ``DPSurvey`` take it, if an encoder reads them.

    Each record is a unit of its own. An ``id`` that occurs twice is refused within ``batch_size`` rows alone. A script
    needs ``if __name__ == "__main__":`` around the call. ``text_key``, ``label_key`` and ``label`` are as of
    :class:`~langchain_dp.PrivateRecords`.

    Args:
        parts: Paths of JSONL or CSV files, a dataset of Hugging Face, or functions that return a part's rows. Or a
            dataset of Ray, whose cluster must be inside the trust boundary: it keeps raw rows.
        workers: Worker processes. 1: this process. None: one per processor.
        batch_size: Most rows that a worker holds at a time.

    Raises:
        InvalidParameter: There is no part, or an unknown one.

    Examples:
        >>> examples = RecordShards(["june.jsonl", "july.jsonl"], workers=2)
        >>> DPPrototypeClassifier.fit(examples, labels=["praise", "complaint"], budget=PrivacyBudget(1.0))
    """

    def __init__(
        self,
        parts: str | PathLike[str] | Iterable[str | PathLike[str] | Part] | Any,
        *,
        text_key: str | int = "text",
        label_key: str | int = "label",
        label: str | None = None,
        workers: int | None = None,
        batch_size: int = 20_000,
    ) -> None:
        self._read = functools.partial(PrivateRecords, text_key=text_key, label_key=label_key, label=label)
        self._read()  # it checks the keys
        self._workers = validate.integer("workers", processors() if workers is None else workers, at_least=1)
        self._batch_size = validate.integer("batch_size", batch_size, at_least=1)
        self._dataset = parts if hasattr(parts, "map_batches") else None
        self._parts = [] if self._dataset is not None else list(_divided(parts, self._batch_size))
        if self._dataset is None and not self._parts:
            raise InvalidParameter("Expected at least one part with records. Give paths, or functions that read rows.")

    def read_by(self, read: Callable[[Any], PrivateRecords], labels: Sequence[str] | None) -> CheckedShards:
        """Read all parts once: check, count and digest the records. InvalidParameter names the part."""
        scans = list(self.map(functools.partial(_scan, labels=labels), read))
        count = sum(records for records, _ in scans)
        if not count:
            raise InvalidParameter("Expected at least one record in the parts. Look into the files.")
        digest = sum(digest for _, digest in scans) % 2**256
        return CheckedShards(self, read, count, digest.to_bytes(32, "big"))

    def labelled(self, labels: Sequence[str]) -> CheckedShards:
        """Read labelled records."""
        return self.read_by(self._read, labels)

    def map(self, step: Step[T], read: Callable[[Any], PrivateRecords]) -> Iterator[T]:
        """Yield the results of an importable step over all records, each part's once, in no order.

        Raises:
            ModelUnavailable: The workers died again and again.
        """
        if self._dataset is not None:
            yield from _on_ray(self._dataset, step, read, self._workers, self._batch_size)
            return
        work = functools.partial(_results, step, read, self._batch_size)
        numbered = list(enumerate(self._parts))
        if self._workers == 1:
            for part in numbered:
                yield from run_redacted(work, PrivateArgs(part), READING)
            return
        for results in _in_processes(work, numbered, self._workers):
            yield from results

    def __repr__(self) -> str:
        parts = f"<{len(self._parts)} parts>" if self._dataset is None else "<on Ray>"
        return f"RecordShards({parts}, workers={self._workers})"


class CheckedShards:
    """Parts that were read once. ``count`` (under add/remove) and ``digest`` are private."""

    user_key = None

    def __init__(self, shards: RecordShards, read: Callable[[Any], PrivateRecords], count: int, digest: bytes) -> None:
        self._shards, self._of_rows = shards, read
        self._count, self.digest = count, digest

    def count_users(self) -> int:
        return self._count

    def unit_notes(self) -> tuple[str, ...]:
        return ()

    def total(self, step: Step[Any]) -> Any:
        return sum(self._shards.map(step, self._of_rows))

    def __repr__(self) -> str:
        return "CheckedShards(<private>)"


def _divided(parts: Any, batch_size: int) -> Iterator[Part]:
    if hasattr(parts, "select") and hasattr(parts, "column_names"):  # a dataset of Hugging Face
        for start in range(0, len(parts), batch_size):
            yield functools.partial(rows_of, parts.select(range(start, min(start + batch_size, len(parts)))))
        return
    given = [parts] if isinstance(parts, (str, PathLike)) or callable(parts) else parts
    if not isinstance(given, Iterable):
        raise InvalidParameter(
            f"Expected parts of type {type(parts).__name__} to be paths, functions that read rows, or a dataset of Ray "
            "or Hugging Face. Give e.g. ['june.jsonl', 'july.jsonl']."
        )
    for part in given:
        if isinstance(part, (str, PathLike)):
            path = Path(part).absolute()  # workers may stand in another folder
            if path.suffix.lower() in (".jsonl", ".ndjson"):
                yield from (functools.partial(read_span, path, *span) for span in _spans(path))
            else:
                yield functools.partial(read_file, path)
        elif callable(part):
            yield part
        else:
            raise InvalidParameter(
                f"Expected each part to be a path or a function that reads rows, not of type {type(part).__name__}. "
                "Records in memory need no RecordShards."
            )


def _spans(path: Path) -> Iterator[tuple[int, int]]:
    size, start = path.stat().st_size, 0
    with path.open("rb") as lines:
        while start < size:
            lines.seek(min(start + _PART_BYTES, size))
            lines.readline()
            yield start, lines.tell()
            start = lines.tell()


def _scan(records: PrivateRecords, labels: Sequence[str] | None) -> tuple[int, int]:
    """Return the number of records, and their digest."""
    check_records(records, labels, ["text"])
    digest = 0
    for name in records.ids():
        row = records.get(name)
        text = json.dumps([row["text"], row["label"]]).encode()
        digest += int.from_bytes(hashlib.sha256(text).digest(), "big")
    return len(records), digest % 2**256


def _results(step: Step[T], read: Callable[[Any], PrivateRecords], batch_size: int, part: tuple[int, Part]) -> list[T]:
    number, rows = part
    results: list[T] = []
    try:
        source = iter(rows())
        while batch := list(itertools.islice(source, batch_size)):
            results.append(step(read(batch)))
    except InvalidParameter as error:
        raise InvalidParameter(f"In part {number} of the records: {error}") from None
    return results


def _in_processes(work: Callable[[Any], T], parts: Sequence[Any], workers: int) -> Iterator[T]:
    try:
        pickled, tasks = pickle.dumps(work), [pickle.dumps(part) for part in parts]
    except Exception as error:
        problem = type(error).__name__
    else:
        yield from _handed_out(pickled, dict(enumerate(tasks)), workers)
        return
    raise InvalidParameter(
        f"Expected the encoder and the functions to go to other processes, but pickle said {problem}. Give functions "
        "of a module that workers can import, or workers=1."
    )


def _handed_out(pickled: bytes, left: dict[int, bytes], workers: int) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")  # threads and connections of this process are not for workers
    deaths = 0
    while left:
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_open, initargs=(pickled,))
        try:
            waiting = {pool.submit(_work, part): place for place, part in left.items()}
            for future in concurrent.futures.as_completed(waiting):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    continue
                del left[waiting[future]]
                deaths = 0
                yield result
        except BrokenProcessPool:  # at once, while parts were handed out
            pass
        finally:
            pool.shutdown(cancel_futures=True)
        deaths += bool(left)
        if deaths > _RESTARTS:
            raise ModelUnavailable(
                f"The worker processes died {deaths} times in a row. A script needs if __name__ == '__main__': around "
                "the call. Where memory runs short, lower workers= or batch_size=."
            )


_task: Callable[[Any], Any] | None = None


def _open(pickled: bytes) -> None:
    global _task  # set by a pool's initializer for its tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the first process ends the rest
    for threads in _THREADS:  # as many threads in every worker as there are processors are slower
        os.environ.setdefault(threads, "1")
    _task = pickle.loads(pickled)  # noqa: S301  # made by the process that started this one


def _work(part: bytes) -> Any:
    assert _task is not None
    return run_redacted(_task, PrivateArgs(pickle.loads(part)), READING)  # noqa: S301  # made by that process, too


def _on_ray(
    dataset: Any, step: Step[T], read: Callable[[Any], PrivateRecords], workers: int, batch_size: int
) -> Iterator[T]:
    ray = importlib.import_module("ray.data")
    # Tasks, not actors, which would keep the processors that reading needs.
    rows = dataset.map_batches(
        functools.partial(_result, step, read),
        compute=ray.TaskPoolStrategy(size=workers),
        batch_size=batch_size,
        batch_format="pyarrow",
        num_cpus=1,
    )
    try:
        found = [pickle.loads(row["result"]) for row in rows.iter_rows()]  # noqa: S301  # made by our own workers
    except Exception as error:
        name = type(error).__name__
    else:
        for result in found:
            if isinstance(result, Exception):
                raise result
            yield result
        return
    raise ModelUnavailable(f"Ray failed with {name}, text withheld. Look into the memory of the workers.")


def _result(step: Step[Any], read: Callable[[Any], PrivateRecords], batch: Any) -> dict[str, list[bytes]]:
    """Return a result, or its error without text: Ray logs errors."""
    result: Any
    try:
        result = run_redacted(lambda held: step(read(held)), PrivateArgs(batch), READING)
    except Exception as error:
        result = error
    return {"result": [pickle.dumps(result)]}
