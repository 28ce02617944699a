"""For all tests: what kind they are, their coins, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401  # tosses coins when it is imported, which must be nobody's
import pytest
from fakes.coins import Coins
from fakes.tiny_gguf import TinyGGUF
from hypothesis import settings

os.environ["LANGCHAIN_DP_STATE"] = ""  # tests charge one data set to many ledgers
SYSTEM = "system"
ROOT = Path(__file__).parent

KINDS = {
    "model": (
        "attacks/test_sentence_embeddings.py",
        "benchmarks/test_paper_attacks.py",
        "attacks/test_results.py",
        "cli/test_demo.py",
        "contracts",
        "integrations",
        "rapt_tuning",
    ),
    "notebook": ("test_cookbook.py",),
    "package": ("package_checks", "test_package.py"),
    "process": (
        "icl/test_bulk.py",
        "icl/test_replicas.py",
        "accounting/test_quotas.py",
        "aggregate/test_kept_releases.py",
        "accounting/test_group_commit.py",
        "accounting/test_ledger_crash.py",
        "accounting/test_ledger_forks.py",
        "accounting/test_ledger_mounts.py",
        "accounting/test_ledger_postgres.py",
        "accounting/test_ledger_poolers.py",
        "accounting/test_ledger_races.py",
        "accounting/test_metric_ledger_files.py",
        "accounting/test_prepaid.py",
        "opt/test_crash.py",
        "rapt/test_bulk_workers.py",
        "records/test_ray_shards.py",
        "records/test_shards.py",
    ),
    "statistical": ("audits",),
    "docs": (
        "docs",
        "benchmarks/test_scripts.py",
        "benchmarks/test_reproduce.py",
    ),
}
"""Folders and files by what their tests need: a model library or a model, a kernel, a build, other processes, many
draws, the built reference. What is in none of them is quick, and all that ``--fast`` runs."""


def kind_of(path: Path) -> str | None:
    """The kind of a test file; None for a quick one."""
    name = path.relative_to(ROOT).as_posix()
    return next((kind for kind, places in KINDS.items() for p in places if name == p or name.startswith(f"{p}/")), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests, and their seed, or ``system``."""
    parser.addoption("--fast", action="store_true", help="only quick tests, which need no model library")
    parser.addoption("--passed-to", type=Path, metavar="FILE", help="write the names of the tests that passed")
    parser.addoption("--without", type=Path, metavar="FILE", help="leave out the tests that such a file names")
    parser.addoption(
        "--kill-rounds", type=int, help="rounds of each test that kills at random; the moments are new ones"
    )
    parser.addoption(
        "--coins",
        default="0",
        help=f"seed of the coins that tests toss in this process, or {SYSTEM!r}: those of the operating system",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under ``--fast`` not even import what is not quick: its libraries may be absent."""
    if config.getoption("--fast") and collection_path.is_relative_to(ROOT) and kind_of(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their place, so that ``-m process`` runs a kind; under ``--fast`` leave out the slow ones."""
    for item in items:
        if kind := kind_of(item.path):
            item.add_marker(kind)
    if config.getoption("--fast"):
        slowest = set((ROOT / "slowest.txt").read_text(encoding="utf-8").splitlines())
        slow = {
            item
            for item in items
            if any(item.get_closest_marker(kind) for kind in KINDS)
            or item.nodeid.removeprefix("tests/").partition("[")[0] in slowest
        }
        _leave_out(config, items, slow)
    if passed := config.getoption("--without"):
        names = set(passed.read_text(encoding="utf-8").splitlines())
        _leave_out(config, items, {item for item in items if item.nodeid in names})


def _leave_out(config: pytest.Config, items: list[pytest.Item], some: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(some))
    items[:] = [item for item in items if item not in some]


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard: a shell starts what it puts into the background with the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--passed-to") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Passed(config.getoption("--passed-to")), "passed")
    seed = config.getoption("--coins")
    if seed == SYSTEM:
        return
    settings.register_profile("seeded", derandomize=True)
    settings.load_profile("seeded")
    coins, patches = Coins(seed), pytest.MonkeyPatch()
    # From here ``secrets``, ``random.SystemRandom`` and numpy's fresh generators draw.
    patches.setattr("random._urandom", coins.urandom)
    os.register_at_fork(after_in_child=coins.stop)
    config.add_cleanup(patches.undo)
    config.pluginmanager.register(_Seeding(coins), "coins")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which coins these are."""
    return f"coins: {config.getoption('--coins')}"


class _Passed:
    """Writes which tests passed, so that another run need not repeat them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        passed = report.passed and not hasattr(report, "wasxfail")
        self._names[report.nodeid] = passed and self._names.get(report.nodeid, True)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("".join(f"{name}\n" for name, passed in self._names.items() if passed), encoding="utf-8")


class _Seeding:
    def __init__(self, coins: Coins) -> None:
        self._coins = coins

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._coins.start(item.nodeid)
        try:
            return (yield)
        finally:
            self._coins.stop()


@pytest.fixture(autouse=True)
def _nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether private prompts have left this process is no other test's affair."""
    monkeypatch.setattr("langchain_dp.isolation.model._sent_private", threading.Event())


@pytest.fixture(autouse=True)
def _own_processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads of a model that share processors with another worker's tests take twice as long as one thread alone."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if not worker or not hasattr(os, "sched_setaffinity") or kind_of(request.path) not in ("model", "notebook", "docs"):
        yield
        return
    before = os.sched_getaffinity(0)
    mine = sorted(before)[int(worker.removeprefix("gw")) % len(before)]
    os.sched_setaffinity(0, {mine})  # a process that is started from here has it, too
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of this process of tests; skipped where there is none, but never in CI."""
    try:
        from fakes.postgres import NoServer, Server
    except ImportError:
        return _no_server("psycopg")
    try:
        server = Server()
    except NoServer:
        return _no_server("a PostgreSQL server")
    try:
        yield server
    finally:
        server.close()


def _no_server(what: str) -> None:
    said = f"{what} is not installed; the extra `check` brings it"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made that processes share: a file, or, by parameter, what ``on_both`` says."""
    if getattr(request, "param", "file") == "file":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("postgres").fresh(tmp_path))


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a model with some thousands of random weights, which llama.cpp evaluates in no time."""
    for needed in ("llama_cpp", "gguf", "torch", "transformers"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    return TinyGGUF(tmp_path_factory.mktemp("model"), length=2048).path
