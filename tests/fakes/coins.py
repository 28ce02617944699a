"""Coins that fall the same way in every run of a test."""

from __future__ import annotations

import os
import random


class Coins:
    """Stands in for the operating system's entropy in this process: a test that passed here passes everywhere.

    Hundreds of tests hold but for a stated chance. One in ten thousand each is one red run in twenty-five or so, which
    tells nothing about the change under test. So every test starts from a seed of its own name, whatever ran before it
    (a fixture that several share, from the first one's), and other seeds, or the operating system itself, are for those
    who look for a chance that is stated wrongly.

    Another process keeps the coins of its operating system: so does a fork, or two of them would toss the same ones.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random: random.Random | None = None

    def start(self, test: str) -> None:
        """Toss the coins of this test from now on."""
        self._random = random.Random(f"{self._seed} {test}")

    def stop(self) -> None:
        """Give the operating system its coins back."""
        self._random = None

    def urandom(self, size: int) -> bytes:
        """So many random bytes."""
        return os.urandom(size) if self._random is None else self._random.randbytes(size)
