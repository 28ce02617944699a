"""The report of a ledger: what it says, what it never shows, and that it changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from fakes.encoders import fitted
from fakes.encoders import rows as words
from fakes.optimizers import examples, optimizer
from fakes.synthesizers import generator, synthesizer
from fakes.synthesizers import rows as people
from langchain_core.language_models import FakeListChatModel

from langchain_dp import DPICLClassifier, Pseudonymizer
from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    MetricCertificate,
    MetricLedger,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    VectorSumEvent,
    events,
)
from langchain_dp.accounting._account import Account
from langchain_dp.accounting.metric import Owner
from langchain_dp.attacks import infer_membership
from langchain_dp.audit.report import names, report
from langchain_dp.audit.report.contents import report_on
from langchain_dp.audit.report.names import label, meaning
from langchain_dp.audit.report.page import page
from langchain_dp.audit.report.results import ReportedAttack, reported_pseudonyms, rows_of, summed_pseudonyms
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import SamplingOptions
from langchain_dp.mechanisms.clipped_sum import GRID, ClippedSum
from langchain_dp.rapt.pseudonyms import PatternEntities, PseudonymReport
from langchain_dp.records import PrivateRecords

SECRET = "Zebedee Quillfeather was treated for gout"
SCRIPT = "<script>alert(1)</script>"


def test_a_ledger_is_told_as_it_is(ledger: Path) -> None:
    """If it breaks, the auditor reads other numbers than the ledger holds."""
    found = report(ledger)
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), ledger) as made:
        assert found.reserved == made.reserved()
        assert found.spent == pytest.approx(made.spent())
        [answers, prompt] = found.plans
        assert answers.spent == pytest.approx(made.plans()[0].spent()[0])
    assert (found.kind, found.file, found.total, found.budget) == ("ledger", "budget.db", 6, (8.0, 1e-5))
    assert (answers.name, answers.releases[0].used, answers.releases[0].most) == ("tickets", 6, 100)
    assert answers.releases[0].chains == {"desk": 6}
    assert answers.releases[0].first < answers.releases[0].last
    assert [(release.used, release.most, release.first) for release in prompt.releases] == [(0, 40, ""), (0, 1, "")]
    assert "number of records is public" in found.neighbors
    assert found.curve[-1][1] == pytest.approx(found.spent[0])
    assert [value for _, value in found.curve] == sorted(value for _, value in found.curve)


@pytest.mark.parametrize("neighbors", [Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE])
def test_every_plan_names_its_model_and_its_records(neighbors: Neighbors) -> None:
    """If it breaks, an auditor cannot tell who saw how many records, or a private number of them is shown."""
    ledger, public = PrivacyLedger(PrivacyBudget(300.0, 0.2, neighbors)), neighbors is Neighbors.REPLACE_ONE
    fitted(ledger=ledger, budget=PrivacyBudget(8.0, 1e-6, neighbors), components=4)
    customers = PrivateRecords(words(), user_key="customer")
    fitted(customers, ledger=ledger, budget=PrivacyBudget(8.0, 1e-6, neighbors), components=4, name="by customer")
    optimizer(ledger=ledger, budget=PrivacyBudget(200.0, 0.1, neighbors)).invoke(examples())
    synthesizer(
        ledger=ledger, budget=PrivacyBudget(4.0, 1e-6, neighbors), sampling_probability=None if public else 0.1
    ).invoke(people())
    generator(ledger=ledger, budget=PrivacyBudget(2.0, 1e-6, neighbors), sampling_probability=None if public else 0.4)
    rows = [{"text": f"sun {place}", "label": "AB"[place % 2]} for place in range(60)]
    DPICLClassifier(
        model=FakeListChatModel(responses=["A"]), examples=rows, labels=["A", "B"], ledger=ledger,
        budget=PrivacyBudget(2.0, 1e-6, neighbors), max_queries=3, subsets=5,
        sampling=SamplingOptions(*([] if public else ["fixed", 5, 1.0])),
    )  # fmt: skip
    told = [
        ("WordEncoder", "200 records"),
        ("WordEncoder", "100 users, all records of one protected together"),
        ("word-engine-1", "40 records"),
        ("words", "120 records"),
        ("words", "100 records"),
        ("FakeListChatModel", "60 records"),
    ]
    plans = report_on(ledger).plans
    assert [(plan.model, plan.records) for plan in plans] == [(model, count if public else "") for model, count in told]
    shown = page(report_on(ledger))
    assert "model WordEncoder" in shown
    assert ("200 records" in shown) == public


def test_a_metric_ledger_is_told_as_it_is(metric: Path) -> None:
    """If it breaks, eta is taken for an epsilon, or the largest account is not shown."""
    found = report(metric)
    assert (found.kind, found.total, found.spent, found.budget) == ("metric ledger", 5, (10.0, 7.0), (20.0, 10.0))
    assert [(release.used, release.parameters) for release in found.plans[0].releases] == [
        (4, "eta 2.5 nats per unit of distance in glove-50d"),
        (1, "eta 7 nats per unit of distance in glove-50d"),
    ]
    assert dict(found.facts)["Users with an account"] == "1"
    assert dict(found.facts)["Releases that named no user"] == "1"
    assert [value for _, value in found.curve] == [2.5, 5.0, 7.5, 10.0, 10.0]
    assert "epsilon, at delta" not in page(found)
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (written["unit"], written["spent"]) == ("eta", {"user": 10.0, "document": 7.0})
    assert not {"epsilon", "delta", "spent"} & set(written["plans"][0])


def test_a_metric_ledger_with_a_key_elsewhere_and_no_limit_is_read(tmp_path: Path) -> None:
    """If it breaks, the auditor needs a secret, or infinity breaks the page or its JSON."""
    with MetricLedger(None, tmp_path / "keyed.db", key=os.urandom(32)) as made:
        made.spend(1.0, [Owner("one")], table="/home/zebedee/private/words.vec")
    found = report(tmp_path / "keyed.db")
    assert found.budget == (math.inf, math.inf)
    assert found.spent == (0.0, 1.0)
    assert found.to_dict()["budget"] == {"user": "inf", "document": "inf"}
    assert "no limit" in page(found)
    assert "zebedee" not in page(found) + str(found.to_dict())


def test_no_text_that_stands_in_a_name_is_shown(tmp_path: Path) -> None:
    """If it breaks, a caller who passed a private text as a name finds it in the auditor's hands."""
    path = tmp_path / f"{SECRET}.db"
    event = PartEvent(SECRET, NoisyMaxEvent(2.0))
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), path) as made:
        plan = made.reserve([(event, 5)], name=SECRET, settings={"model": SECRET, "records": SECRET})
        plan.spend(event, caller=SECRET)
    with MetricLedger(20.0, tmp_path / "texts.db") as texts:
        texts.spend(1.0, [Owner(SECRET, SECRET)], table=SECRET, caller=SECRET)
    attack = (ReportedAttack(label(SECRET), 0.5, 0.4, 0.6, 0.5, 10, {label(SECRET): label(SECRET)}),)
    for found in (report(path, attacks=attack), report(tmp_path / "texts.db")):
        for shown in (page(found), json.dumps(found.to_dict())):
            assert not [word for word in ("Zebedee", "Quillfeather", "gout", str(tmp_path)) if word in shown]
            assert "not shown" in shown
            assert not re.search(r"\b[0-9a-f]{32,}\b", shown)  # nor a keyed hash, nor the ledger's id


