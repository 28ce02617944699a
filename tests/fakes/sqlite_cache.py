"""A LangChain cache in a SQLite file: what it stores can be read back as bytes on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.load import dumps, loads


class SQLiteCache(BaseCache):
    """One table of (prompt, model, answer)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS cache (prompt TEXT, model TEXT, answer TEXT)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        with self._open() as connection:
            rows = connection.execute(
                "SELECT answer FROM cache WHERE prompt = ? AND model = ?", (prompt, llm_string)
            ).fetchall()
        return [loads(row[0], allowed_objects="core") for row in rows] or None

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        with self._open() as connection:
            for generation in return_val:
                connection.execute("INSERT INTO cache VALUES (?, ?, ?)", (prompt, llm_string, dumps(generation)))

    def clear(self, **kwargs: Any) -> None:
        with self._open() as connection:
            connection.execute("DELETE FROM cache")

    def text(self) -> str:
        """Every byte of the file."""
        return self.path.read_bytes().decode("utf-8", "replace")
