"""Sanitizes columns of batches in many workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

from langchain_dp._util import validate
from langchain_dp._util.columns import B, Columns, WorksOnBatches, column_names
from langchain_dp._util.machine import cache_folder
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.privatize import Mechanism, Policies
from langchain_dp.rapt.release import COUNTED, FormalReleases, Texts, Unit
from langchain_dp.rapt.runnable import CalibrationTarget, WordOptions, targets_of, word_releases
from langchain_dp.redact import redact_errors


class SanitizeBatches(WorksOnBatches[FormalReleases]):
    """Replaces the words in columns of a batch, like :class:`RAPTSanitizer`, in any worker.

    For ``ray.data.Dataset.map_batches``, ``datasets.Dataset.map(batched=True, remove_columns=...)`` and, by
    :meth:`in_pandas`, Spark's ``mapInPandas``. A batch is a mapping of columns, an Arrow table or a pandas frame. A row
    is one release: it is charged, drawn, stored and returned, in that order. A repeated batch gets the first release,
    free. Only a crash between charge and store charges twice. ``eta``, ``target_replacement``, ``target``,
    ``mechanism``, ``policies``, ``keep``, ``length`` and ``name`` are as of :class:`RAPTSanitizer`.

    Args:
        columns: Names of the columns with texts or nothing (None, NaN).
        document: Name of the column with each row's document: texts, or whole numbers.
        ledger: Account with a path or ``postgresql://`` URL for every worker.
        user: Name of the column with the user, whose account is also charged.
        keep_columns: Names of columns that pass in clear. Others are dropped.
        embeddings: "glove", "minilm", or a path that every worker can read.
        threads: Threads of one worker.
        table_folder: Folder, writable by its owner alone, in which workers share the table.

    Raises:
        InvalidParameter: The ledger is in memory, or a value is invalid.
        PrivateDataError: The ledger has a key of its own.
        PlanError: The ledger is for another table.

    Formal guarantee:
        That of :class:`RAPTSanitizer`: one release of a row is eta-metric-private in its texts, and releases add up in
        the ledger, over all workers and retries. In clear are the number of rows, their order, blank texts, and which
        rows have equal texts, document and user.

    Examples:
        >>> ledger = MetricLedger(200.0, "letters.ledger")
        >>> sanitize = SanitizeBatches("text", document="id", ledger=ledger, target_replacement=0.5)
        >>> batch = {"id": [7], "text": ["Anna takes prednisone."], "ward": ["B"]}
        >>> released = sanitize(batch)
        >>> list(released)
        ['text']
        >>> sanitize(batch) == released  # as a retry does
        True
    """

    def __init__(
        self,
        columns: str | Sequence[str],
        *,
        document: str,
        ledger: MetricLedger,
        user: str | None = None,
        keep_columns: Sequence[str] = (),
        embeddings: str | os.PathLike[str] = "glove",
        eta: float | None = None,
        target_replacement: float | None = None,
        target: CalibrationTarget | None = None,
        mechanism: Mechanism = "exponential",
        policies: Policies | None = None,
        keep: Sequence[str] = (),
        length: int | None = None,
        threads: int = 1,
        table_folder: str | os.PathLike[str] | None = None,
        name: str = "SanitizeBatches",
    ) -> None:
        self._columns, self._kept = column_names(columns, keep_columns)
        self._document, self._user = document, user
        _check_roles(self._columns, self._kept, document, user)
        remedy = "Save words and vectors to a folder (words.txt, one .npy), which each worker opens."
        validate.instance("embeddings", embeddings, (str, os.PathLike), "a name, or a path for every worker", remedy)
        validate.instance("ledger", ledger, MetricLedger, "a MetricLedger", "Give MetricLedger(limit, path).")
        if ledger.path is None:
            raise InvalidParameter(
                "Expected a ledger that workers share, not one in memory: the copy of each worker would be a new "
                "budget. Give MetricLedger(limit, path) on one machine, or a postgresql:// URL instead of the path on "
                "several."
            )
        pickle.dumps(ledger)  # fails now for a ledger with a key of its own, not in the middle of a job
        self._ledger = ledger
        path = Path(embeddings)  # workers may stand in another folder
        self._embeddings = str(path.absolute()) if path.exists() else os.fspath(embeddings)
        target = target or CalibrationTarget()
        self._options = WordOptions(mechanism, policies, keep, length, None, threads, target.texts)
        self._folder = None if table_folder is None else str(Path(table_folder).absolute())
        self._name = name
        releases = self._opened(targets_of(eta, target_replacement, target))
        self._eta, self._settings = releases.engine.eta, releases.engine.settings
        super().__init__(releases)

    @redact_errors()
    def __call__(self, batch: B) -> B:
        """Sanitize one batch: all new rows are charged together, or none.

        Raises:
            InvalidParameter: A column is missing or holds no texts, a row has no document key, or a pandas frame has
                its own index.
            BudgetExceeded: An account has too little left. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written.
        """
        columns = Columns(batch)
        columns.check_only(self._kept)
        texts = [columns.texts(name) for name in self._columns]
        documents = columns.keys(self._document, "document")
        users = [None] * len(documents) if self._user is None else columns.keys(self._user, "user")
        units = [
            Unit(tuple(text for text in row if text is not None), user, document)
            for user, document, *row in zip(users, documents, *texts, strict=True)
        ]
        # A retry may cut its batches elsewhere, so the position of a row must not count.
        distinct = list(dict.fromkeys(units))
        released = dict(zip(distinct, self._open().release(distinct), strict=True))
        new: list[list[str | None]] = [[] for _ in self._columns]
        for row, unit in enumerate(units):
            words = iter(released[unit])
            for into, column in zip(new, texts, strict=True):
                into.append(None if column[row] is None else next(words))
        return columns.with_only(dict(zip(self._columns, new, strict=True)), self._kept)  # type: ignore[no-any-return]  # its type

    @redact_errors()
    def release(self, units: Sequence[Unit]) -> list[Texts]:
        """Sanitize units."""
        return self._open().release(units)

    def certificate(self) -> MetricCertificate:
        """Return the promise, with all workers' loss."""
        releases = self._open()
        kept = ", ".join(self._kept)
        return releases.certificate(
            (
                *(note for note in releases.notes() if note not in COUNTED),  # documents are named here
                "Rows with equal texts, document and user give equal texts. The number of rows, their order, and which "
                "texts are missing or blank are in clear.",
                *([f"Columns that pass in clear: {kept}."] if kept else []),
            ),
            {},
        )

    @property
    def ledger(self) -> MetricLedger:
        """The charged account."""
        return self._ledger

    def _built(self) -> FormalReleases:
        releases = self._opened({"eta": self._eta})
        if releases.engine.settings != self._settings:
            raise InvalidParameter(
                f"Expected the table {releases.engine.table} of this worker, and its version of langchain-dp, to be "
                "those where SanitizeBatches was made: a retry would not find what was released. Install the same on "
                "every worker."
            )
        return releases

    def _opened(self, targets: Mapping[str, float]) -> FormalReleases:
        releases = word_releases(
            self._embeddings, targets, self._options, ledger=self._ledger, limit=None, cache=True, name=self._name
        )
        releases.words.vocabulary.share(cache_folder() if self._folder is None else Path(self._folder))
        return releases

    @safe_repr
    def __repr__(self) -> str:
        return f"SanitizeBatches({list(self._columns)}, document={self._document!r}, eta={bound(self._eta)})"


def _check_roles(columns: tuple[str, ...], kept: tuple[str, ...], document: object, user: object) -> None:
    if not all(isinstance(name, str) and name for name in (document, *(() if user is None else (user,)))):
        raise InvalidParameter(f"Expected document={document!r} and user={user!r} to be names of columns.")
    clash = sorted({name for name in columns if name in (document, user, *kept)})
    if clash:
        raise InvalidParameter(
            f"Expected columns to name none that says whose a row is or passes in clear, found {clash}."
        )