@pytest.mark.parametrize(
    "name",
    [SECRET, "one two three four five", "x" * 49, "a\nb", SCRIPT, '"quoted"', "a & b", "", "I'm ill", "50 €",
     "ann.smith@clinic.org", "\u60a3\u8005\u5c71\u7530\u592a\u90ce\u306f\u7cd6\u5c3f\u75c5\u3067\u3059"],
)  # fmt: skip
def test_what_reads_like_a_text_is_not_shown_and_a_label_is(name: str) -> None:
    """If it breaks, text or markup passes for a label, or an auditor cannot tell plans apart."""
    shown = label(name)
    assert "not shown" in shown
    assert not name or name not in shown
    for short in ("tickets", "run 3 (of 5)", "glove-6b-50d", "a/b", "café", "sst2@2026-01", "\u5ba2\u670d\u90e8\u95e8"):
        assert label(short) == short


class Tags(HTMLParser):
    """Tags, and every attribute that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [f"{name}={value}" for name, value in attributes if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "br", "line", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert not self.open or self.open.pop() == tag or tag in ("path", "line")


@pytest.mark.parametrize("kind", ["ledger", "metric", "empty"])
def test_the_page_is_whole_and_asks_nobody_for_anything(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """If it breaks, opening the report tells somebody, or a browser shows half of it."""
    if kind == "empty":
        PrivacyLedger(PrivacyBudget(1.0), tmp_path / "empty.db").close()
    path = tmp_path / "empty.db" if kind == "empty" else request.getfixturevalue(kind)
    attacks = (ReportedAttack("inversion", 0.5, 0.4, 0.6, 0.1, 10, {"eta": 7.0}),)
    written = page(report(path, attacks=attacks))
    tags = Tags()
    tags.feed(written)
    assert not tags.open
    assert not tags.addresses
    assert not tags.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert not re.search(r"https?:|url\(|@import", written)
    assert "default-src 'none'" in written
    assert "What is NOT protected" in written
    assert "prefers-color-scheme:dark" in written
    assert "@media print" in written
    assert ("<svg" in written) == (kind != "empty")
    assert ("Nothing was released yet" in written) == (kind == "empty")


def attacked(name: str, low: float, **settings: object) -> ReportedAttack:
    return ReportedAttack(name, min(low + 0.05, 1.0), low, 1.0, 0.5, 100, settings)  # type: ignore[arg-type]


def test_an_attack_above_its_bound_contradicts_the_promise(ledger: Path) -> None:
    """If it breaks, an auditor reads that the promise holds beside an attack that disproves it."""
    sound = [attacked("near", 0.73, bound=0.7311), attacked("free", 0.99), attacked("odd", 0.99, bound="none")]
    sound += [attacked("yes", 0.99, bound=True), attacked("nan", 0.99, bound=math.nan)]
    for attacks in ((), tuple(sound)):
        written = page(report(ledger, attacks=attacks))
        assert "class='alarm'" not in written
        assert "contradict" not in written
        assert "holds against" not in written
    broken = attacked("cache", 0.96, bound=0.7311)
    assert broken.contradicts
    written = page(report(ledger, attacks=(*sound, broken)))
    alarm = written.split("class='alarm'")[1].split("</section>")[0]
    assert "contradicts a promise" in alarm
    assert "cache: success 1.000, at least 0.960 by its interval; its promise allows 0.732 at most" in alarm
    assert "run on another chain" in alarm
    assert not [name for name in ("near", "free", "odd") if f"{name}: success" in alarm]
    assert written.count("better than its promise allows") == 1
    assert written.index("class='alarm'") < written.index("Spent over time")


def test_a_bound_is_rounded_to_its_own_side(ledger: Path) -> None:
    """If it breaks, a page allows less than the promise does, or an alarm says that .731 is more than .731."""
    near = attacked("near", 0.73, bound=0.7310586)
    assert ">0.732<" in page(report(ledger, attacks=[near]))
    close = dataclasses.replace(near, low=0.73106, rate=0.74)
    assert "at least 0.731060 by its interval; its promise allows 0.731059 at most" in page(
        report(ledger, attacks=[close])
    )


def test_results_of_attacks_are_taken_as_they_are(ledger: Path) -> None:
    """If it breaks, only whoever writes a JSON file first can show an attack; or a bound that is none is dropped."""
    result = infer_membership({"model": ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3])})
    for given in (result, result.to_dict()):
        assert "membership" in page(found := report(ledger, attacks=[given]))
        assert found.to_dict()["attacks"][0]["contradicts"] is False
    for wrong in ("0.55", 55, True):
        bad = result.to_dict() | {"settings": {"bound": wrong}}
        with pytest.raises(InvalidParameter, match="the bound of attack 0"):
            report(ledger, attacks=[bad])
    with pytest.raises(InvalidParameter, match="attack 0 to be an object"):
        report(ledger, attacks=["x"])


def test_the_curve_is_composed_when_it_is_asked_for(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, whoever wants the state of a ledger waits for two dozen compositions of a picture."""
    calls: list[int] = []
    real = Account.cost

    def counting(self: Account, counts: Sequence[tuple[str, int]], delta: float) -> float:
        calls.append(1)
        return real(self, counts, delta)

    monkeypatch.setattr(Account, "cost", counting)
    found = report(ledger)
    before = len(calls)
    assert "curve" not in found.to_dict(curve=False)
    assert len(calls) == before
    assert len(found.curve) == 3
    assert len(calls) == before + 3
    assert found.to_dict()["curve"] == [list(point) for point in found.curve]
    assert len(calls) == before + 3


