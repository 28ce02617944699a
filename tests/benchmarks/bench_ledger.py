"""Spends a second of a ledger, in a file and in PostgreSQL, and what a long history costs. Run by ``make bench``.

- spends: one writer, 16 and 64 without a pause, as threads of several processes and as processes of one thread, and 16
  that pay for 100 at a time; the slowest spend against the median, too;
- fairness: 64 writers (8 processes of 8 threads) beside two processes that keep the processors busy, against one writer
  beside the same two;
- history: one process on a ledger of 1,000 entries and on one of many, each filled by SQL through the ledger's schema.

Both stores lie in one folder, on the same disk, and take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
from made import keep, made

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes.postgres import NoServer, Server

BUDGET = PrivacyBudget(3.0, 1e-5)
PAST, VOTE = NoisyMaxEvent(1e8), NoisyMaxEvent(2e8)
MOST = 10**7
FEW = 1_000
PREPAID = 100
WRITERS = ((1, 1), (2, 8), (16, 1), (8, 8))
"""Processes, and threads of each."""


def new(place: str) -> None:
    """A ledger with one plan of more releases than any run makes."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(PAST, MOST), (VOTE, MOST)], name="p", epsilon=2.9)


def writers(place: str, processes: int, threads: int, seconds: float, prepay_block: int | None = None) -> list[float]:
    """Seconds that each spend took, of all processes together."""
    gate_read, gate_write = os.pipe()
    pipes = []
    for _ in range(processes):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _write(place, threads, seconds, prepay_block, gate_read, write)
            os._exit(0)
        os.close(write)
        pipes.append((pid, read))
    for _, read in pipes:
        assert os.read(read, 1) == b"r", "a writer could not open the ledger"
    os.write(gate_write, b"." * processes)
    taken: list[float] = []
    for pid, read in pipes:
        with os.fdopen(read) as pipe:
            taken += map(float, pipe.read().split())
        os.waitpid(pid, 0)
    os.close(gate_read)
    os.close(gate_write)
    return taken


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that do nothing but keep a processor busy."""
    spinning = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while os.getppid() != 1:  # it ends with the benchmark
                pass
            os._exit(0)
        spinning.append(pid)
    try:
        yield
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _write(place: str, threads: int, seconds: float, prepay_block: int | None, gate: int, told: int) -> None:
    plan = PrivacyLedger(BUDGET, place, prepay_block=prepay_block).plan("p")
    assert plan is not None
    plan.spend(VOTE)
    os.write(told, b"r")
    os.read(gate, 1)
    end = time.perf_counter() + seconds

    def run(_: int) -> list[float]:
        taken = []
        while (began := time.perf_counter()) < end:
            plan.spend(VOTE)
            taken.append(time.perf_counter() - began)
        return taken

    with os.fdopen(told, "w") as pipe, ThreadPoolExecutor(threads) as pool:
        pipe.write(" ".join(f"{each:.7f}" for taken in pool.map(run, range(threads)) for each in taken))


def fill(place: str, count: int) -> None:
    """Write a history of ``count`` entries, with the counts and the kept sum that belong to it."""
    made_up = "'2026-01-01T00:00:00.000000+00:00', 1, 1, 'filled'"
    if "://" not in place:
        with contextlib.closing(sqlite3.connect(place)) as file, file:
            file.execute("PRAGMA synchronous = OFF")
            file.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                f"INSERT INTO entries (time, item, count, caller) SELECT {made_up} FROM n",  # a constant
                (count,),
            )
            file.execute("UPDATE items SET used = ? WHERE item = 1", (count,))
            file.execute("INSERT INTO checked (item, total, entry) VALUES (1, ?, ?)", (count, count))
        return
    from langchain_dp.accounting.store.postgres import Place

    with contextlib.closing(Place(place).connect(30)) as raw, raw.transaction():
        raw.execute(f"SET search_path = {Place(place).schema}")
        raw.execute("SET session_replication_role = replica")  # or a trigger would count each of them
        raw.execute(
            f"INSERT INTO entries (id, time, item, count, caller) SELECT i, {made_up} "  # a constant
            f"FROM generate_series(1, {count}) AS i"
        )
        raw.execute(f"UPDATE store SET newest = {count}")  # a number
        raw.execute(f"UPDATE items SET used = {count} WHERE item = 1")  # a number
        raw.execute(f"INSERT INTO checked (item, total, entry) VALUES (1, {count}, {count})")  # a number
        raw.execute("ANALYZE entries")  # as a server does by itself while entries come in


def history(places: dict[str, str], seconds: float) -> dict[str, tuple[float, float]]:
    """For each place: how often it opens a second, and the median seconds of a spend. They take turns."""
    opened, taken = {}, {name: [] for name in places}  # type: ignore[var-annotated]  # floats
    with contextlib.ExitStack() as stack:
        plans = {}
        for name, place in places.items():
            began = time.perf_counter()
            plan = stack.enter_context(PrivacyLedger(BUDGET, place)).plan("p")
            opened[name] = time.perf_counter() - began
            assert plan is not None
            plans[name] = plan
        end = time.perf_counter() + seconds * len(plans)
        while time.perf_counter() < end:
            for name, plan in plans.items():
                began = time.perf_counter()
                plan.spend(VOTE)
                taken[name].append(time.perf_counter() - began)
    return {name: (opened[name], statistics.median(taken[name])) for name in places}


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Places for three ledgers of each kind."""
    found = {"file": [str(folder / f"{number}.ledger") for number in range(3)]}
    server = None
    try:
        with contextlib.suppress(NoServer):
            server = Server(on_disk=True)
            found["postgres"] = [server.fresh(folder) for _ in range(3)]
        yield found
    finally:
        if server is not None:
            server.close()


