"""For all tests: their coins, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy.random  # noqa: F401  # tosses coins when it is imported, which must be nobody's
import pytest
from fakes.coins import Coins
from fakes.tiny_gguf import TinyGGUF
from hypothesis import settings

SYSTEM = "system"


def pytest_addoption(parser: pytest.Parser) -> None:
    """A seed, or ``system``."""
    parser.addoption(
        "--coins",
        default="0",
        help=f"seed of the coins that tests toss in this process, or {SYSTEM!r}: those of the operating system",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard: a shell starts what it puts into the background with the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    monkeypatch.setattr("langchain_dp.quiet._sent_private", threading.Event())


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a model with some thousands of random weights, which llama.cpp evaluates in no time."""
    for needed in ("llama_cpp", "gguf", "torch", "transformers"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    return TinyGGUF(tmp_path_factory.mktemp("model"), length=2048).path
