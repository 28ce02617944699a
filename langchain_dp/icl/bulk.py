"""Labels for columns of batches in many workers: each builds its own replica of one chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_dp._util.columns import B, Columns, WorksOnBatches, column_names
from langchain_dp._util.reprs import safe_repr
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.runnable import DPICLClassifier
from langchain_dp.redact import redact_errors


class ClassifyBatches(WorksOnBatches[DPICLClassifier[Any]]):
    """Labels the rows of a batch by DP-ICL, wherever the batch is worked on.

    For ``ray.data.Dataset.map_batches``, ``datasets.Dataset.map(batched=True)`` and, by :meth:`in_pandas`, Spark's
    ``mapInPandas``. A batch is a mapping of columns (lists, numpy arrays, Arrow arrays), an Arrow table or a pandas
    frame; the same type comes back, with the names of the labels in a column of their own. Other columns are dropped
    unless they are kept.

    It is pickled without its chain: each worker builds one, with ``replicas=True``, and all of them charge one plan. A
    question is charged, drawn, stored and returned, in that order. So a batch that is worked on again, after a worker
    died or was too slow, gets the labels of the first release and costs nothing. Only what died between its charge and
    its store is charged twice. Rows need no key for that: equal questions are one release, in all batches.

    Args:
        chain: Builds the classifier, without arguments, in each worker: a function that reads the examples from where
            they lie. What it carries is pickled with it, so let it carry none.
        columns: Name of the column with the question; or names of several, which are variables of the template.
        label: Name of the new column.
        keep_columns: Names of columns that pass in clear.

    Raises:
        InvalidParameter: The chain is no ``DPICLClassifier`` with ``replicas=True``, which a ledger in memory cannot
            have, or has ``quotas``; or names contradict each other.

    Formal guarantee:
        That of :class:`DPICLClassifier`, over all workers and retries: all labels together are (epsilon, delta)-
        differentially private in the examples. The rows are not protected: they are the questions.

    Examples:
        >>> def chain():
        ...     ledger = PrivacyLedger(PrivacyBudget(3.0, 1e-5), "labels.ledger")
        ...     return DPICLClassifier(model=model(), examples=read(), labels=LABELS, ledger=ledger, replicas=True)
        >>> classify = ClassifyBatches(chain, "text", keep_columns=["id"])
        >>> classify({"id": [7], "text": ["The nurse was kind."]})
        {'id': [7], 'label': ['praise']}
    """

    def __init__(
        self,
        chain: Callable[[], DPICLClassifier[Any]],
        columns: str | Sequence[str],
        *,
        label: str = "label",
        keep_columns: Sequence[str] = (),
    ) -> None:
        self._columns, self._kept = column_names(columns, keep_columns)
        self._named = not isinstance(columns, str)
        self._label = label
        if not isinstance(label, str) or not label or label in self._kept:
            raise InvalidParameter(
                f"Expected label={label!r} to be the name of a column, and of none that is kept. Give it another name."
            )
        if not callable(chain):
            raise InvalidParameter(
                f"Expected chain of type {type(chain).__name__} to be a function that builds the DPICLClassifier in "
                "each worker, without arguments: a chain itself cannot be sent to one."
            )
        self._build = chain
        super().__init__(self._built())

    @redact_errors()
    def __call__(self, batch: B) -> B:
        """Label one batch; every question in it is checked before the first is charged.

        Args:
            batch: Columns of equal length. It is not changed.

        Returns:
            The columns to keep, in the batch's order, and the labels, in its type. A row without a question, or with a
            blank one, has none.

        Raises:
            InvalidParameter: A column is not there or holds something else than texts, or a question is too long, by
                its row. Nothing was charged.
            BudgetExceeded: The plan is used up. What was released of this batch is stored: it costs nothing again.
            ModelUnavailable: The model does not answer; see :class:`DPICLClassifier`.
            LedgerError: The ledger cannot be trusted or written.
        """
        columns = Columns(batch)
        columns.check_there(self._kept)
        rows = list(zip(*(columns.texts(name) for name in self._columns), strict=True))
        chain = self._open()
        asked: dict[tuple[str | None, ...], Any] = {
            row: dict(zip(self._columns, row, strict=True)) if self._named else row[0]
            for row in rows
            if None not in row and any(text.strip() for text in row if text)
        }
        for row, question in asked.items():
            try:
                chain._checked_question(question)
            except InvalidParameter as refused:
                raise InvalidParameter(f"Row {rows.index(row)} of a batch: {refused}") from None
        names = {given: name for name, given in chain._given.items()}
        labels = dict(zip(asked, (names[answer] for answer in chain.batch(list(asked.values()))), strict=True))
        new = [labels.get(row) for row in rows]
        return columns.with_new(self._label, new, like=self._columns[0], kept=self._kept)  # type: ignore[no-any-return]  # its type

    def certificate(self) -> PrivacyCertificate:
        """The promise, with what all workers have spent so far."""
        return self._open().certificate()

    def _built(self) -> DPICLClassifier[Any]:
        chain = self._build()
        if not isinstance(chain, DPICLClassifier) or chain._replicas is None:
            raise InvalidParameter(
                f"Expected chain() of type {type(chain).__name__} to be a DPICLClassifier with replicas=True: without, "
                "a retried batch would be charged and drawn anew. Give it a ledger with a path or a postgresql:// URL."
            )
        if chain.quotas is not None:
            raise InvalidParameter("Expected chain() without quotas=: a batch does not say who asks. Leave them out.")
        return chain

    @safe_repr
    def __repr__(self) -> str:
        return f"ClassifyBatches({list(self._columns)}, label={self._label!r})"
