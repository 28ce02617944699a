"""Spends a second of a ledger, in a file and in PostgreSQL, and what a long history costs. Run by ``make bench``.

- spends: 1, 16 and 64 processes without a pause, and 16 that pay for 100 at a time; the slowest of a hundred, too;
- fairness: 16 processes beside two that keep the processors busy, against one alone beside the same two;
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
WRITERS = (1, 16, 64)


def new(place: str) -> None:
    """A ledger with one plan of more releases than any run makes."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(PAST, MOST), (VOTE, MOST)], name="p", epsilon=2.9)


def writers(place: str, count: int, seconds: float, prepay_block: int | None = None) -> list[float]:
    """Seconds that each spend took, of all processes together."""
    gate_read, gate_write = os.pipe()
    pipes = []
    for _ in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _write(place, seconds, prepay_block, gate_read, write)
            os._exit(0)
        os.close(write)
        pipes.append((pid, read))
    for _, read in pipes:
        assert os.read(read, 1) == b"r", "a writer could not open the ledger"
    os.write(gate_write, b"." * count)
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


def _write(place: str, seconds: float, prepay_block: int | None, gate: int, told: int) -> None:
    plan = PrivacyLedger(BUDGET, place, prepay_block=prepay_block).plan("p")
    assert plan is not None
    plan.spend(VOTE)
    os.write(told, b"r")
    os.read(gate, 1)
    taken = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        plan.spend(VOTE)
        taken.append(time.perf_counter() - began)
    with os.fdopen(told, "w") as pipe:
        pipe.write(" ".join(f"{each:.7f}" for each in taken))


def fill(place: str, count: int) -> None:
    """Write a history of ``count`` entries, with the counts that belong to it."""
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
    parser.add_argument("--fair-seconds", type=float, default=20.0, help="length of the measurement of fairness")
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
    for count, prepay_block in [*((count, None) for count in WRITERS), (16, PREPAID)]:
        for store, place in places.items():
            taken = writers(place, count, options.seconds, prepay_block)
            rate, slowest = len(taken) / options.seconds, statistics.quantiles(taken, n=100)[98]
            one = base.setdefault(store, rate)
            paid = "" if prepay_block is None else f", {prepay_block} paid for at a time"
            print(
                f"{store}, {count} writers{paid}: {rate:,.0f} spends a second ({rate / one:.2f} of one writer's), "
                f"99 of 100 within {slowest * 1000:.1f} ms",
                flush=True,
            )
            settings = {"store": store, "writers": count, "prepaid": prepay_block, "seconds": options.seconds}
            keep(options.out, "ledger spends", settings, {"spends a second": rate, "p99": slowest})


def _fairness(places: dict[str, str], options: argparse.Namespace) -> None:
    for store, place in places.items():
        with busy_processes(2):
            alone = len(writers(place, 1, options.seconds)) / options.seconds
            taken = writers(place, 16, options.fair_seconds)
        rate, median, slowest = len(taken) / options.fair_seconds, statistics.median(taken), max(taken)
        print(
            f"{store}, 16 writers beside two busy processes: {rate:,.0f} spends a second ({rate / alone:.2f} of one "
            f"writer's beside them), the slowest spend takes {slowest / median:.1f} times the median "
            f"({slowest:.2f} s, {median * 1000:.1f} ms)",
            flush=True,
        )
        settings = {"store": store, "writers": 16, "busy": 2, "seconds": options.fair_seconds}
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
