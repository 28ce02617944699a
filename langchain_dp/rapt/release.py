"""Releases under metric privacy: look up, charge, draw, keep. No caller may change this order.

A text that was released before is given out again, which costs nothing. Which texts count as the same must itself
tell nothing: two *different* documents of one call that happen to be equal get releases of their own (their place among
the equals is part of the key), and so do texts of different users. What remains: whoever sees two calls sees which
of their texts are the same. Under a limit for each document the account is another matter: a document that nobody names
is then known by its user and its texts alone, so that equal ones of one call add up, or handing a text in twice would
get around the limit.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from langchain_dp._util import forks
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.rounding import bound
from langchain_dp.accounting import MetricEvent
from langchain_dp.accounting.metric import WHOLE_TEXTS, AlreadyReleased, MetricCertificate, MetricLedger, Owner
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.calibrate import Calibration
from langchain_dp.rapt.privatize import TextPrivatizer
from langchain_dp.rapt.tokenize import TextStream
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

Texts = tuple[str, ...]
K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True, repr=False)
class Unit:
    """What is released at once, under one charge: a text, a message, or a document with its metadata.

    Args:
        texts: Its texts, in order.
        user: Whose it is, or None.
        document: Which document it is, if somebody says so; None: its content says it.
        place: Its place among equal ones, if somebody counts them; None: those of one call are counted.
    """

    texts: Texts
    user: str | None = None
    document: str | None = None
    place: int | None = None

    def __repr__(self) -> str:
        return "Unit(<private>)"


class Engine(Protocol):
    """What draws words. If it ``pads``, every text, even an empty one, comes out at one fixed length."""

    event: MetricEvent
    pads: bool

    @property
    def table(self) -> str:
        """Name of the metric: the table of word vectors."""

    @property
    def settings(self) -> str:
        """Everything public that the law of a release depends on: another setting is another release."""

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Do all that can fail on a text; what is returned draws a fresh release of each, in order, once."""


class Drawer(Engine, Protocol):
    """An engine under a formal promise, and what certificates say of it. It ``streams`` if it has pieces."""

    eta: float
    private: bool
    streams: bool

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""

    def notes(self) -> tuple[str, ...]:
        """What passes in clear."""

    def pieces(self, text: str) -> list[str]:
        """Release a stretch of a text, where it streams."""


