"""Releases under metric privacy: words drawn anew, charged before they are drawn, and what can be said about them."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_dp._util import forks
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger, Owner
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.calibrate import Calibration
from langchain_dp.rapt.privatize import TextPrivatizer
from langchain_dp.rapt.release import Drawer, K, Releases, Texts, Unit
from langchain_dp.rapt.streams import TextStream
from langchain_dp.redact import PrivateArgs, run_redacted

SEEDED = "the noise is seeded: whoever knows the seed can remove it"
REUSED = (
    "A text that was released before is given out again, at no cost: whoever sees two calls sees which of their texts "
    "are the same."
)

COUNTED = (
    "A document without a name is known by its texts: equal ones of two calls are one document, equal ones of one call "
    "are several. So the most that one document spent shows that two calls held the same text.",
    "A document without a name is known by its texts and its user: under a limit, all equal ones are one document. So "
    "what it spent, and a refusal, show that a text came twice.",
)
"""Without a limit for each document, and with one."""
STREAMED = (
    "A stream whose words leave before its end is a document of its own, unless it is named: streams of equal texts do "
    "not add up."
)
UNNAMED = "No limit of a user holds for texts that are released without one."


class FormalReleases(Releases):
    """Releases of a sanitizer, and everything else that it asks of what draws the words.

    Args:
        engine: Draws the words.
        ledger: Charged for every release.
        calibration: What eta means on this table; or a function that measures it when it is first asked for.
        reuse: Whether a text that was released before is given out again.
        chain: Short public name for the ledger.
    """

    def __init__(
        self,
        engine: Drawer,
        ledger: MetricLedger,
        calibration: Calibration | Callable[[], Calibration],
        *,
        reuse: bool,
        chain: str,
    ) -> None:
        super().__init__(engine, ledger, reuse=reuse, chain=chain)
        self.engine: Drawer = engine
        self._calibration = calibration
        self._lock = threading.Lock()
        self._told_of_limit = False
        forks.renew_lock(self)

    @property
    def words(self) -> TextPrivatizer:
        """The engine of a sanitizer that draws words.

        Raises:
            InvalidParameter: It draws whole texts.
        """
        if not isinstance(self.engine, TextPrivatizer):
            raise InvalidParameter(f"Expected a sanitizer that draws words: a {self.engine.mechanism!r} has no table.")
        return self.engine

    def calibration(self) -> Calibration:
        """What eta means on this table; measured once.

        Raises:
            InvalidParameter: The calibration texts hold too few words of the table.
        """
        with self._lock:
            if not isinstance(self._calibration, Calibration):
                self._calibration = self._calibration()
            return self._calibration

    def streams(self, document: str | None) -> bool:
        """Whether words may leave before the text is complete.

        Not under a limit for each document, if nobody names this one: its content says which it is, once it is there.
        """
        return self.engine.streams and (document is not None or self.ledger.document_limit is None)

    def unreachable_limit(self, *, user: bool) -> float | None:
        """The limit that documents without a name of their own never reach; None if one bites, or there is none.

        Who is not named has no account as a user, and where texts are reused such a document is charged but once.

        Args:
            user: Whether somebody says whose they are.
        """
        limit = self.ledger.document_limit
        if limit is not None and (limit < self.engine.eta or not self._reuse):
            return None
        if self.ledger.limit is None:
            return limit
        return None if user else self.ledger.limit

    def stream(self, *, user: str | None, document: str | None) -> TextStream:
        """Charge one release of a text that is still to come, and return what releases it.

        Its content is not known yet, so without a name it is a document of its own.
        """
        self.warn_unreachable_limit(named=not (user is None and document is None))
        owner = Owner(f"\0stream {uuid.uuid4().hex}" if document is None else document, user)
        check_process = forks.one_process("a stream to be read")
        self.ledger.spend(self.engine.event.eta, [owner], table=self.engine.table, caller=self._chain)

        def pieces(text: str) -> Sequence[str]:
            check_process()
            return run_redacted(self.engine.pieces, PrivateArgs(text))

        return TextStream(pieces)

    def _draw(self, units: dict[K, Unit], owners: dict[K, Owner], keys: Sequence[bytes] = ()) -> dict[K, Texts]:
        self.warn_unreachable_limit(
            named=not any(unit.user is None and unit.document is None for unit in units.values())
        )
        return super()._draw(units, owners, keys)

    def warn_unreachable_limit(self, *, named: bool) -> None:
        """Warn once, before anything is charged, of a limit that a text without a name never reaches."""
        limit = None if named or self._told_of_limit else self.unreachable_limit(user=False)
        if limit is not None:
            self._told_of_limit = True
            warn_caller(
                f"Nobody is named whose text is released, so it counts towards no user's limit={limit:g}, and as a "
                "document of its own it is charged once. Say whose it is: user=..., or in a chain "
                'config={"configurable": {"user": ...}}, or DocumentRules(user_key=...) for documents, or on the '
                "command line --user-field; document=... names the document instead.",
                UserWarning,
            )

    def stamp(self) -> dict[str, Any]:
        """What a sanitized message says of itself."""
        return {
            "private": self.engine.private,
            "mechanism": self.engine.mechanism,
            "eta": self.engine.eta,
            "table": self.engine.table,
        }

    def mark(self, texts: Texts) -> str:
        """Keyed mark of public texts, under the ledger's key."""
        return self.ledger.digest("reply", json.dumps(texts)).hex()

    def notes(self) -> tuple[str, ...]:
        """What passes in clear, whatever the input."""
        reused = (REUSED,) if self._reuse else ()
        return (*self.engine.notes(), *reused, *self.account_notes())

    def account_notes(self) -> tuple[str, ...]:
        """What the account counts as one document, and whom its limit leaves out."""
        unnamed = () if self.ledger.limit is None else (UNNAMED,)
        return (COUNTED[self.ledger.document_limit is not None], *unnamed)

    def certificate(self, notes: Sequence[str], parameters: Mapping[str, float | int | str]) -> MetricCertificate:
        """The promise, with what is spent so far."""
        calibration = None
        with contextlib.suppress(InvalidParameter):  # a table without the words of the texts: then nothing is said
            calibration = self.calibration()
        return self.ledger.certificate(
            mechanism=self.engine.mechanism,
            eta=self.engine.eta,
            table=self.engine.table,
            neighbor_distance=None if calibration is None else calibration.neighbor_distance,
            replaced=None if calibration is None else calibration.replacement,
            private=self.engine.private,
            reason="" if self.engine.private else SEEDED,
            notes=notes,
            parameters=parameters,
        )

    def describe(self) -> str:
        """Public facts, for a repr."""
        return f"{self.engine.mechanism}, eta={bound(self.engine.eta)}, {self.engine.table}"
