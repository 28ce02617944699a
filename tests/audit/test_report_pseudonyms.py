"""What pseudonyms hid, in the one report of a ledger: no epsilon, no text, and nothing that the ledger would count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_dp import Pseudonymizer
from langchain_dp.accounting import MetricCertificate
from langchain_dp.audit.report import report
from langchain_dp.audit.report.page import page
from langchain_dp.audit.report.results import read_pseudonyms, reported_pseudonyms
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.pseudonyms import PatternEntities, PseudonymReport

SECRET = "Zebedee Quillfeather was treated for gout"
CLEAN = PseudonymReport({"EMAIL": 2}, "patterns (EMAIL)", ("PERSON",), unknown=False, remaining_text_sanitizer=None)


class Named:
    """A recognizer whose author put a text where its name belongs, and does not say what it looks for."""

    name = f"{SECRET}; names"

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        yield 0, len("Zebedee"), "PERSON"


def test_conversations_with_equal_settings_are_summed(ledger: Path) -> None:
    """If it breaks, an auditor reads a line for each of a thousand conversations, or loses some."""
    settings = Pseudonymizer([PatternEntities(["EMAIL"])], terms={"Ann Smith": "PERSON"})
    conversations = [settings.new_conversation() for _ in range(3)]
    for number, conversation in enumerate(conversations):
        conversation.invoke(f"Ann Smith has ann{number}@example.org" + " and b@example.org" * number)
    other = Pseudonymizer([PatternEntities(["URL"])])
    found = report(ledger, pseudonyms=[one.report() for one in (*conversations, other)])
    assert [(one.conversations, one.counts) for one in found.pseudonyms] == [(3, {"EMAIL": 5, "PERSON": 3}), (1, {})]
    written = page(found)
    assert "5 EMAIL, 3 PERSON" in written
    assert "patterns (EMAIL); 1 terms (PERSON)" in written
    assert "Pseudonyms: NOT formal privacy" in written
    assert "passed in clear" in written
    told_json = json.loads(json.dumps(found.to_dict(), allow_nan=False))["pseudonyms"]
    assert [(one["private"], one["conversations"]) for one in told_json] == [(False, 3), (False, 1)]


def test_the_numbers_of_the_ledger_stay_what_they_are(ledger: Path) -> None:
    """If it breaks, pseudonyms count as releases, or seem to be covered by an epsilon."""
    alone, beside = report(ledger), report(ledger, pseudonyms=[CLEAN])
    for name in ("budget", "reserved", "spent", "total", "plans", "limits"):
        assert getattr(alone, name) == getattr(beside, name)
    assert "Pseudonyms" not in page(alone)
    assert alone.to_dict()["pseudonyms"] == []


def test_what_is_promised_for_the_other_words_is_said_in_its_own_unit(ledger: Path) -> None:
    """If it breaks, the page says that words passed in clear which did not, or names no table for its eta."""
    rest = MetricCertificate(mechanism="exponential", eta=2.5, table="glove-50d")
    seeded = MetricCertificate(mechanism="exponential", eta=2.5, table="t", private=False, reason="seeded")
    reports = [
        PseudonymReport({}, "patterns (EMAIL)", (), unknown=False, remaining_text_sanitizer=then)
        for then in (rest, rest, seeded, None)
    ]
    assert [(one.conversations, one.rest) for one in report(ledger, pseudonyms=reports).pseudonyms] == [
        (2, "metric privacy, eta 2.5 nats per unit of distance in glove-50d"),
        (1, "were sanitized, NOT PRIVATE"),
        (1, "passed in clear"),
    ]


def test_no_text_of_a_conversation_is_shown(ledger: Path, tmp_path: Path) -> None:
    """If it breaks, the auditor's page repeats the names that were hidden."""
    pseudonymizer = Pseudonymizer([Named()], terms={"Quillfeather": "PERSON"})
    pseudonymizer.invoke(SECRET)
    found = pseudonymizer.report()
    assert SECRET in found.looked_for  # a caller's mistake, which goes no further
    (tmp_path / "told.json").write_text(json.dumps([found.to_dict()]))
    for hidden in (reported_pseudonyms([found]), read_pseudonyms(tmp_path / "told.json")):
        assert [(one.counts, one.missed) for one in hidden] == [
            ({"PERSON": 2}, "not known: a recognizer does not say what it looks for")
        ]
        assert "names; 1 terms (PERSON)" in hidden[0].looked_for
        assert not [word for word in ("Zebedee", "Quillfeather", "gout") if word in repr(hidden)]
    whole = report(ledger, pseudonyms=[found])
    for shown in (page(whole), json.dumps(whole.to_dict()), repr(whole)):
        assert not [word for word in ("Zebedee", "Quillfeather", "gout") if word in shown]


def test_a_file_says_what_the_objects_say(tmp_path: Path) -> None:
    """If it breaks, the command and the library write two different reports."""
    rest = MetricCertificate(mechanism="exponential", eta=2.5, table="glove-50d")
    reports = [CLEAN, PseudonymReport({"PERSON": 1}, "names", ("DATE",), unknown=True, remaining_text_sanitizer=rest)]
    (tmp_path / "told.json").write_text(json.dumps([one.to_dict() for one in reports], allow_nan=False))
    assert read_pseudonyms(tmp_path / "told.json") == reported_pseudonyms(reports)
    (tmp_path / "one.json").write_text(json.dumps(CLEAN.to_dict()))
    assert read_pseudonyms(tmp_path / "one.json") == reported_pseudonyms([CLEAN])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"text": SECRET}, "and nothing else"),
        ({"private": True}, "private false"),
        ({"counts": [SECRET]}, "counts an object"),
        ({"counts": {"PERSON": -1}}, "a count of pseudonyms[1]"),
        ({"counts": {"PERSON": SECRET}}, "a count of pseudonyms[1]"),
        ({"not_looked_for": SECRET}, "not_looked_for a list"),
        ({"unknown": None}, "unknown and system_in_clear true or false"),
        ({"system_in_clear": SECRET}, "unknown and system_in_clear true or false"),
        ({"remaining_text_sanitizer": SECRET}, "remaining_text_sanitizer of pseudonyms[1]"),
        ({"remaining_text_sanitizer": {"table": "t", "private": True, "eta": SECRET}}, "eta of pseudonyms[1]"),
    ],
)
def test_a_wrong_row_is_refused_by_its_place(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    """If it breaks, a mistake ends in a trace of ours, is shown half, or repeats what the file holds."""
    (tmp_path / "told.json").write_text(json.dumps([CLEAN.to_dict(), CLEAN.to_dict() | changed]))
    with pytest.raises(InvalidParameter) as raised:
        read_pseudonyms(tmp_path / "told.json")
    assert said in str(raised.value)
    assert "Zebedee" not in str(raised.value)


def test_what_is_no_report_is_refused(ledger: Path) -> None:
    """If it breaks, the object instead of its report ends in an AttributeError."""
    with pytest.raises(InvalidParameter, match=r"pseudonyms\[0\] of type Pseudonymizer"):
        report(ledger, pseudonyms=[Pseudonymizer()])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match=r"pseudonyms\[0\] of type str"):
        report(ledger, pseudonyms=str(CLEAN))  # type: ignore[arg-type]
    assert report(ledger, pseudonyms=CLEAN).pseudonyms == report(ledger, pseudonyms=[CLEAN]).pseudonyms
