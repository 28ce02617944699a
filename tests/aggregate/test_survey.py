"""Surveys: what is counted, what the bars promise, and what a caller may get wrong."""

from __future__ import annotations

import collections
import json
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY
from fakes.encoders import WordEncoder
from fakes.readers import CHOICES, ReadingChat, colors
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPLabelNamer, DPSurvey, PrivacyBudget, PrivacyLedger, PrivateRecords, Question
from langchain_dp.accounting import Neighbors
from langchain_dp.aggregate import Survey, conversations, survey
from langchain_dp.aggregate.counts import VOTE, VoteCounts, consistent_shares, half_width
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError

BUDGET = PrivacyBudget(1.0)
MANY = PrivacyBudget(400.0, 1e-5)


def says(*answers: str, user: str | None = None) -> list[dict[str, str]]:
    return [{"text": f"chat {place} says {answer}", "id": user or f"u{place}"} for place, answer in enumerate(answers)]


def asked(rows: Any, count: int = 2, budget: PrivacyBudget = MANY, **options: Any) -> Survey:
    return DPSurvey(colors(count), model=ReadingChat()).run(rows, budget=budget, not_private_seed=3, **options)


def shares(found: Survey, question: str = "color 0") -> dict[str, float]:
    return {choice: round(share.share, 1) for choice, share in found[question].shares.items()}


def test_shares_count_what_each_conversation_says() -> None:
    """If it breaks, the table is of other answers, or a failure disappears."""
    found = asked(says(*["rg"] * 40, *["gb"] * 30, *["xr"] * 20, *["og"] * 10), user_key="id")
    assert shares(found) == {"red": 0.4, "green": 0.3, "blue": 0.0, "no answer": 0.3}
    assert shares(found, "color 1") == {"red": 0.2, "green": 0.5, "blue": 0.3, "no answer": 0.0}
    assert found.records == 100
    assert found.unit == "users"


def test_records_per_user_reads_the_oldest_only() -> None:
    """If it breaks, a user of many conversations costs as many model calls as she likes."""
    chats = [{"text": f"says {'rg'[place > 1]}", "id": "x"} for place in range(10)]
    rest = [{"text": "says b", "id": f"u{place}"} for place in range(9)]
    assert shares(asked([*chats, *rest], 1, user_key="id", records_per_user=2))["red"] == 0.1


@pytest.mark.parametrize("neighbors", [Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE])
def test_every_share_is_within_its_bar_in_95_of_100_surveys(neighbors: Neighbors) -> None:
    """If it breaks, the bars that the page prints are too short. Less than 358 of 400 has a chance of 3e-7."""
    counts = VoteCounts.of(PrivacyBudget(1.0, 1e-5, neighbors), votes=5)
    rng = np.random.default_rng(0)
    truth = [rng.dirichlet(np.ones(size)) for size in (3, 4, 5, 9, 2)]
    users = 1000
    held = 0
    for _ in range(400):
        tables = [
            {"name": str(place), "choices": [str(cell) for cell in range(len(row))], "below": [],
             "counts": (users * row + rng.normal(0, counts.deviation, len(row))).tolist()}
            for place, row in enumerate(truth)
        ]  # fmt: skip
        known = users if neighbors is Neighbors.REPLACE_ONE else None
        found = survey._tables(tables, counts.deviation, known)
        held += all(
            share.low <= real <= share.high
            for table, row in zip(found, truth, strict=True)
            for share, real in zip(table.shares.values(), row, strict=True)
        )
    assert held >= 358


def test_shares_add_up_and_lie_within_their_bars() -> None:
    """If it breaks, a page shows shares of -3%, or of 104% together."""
    found = asked(says(*["rg"] * 7, *["br"] * 5), budget=PrivacyBudget(0.5))
    for table in found.tables:
        assert sum(share.share for share in table.shares.values()) == pytest.approx(1.0)
        assert all(share.low - 1e-9 <= share.share <= share.high + 1e-9 for share in table.shares.values())
    assert consistent_shares(np.array([0.9, 0.9]), np.array([0.8, 0.8]), np.array([1.0, 1.0])).sum() == pytest.approx(1)


