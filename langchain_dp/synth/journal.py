"""What a run of the synthesizer has written: a crash or Ctrl-C loses no text, and no round is paid for twice.

In this order: reserve the plan with its first journal; charge a round, durably; write a text; keep it in the journal;
only then it may leave. What was charged is known from the ledger, and the coins of a round hang on a key that the
journal keeps masked. So a process that finds a round charged and some of its texts missing writes those, with the same
members: tokens that were drawn and not kept have never left.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.ensemble.journal import RunJournal, explained, masked, unmasked
from langchain_dp.errors import PlanError

_VERSION = 1
Ended = Literal["end", "length", "changed", "failed"]


@dataclasses.dataclass(frozen=True)
class WrittenText:
    """One released text.

    Args:
        number: Round that it was written in; -1 for the description of a label.
        label: Its label.
        text: What it says.
        ended: "end" if it came to its own end, "length" if it was cut at the largest number of tokens, "changed" if it
            was not written, since the records had changed in the middle of its round, "failed" if the model failed in
            the middle of it.
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
    """

    settings: Mapping[str, Any]
    design: Mapping[str, Any]
    key: bytes
    masked_key: str
    data: str
    written: list[WrittenText] = dataclasses.field(default_factory=list)

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
        }
        return json.dumps(fields)

    def there(self) -> set[tuple[int, str]]:
        """Round and label of every text that is written."""
        return {(one.number, one.label) for one in self.written}

    def keep(self, text: WrittenText) -> None:
        """Keep a text. Only what is kept may leave, also to whoever looks on from another thread."""
        longer = dataclasses.replace(self, written=[*self.written, text])
        longer.save()
        self.written, self.kept = longer.written, longer.kept


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
            written, plan=plan, kept=text,
        )  # fmt: skip
    assert journal is not None
    return journal