def test_everything_is_escaped(ledger: Path) -> None:
    """If it breaks, a name runs as a script in the auditor's browser. The label rule stands before it; both must."""
    found = report(ledger, attacks=(ReportedAttack(SCRIPT, 0.5, 0.4, 0.6, 0.1, 10, {SCRIPT: SCRIPT}),))
    object.__setattr__(found.plans[0], "name", SCRIPT)
    object.__setattr__(found.plans[0].releases[0], "chains", {SCRIPT: 1})
    object.__setattr__(found, "file", SCRIPT)
    written = page(found)
    assert "<script" not in written
    assert written.count("&lt;script&gt;") == 7  # title twice, plan, chain, attack, setting and its value


def test_words_follow_from_the_definition() -> None:
    """If it breaks, the page promises more, or less, than (epsilon, delta) does."""
    assert names.tpr_at_fpr(1000.0, 0.1, 0.01) == 1.0
    assert names.tpr_at_fpr(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert names.tpr_at_fpr(1.0, 0.05, 0.01) == pytest.approx(0.01 * math.e + 0.05)
    assert names.tpr_at_fpr(8.0, 0.0, 0.01) == pytest.approx(1 - 0.99 * math.exp(-8))
    for bound, shown in ((0.73106, "73.2%"), (0.731, "73.1%"), (0.99012, "99.02%"), (0.99995, "almost 100%")):
        assert names._share(bound) == shown  # what is "at most" is rounded up
    for value, digits, up in ((4.4817, 3, 4.49), (4.48, 3, 4.48), (4127.123, 6, 4127.13), (0.00121, 2, 0.0013)):
        assert rounded_up(value, digits) == up
    assert rounded_up(0, 3) == 0
    assert "weak" in names.meaning(8.0, 1e-5, Neighbors.REPLACE_ONE)
    assert "weak" not in names.meaning(1.0, 1e-5, Neighbors.REPLACE_ONE)
    assert "3.49 votes" in names.calibration(NoisyMaxEvent(1.5), Neighbors.REPLACE_ONE)
    assert "25 votes" in names.calibration(LimitedDomainEvent(0.4, 0.01), Neighbors.REPLACE_ONE)
    assert "24 votes" in names.calibration(LimitedDomainEvent(0.4, 0.01), Neighbors.REPLACE_SPECIAL)
    assert {len(names.limits(relation)) for relation in Neighbors} == {7}


def test_what_a_record_moves_is_not_said_to_be_less() -> None:
    """If it breaks, an auditor reads that a record moves less than one of a member of several does."""
    noise = ClippedSum(ClippedSumRoundEvent(0.9, 5), members=2)
    one, other = (noise._moved(np.zeros(2), np.array(row)) for row in ([9.0, -9.0], [-9.0, 9.0]))
    moved = float(np.ptp(one - other)) * noise.event.epsilon0 / (4 * GRID)
    found = re.search(r"factor of ([\d.]+) at most", names.calibration(noise.event, Neighbors.REPLACE_ONE))
    assert found is not None
    assert math.exp(moved) <= float(found[1]) <= 1.01 * math.exp(moved)


def test_events_of_the_library_have_words_too(tmp_path: Path) -> None:
    """If it breaks, a ledger that holds another mechanism has no report."""
    gaussian, laplace = GaussianDpEvent(4.0), LaplaceDpEvent(9.0)
    events = [(gaussian, 2), (laplace, 3), (PoissonSampledDpEvent(0.1, gaussian), 4)]
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE), tmp_path / "other.db") as ledger:
        ledger.reserve(events, name="direct")
    [plan] = report(tmp_path / "other.db").plans
    assert {(release.mechanism, release.parameters) for release in plan.releases} == {
        ("Gaussian mechanism", "noise multiplier 4"),
        ("Laplace mechanism", "noise multiplier 9"),
        ("Gaussian mechanism, sampled", "noise multiplier 4, sampling probability 0.1"),
    }