class Releases:
    """Releases units under one engine, each charged before it is drawn; with ``reuse``, once only."""

    def __init__(self, engine: Engine, ledger: MetricLedger, *, reuse: bool, chain: str) -> None:
        self.engine = engine
        self.ledger = ledger
        self._reuse = reuse
        self._chain = chain
        self._flights = _Flights()

    def release(self, units: Sequence[Unit], met: Counter[str] | None = None) -> list[Texts]:
        """Release every unit: all of the new ones are charged together, or none.

        Where one call releases its units in several rounds, ``met`` is the same empty counter in each: units of
        different rounds that are equal then get releases of their own, as those of one round do.
        """
        names, owners = self._named(units, Counter() if met is None else met)
        wanted = [i for i, unit in enumerate(units) if self._says_something(unit)]
        if not self._reuse:
            drawn = self._draw({i: units[i] for i in wanted}, {i: owners[i] for i in wanted})
            return [drawn[i] if i in drawn else _blank(unit) for i, unit in enumerate(units)]
        released = self.ledger.released()
        keys = {i: self._key(names[i]) for i in wanted}
        places = {key: i for i, key in keys.items()}
        answers: dict[bytes, Texts] = {}
        while missing := [key for key in places if key not in answers]:
            mine, others = self._flights.claim(missing)
            try:
                known = released.get(mine)
                new = [key for key in mine if key not in known]
                drawn_now = self._draw(
                    {key: units[places[key]] for key in new}, {key: owners[places[key]] for key in new}, keys=new
                )
                answers |= known | (released.put(drawn_now) if drawn_now else {})
            except AlreadyReleased:  # by another process, since it was looked up: now it is found
                pass
            finally:
                self._flights.settle(mine)
            # Nothing is held while waiting, so no two calls can wait for each other.
            for flight in others:
                flight.result()
        return [answers[keys[i]] if i in keys else _blank(unit) for i, unit in enumerate(units)]

    def to_charge(self, rounds: Iterable[Sequence[Unit]]) -> list[Owner]:
        """Who is charged, once for each release, if rounds of units are released one after the other."""
        new: dict[bytes | tuple[int, int], list[Owner]] = {}
        for number, units in enumerate(rounds):
            names, owners = self._named(units, Counter())
            for i, owner in enumerate(owners):
                if self._says_something(units[i]):
                    key = self._key(names[i]) if self._reuse else (number, i)
                    new[key] = [owner] * self._times(units[i])
        known = self.ledger.released().get([key for key in new if isinstance(key, bytes)])
        return [owner for key, owners in new.items() if key not in known for owner in owners]

    def _named(self, units: Iterable[Unit], seen: Counter[str]) -> tuple[list[str], list[Owner]]:
        """What tells units apart (user, document, texts, place among equal ones), and whose accounts are charged."""
        limited = self.ledger.document_limit is not None  # then all that are equal are one document
        names, owners = [], []
        for unit in units:
            said = json.dumps([unit.user, unit.document, unit.texts])
            name = f"{said}#{seen[said] if unit.place is None else unit.place}"
            seen[said] += 1
            names.append(name)
            account = f"{said}#0" if limited else name
            owners.append(Owner(account if unit.document is None else unit.document, unit.user))
        return names, owners

    def _key(self, name: str) -> bytes:
        """Under which a release is kept."""
        return self.ledger.digest("release", f"{self.engine.settings}\0{name}")

    def _times(self, unit: Unit) -> int:
        """How many releases a unit is: one, where distances of words add up; one a text, where texts are rewritten."""
        return sum(bool(text.strip()) for text in unit.texts) if self.engine.table == WHOLE_TEXTS else 1

    def _says_something(self, unit: Unit) -> bool:
        """Without padding, the length is public, and a blank text has nothing else to it."""
        return bool(unit.texts) and (self.engine.pads or any(text.strip() for text in unit.texts))

    def _draw(self, units: dict[K, Unit], owners: dict[K, Owner], keys: Sequence[bytes] = ()) -> dict[K, Texts]:
        if not units:
            return {}
        draw = run_redacted(self.engine.written, PrivateArgs([text for unit in units.values() for text in unit.texts]))
        charged = [owners[key] for key, unit in units.items() for _ in range(self._times(unit))]
        self.ledger.spend(self.engine.event.eta, charged, table=self.engine.table, caller=self._chain, keys=keys)
        fresh = iter(run_redacted(draw, PrivateArgs()))
        return {key: tuple(next(fresh) for _ in unit.texts) for key, unit in units.items()}


class FormalReleases(Releases):
    """Releases of a sanitizer, and everything else that it asks of what draws the words."""

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
        """The engine of a sanitizer that draws words."""
        if not isinstance(self.engine, TextPrivatizer):
            raise InvalidParameter(f"Expected a sanitizer that draws words: a {self.engine.mechanism!r} has no table.")
        return self.engine

    def calibration(self) -> Calibration:
        """What eta means on this table; measured once."""
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

        Who is not named has no account as a ``user``, and where texts are reused such a document is charged but once.
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
                'config={"configurable": {"user_id": ...}}, or DocumentRules(user_key=...) for documents, or on the '
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


def _blank(unit: Unit) -> Texts:
    """What blank texts are released as: which blanks they hold is not said."""
    return ("",) * len(unit.texts)


class _Flights(forks.ForkSafe):
    """Which releases are under way in this process, so that two users of the same text share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[bytes, concurrent.futures.Future[None]] = {}
        self._watch()

    def _alone(self) -> None:
        self._under_way = {}

    def claim(self, keys: Sequence[bytes]) -> tuple[list[bytes], list[concurrent.futures.Future[None]]]:
        """The keys that are the caller's to release, and what to wait for before asking again for the others."""
        with self._lock:
            mine = [key for key in keys if key not in self._under_way]
            others = [self._under_way[key] for key in keys if key in self._under_way]
            for key in mine:
                self._under_way[key] = concurrent.futures.Future()
        return mine, others

    def settle(self, keys: Sequence[bytes]) -> None:
        """Wake whoever waits for these keys."""
        with self._lock:
            ended = [self._under_way.pop(key) for key in keys]
        for flight in ended:
            flight.set_result(None)
