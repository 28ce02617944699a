"""Processors, folders, loopback addresses and Ctrl-C."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


def processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cache_folder() -> Path:
    root = os.environ.get("LANGCHAIN_DP_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "langchain-dp"


def state_folder() -> Path | None:
    """None if $LANGCHAIN_DP_STATE is empty."""
    own = os.environ.get("LANGCHAIN_DP_STATE")
    root = own if own is not None else os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(root).expanduser() / "langchain-dp" if root else None


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    # None: Python could not restore a handler of C.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
