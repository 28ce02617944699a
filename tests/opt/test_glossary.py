"""Descriptions of labels: who is asked, what it costs, what is handed over, and that a run can be stopped anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, by_text
from fakes.optimizers import ADD_OR_REMOVE, BUDGET, LABELS, ZERO_OUT, Looking, ledger_in, notes, optimizer
from fakes.stops import press_ctrl_c
from fakes.synthesizers import synthesizer

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import LabelPartEvent, LimitedDomainEvent, PartEvent, epsilon
from langchain_dp.accounting.events import event_from_json
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import Exponential, LimitedDomain
from langchain_dp.opt import Glossary, OptPrompts, PromptAlternative, description_fault, load_prompt
from langchain_dp.opt.glossary import with_glossary

THREE = ["team A", "team B", "team C"]
SAID = {"team A": "Dull film.", "team B": "Great movie.", "team C": "Good review!"}
CALLS = 5


def rows(count: int = 120, labels: list[str] = THREE) -> list[dict[str, str]]:
    """Labels in turn; each text tells its own to the engine, and holds the canary."""
    return [
        {"text": f"note {i:03d} kind{labels.index(labels[i % len(labels)])} {CANARY}", "label": labels[i % len(labels)]}
        for i in range(count)
    ]


def writer(kind: type[WordEngine] = WordEngine, *look: Any) -> WordEngine:
    """Every member describes what it is shown."""
    script = by_text({f"kind{i}": said for i, said in enumerate(SAID.values())})
    return kind(*look, script=script, extra="\n".join(["", *SAID.values(), *THREE]))


def glossary(engine: Any = None, **changes: Any) -> Any:
    """Sixteen subsets of six records, two of each label; five calls a label."""
    return optimizer(
        engine or writer(),
        method="glossary",
        **{"labels": THREE, "budget": BUDGET, "max_new_tokens": CALLS, "num_prompts": 1} | changes,
    )


@pytest.mark.parametrize("saved", [False, True])
def test_descriptions_are_candidates_of_another_run(tmp_path: Path, saved: bool) -> None:
    """If it breaks, DP-OPT cannot choose what the labels mean, or pays for it twice."""
    ledger = PrivacyLedger(PrivacyBudget(2 * BUDGET.epsilon, 2 * BUDGET.delta))
    parts = {"ledger": ledger}
    described = glossary(budget=BUDGET, name="glossary", **parts).optimize(rows())
    if saved:
        described.save(tmp_path / "prompt.json")
        described = load_prompt(tmp_path / "prompt.json")
    found = described.alternatives()
    names = dict(zip(THREE, ("Dull film", "Great movie", "Good review"), strict=True))
    same = dict(zip(THREE, THREE, strict=True))
    whole = "Classify this text.\nteam A: Dull film.\nteam B: Great movie.\nteam C: Good review!"
    assert [(each.instruction, each.words) for each in found] == [
        ("Say what the topic of the text is.", names), ("Classify this text.", names), (whole, same)
    ]  # fmt: skip
    other = optimizer(labels=THREE, alternatives=found, budget=BUDGET, name="dp-opt", validation=0.5, **parts)
    made = other.optimize(rows())
    assert made.certificate.parameters["alternatives"] == 3
    allowed = [
        (each.instruction, each.words) for each in (*found, PromptAlternative(made.settings["instruction"], same))
    ]
    allowed += [(each.text, same) for each in made.candidates]
    assert (made.instruction, made.words) in allowed
    with pytest.raises(InvalidParameter, match="glossary"):
        made.alternatives()


def test_descriptions_that_say_nothing_are_no_candidates() -> None:
    """If it breaks, a run over labels that nobody could describe has the same prompt twice, and refuses."""
    silent = glossary(WordEngine(lambda prompt, written: None), max_new_tokens=1).optimize(rows())
    assert silent.alternatives() == []


def test_descriptions_that_are_the_words_of_their_labels_are_one_candidate() -> None:
    """If it breaks, a glossary that was paid for says the initial prompt once more, and the run over it refuses."""
    words = {label: f"Film{place}" for place, label in enumerate(THREE)}

    def script(place: int, asked: Any) -> str:
        kind = re.findall(r"kind(\d)", asked.prompt.body)[0]
        return f" Film{kind}"

    engine = WordEngine(script, extra="\n".join([*THREE, *(f" {word}" for word in words.values())]))
    described = glossary(engine, prompts=OptPrompts(words=words), not_private_seed=3).optimize(rows())
    assert [each.text for each in described.candidates] == list(words.values())
    [only] = described.alternatives()
    assert (only.instruction, only.words) == ("Say what the topic of the text is.", words)


def test_each_label_is_described_and_the_lines_stand_in_the_prompt(tmp_path: Path) -> None:
    """If it breaks, what was learned of the labels does not reach the prompt, its file, or what is made with it."""
    made = glossary(not_private_seed=3).optimize(rows())
    assert made.descriptions == SAID
    assert [(each.label, each.text, each.dropped) for each in made.candidates] == [
        (label, said, "") for label, said in SAID.items()
    ]
    whole = "Classify this text.\nteam A: Dull film.\nteam B: Great movie.\nteam C: Good review!"
    assert whole == with_glossary("Classify this text.", THREE, list(SAID.values()))
    names = dict(zip(THREE, ("Dull film", "Great movie", "Good review"), strict=True))
    # by the choice on validation records
    assert (made.instruction, made.words) in [
        ("Say what the topic of the text is.", names),
        ("Classify this text.", names),
        (whole, dict(zip(THREE, THREE, strict=True))),
        ("Classify this text.", dict(zip(THREE, THREE, strict=True))),
    ]
    [message] = made.template().format_messages(text="a film")
    called = f"Answer with one of: {', '.join(made.words.values())}."
    assert message.content == f"Instruction: {made.instruction}\n{called}\n\nInput: a film\n\nOutput:"
    made.save(tmp_path / "prompt.json")
    assert load_prompt(tmp_path / "prompt.json") == made
    assert CANARY not in (tmp_path / "prompt.json").read_text()
    assert synthesizer(labels=made.descriptions)  # its labels with their meaning


def test_subsets_show_their_records_of_one_label_from_one_partition() -> None:
    """If it breaks, a record sits in other subsets for other labels, or a description reads records of two labels."""
    engine = writer()
    glossary(engine, num_prompts=7).invoke(rows())
    kinds, places = [], {}
    for call in engine.calls:
        shown = {kind for one in call for kind in re.findall(r"kind(\d)", one.prompt.body)}
        assert len(shown) == 1
        kinds.append(shown.pop())
        for one in call:
            member, label = one.prompt.member
            assert str(label) == kinds[-1]
            for note in notes([one.prompt.body]):
                assert places.setdefault(note, member) == member
            assert not any(name in one.prompt.head + one.prompt.body + one.prompt.tail for name in THREE)
    assert kinds == sorted(kinds)  # one label after another
    assert len(places) == 96  # all that teach
    assert len(set(places.values())) == 16
    assert not engine.cache  # nothing is kept of a subset at the end
    dropped = [member for member in engine.forgotten if isinstance(member, tuple) and isinstance(member[0], tuple)]
    assert {label for _, label in dropped} == {0, 1, 2}


def test_the_caches_of_one_label_do_not_outlive_its_description() -> None:
    """If it breaks, memory holds every subset once for each label, and a forgotten record in more than one place."""
    held: list[set[int]] = []
    engine = writer(Looking, lambda bodies: held.append({key[1] for key in engine.cache if isinstance(key[0], tuple)}))
    glossary(engine).invoke(rows())
    assert {label for labels in held for label in labels} == {0, 1, 2}
    assert max(map(len, held)) == 1


def test_a_subset_without_a_record_of_the_label_abstains() -> None:
    """If it breaks, an empty prompt votes, or a label that nobody has raises."""
    engine = writer()
    few = [{**row, "label": "team A", "text": f"note {i:03d} kind0 {CANARY}"} for i, row in enumerate(rows())]
    few[0] = {"text": f"note 000 kind1 {CANARY}", "label": "team B"}
    made = glossary(engine).optimize(few)
    assert {len(call) for call in engine.calls} <= {0, 1, 16}
    assert all(notes([one.prompt.body]) for call in engine.calls for one in call)
    assert made.descriptions == {"team A": SAID["team A"], "team B": "team B", "team C": "team C"}
    assert {each.label: each.dropped for each in made.candidates if each.dropped} == dict.fromkeys(
        ["team B", "team C"], "it has no text"
    )
    assert made.instruction == "Classify this text." or "\nteam B\nteam C" in made.instruction


def test_names_are_shown_only_where_that_is_asked_for() -> None:
    """If it breaks, a label whose name misleads is described by its name."""
    engine = writer()
    for chat in (False, True):
        engine.calls.clear()
        glossary(engine, glossary=Glossary(show_labels=True), chat=chat).invoke(rows())
        heads = list(dict.fromkeys(one.prompt.head for call in engine.calls for one in call))
        assert [f'folder{"," * chat} "{name}"' in head for name, head in zip(THREE, heads, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("budget", "paid"), [(BUDGET, 2 * CALLS), (ADD_OR_REMOVE, CALLS), (ZERO_OUT, 3 * CALLS)],
    ids=lambda value: getattr(getattr(value, "neighbors", None), "name", ""),
)  # fmt: skip
def test_every_call_is_charged_to_its_label_and_two_labels_are_paid_for(
    budget: PrivacyBudget, paid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a run costs more than its ledger says: a record that moves is in two descriptions."""
    drawn: list[bool] = []
    real = LimitedDomain.release

    def release(self: LimitedDomain[Any], votes: Any, **settings: Any) -> Any:
        drawn.append(self.moved_votes)
        return real(self, votes, **settings)

    monkeypatch.setattr(LimitedDomain, "release", release)
    ledger = PrivacyLedger(budget)
    made = glossary(ledger=ledger, budget=None)
    planned = made.plan(120)
    assert (planned.max_calls, planned.calls_paid, planned.num_prompts) == (3 * CALLS, paid, 3)
    made.invoke(rows())
    events = [event_from_json(entry.event) for entry in ledger.entries()]
    calls = [event.event.label for event in events if event.part == "training"]
    assert calls == [label for label in THREE for _ in range(4)]  # three pieces and the end
    assert drawn == [budget is not ZERO_OUT] * len(calls)
    [plan] = ledger.plans()
    token = made._private._reservation.token
    wanted = [(PartEvent("training", LabelPartEvent(label, token)), CALLS) for label in THREE]
    assert [pair for pair in plan.events if pair[0].part == "training"] == wanted
    tokens = epsilon([(token, paid)], plan.delta, neighbors=budget.neighbors)
    assert epsilon(wanted, plan.delta, neighbors=budget.neighbors) == tokens
    assert plan.epsilon >= tokens
    assert made.certificate().parameters["calls_paid"] == paid


