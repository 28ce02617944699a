"""The machine that this process runs on: its processors, its cache folder, its own addresses, and its Ctrl-C."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


def processors() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where prepared files are kept: $LANGCHAIN_DP_CACHE, $XDG_CACHE_HOME or ~/.cache, then ``langchain-dp``."""
    root = os.environ.get("LANGCHAIN_DP_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "langchain-dp"


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block, which may be in code that would swallow it."""
    # None: somebody has installed a handler of C, which could not be put back.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    met: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: met.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if met:
        raise KeyboardInterrupt


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
