"""A hand in the file of a ledger that knows its rules: off while it writes, on again afterwards."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any


def edited(path: Path, script: str, *values: Any) -> None:
    """Do what the file's own rules refuse. With values the script is one statement."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        rules = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in rules:
            connection.execute(f"DROP TRIGGER {name}")
        if values:
            connection.execute(script, values)
        else:
            connection.executescript(script)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for _, made in rules:
            if made.split(" ON ")[1].split()[0] in tables:
                connection.execute(made)
    finally:
        connection.close()