def test_the_noise_is_made_for_the_calls_that_are_paid() -> None:
    """If it breaks, noise is calibrated for the calls of one label, or of all, where two are paid for."""
    made = glossary(epsilon0=None, delta0=None, budget=PrivacyBudget(60.0, 1e-3))
    token: LimitedDomainEvent = made.plan(120).token
    assert 59 < epsilon([(token, 2 * CALLS)], 1e-3) <= 60


def test_a_run_that_is_stopped_anywhere_is_taken_up(tmp_path: Path) -> None:
    """If it breaks, Ctrl-C loses a description that was paid for, or one call is drawn twice for one charge."""
    for turn in (0, 3, 4, 9):
        folder = tmp_path / str(turn)
        folder.mkdir()
        turns = iter(range(10**6))

        def look(bodies: list[str], turns: Any = turns, turn: int = turn) -> None:
            if bodies[0].startswith("- ") and next(turns) == turn:
                press_ctrl_c()

        with ledger_in(folder) as ledger, pytest.raises(KeyboardInterrupt):
            glossary(writer(Looking, look), ledger=ledger, budget=None).invoke(rows())
        with ledger_in(folder) as ledger:
            made = glossary(ledger=ledger, budget=None)
            prompt = made.optimize(rows())
            [plan] = ledger.plans()
            charged = [most - plan.remaining(event) for event, most in plan.events if event.part == "training"]
        lost = [0, 0, 0]
        lost[turn // 4] = 1
        assert charged == [4 + more for more in lost]  # one call more than outcomes, where it was stopped
        assert prompt.descriptions == SAID
        with ledger_in(folder) as ledger:
            assert glossary(writer(Looking), ledger=ledger, budget=None).optimize(rows()).descriptions == SAID
            with pytest.raises(PlanError, match="settings"):
                glossary(ledger=ledger, budget=None, max_new_tokens=CALLS + 1).optimize(rows())


@pytest.mark.parametrize("place", range(4))
def test_a_complete_run_of_two_labels_gives_its_prompt_again_whichever_was_selected(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a prompt that was paid for is lost with its process: there are more prompts than descriptions."""
    monkeypatch.setattr(Exponential, "release", lambda self, counts, **_: range(len(counts))[place])
    found = []
    for _ in range(2):
        with ledger_in(tmp_path) as ledger:
            made = glossary(ledger=ledger, budget=None, labels=THREE[:2]).optimize(rows(labels=THREE[:2]))
        found.append((made.prompt, made.instruction, made.words))
    assert found[0] == found[1]


def test_a_label_that_has_used_its_calls_ends_and_the_next_begins() -> None:
    """If it breaks, one label takes the calls of another, which is then charged beyond what was reserved."""
    made = glossary(max_new_tokens=2).optimize(rows())
    assert [each.text for each in made.candidates] == ["Dull film", "Great movie", "Good review"]
    assert made.certificate.parameters["tokens_released"] == 6
    ledger = PrivacyLedger(BUDGET)
    silent = WordEngine(lambda place, asked: None, extra="\n".join(THREE))
    glossary(silent, ledger=ledger, budget=None, max_new_tokens=1).optimize(rows())
    assert [entry.count for entry in ledger.entries()] == [1, 1, 1, 1]  # no label has a call left for a second try


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": "resample", "partitions": None, "budget": ADD_OR_REMOVE}, "one partition"),
        ({"max_calls": 9}, "max_new_tokens= calls"),
        ({"method": "dp-opt", "glossary": Glossary()}, "method="),
        ({"glossary": "yes"}, "glossary"),
    ],
)
def test_what_a_glossary_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    """If it breaks, a run is charged by a proof that does not cover it, or an argument is ignored."""
    settings = {"labels": THREE, "budget": BUDGET, "max_new_tokens": CALLS, "method": "glossary"} | changes
    with pytest.raises(InvalidParameter, match=said):
        optimizer(writer(), **settings)
    with pytest.raises(InvalidParameter, match="question"):
        Glossary(question=" ")
    with pytest.raises(InvalidParameter, match="shown="):
        Glossary(kind="mood")
    with pytest.raises(InvalidParameter, match="pairs"):
        Glossary(kind="mood", shown=[("Closed again.", "")])


@pytest.mark.parametrize("chat", [False, True])
def test_labels_that_are_no_topics_are_asked_for_by_their_kind(chat: bool) -> None:
    """If it breaks, labels that tell moods apart are described by topics, and names are asked for as topics."""
    mood = Glossary(kind="mood", shown=[("Closed again.", "annoyed")])
    asking = mood.asking("team A", chat=chat)
    assert "mood" in asking.whole(["x"])
    assert "topic" not in asking.whole(["x"]).casefold()
    assert ("Closed again." in asking.head) is not chat  # nothing is shown in a chat template
    assert description_fault("The mood", mood) == "it says nothing of the texts"
    made = glossary(glossary=mood, not_private_seed=3).optimize(rows())
    assert made.settings["glossary"]["instruction"] == "Say what the mood of the text is."


@pytest.mark.parametrize(
    ("text", "complete", "fault"),
    [
        ("Sports news, including soccer.", True, ""),
        ("Financial news, corporate news, business", False, ""),
        ("", True, "no text"),
        (" ...", True, "no text"),
        ("These texts were sorted into the same folder.", True, "repeats"),
        ("The texts in this folder are:", True, "nothing"),
        ("Various topics", True, "nothing"),
        ("Financial", False, "mid-sentence"),
        ("Financial", True, ""),
    ],
)
def test_descriptions_that_describe_nothing_are_dropped(text: str, complete: bool, fault: str) -> None:
    """If it breaks, the request, or a phrase about folders, is handed over as the meaning of a label."""
    found = description_fault(text, Glossary(), complete=complete)
    assert fault in found
    assert bool(found) is bool(fault)


def test_a_description_never_ends_before_it_begins() -> None:
    """If it breaks, a model that likes to end at once describes nothing, and each label pays for it."""
    engine = WordEngine(by_text({}, ""), extra=" ".join(THREE))
    glossary(engine).invoke(rows())
    openings = [
        rule for call, rule in zip(engine.calls, engine.decodings, strict=True) for one in call[:1] if not one.written
    ]
    assert all(engine.end_tokens <= rule.banned for rule in openings)
    assert LABELS != THREE


def test_long_records_describe_their_label() -> None:
    """If it breaks, every subset is too long for the model where records are, and no label has a description."""
    script = by_text({f"kind{i}": said for i, said in enumerate(SAID.values())})
    engine = WordEngine(script=script, extra="\n".join(["", *SAID.values(), *THREE]), max_prompt_tokens=400)
    long = [{**row, "text": f"{row['text']} {'and so on ' * 400}"} for row in rows()]
    assert glossary(engine).optimize(long).descriptions == SAID
