"""Pseudonyms for columns of batches in many workers. NOT formal privacy."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from langchain_dp._util.columns import B, Columns, WorksOnBatches, column_names
from langchain_dp._util.reprs import safe_repr
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.pseudonyms.keeping import Conversation, cipher_of
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer
from langchain_dp.redact import redact_errors


class PseudonymizeBatches(WorksOnBatches[tuple[Pseudonymizer, Any]]):
    """Replaces entities in columns of a batch, like :class:`Pseudonymizer`, in any worker. NOT formal privacy.

    A row is a conversation: its columns share placeholders. A repeated batch gives the same texts, except for encrypted
    maps.

    Args:
        build: Builds the pseudonymizer in each worker: no pickle holds its terms.
        columns: Names of the columns with texts, or nothing (None, NaN).
        keep_columns: Names of columns that pass in clear. Others are dropped.
        map_column: Name of a new column with each row's encrypted map, for :meth:`restore`.
        key: Function that reads the key of the maps, as from ``Fernet.generate_key``.

    Raises:
        InvalidParameter: ``build()`` is no Pseudonymizer without ``remaining_text_sanitizer=``, or names contradict.
        MissingExtra: cryptography is not installed.

    Formal guarantee:
        None. ``certificate().private`` is False.

    Examples:
        >>> pseudonymize = PseudonymizeBatches(lambda: Pseudonymizer(terms=["Ann Smith"]), "text", keep_columns=["id"])
        >>> pseudonymize({"id": [7], "text": ["Ann Smith has ann@example.org."]})
        {'id': [7], 'text': ['<TERM_1> has <EMAIL_1>.']}
    """

    def __init__(
        self,
        build: Callable[[], Pseudonymizer],
        columns: str | Sequence[str],
        *,
        keep_columns: Sequence[str] = (),
        map_column: str | None = None,
        key: Callable[[], str | bytes] | None = None,
    ) -> None:
        self._columns, self._kept = column_names(columns, keep_columns)
        self._map = map_column
        both = set(self._columns) & set(self._kept)
        if both:
            raise InvalidParameter(
                f"Expected no column in columns= and in keep_columns=, where it passes in clear, found {sorted(both)}."
            )
        new = map_column is None or (isinstance(map_column, str) and map_column)
        if not new or map_column in (*self._columns, *self._kept):
            raise InvalidParameter(f"Expected map_column={map_column!r} to be the name of a new column.")
        if not callable(build):
            raise InvalidParameter(
                f"Expected build of type {type(build).__name__} to be a function that makes the Pseudonymizer in each "
                "worker, without arguments: its terms would be pickled with every batch."
            )
        if (map_column is None) != (key is None) or not (key is None or callable(key)):
            raise InvalidParameter(
                "Expected key= and map_column= together, key= a function that reads the key: a key would be pickled "
                "with every batch."
            )
        self._build, self._key = build, key
        super().__init__(self._built())

    @redact_errors()
    def __call__(self, batch: B) -> B:
        """Hide one batch's entities. InvalidParameter: A column is missing or holds no texts."""
        columns = Columns(batch)
        columns.check_only(self._kept)
        pseudonymizer, cipher = self._open()
        new: dict[str, list[str | None]] = {name: [] for name in self._columns}
        maps: list[str | None] = []
        for texts in zip(*(columns.texts(name) for name in self._columns), strict=True):
            row = Conversation(secrets.token_hex(8), pseudonymizer.new_conversation(), cipher)
            for name, text in zip(self._columns, texts, strict=True):
                new[name].append(None if text is None else row.pseudonymizer.sanitize(text))
            maps.append(row.news([])[0])
        hidden = columns.with_only(new, self._kept)
        if self._map is None:
            return hidden  # type: ignore[no-any-return]  # its type
        kept = [*self._columns, *self._kept]
        return Columns(hidden).with_new(self._map, maps, like=self._columns[0], kept=kept)  # type: ignore[no-any-return]

    @redact_errors()
    def restore(self, batch: B) -> B:
        """Replace the placeholders of each row, and drop the maps.

        Raises:
            InvalidParameter: There is no ``map_column``, or the batch lacks it.
            PrivateDataError: A map was made under another key, or changed.
        """
        if self._map is None:
            raise InvalidParameter("Expected map_column= to be given: without, nobody knows what was hidden.")
        columns = Columns(batch)
        pseudonymizer, cipher = self._open()
        new: dict[str, list[str | None]] = {name: [] for name in self._columns}
        maps = columns.texts(self._map)
        for part, *texts in zip(maps, *(columns.texts(name) for name in self._columns), strict=True):
            row = Conversation((part or "").partition(".")[0], pseudonymizer.new_conversation(), cipher)
            row.learn([part or ""])
            for name, text in zip(self._columns, texts, strict=True):
                new[name].append(None if text is None else row.pseudonymizer.restore(text))
        return columns.with_only(new, self._kept)  # type: ignore[no-any-return]  # its type

    def certificate(self) -> MetricCertificate:
        """Certify that nothing is promised."""
        return self._open()[0].certificate()

    def _built(self) -> tuple[Pseudonymizer, Any]:
        pseudonymizer = self._build()
        if not isinstance(pseudonymizer, Pseudonymizer) or pseudonymizer.sanitizes_the_rest:
            raise InvalidParameter(
                f"Expected build() of type {type(pseudonymizer).__name__} to be a Pseudonymizer without "
                "remaining_text_sanitizer=, which would draw other words for a repeated batch. Put SanitizeBatches "
                "after it."
            )
        return pseudonymizer, None if self._key is None else cipher_of(self._key())

    @safe_repr
    def __repr__(self) -> str:
        return f"PseudonymizeBatches({list(self._columns)}, NOT PRIVATE: no epsilon)"
