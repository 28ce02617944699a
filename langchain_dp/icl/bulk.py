"""Labels for columns of batches in many workers."""

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
    """A function that labels the rows of a batch by DP-ICL, in any worker.

    For ``ray.data.Dataset.map_batches``, ``datasets.Dataset.map(batched=True)`` and, by :meth:`in_pandas`, Spark's
    ``mapInPandas``. A batch is a mapping of columns, an Arrow table or a pandas frame, and so is the result.

    Each worker builds its own chain, and all workers charge one plan. A retried batch gets stored labels free. Only a
    question whose worker failed between charge and store is charged twice.

    Args:
        chain: A function that builds the classifier and reads the examples in each worker. It is pickled, so its
            closure should hold no examples.
        columns: Column of the question, or columns named like the template's variables.
        label: Name of the new column.
        keep_columns: Columns that pass in clear. Others are dropped.

    Raises:
        InvalidParameter: ``chain`` does not build a ``DPICLClassifier`` with ``replicas=True`` and without ``quotas``,
            or names contradict each other.

    Formal guarantee:
        All labels together, over all workers and retries, are (epsilon, delta)-differentially private in the examples,
        as for :class:`DPICLClassifier`. The rows are questions and are not protected.

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
        self._columns, self._keep_columns = column_names(columns, keep_columns)
        self._named = not isinstance(columns, str)
        self._label = label
        if not isinstance(label, str) or not label or label in self._keep_columns:
            raise InvalidParameter(
                f"Expected label={label!r} to be the name of a column, and of none that is kept. Give it another name."
            )
        if not callable(chain):
            raise InvalidParameter(
                f"Expected chain of type {type(chain).__name__} to be a function that builds the DPICLClassifier in "
                "each worker, without arguments: a chain itself cannot be pickled."
            )
        self._build = chain
        super().__init__(self._built())

    @redact_errors()
    def __call__(self, batch: B) -> B:
        """Label one batch, in its type and order. A row without a question gets None.

        Raises:
            InvalidParameter: A column is missing, or a question is invalid. Nothing was charged.
            BudgetExceeded: The plan is used up. Released labels are free on a retry.
            ModelUnavailable: The model does not answer.
            LedgerError: The ledger cannot be trusted or written.
        """
        columns = Columns(batch)
        columns.check_there(self._keep_columns)
        rows = list(zip(*(columns.texts(name) for name in self._columns), strict=True))
        chain = self._open()
        questions: dict[tuple[str | None, ...], Any] = {
            row: dict(zip(self._columns, row, strict=True)) if self._named else row[0]
            for row in rows
            if None not in row and any(text.strip() for text in row if text)
        }
        for row, question in questions.items():
            try:
                chain._checked_question(question)
            except InvalidParameter as error:
                raise InvalidParameter(f"Row {rows.index(row)} of a batch: {error}") from None
        names = {label: name for name, label in chain._labels_by_name.items()}
        answers = chain.batch(list(questions.values()))
        labels = {row: names[answer] for row, answer in zip(questions, answers, strict=True)}
        new = [labels.get(row) for row in rows]
        return columns.with_new(self._label, new, like=self._columns[0], kept=self._keep_columns)  # type: ignore[no-any-return]  # its type

    def certificate(self) -> PrivacyCertificate:
        """Return the promise, with the loss of all workers so far."""
        return self._open().certificate()

    def _built(self) -> DPICLClassifier[Any]:
        chain = self._build()
        if not isinstance(chain, DPICLClassifier) or chain._replicas is None:
            raise InvalidParameter(
                f"Expected chain() of type {type(chain).__name__} to be a DPICLClassifier with replicas=True: without, "
                "a retried batch would be charged again. Give it a ledger with a path or a postgresql:// URL."
            )
        if chain.quotas is not None:
            raise InvalidParameter("Expected chain() without quotas=: a batch names no user. Leave them out.")
        return chain

    @safe_repr
    def __repr__(self) -> str:
        return f"ClassifyBatches({list(self._columns)}, label={self._label!r})"
