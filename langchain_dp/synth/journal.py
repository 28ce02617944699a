"""What a run of the synthesizer has written: no released text is lost, and no round is drawn or paid for twice.

In this order: reserve the plan with its first journal; charge a round, durably; mark it as begun, durably; write a
text; keep it in the journal; only then it may leave. Who takes up a run gives up what is missing of a round that has
begun: tokens that were drawn may be why they were not kept (a text too long for the disk, one that breaks the model),
and drawn again until one stays they would tell more than the round was charged for. It is given up whatever the records
are now, or the number of texts would tell whether they have changed. A round that is charged and has not begun is
written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.ensemble.journal import RunJournal, explained, masked, unmasked
from langchain_dp.errors import PlanError

_VERSION = 2
Ended = Literal["end", "length", "lost"]


@dataclasses.dataclass(frozen=True)
class WrittenText:
    """One released text.

    Args:
        number: Round that it was written in; -1 for the description of a label.
        label: Its label.
        text: What it says.
        ended: "end" if it came to its own end, "length" if it was cut at the largest number of tokens, "lost" if its
            round was interrupted before it was kept.
    """

    number: int
    label: str
    text: str
    ended: Ended


@dataclasses.dataclass(repr=False)
class SynthesisJournal(RunJournal):
    """State of one run. It holds released texts and no record.

    Args:
        settings: Public settings that the run was started with.
        design: Constants derived when it was started, as plain values.
        key: Secret key of the coins.
        masked_key: That key as the journal holds it.
        data: Keyed hash of the records.
        written: Released texts, oldest first.
        begun: Number of the last round of which a token may have been drawn; None before there is one.
    """

    settings: Mapping[str, Any]
    design: Mapping[str, Any]
    key: bytes
    masked_key: str
    data: str
    written: list[WrittenText] = dataclasses.field(default_factory=list)
    begun: int | None = None

    def __repr__(self) -> str:
        return f"SynthesisJournal({len(self.written)} texts)"

    def text(self) -> str:
        """What the ledger holds of it."""
        fields = {
            "version": _VERSION,
            "key": self.masked_key,
            "settings": dict(self.settings),
            "design": dict(self.design),
            "data": self.data,
            "written": [dataclasses.astuple(one) for one in self.written],
            "begun": self.begun,
        }
        return json.dumps(fields)

    def there(self) -> set[tuple[int, str]]:
        """Round and label of every text that is written."""
        return {(one.number, one.label) for one in self.written}

    def begin(self, number: int) -> None:
        """Mark a round as begun, before its first draw."""
        if number != self.begun:
            self._become(begun=number)

    def keep(self, *texts: WrittenText) -> None:
        """Keep a text. Only what is kept may leave, also to whoever looks on from another thread."""
        if texts:
            self._become(written=[*self.written, *texts])

    def _become(self, **changes: Any) -> None:
        changed = dataclasses.replace(self, **changes)
        changed.save()
        for name in (*changes, "kept"):
            setattr(self, name, getattr(changed, name))


def started(
    ledger: PrivacyLedger, key: bytes, *, settings: Mapping[str, Any], design: Mapping[str, Any], data: str
) -> SynthesisJournal:
    """The journal of a run that begins."""
    return SynthesisJournal(settings, design, key, masked(ledger, key), data)


def found(ledger: PrivacyLedger, plan: LedgerPlan) -> SynthesisJournal:
    """The journal of a run that has begun.

    Raises:
        PlanError: There is none, or it is damaged.
        LedgerError: The ledger's key is gone or another one.
    """
    text = plan.journal
    if not text:
        raise PlanError(
            f"The ledger holds a plan {plan.name!r}, but no journal of a synthesis: what it released cannot be taken "
            "up. Give this run another name=."
        )
    journal: SynthesisJournal | None = None
    with explained(f"the journal of the run {plan.name!r} to be one", "Bring the ledger's newest copy back"):
        fields = json.loads(text)
        if fields["version"] != _VERSION:
            raise ValueError
        written = [WrittenText(*one) for one in fields["written"]]
        if not all(isinstance(one.text, str) and one.label in fields["settings"]["labels"] for one in written):
            raise ValueError
        journal = SynthesisJournal(
            fields["settings"], fields["design"], unmasked(ledger, fields["key"]), fields["key"], str(fields["data"]),
            written, fields["begun"], plan=plan, kept=text,
        )  # fmt: skip
    assert journal is not None
    return journal
