"""The coins of the tests themselves: the same in every run, other ones in every test and in every process."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable

import numpy.random as numpy_random
import pytest
from fakes.coins import Coins

WAYS: dict[str, Callable[[], object]] = {
    "bytes": lambda: secrets.token_bytes(16),
    "below": lambda: secrets.randbelow(2**64),
    "bits": lambda: secrets.randbits(64),
    "system": lambda: random.SystemRandom().random(),
    "numpy": lambda: numpy_random.default_rng().random(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_test_tosses_the_same_coins_in_every_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a chance of 1 in 10,000 in each of hundreds of tests turns a sound change red."""
    coins, draw = Coins("0"), WAYS[way]
    monkeypatch.setattr("random._urandom", coins.urandom)
    drawn = []
    for test in ("one", "one", "another"):
        coins.start(test)
        drawn.append(draw())
    assert drawn[0] == drawn[1] != drawn[2]
    coins.start("one")
    coins.stop()
    assert draw() != drawn[0]


def test_another_seed_tosses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, who looks for chances that are stated wrongly sees the same run again and again."""
    drawn = []
    for seed in ("0", "1"):
        coins = Coins(seed)
        coins.start("one")
        drawn.append(coins.urandom(16))
    assert drawn[0] != drawn[1]


def test_this_run_is_seeded_and_a_fork_is_not(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    """If it breaks, the coins are left where they were, or two processes of a test toss the same ones."""
    if pytestconfig.getoption("--coins") == "system":
        pytest.skip("the operating system's coins were asked for")
    mine = Coins(pytestconfig.getoption("--coins"))
    mine.start(request.node.nodeid)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, secrets.token_bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    forked = os.read(reader, 16)
    assert secrets.token_bytes(16) == mine.urandom(16) != forked