KEPT = [
    NoisyMaxEvent(8.0),
    LimitedDomainEvent(0.3, 1e-7),
    ExponentialEvent(0.5),
    ClippedSumRoundEvent(0.2, 30, 0.1),
    VectorSumEvent(8.0),
]


@pytest.mark.parametrize("event", KEPT, ids=lambda event: type(event).__name__)
def test_a_report_tells_of_every_kind_of_event(event: DpEvent, tmp_path: Path) -> None:
    """If it breaks, `langchain-dp ledger` ends in a traceback, or an auditor reads the name of a class."""
    assert {type(each).__name__ for each in KEPT} | {"MetricEvent"} == set(events._OURS), "a new one is not tried"
    with PrivacyLedger(PrivacyBudget(20.0, 1e-4), tmp_path / "kept.db") as ledger:
        ledger.reserve([(event, 2)], name="direct")
        ledger.spend(event)
    [plan] = report(tmp_path / "kept.db").plans
    [release] = plan.releases
    assert not release.mechanism.endswith("Event")
    assert "noise multiplier" not in release.parameters
    assert "the library's own" not in names.calibration(event, Neighbors.REPLACE_ONE)


def test_many_parts_of_the_data_stand_in_one_line(tmp_path: Path) -> None:
    """If it breaks, an auditor scrolls through a hundred equal lines; or counts get lost when put together."""
    event, of_all = ClippedSumRoundEvent(0.2, 30), ClippedSumRoundEvent(0.1, 8, 0.5)
    events = [(of_all, 1), *((PartEvent(f"group {number}", event), 1) for number in range(20))]
    with PrivacyLedger(PrivacyBudget(8.0, 1e-4), tmp_path / "parts.db") as ledger:
        ledger.reserve(events, name="direct")
        for number in (0, 7):
            ledger.spend(PartEvent(f"group {number}", event), caller="synthesis")
    found = report(tmp_path / "parts.db")
    [plan] = found.plans
    whole, parts = plan.lines
    assert (whole.used, whole.most, whole.part) == (0, 1, "")
    assert parts.mechanism == "Clipped sums (one round of texts), on each of 20 disjoint parts of the data"
    assert (parts.used, parts.most, parts.chains) == (2, 20, {"synthesis": 2})
    assert parts.first <= parts.last
    assert len(plan.releases) == 21  # as the JSON has them
    assert page(found).count("disjoint parts") == 1


