"""Releases under metric privacy: look up, charge, draw, store. No caller may change this order.

With ``reuse``, a text is released once. To hide repeats, equal documents of one call get separate releases, and so do
texts of different users. An observer of two calls still sees which texts are equal. Under a limit per document, user
and texts alone identify an unnamed document, or repetition would evade it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from langchain_dp._util import forks
from langchain_dp._util.callers import warn_caller
from langchain_dp.accounting import MetricEvent
from langchain_dp.accounting.metric import WHOLE_TEXTS, AlreadyReleased, MetricCertificate, MetricLedger, Owner
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.calibrate import Calibration
from langchain_dp.rapt.privatize import TextPrivatizer
from langchain_dp.redact import PrivateArgs, run_redacted

SEEDED = "the noise is seeded: anybody who knows the seed can remove it"
REUSED = (
    "A text that was released before is given out again, at no cost: a reader of two calls sees which of their "
    "texts are the same."
)

COUNTED = (
    "A document without a name is known by its texts: equal ones of two calls are one document, equal ones of one call "
    "are several. So the most that one document spent shows that two calls held the same text.",
    "A document without a name is known by its texts and its user: under a limit, all equal ones are one document. So "
    "what it spent, and a refusal, show that a text came twice.",
)
"""Without and with a document limit."""
UNNAMED = "No limit of a user holds for texts that are released without one."

Texts = tuple[str, ...]
Measured = Calibration | Callable[[], Calibration]
K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True, repr=False)
class Unit:
    """Texts released under one charge. Without ``document`` the content is its key.

    ``place`` is its number among equals. None: counted.
    """

    texts: Texts
    user: str | None = None
    document: str | None = None
    place: int | None = None

    def __repr__(self) -> str:
        return "Unit(<private>)"


class Engine(Protocol):
    """Draws words. If it ``pads``, even an empty text gets the fixed length."""

    event: MetricEvent
    pads: bool

    @property
    def table(self) -> str: ...

    @property
    def settings(self) -> str: ...

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Do all work that can fail. Return a function that draws, once."""


class Drawer(Engine, Protocol):
    """An engine with a promise."""

    eta: float
    private: bool

    @property
    def mechanism(self) -> str: ...

    def notes(self) -> tuple[str, ...]: ...


class Releases:
    """Charges each unit, then draws it. With ``reuse``, only once."""

    def __init__(self, engine: Engine, ledger: MetricLedger, *, reuse: bool, chain: str) -> None:
        self.engine = engine
        self.ledger = ledger
        self._reuse = reuse
        self._chain = chain
        self._flights = _Flights()

    def release(self, units: Sequence[Unit], seen: Counter[str] | None = None) -> list[Texts]:
        """Release every unit: new ones are charged together, or none."""
        names, owners = self._named(units, Counter() if seen is None else seen)
        wanted = [i for i, unit in enumerate(units) if self.engine.pads or any(text.strip() for text in unit.texts)]
        wanted = [i for i in wanted if units[i].texts]
        if not self._reuse:
            drawn = self._draw({i: (units[i], owners[i]) for i in wanted})
            return [drawn[i] if i in drawn else ("",) * len(unit.texts) for i, unit in enumerate(units)]
        released = self.ledger.released()
        keys = {i: self.ledger.digest("release", f"{self.engine.settings}\0{names[i]}") for i in wanted}
        places = {key: i for i, key in keys.items()}
        answers: dict[bytes, Texts] = {}
        while missing := [key for key in places if key not in answers]:
            mine, others = self._flights.claim(missing)
            try:
                known = released.get(mine)
                new = {key: (units[places[key]], owners[places[key]]) for key in mine if key not in known}
                drawn_now = self._draw(new, keys=list(new))
                answers |= known | (released.put(drawn_now) if drawn_now else {})
            except AlreadyReleased:  # by another process since the look-up. The next round finds it
                pass
            finally:
                self._flights.settle(mine)
            for flight in others:  # no claim is held while waiting, so two calls cannot block each other
                flight.result()
        return [answers[keys[i]] if i in keys else ("",) * len(unit.texts) for i, unit in enumerate(units)]

    def _named(self, units: Iterable[Unit], seen: Counter[str]) -> tuple[list[str], list[Owner]]:
        """Name each unit by user, document, texts and number among equals."""
        limited = self.ledger.document_limit is not None  # then all equal units are one document
        names, owners = [], []
        for unit in units:
            content = json.dumps([unit.user, unit.document, unit.texts])
            name = f"{content}#{seen[content] if unit.place is None else unit.place}"
            seen[content] += 1
            names.append(name)
            account = f"{content}#0" if limited else name
            owners.append(Owner(account if unit.document is None else unit.document, unit.user))
        return names, owners

    def _draw(self, units: Mapping[K, tuple[Unit, Owner]], keys: Sequence[bytes] = ()) -> dict[K, Texts]:
        if not units:
            return {}
        texts = PrivateArgs([text for unit, _ in units.values() for text in unit.texts])
        draw = run_redacted(self.engine.written, texts)
        charged = [
            owner
            for unit, owner in units.values()
            for _ in range(sum(bool(text.strip()) for text in unit.texts) if self.engine.table == WHOLE_TEXTS else 1)
        ]
        self.ledger.spend(self.engine.event.eta, charged, table=self.engine.table, caller=self._chain, keys=keys)
        fresh = iter(run_redacted(draw, PrivateArgs()))
        return {key: tuple(next(fresh) for _ in unit.texts) for key, (unit, _) in units.items()}


