"""Every error this package raises on purpose.

::

    LangChainDPError
    ├── InvalidParameter (ValueError)      a value outside its bound: name, value, bound, remedy
    ├── UnsupportedEvent (ValueError)      an event the accountant has no proof for
    ├── BudgetExceeded                     asked, spent, budget, and the number that still fits
    ├── PlanError                          a spend or reservation that contradicts a reserved plan
    ├── LedgerError                        the ledger cannot be trusted or written
    │   ├── LedgerMismatch                 it belongs to another budget
    │   ├── LedgerCorrupt                  it is damaged, empty, or not a ledger
    │   └── LedgerUnwritable               it cannot be written durably
    ├── PrivateDataError (TypeError)       an attempt to serialize or copy out private records
    ├── UnsafeEnvironment (RuntimeError)   a setting that would print or store private prompts
    ├── ModelUnavailable (RuntimeError)    the model failed on a public question
    └── MissingExtra (ImportError)         an optional package is not installed

Four warnings, each a UserWarning: WeakPromiseWarning, a budget under which hardly anything is promised.
MostlyNoiseWarning, a plan that releases noise above all. NoTextKeptWarning, a run of which no text was kept.
BudgetLowWarning, a plan of which 80% are used.

No message holds private text. Nothing here imports anything else of the package.
"""

from __future__ import annotations

from typing import Any


class LangChainDPError(Exception):
    """Base class of every error that this package raises on purpose."""


class InvalidParameter(LangChainDPError, ValueError):
    """A parameter lies outside its bound. The message names value, bound and remedy."""


class UnsupportedEvent(LangChainDPError, ValueError):
    """The accountant has no sound bound for this event under these neighbours."""


class BudgetExceeded(LangChainDPError):
    """A release was refused because the budget or its plan does not cover it.

    Nothing was released and nothing was charged.

    Attributes:
        asked: The refused request, in words (event and count; or epsilon and delta of a plan).
        spent: (epsilon, delta) of the releases so far. (eta, 0.0) where a metric ledger refused.
        budget: (epsilon, delta) of the whole ledger. (limit, 0.0) likewise.
        fits: How many more releases of the same event would still fit (0 or more).
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
        # By itself an exception is made anew from its message alone, and a process pool dies of what it cannot read.
        return (_made_again, (type(self), self.args), self.__dict__)


def _made_again(kind: type[BudgetExceeded], args: tuple[Any, ...]) -> BudgetExceeded:
    return kind.__new__(kind, *args)


class QuotaExceeded(BudgetExceeded):
    """A release was refused because the user's share of the plan does not cover it. Others may have some left.

    Nothing was released and nothing was charged. The user is not named: tracers see errors.
    """


class PlanError(LangChainDPError):
    """A spend or a reservation contradicts a plan that was reserved earlier."""


class LedgerError(LangChainDPError):
    """The ledger cannot be trusted or cannot be written."""


class LedgerMismatch(LedgerError):
    """The ledger was made for another budget, or another ledger was put in its place."""


class LedgerCorrupt(LedgerError):
    """The ledger is damaged, empty, or not a ledger."""


class LedgerUnwritable(LedgerError):
    """The ledger cannot be written durably, so nothing may be released, or nobody knows whether it was."""


class PrivateDataError(LangChainDPError, TypeError):
    """Something tried to pickle, serialize or deep-copy private records."""


class UnsafeEnvironment(LangChainDPError, RuntimeError):
    """A global setting, or a memory of the model, would print, store or pass on private prompts. It was refused."""


class ModelUnavailable(LangChainDPError, RuntimeError):
    """The model failed on a PUBLIC question: a test before a release is charged, or the companion beside one.

    What it got is in the message. Of private calls nothing is ever said.
    """


class MissingExtra(LangChainDPError, ImportError):
    """An optional dependency is not installed. The message holds the pip command."""


class WeakPromiseWarning(UserWarning):
    """Hardly anything is promised: epsilon is above 10, or delta is not below one over the number of records."""


class MostlyNoiseWarning(UserWarning):
    """The releases of a plan are mostly noise. The warning comes before anything is released.

    More records, fewer releases or a larger budget help. The promise still holds.
    """


class NoTextKeptWarning(UserWarning):
    """A run is paid for, and no text is kept, or none of a label: public filters left them out, or each broke off."""


class BudgetSplitWarning(UserWarning):
    """The same records were charged to several ledgers. Their losses add up, and none of them shows the sum."""


class OtherRecordsWarning(UserWarning):
    """A plan continues with other records than those it was charged for. They share the rest of its budget."""


class BudgetLowWarning(UserWarning):
    """80% of a plan are used. It comes once, before the next answer is charged. `answers_left()` counts the others."""
