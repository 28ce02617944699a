"""Every error and warning that this package raises on purpose. No message holds private text."""

from __future__ import annotations

from typing import Any


class LangChainDPError(Exception):
    """Base class of this package's errors."""


class InvalidParameter(LangChainDPError, ValueError):
    """A parameter is out of bounds. The message names value, bound and remedy."""


class UnsupportedEvent(LangChainDPError, ValueError):
    """The accountant has no sound bound for this event under these neighbors."""


class BudgetExceeded(LangChainDPError):
    """The budget or its plan does not cover a release. Nothing was released or charged.

    Attributes:
        asked: The refused request, in words.
        spent: (epsilon, delta) so far. (eta, 0.0) from a metric ledger.
        budget: (epsilon, delta) of the ledger. (limit, 0.0) from a metric ledger.
        fits: Number of such releases that would still fit.
    """

    def __init__(
        self,
        message: str,
        *,
        asked: str,
        spent: tuple[float, float],
        budget: tuple[float, float],
        fits: int,
    ) -> None:
        super().__init__(message)
        self.asked = asked
        self.spent = spent
        self.budget = budget
        self.fits = fits

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception unpickles from its message alone, which would break a process pool.
        return (_made_again, (type(self), self.args), self.__dict__)


def _made_again(kind: type[BudgetExceeded], args: tuple[Any, ...]) -> BudgetExceeded:
    return kind.__new__(kind, *args)


class QuotaExceeded(BudgetExceeded):
    """The user's quota does not cover a release. Nothing was released or charged. Tracers see errors, so it names no
    user.
    """


class PlanError(LangChainDPError):
    """A spend or reservation contradicts an earlier plan."""


class LedgerError(LangChainDPError):
    """The ledger cannot be trusted or written."""


class LedgerMismatch(LedgerError):
    """The ledger belongs to another budget, or is another ledger by now."""


class LedgerCorrupt(LedgerError):
    """The ledger is damaged, empty, or not a ledger."""


class LedgerUnwritable(LedgerError):
    """The ledger cannot be written durably, or the outcome of a write is unknown. Release nothing."""


class PrivateDataError(LangChainDPError, TypeError):
    """Something tried to pickle, serialize or deep-copy private records."""


class UnsafeEnvironment(LangChainDPError, RuntimeError):
    """A global setting, or a memory of the model, would print, store or pass on private prompts."""


class ModelUnavailable(LangChainDPError, RuntimeError):
    """The model failed on PUBLIC text: a test before a charge, or a health probe. The message never tells of private
    calls.
    """


class MissingExtra(LangChainDPError, ImportError):
    """An optional package is not installed. The message holds the pip command."""


class WeakPromiseWarning(UserWarning):
    """The promise is weak: epsilon is above 10, or delta is not below one over the number of records."""


class MostlyNoiseWarning(UserWarning):
    """The releases of a plan will be mostly noise. The promise still holds."""


class NoTextKeptWarning(UserWarning):
    """A run was charged and kept no text, or none of a label."""


class BudgetSplitWarning(UserWarning):
    """The same records were charged to several ledgers. Their losses add up, and no ledger shows the sum."""


class OtherRecordsWarning(UserWarning):
    """A plan continues with other records than before. They share the rest of its budget."""


class BudgetLowWarning(UserWarning):
    """80% of a plan are used. The warning comes once."""
