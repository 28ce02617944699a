"""What a run has released so far: a crash or Ctrl-C loses nothing but the call under way, and no call is drawn twice.

The journal lies in the ledger, beside the charges. So a copy of the ledger, or what a crash leaves of it,
holds both as they were at one moment, and neither can be put back without the other. In this order:

1. Reserve: the plan and its first journal, in one transaction.
2. Charge: durable before the model is asked. From here on the call is *charged, its outcome unknown*: the ledger counts
   one charge more than the journal counts outcomes.
3. Draw, and write the outcome (a token, a bottom, the winner): once, in place of the journal that the writer has read.
4. Only what is written has left.

Whoever finds a charge without its outcome takes it for lost (of texts that are charged as a whole: a mark that a token
is being drawn). A token is charged again and drawn anew. The choice among
the candidates was reserved once: a process that ends between its charge and its outcome has lost it, since to draw it
again would give whoever holds a copy as many winners as he likes for one charge. The candidates are released and stay.
(The process that charged it, and has not drawn, may still draw: Ctrl-C in a notebook loses nothing.)

Of the records the journal holds a keyed hash, under a key of the run's own that also splits them. That key is in the
journal under a mask, which the ledger's key gives: see ``accounting/store/key_file.py`` for where that lies.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.ensemble.journal import TRIES, RunJournal, explained, unmasked
from langchain_dp.opt.glossary import choices_of
from langchain_dp.opt.plan import Ended, Written

_VERSION = 4


@dataclasses.dataclass(repr=False)
class Journal(RunJournal):
    """State of one run: released values, settings and a keyed hash of the records. It holds no record.

    Args:
        settings: Public settings that the run was started with; it can be taken up with the same ones only.
        split_key: Secret key of the coins that tell training from validation records.
        masked_key: That key as the journal holds it.
        data: Keyed hash of the records, under ``split_key``: a run is not taken up, nor handed out, for other data.
        groups: Number of subsets or slots, as derived when the run was started.
        sampling_probability: Rate of subsets or records, likewise.
        written: Candidates, oldest first.
        winner: Index of what was selected, in the order of :func:`langchain_dp.opt.candidates.choices`: the last is
            the initial instruction. None before.
        records: Number of records that it was started with, where that is public.
        handed: Instruction, and words of the labels, of what was selected: so that a later version, which makes other
            prompts of what was written, hands over the same one.
    """

    settings: Mapping[str, Any]
    split_key: bytes
    masked_key: str
    data: str
    groups: int
    sampling_probability: float
    written: list[Written] = dataclasses.field(default_factory=list)
    winner: int | None = None
    records: int | None = None
    handed: tuple[str, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Journal({len(self.written)} candidates, winner={self.winner})"

    @property
    def calls(self) -> int:
        """Calls of the mechanism whose outcome it holds."""
        return sum(candidate.calls for candidate in self.written)

    def mark(self) -> None:
        """Keep that a token of the text under way is being drawn."""
        self.written[-1].drawing = True
        self.save()

    def take_up(self) -> bool:
        """Keep that the text under way is begun, or taken up; False if that was done often enough."""
        if self.written[-1].tries == TRIES:
            return False
        self.written[-1].tries += 1
        self.save()
        return True

    @property
    def texts(self) -> int:
        """Texts of which it holds an outcome."""
        return sum(candidate.calls > 0 for candidate in self.written)

    def complete(self, winner: int, data: str, handed: tuple[str, tuple[str, ...]]) -> None:
        """Keep the selected candidate, and the data that it was selected on. Only what is kept has left."""
        done = dataclasses.replace(self, winner=winner, data=data, handed=handed)
        done.save()
        self.winner, self.data, self.handed, self.kept = winner, data, handed, done.kept

    def text(self) -> str:
        """What the ledger holds of it."""
        fields = {
            "version": _VERSION,
            "key": self.masked_key,
            "settings": dict(self.settings),
            "data": self.data,
            "groups": self.groups,
            "sampling_probability": self.sampling_probability,
            "written": [dataclasses.asdict(candidate) for candidate in self.written],
            "winner": self.winner,
            "records": self.records,
            **({} if self.handed is None else {"handed": self.handed}),
        }
        return json.dumps(fields)


def found(ledger: PrivacyLedger, plan: LedgerPlan) -> Journal | None:
    """The journal of a run that has begun, if it has one.

    Raises:
        PlanError: It is damaged, or no journal.
        LedgerError: The ledger's key is gone or another one.
    """
    text = plan.journal
    if not text:
        return None
    with explained(f"the journal of the run {plan.name!r} to be one", "Bring the ledger's newest copy back"):
        fields = json.loads(text)
        if fields["version"] != _VERSION:
            raise ValueError
        journal = _from_fields(fields, unmasked(ledger, fields["key"]), fields["key"])
    journal.plan, journal.kept = plan, text
    return journal


# ------------------------------------------------------------------------------------------------------------ parts


def _from_fields(fields: Mapping[str, Any], key: bytes, under_mask: str) -> Journal:
    """The journal with these fields, or any of the errors that Python raises for what is none."""
    journal = Journal(
        dict(fields["settings"]),
        key,
        under_mask,
        fields["data"],
        fields["groups"],
        fields["sampling_probability"],
        [Written(**candidate) for candidate in fields["written"]],
        fields["winner"],
        fields["records"],
        _handed(fields.get("handed")),
    )
    sound = (
        isinstance(journal.data, str)
        and isinstance(journal.groups, int)
        and journal.groups > 0
        and (journal.records is None or isinstance(journal.records, int))
        and 0 < journal.sampling_probability <= 1
        and all(_is_sound(candidate, _requests(journal.settings)) for candidate in journal.written)
        and (journal.winner is None or journal.winner in range(_choices(journal)))
    )
    if not sound:
        raise ValueError
    return journal


def _handed(fields: Any) -> tuple[str, tuple[str, ...]] | None:
    """What was handed over; None in the journal of a run that is not complete, or was before this was kept."""
    if fields is None:
        return None
    instruction, words = fields
    if not isinstance(instruction, str) or not all(isinstance(word, str) for word in words):
        raise ValueError
    return instruction, tuple(words)


def _choices(journal: Journal) -> int:
    """Prompts of a run among which was selected, at most."""
    glossary, public = journal.settings.get("glossary"), len(journal.settings.get("alternatives", ()))
    return public + (len(journal.written) + 1 if glossary is None else choices_of(named=glossary.get("named", False)))


def _requests(settings: Mapping[str, Any]) -> Sequence[str]:
    """What texts are numbered by: the labels that a glossary describes, or the requests."""
    requests: Sequence[str] = settings["labels"] if "glossary" in settings else settings["templates"]["messages"]
    return requests


def _is_sound(candidate: Written, messages: Sequence[str]) -> bool:
    numbers = (candidate.message, candidate.calls, candidate.bottoms, candidate.retries, candidate.tries)
    return (
        all(isinstance(number, int) and number >= 0 for number in numbers)
        and candidate.message < len(messages)
        and isinstance(candidate.tokens, list)
        and all(isinstance(token, (int, str)) for token in candidate.tokens)
        and len(candidate.tokens) + candidate.bottoms <= candidate.calls
        and isinstance(candidate.pending, bool)
        and isinstance(candidate.drawing, bool)
        and candidate.ended in get_args(Ended)
    )