def main() -> None:
    """Print figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--fair-seconds", type=float, default=60.0, help="length of the measurement of fairness")
    parser.add_argument("--entries", type=int, default=10_000_000, help="length of the long history")
    parser.add_argument("--out", type=Path, help="results file to append the figures to")
    options = parser.parse_args()
    made()
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    try:
        with stores(folder) as found:
            for places in found.values():
                new(places[0])
            first = {name: places[0] for name, places in found.items()}
            _spends(first, options)
            _fairness(first, options)
            for name, places in found.items():
                _history(name, places[1], places[2], options)
    finally:
        shutil.rmtree(folder)


def _spends(places: dict[str, str], options: argparse.Namespace) -> None:
    base: dict[str, float] = {}
    for processes, threads, prepay_block in [*((*shape, None) for shape in WRITERS), (2, 8, PREPAID)]:
        for store, place in places.items():
            taken = writers(place, processes, threads, options.seconds, prepay_block)
            rate = len(taken) / options.seconds
            paid = "" if prepay_block is None else f", {prepay_block} paid for at a time"
            settings = {
                "store": store, "processes": processes, "threads": threads, "prepaid": prepay_block,
                "seconds": options.seconds,
            }  # fmt: skip
            _say(f"{store}, {processes} x {threads} writers{paid}", taken, rate, base.setdefault(store, rate))
            figures = {"spends a second": rate, "median": statistics.median(taken), "slowest": max(taken)}
            keep(options.out, "ledger spends", settings, figures)


def _say(what: str, taken: list[float], rate: float, one: float) -> None:
    median, slowest = statistics.median(taken), max(taken)
    print(
        f"{what}: {rate:,.0f} spends a second ({rate / one:.2f} of one writer's), the slowest spend takes "
        f"{slowest / median:.1f} times the median ({slowest:.2f} s, {median * 1000:.1f} ms)",
        flush=True,
    )


def _fairness(places: dict[str, str], options: argparse.Namespace) -> None:
    for store, place in places.items():
        with busy_processes(2):
            alone = len(writers(place, 1, 1, options.seconds)) / options.seconds
            taken = writers(place, 8, 8, options.fair_seconds)
        rate, median, slowest = len(taken) / options.fair_seconds, statistics.median(taken), max(taken)
        _say(f"{store}, 8 x 8 writers beside two busy processes", taken, rate, alone)
        settings = {"store": store, "processes": 8, "threads": 8, "busy": 2, "seconds": options.fair_seconds}
        figures = {"spends a second": rate, "of one": rate / alone, "median": median, "slowest": slowest}
        keep(options.out, "ledger fairness", settings, figures)


def _history(store: str, short: str, long: str, options: argparse.Namespace) -> None:
    for place, count in ((short, FEW), (long, options.entries)):
        new(place)
        fill(place, count)
    few, many = history({"few": short, "many": long}, options.seconds).values()
    print(
        f"{store}, {options.entries:,} entries against {FEW:,}: a spend takes {many[1] / few[1]:.2f} times as long, "
        f"opening {many[0]:.1f} s against {few[0]:.2f} s",
        flush=True,
    )
    figures = {"spend": few[1], "spend after many": many[1], "open": few[0], "open after many": many[0]}
    keep(options.out, "ledger history", {"store": store, "few": FEW, "entries": options.entries}, figures)


if __name__ == "__main__":
    try:
        main()
    except psycopg.Error as error:
        sys.exit(f"PostgreSQL: {error}")