class FormalReleases(Releases):
    """Releases with calibration, limits and certificate."""

    def __init__(self, engine: Drawer, ledger: MetricLedger, calibration: Measured, *, reuse: bool, chain: str) -> None:
        super().__init__(engine, ledger, reuse=reuse, chain=chain)
        self.engine: Drawer = engine
        self._calibration = calibration
        self._lock = threading.Lock()
        self._warned = False
        forks.renew_lock(self)

    @property
    def words(self) -> TextPrivatizer:
        if not isinstance(self.engine, TextPrivatizer):
            raise InvalidParameter(f"Expected a sanitizer that draws words: a {self.engine.mechanism!r} has no table.")
        return self.engine

    def calibration(self) -> Calibration:
        with self._lock:
            if not isinstance(self._calibration, Calibration):
                self._calibration = self._calibration()
            return self._calibration

    def unreachable_limit(self, *, user: bool) -> float | None:
        """Return a limit that unnamed documents, charged once, never reach."""
        limit = self.ledger.document_limit
        if limit is not None and (limit < self.engine.eta or not self._reuse):
            return None
        if self.ledger.limit is None:
            return limit
        return None if user else self.ledger.limit

    def _draw(self, units: Mapping[K, tuple[Unit, Owner]], keys: Sequence[bytes] = ()) -> dict[K, Texts]:
        self.warn_unreachable_limit(
            named=not any(unit.user is None and unit.document is None for unit, _ in units.values())
        )
        return super()._draw(units, keys)

    def warn_unreachable_limit(self, *, named: bool) -> None:
        limit = None if named or self._warned else self.unreachable_limit(user=False)
        if limit is not None:
            self._warned = True
            warn_caller(
                f"Nobody is named whose text is released, so it counts towards no user's limit={limit:g}, and as a "
                "document of its own it is charged once. Say whose it is: user=..., or in a chain "
                'config={"configurable": {"user_id": ...}}, or DocumentRules(user_key=...) for documents, or on the '
                "command line --user-field; document=... names the document instead.",
                UserWarning,
            )

    def stamp(self) -> dict[str, Any]:
        return {name: getattr(self.engine, name) for name in ("private", "mechanism", "eta", "table")}

    def mark(self, texts: Texts) -> str:
        return self.ledger.digest("reply", json.dumps(texts)).hex()

    def notes(self) -> tuple[str, ...]:
        reused = (REUSED,) if self._reuse else ()
        unnamed = () if self.ledger.limit is None else (UNNAMED,)
        return (*self.engine.notes(), *reused, COUNTED[self.ledger.document_limit is not None], *unnamed)

    def certificate(self, notes: Sequence[str], parameters: Mapping[str, float | int | str]) -> MetricCertificate:
        calibration = None
        with contextlib.suppress(InvalidParameter):  # the table lacks the words of the texts
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


class _Flights(forks.ForkSafe):
    """Lets concurrent calls share the release of one text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[bytes, concurrent.futures.Future[None]] = {}
        self._watch()

    def _alone(self) -> None:
        self._under_way = {}

    def claim(self, keys: Sequence[bytes]) -> tuple[list[bytes], list[concurrent.futures.Future[None]]]:
        with self._lock:
            mine = [key for key in keys if key not in self._under_way]
            others = [self._under_way[key] for key in keys if key in self._under_way]
            self._under_way.update((key, concurrent.futures.Future()) for key in mine)
        return mine, others

    def settle(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            ended = [self._under_way.pop(key) for key in keys]
        for flight in ended:
            flight.set_result(None)