def test_finer_questions_are_asked_below_leading_choices_only() -> None:
    """If it breaks, topics are not refined, or a choice that nobody leads to is asked about."""
    finer = {"red": ["green", "blue"], "blue": ["red", "green"]}
    rows = says(*["rg"] * 60, *["gg"] * 40)
    found = DPSurvey(colors(1, below=finer), model=ReadingChat(), leaders=1).run(
        rows, budget=MANY, not_private_seed=1, user_key="id"
    )
    [(choice, table)] = found["color 0"].below.items()
    assert choice == "red"
    assert {name: round(share.share, 1) for name, share in table.shares.items()} == {
        "green": 0.0, "blue": 0.0, "no answer": 0.6,  # the model says "red" again, which is no finer choice
    }  # fmt: skip
    assert "no answer" in str(found)


def test_the_encoder_chooses_the_nearest_description() -> None:
    """If it breaks, the default reader puts every conversation anywhere."""
    topics = Question("topic", {"delivery": "parcel parcel", "billing": "invoice invoice"})
    rows = [{"text": word} for word in ["my parcel"] * 40 + ["my invoice"] * 10]
    found = DPSurvey([topics], encoder=WordEncoder()).run(rows, budget=MANY)
    assert shares(found, "topic") == {"delivery": 0.8, "billing": 0.2, "no answer": 0.0}


class ColorEngine:
    """Scores a choice by whether the text names it, prefers red without a reason, and fails on black."""

    name, max_tail_tokens = "colors", 200

    def __init__(self) -> None:
        self.kept: set[Any] = set()

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def score_labels(self, prompts: Any, words: Any, *, content_free: Any = ()) -> list[list[float] | None]:
        self.kept |= {prompt.member for prompt in prompts}
        if any("black" in prompt.body for prompt in prompts):
            raise ValueError(prompts)
        return [[(word in prompt.body) + 5.0 * (word == " red") for word in words] for prompt in prompts]

    def forget(self, *members: Any) -> None:
        self.kept -= {*members}

    def warm(self, prompts: Any) -> None:
        """Do nothing."""


def test_an_engine_scores_the_choices_beside_texts_without_content() -> None:
    """If it breaks, a local model's taste for a word fills the table, one text silences others, or caches stay."""
    engine = ColorEngine()
    rows = [{"text": f"I like {color} a lot"} for color in ["red"] * 10 + ["blue"] * 30 + ["black"] * 10]
    found = DPSurvey([Question("color", CHOICES)], model=engine).run(rows, budget=MANY)
    assert shares(found, "color") == {"red": 0.2, "green": 0.0, "blue": 0.6, "no answer": 0.2}
    coded = [row | {"label": "A" if "red" in row["text"] else "B"} for row in rows]
    named = DPLabelNamer(CHOICES, model=engine).fit(coded, labels=["A", "B"], budget=MANY)
    assert named.names == {"A": "red", "B": "blue"}
    assert engine.kept == set()


def test_choices_that_fill_the_engine_are_refused() -> None:
    """If it breaks, every text is cut to nothing, and the table is paid for."""
    with pytest.raises(InvalidParameter, match="leave room for a text"):
        DPSurvey([Question("color", [f"{place} " * 3 for place in range(90)])], model=ColorEngine()).run(
            ["hello"], budget=BUDGET
        )