def test_the_curve_of_a_metric_ledger_never_falls(tmp_path: Path) -> None:
    """If it breaks, a small account that is charged later hides the largest one."""
    with MetricLedger(20.0, tmp_path / "two.db") as made:
        for user, eta in (("a", 5.0), ("b", 1.0), ("a", 2.0), ("b", 1.5)):
            made.spend(eta, [Owner(f"{user}{eta}", user)], table="glove-50d")
    assert [value for _, value in report(tmp_path / "two.db").curve] == [5.0, 7.0, 7.0]


def test_plain_words_speak_of_the_relation() -> None:
    """If it breaks, the page promises about two versions of a record what holds about its presence only."""
    for neighbors, says in (
        (Neighbors.REPLACE_ONE, "two versions of a record are equally likely, names the right one"),
        (Neighbors.ADD_OR_REMOVE_ONE, "that a record is there and that it is not are equally likely, tells which"),
        (Neighbors.REPLACE_SPECIAL, "that a record votes and that it abstains are equally likely, tells which"),
    ):
        text = meaning(1.6, 1e-5, neighbors)
        assert says in text
        assert ("twice the epsilon" in text) is (neighbors is not Neighbors.REPLACE_ONE)


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
    for hidden in (reported_pseudonyms([found]), summed_pseudonyms(rows_of(tmp_path / "told.json", "pseudonyms"))):
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
    assert summed_pseudonyms(rows_of(tmp_path / "told.json", "pseudonyms")) == reported_pseudonyms(reports)
    (tmp_path / "one.json").write_text(json.dumps(CLEAN.to_dict()))
    assert summed_pseudonyms(rows_of(tmp_path / "one.json", "pseudonyms")) == reported_pseudonyms([CLEAN])


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
        summed_pseudonyms(rows_of(tmp_path / "told.json", "pseudonyms"))
    assert said in str(raised.value)
    assert "Zebedee" not in str(raised.value)


def test_what_is_no_report_is_refused(ledger: Path) -> None:
    """If it breaks, the object instead of its report ends in an AttributeError."""
    with pytest.raises(InvalidParameter, match=r"pseudonyms\[0\] of type Pseudonymizer"):
        report(ledger, pseudonyms=[Pseudonymizer()])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match=r"pseudonyms\[0\] of type str"):
        report(ledger, pseudonyms=str(CLEAN))  # type: ignore[arg-type]
    assert report(ledger, pseudonyms=CLEAN).pseudonyms == report(ledger, pseudonyms=[CLEAN]).pseudonyms
