"""The machine that this process runs on: its processors, its cache folder, its own addresses."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path


def processors() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where prepared files are kept: $LANGCHAIN_DP_CACHE, $XDG_CACHE_HOME or ~/.cache, then ``langchain-dp``."""
    root = os.environ.get("LANGCHAIN_DP_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "langchain-dp"


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