FORMS: dict[str, Any] = {
    "text": "User: hello\nAssistant: hi",
    "messages": [HumanMessage("hello"), AIMessage("hi")],
    "pairs": [("user", "hello"), ("assistant", "hi")],
    "state": {"messages": [HumanMessage("hello"), AIMessage("hi")], "metadata": {"user": "u1"}},
    "chat log": {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]},
    "run": {
        "inputs": {"messages": [[{"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"],
                                  "kwargs": {"content": "hello"}}]]},
        "outputs": {"generations": [[{"text": "hi", "message": {"type": "ai", "content": "hi"}}]]},
        "extra": {"metadata": {"user": "u1"}},
    },
    "run as strings": {
        "inputs": json.dumps({"messages": [{"type": "human", "data": {"content": "hello"}}]}),
        "outputs": json.dumps({"messages": [{"type": "ai", "content": [{"type": "text", "text": "hi"}]}]}),
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_conversations_are_read_in_every_form(form: str) -> None:
    """If it breaks, an export of LangSmith or a state of LangGraph is refused, or read as its Python text."""
    [name] = (records := conversations([FORMS[form]])).ids()
    assert records.get(name)["text"] == "User: hello\nAssistant: hi"


def test_the_user_is_found_in_metadata() -> None:
    """If it breaks, traces of one user count as many users."""
    records = conversations([FORMS["state"], FORMS["run"]], user_key="user")
    assert len(records.users()) == 1
    with pytest.raises(InvalidParameter, match="user"):
        conversations([FORMS["chat log"]], user_key="user")


def test_a_column_of_users_without_user_key_warns() -> None:
    """If it breaks, somebody with many conversations has many times epsilon, and nothing says so."""
    with pytest.warns(UserWarning, match="user_key='customer'"):
        conversations([{"text": "hello", "customer": "c1"}])


WRONG: dict[str, tuple[Any, str]] = {
    "no questions": (lambda: DPSurvey([]), "1 to 50"),
    "a string": (lambda: DPSurvey("mood"), "1 to 50"),  # type: ignore[arg-type]
    "two of a name": (lambda: DPSurvey(colors(1) * 2), "different names"),
    "one choice": (lambda: Question("mood", ["calm"]), "2 to 500"),
    "10,000 choices": (lambda: Question("mood", [str(place) for place in range(10_000)]), "10,000"),
    "a choice twice": (lambda: Question("mood", ["calm", "Calm"]), "twice"),
    "no answer as a choice": (lambda: Question("mood", ["calm", "No answer"]), "that one is added"),
    "below no choice": (lambda: Question("mood", ["calm", "angry"], below={"sad": ["a", "b"]}), "sad"),
    "model and encoder": (lambda: DPSurvey(colors(), model=ReadingChat(), encoder=WordEncoder()), "not both"),
    "no model": (lambda: DPSurvey(colors(), model="gpt"), "chat model"),
    "no conversations": (lambda: asked([]), "at least one"),
    "an empty text": (lambda: asked([{"text": " "}]), "example 0"),
    "no records to plan": (lambda: DPSurvey(colors(), model=ReadingChat()).plan(0, budget=BUDGET), "records_count"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_refused_by_name(case: str) -> None:
    """If it breaks, a mistake costs budget, or its message helps nobody."""
    make, match = WRONG[case]
    with pytest.raises(InvalidParameter, match=match):
        make()


def test_a_ledger_keeps_the_survey(tmp_path: Path) -> None:
    """If it breaks, running a script twice costs twice, or other conversations get the old table."""
    first = DPSurvey(colors(), model=ReadingChat()).run(says("rr", "gg"), budget=BUDGET, ledger=tmp_path / "ledger")
    again = DPSurvey(colors(), model=ReadingChat()).run(says("rr", "gg"), budget=BUDGET, ledger=tmp_path / "ledger")
    assert again == first
    with pytest.raises(PlanError, match="other records"):
        DPSurvey(colors(), model=ReadingChat()).run(says("rr", "gb"), budget=BUDGET, ledger=tmp_path / "ledger")


def test_a_survey_survives_its_file(tmp_path: Path) -> None:
    """If it breaks, a saved survey loses cells, or a damaged file is taken."""
    finer = {"red": ["green", "blue"]}
    found = DPSurvey(colors(2, below=finer), model=ReadingChat()).run(says(*["rg"] * 50), budget=MANY)
    found.save(tmp_path / "survey.json")
    assert Survey.load(tmp_path / "survey.json") == found
    (tmp_path / "survey.json").write_text("{}")
    with pytest.raises(InvalidParameter, match="survey"):
        Survey.load(tmp_path / "survey.json")


def test_the_plan_says_how_wide_the_bars_will_be() -> None:
    """If it breaks, a survey that will drown in noise looks fine. PRIVACY: .5 and 1.2 points at 1,000 records."""
    one = DPSurvey(colors(1), model=ReadingChat()).plan(1000, budget=BUDGET)
    five = DPSurvey(colors(5), model=ReadingChat()).plan(1000, budget=BUDGET)
    assert one.deviation / 1000 == pytest.approx(0.0053, abs=2e-4)
    assert five.deviation / 1000 == pytest.approx(0.0118, abs=2e-4)
    found = asked(says(*["rg"] * 100), 5, budget=BUDGET)
    widest = max(share.high - share.low for share in found["color 0"].shares.values())
    assert widest <= 2 * DPSurvey(colors(5), model=ReadingChat()).plan(100, budget=BUDGET).half_width + 1e-9
    assert "drown" in str(DPSurvey(colors(5), model=ReadingChat()).plan(100, budget=BUDGET))


def test_the_page_holds_every_share_and_no_script(tmp_path: Path) -> None:
    """If it breaks, a manager reads half of the survey, or opening it tells somebody."""
    mood = Question("<b>mood</b>", ["calm & kind", "angry"])
    found = DPSurvey([mood], model=FakeListChatModel(responses=["angry"])).run(
        ["hello", "bye"], budget=PrivacyBudget(3.0)
    )
    found.to_html(tmp_path / "page.html", title="What <they> say")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;mood&lt;/b&gt;" in page
    assert "calm &amp; kind" in page
    assert "What &lt;they&gt; say" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "95 times in 100" in page
    for row in found.to_rows():
        assert f"{row['share']:.1%}" in page


def test_a_seeded_survey_says_that_it_is_not_private(tmp_path: Path) -> None:
    """If it breaks, a page of reproducible noise claims a promise."""
    found = asked(says("rr"))
    found.to_html(tmp_path / "page.html")
    assert "Not private" in (tmp_path / "page.html").read_text()


async def test_arun_is_the_same() -> None:
    """If it breaks, the async survey counts otherwise."""
    found = await DPSurvey(colors(), model=ReadingChat()).arun(says(*["rg"] * 10), budget=MANY, not_private_seed=3)
    assert found.tables == asked(says(*["rg"] * 10)).tables


def test_private_records_keep_their_user() -> None:
    """If it breaks, the promise silently holds for single conversations, not for users."""
    records = PrivateRecords(says("rr", "gg"), label="chat", user_key="id")
    assert asked(records).unit == "users"
    with pytest.raises(InvalidParameter, match="user_key"):
        asked(records, user_key="id")


def test_a_finer_function_sees_one_draw_however_often_it_fails(tmp_path: Path) -> None:
    """If it breaks, retries of one charge show the leading choices again under fresh noise, which then averages out."""
    seen: list[str] = []
    state = {"fails": True}

    def finer(choice: str) -> list[str]:
        seen.append(choice)
        if state["fails"]:
            raise KeyboardInterrupt
        return ["red", "green"]

    def run() -> Survey:
        asked_below = DPSurvey(colors(1, below=finer), model=ReadingChat())
        return asked_below.run(rows, budget=PrivacyBudget(1.0), ledger=tmp_path / "ledger", user_key="id")

    rows = says(*["rr"] * 26, *["gg"] * 26, *["bb"] * 26)  # each leads about every time, and by chance first
    for _ in range(12):
        with pytest.raises(KeyboardInterrupt):
            run()
    assert len({*seen}) == 1
    state["fails"] = False
    found = run()
    assert {*found["color 0"].below} <= {*seen}
    assert run() == found


def test_a_finer_function_may_leave_a_choice_whole() -> None:
    """If it breaks, a function that knows no finer choices ends a survey that is paid for."""
    chosen = DPSurvey(colors(1, below=lambda choice: None), model=ReadingChat())
    assert chosen.run(says(*["rr"] * 50), budget=MANY)["color 0"].below == {}


def test_an_error_of_a_finer_function_is_its_own() -> None:
    """If it breaks, a bug in public code is withheld as if it were private, or its frames show texts."""
    asked_below = DPSurvey(colors(1, below=lambda choice: [choice, choice[99]]), model=ReadingChat())
    with pytest.raises(IndexError, match="string index") as caught:
        asked_below.run(says(*[f"r {CANARY}"] * 50), budget=MANY)
    assert CANARY not in frames_of(caught.value)


def test_no_progress_is_shown_of_finer_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a progress bar shows how many texts chose a leading choice."""
    steps: list[int] = []
    monkeypatch.setattr(survey.tqdm, "update", lambda self, number=1: steps.append(number))
    DPSurvey(colors(1, below={"red": ["green", "blue"]}), model=ReadingChat()).run(says(*["rg"] * 40), budget=MANY)
    assert sum(steps) == 40


def frames_of(error: BaseException) -> str:
    """The locals of the package's frames, as error reporters read them."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return "".join(repr(frame.f_locals) for frame in frames if "langchain_dp" in str(frame.f_globals.get("__name__")))


def test_an_unreadable_conversation_shows_no_other_in_the_error() -> None:
    """If it breaks, error reporters send all conversations where one is empty."""
    with pytest.raises(InvalidParameter, match="example 1") as caught:
        asked([{"text": f"{CANARY} says r"}, {"text": " "}])
    assert CANARY not in frames_of(caught.value)


ODD: dict[str, tuple[Any, str]] = {
    "JSON as text": ({"text": '{"order": 7}'}, '{"order": 7}'),
    "a list as text": ({"text": "[1, 2]"}, "[1, 2]"),
    "deep brackets": ({"text": "[" * 99_999}, "[" * 99_999),
    "a state snapshot": (
        collections.namedtuple("StateSnapshot", "values next config created_at")(
            {"messages": [HumanMessage("hello")]}, ("model",), {"configurable": {"user": 0}}, "2026-01-01"
        ),
        "User: hello",
    ),
    "odd parts": (
        [{"role": "user", "content": [7, None, {"type": "image_url"}, {"text": None}, "hello"]}],
        "User: hello",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_conversations_are_read_as_a_person_would(case: str) -> None:
    """If it breaks, one odd conversation is read as something else, or stops the survey of all others."""
    given, text = ODD[case]
    [name] = (records := conversations([given])).ids()
    assert records.get(name)["text"] == text


def test_a_user_may_be_zero() -> None:
    """If it breaks, a numbered user without a truth value is refused, or counts elsewhere."""
    assert len(conversations([{"text": "a", "id": 0}, {"text": "b", "id": 1}], user_key="id").users()) == 2
    assert len(conversations([ODD["a state snapshot"][0]] * 2, user_key="user").users()) == 1


@pytest.mark.parametrize("dies_at", ["color 1", "color 0: red"])
def test_a_model_that_dies_gives_no_table_and_the_same_call_goes_on(dies_at: str, tmp_path: Path) -> None:
    """If it breaks, an outage in the middle is released as "no answer", or the next attempt is charged again."""
    state = {"dies": True, "dead": False}

    def answer(prompt: Any) -> str:
        state["dead"] |= state["dies"] and dies_at in str(prompt) and "says" in str(prompt)
        if state["dead"]:
            raise ConnectionError
        return "red"

    model = RunnableLambda(answer)
    reader = DPSurvey(colors(2, below={"red": ["red", "blue"]}), model=model, trust_opaque_model=True)
    ledger = {"budget": BUDGET, "ledger": tmp_path / "ledger"}
    with pytest.raises(ModelUnavailable):
        reader.run(says(*["rr"] * 60), **ledger)
    spent = PrivacyLedger(BUDGET, tmp_path / "ledger").spent()
    assert spent[0] > 0.9
    state.update(dies=False, dead=False)
    found = reader.run(says(*["rr"] * 60), **ledger)
    assert min(table.shares["red"].share for table in found.tables) > 0.5
    assert found["color 0"].below["red"].shares["red"].share > 0.4
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent() == spent


def test_a_finer_question_is_a_vote_more_that_a_user_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, finer tables cost nothing, or a user of many texts below one choice has several votes there."""
    totals: list[Any] = []
    real = VoteCounts.release
    monkeypatch.setattr(VoteCounts, "release", lambda self, total, rng: totals.append(total) or real(self, total, rng))
    reader = DPSurvey(colors(2, below={"red": ["red", "blue"]}), model=ReadingChat())
    ledger = PrivacyLedger(MANY)
    reader.run([*says(*["rr"] * 20), *says(*["rr"] * 3, "gg", user="x")], ledger=ledger, user_key="id")
    assert totals[1].tolist() == [VOTE * 20 + VOTE * 3 // 4, 0, 0]
    assert ledger.plans()[0].events[0][0] == VoteCounts.of(MANY, votes=3).event
    assert reader.plan(10, budget=MANY).votes == 3


def test_a_private_number_of_conversations_is_on_no_page(tmp_path: Path) -> None:
    """If it breaks, under add/remove the exact number of records leaves beside the noisy tables."""
    budget = PrivacyBudget(1.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)
    found = DPSurvey(colors(1), model=ReadingChat()).run(says(*["r"] * 347), budget=budget)
    found.to_html(tmp_path / "page.html")
    found.save(tmp_path / "survey.json")
    assert found.records is None
    assert "347 " not in f"{found} {found.certificate} {(tmp_path / 'page.html').read_text()}"
    assert "347," not in (tmp_path / "survey.json").read_text()


PROMPT = ChatPromptTemplate.from_template("Sort: {text}")


@pytest.mark.parametrize(
    "changed",
    [
        {"choices": CHOICES[:2]},
        {"text": "Which color?"},
        {"leaders": 1},
        {"reader": {"model": PROMPT | ReadingChat()}},
        {"reader": {"encoder": WordEncoder()}},
    ],
)
def test_another_question_or_reader_gets_no_kept_survey(changed: dict[str, Any], tmp_path: Path) -> None:
    """If it breaks, the tables of one question, prompt or encoder are shown as those of another."""
    settings: dict[str, Any] = {"choices": CHOICES, "text": "", "leaders": 5, "reader": {"model": ReadingChat()}}

    def run(choices: Any, text: str, leaders: int, reader: dict[str, Any]) -> Survey:
        made = DPSurvey([Question("color 0", choices, text)], **reader, leaders=leaders)
        return made.run(says("r"), budget=BUDGET, ledger=tmp_path / "ledger")

    run(**settings)
    with pytest.raises(PlanError):
        run(**settings | changed)


def test_bars_of_one_and_of_many_cells_are_as_wide_as_they_must_be() -> None:
    """If it breaks, bars hold in 90 of 100 surveys where the page says 95."""
    assert half_width(1.0, 1) == pytest.approx(1.95996, abs=1e-4)
    assert half_width(2.0, 10) == pytest.approx(2 * 2.80703, abs=1e-4)


def test_a_text_that_breaks_the_encoder_is_no_answer_and_a_long_one_is_cut() -> None:
    """If it breaks, failures count for the first choice, or one huge text is a huge prompt."""
    topics = Question("topic", {"delivery": "parcel parcel", "billing": "invoice invoice"})
    encoder = WordEncoder(before=lambda text: 1 / ("unreadable" not in text))
    found = DPSurvey([topics], encoder=encoder).run(["my invoice"] * 30 + ["unreadable"] * 20, budget=MANY)
    assert shares(found, "topic") == {"delivery": 0.0, "billing": 0.6, "no answer": 0.4}
    longest: list[int] = []
    model = RunnableLambda(lambda prompt: longest.append(len(prompt)) or "red")
    DPSurvey(colors(1), model=model, trust_opaque_model=True).run(["x" * 10**6], budget=MANY)
    assert max(longest) < 21_000


def test_a_failing_conversation_moves_no_other_answer() -> None:
    """If it breaks, one conversation that breaks the model silences others."""
    good = says(*["rr"] * 99)
    with_failure = asked([*good, {"text": "chat says xx", "id": "u99"}], user_key="id")
    assert shares(with_failure) == {"red": 1.0, "green": 0.0, "blue": 0.0, "no answer": 0.0}
    assert with_failure["color 0"].shares["no answer"].low <= 0.01 <= with_failure["color 0"].shares["no answer"].high
