"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C be heard: a shell starts what it puts into the background with the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
