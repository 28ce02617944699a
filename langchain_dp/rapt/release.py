"""One release after the other: look up, record, privatize, keep. The order that no face may change.

A text that was released before is given out again, which costs nothing. Which texts count as the same must itself
tell nothing: two *different* documents of one call that happen to be equal get releases of their own (their place among
the equals is part of the key), and so do texts of different users. What remains: whoever sees two calls sees which
of their texts are the same. Under a limit for each document the account is another matter: a document that nobody names
is then known by its user and its texts alone, so that equal ones of one call add up, or handing a text in twice would
get around the limit.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from langchain_dp._util import forks
from langchain_dp.accounting import MetricEvent
from langchain_dp.accounting.metric import AlreadyReleased, MetricLedger, Owner
from langchain_dp.redact import PrivateArgs, run_redacted

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
    """What draws words, and under which public settings."""

    @property
    def event(self) -> MetricEvent:
        """What one release costs."""
        ...

    @property
    def table(self) -> str:
        """Name of the metric: the table of word vectors."""
        ...

    @property
    def settings(self) -> str:
        """Everything public that the law of a release depends on: another setting is another release."""
        ...

    @property
    def pads(self) -> bool:
        """Whether every text, even an empty one, comes out at one fixed length."""
        ...

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Do all that can fail on a text; what is returned draws a fresh release of each, in order, once."""
        ...


class Drawer(Engine, Protocol):
    """An engine under a formal promise, and what certificates say of it."""

    @property
    def eta(self) -> float:
        """What one release costs, in nats per unit of distance."""
        ...

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""
        ...

    @property
    def private(self) -> bool:
        """Whether the noise comes from a source that nobody can reproduce."""
        ...

    @property
    def streams(self) -> bool:
        """Whether a text can be released in stretches."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What passes in clear."""
        ...

    def pieces(self, text: str) -> list[str]:
        """Release a stretch of a text, where it streams."""
        ...


class Releases:
    """Releases units under one engine, each charged before it is drawn.

    Args:
        engine: Draws the words.
        ledger: Charged for every release that was not made before.
        reuse: Whether a unit that was released before is given out again instead.
        chain: Short public name for the ledger.
    """

    def __init__(self, engine: Engine, ledger: MetricLedger, *, reuse: bool, chain: str) -> None:
        self.engine = engine
        self.ledger = ledger
        self._reuse = reuse
        self._chain = chain
        self._flights = _Flights()

    def release(self, units: Sequence[Unit], met: Counter[str] | None = None) -> list[Texts]:
        """Release every unit: all of the new ones are charged together, or none.

        Args:
            units: What to release.
            met: Where one call releases its units in several rounds, the same empty counter in each: units of
                different rounds that are equal then get releases of their own, as those of one round do.

        Raises:
            BudgetExceeded: An account has too little left. Nothing was charged and nothing released.
            LedgerError: The ledger cannot be trusted or written. Nothing was released.
        """
        names = _names(units, Counter() if met is None else met)
        owners = self._owners(units, names)
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
            names = _names(units, Counter())
            for i, owner in enumerate(self._owners(units, names)):
                if self._says_something(units[i]):
                    key = self._key(names[i]) if self._reuse else (number, i)
                    new[key] = [owner] * self.charges(units[i])
        known = self.ledger.released().get([key for key in new if isinstance(key, bytes)])
        return [owner for key, owners in new.items() if key not in known for owner in owners]

    def _owners(self, units: Sequence[Unit], names: Sequence[str]) -> list[Owner]:
        limited = self.ledger.document_limit is not None  # then all that are equal are one document
        accounts = [f"{name.rpartition('#')[0]}#0" for name in names] if limited else names
        return [
            Owner(account if unit.document is None else unit.document, unit.user)
            for unit, account in zip(units, accounts, strict=True)
        ]

    def _key(self, name: str) -> bytes:
        """Under which a release is kept."""
        return self.ledger.digest("release", f"{self.engine.settings}\0{name}")

    def charges(self, unit: Unit) -> int:
        """How many releases a unit is: one, where the distances of all its words add up in the metric."""
        return 1

    def _says_something(self, unit: Unit) -> bool:
        """Without padding, the length is public, and a blank text has nothing else to it."""
        return bool(unit.texts) and (self.engine.pads or any(text.strip() for text in unit.texts))

    def _draw(self, units: dict[K, Unit], owners: dict[K, Owner], keys: Sequence[bytes] = ()) -> dict[K, Texts]:
        if not units:
            return {}
        draw = run_redacted(self.engine.written, PrivateArgs([text for unit in units.values() for text in unit.texts]))
        charged = [owners[key] for key, unit in units.items() for _ in range(self.charges(unit))]
        self.ledger.spend(self.engine.event.eta, charged, table=self.engine.table, caller=self._chain, keys=keys)
        fresh = iter(run_redacted(draw, PrivateArgs()))
        return {key: tuple(next(fresh) for _ in unit.texts) for key, unit in units.items()}


def _blank(unit: Unit) -> Texts:
    """What blank texts are released as: which blanks they hold is not said."""
    return ("",) * len(unit.texts)


def _names(units: Iterable[Unit], seen: Counter[str]) -> list[str]:
    """What tells units apart: user, document, texts, and the place among equal ones of the same call, counted on."""
    names = []
    for unit in units:
        name = json.dumps([unit.user, unit.document, unit.texts])
        names.append(f"{name}#{seen[name] if unit.place is None else unit.place}")
        seen[name] += 1
    return names


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
