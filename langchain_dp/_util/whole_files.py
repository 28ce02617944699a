"""Writes files atomically, also over crashes."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole(path: Path, *, owner_only: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file, renamed to ``path`` once it is on disk."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Expected a file, but this is a folder. Name a file in it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "Expected the folder to be there. Make it first", str(path.parent))
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600 if owner_only else 0o666)
        except OSError as problem:  # name the caller's path
            raise type(problem)(problem.errno, problem.strerror, str(path)) from None
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes | str, *, owner_only: bool = False) -> None:
    with whole(path, owner_only=owner_only) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: str | Path) -> None:
    """Make changed names survive a crash."""
    if os.name == "posix":  # elsewhere a folder cannot be synced
        sync(folder)


def sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_BINARY = getattr(os, "O_BINARY", 0)  # otherwise Windows converts line ends
