"""Membership inference where theory gives the answer: normal scores, references per record, randomized response."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from audit_tools import lower, upper
from fakes import synthesizers
from fakes.next_token import WordEngine
from fakes.synthesizers import synthesizer
from fakes.voters import LABELS, VotingEngine, private_examples

from langchain_dp import Neighbors, PrivacyBudget
from langchain_dp.attacks import (
    PortScorer,
    attack_answers,
    attack_examples,
    attack_prompt,
    find_leaks,
    infer_membership,
    lira_scores,
)
from langchain_dp.attacks.result import auc_interval
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import MemberPrompt

THEORY = NormalDist().cdf(1.5 / math.sqrt(2))
"""Area under the curve of two normal laws of unit spread that are 1.5 apart: 0.856."""


def records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which records are members, how easy each is, and its figure: 1.5 higher for members."""
    rng = np.random.default_rng(seed)
    member = np.arange(count) % 2 == 0
    easy = rng.normal(0, 5, count)
    return member, easy, easy + 1.5 * member + rng.normal(size=count)


def test_references_take_out_what_makes_a_record_easy() -> None:
    """If it breaks, an easy record looks like a member: LiRA must find what the figures hide.

    With many references the area of theory must lie in the interval; without any the figures tell next to nothing.
    """
    member, easy, figures = records(600, 3)
    rng = np.random.default_rng(4)
    out = easy + rng.normal(size=(200, 600))
    plain = infer_membership({"plain": (figures[member], figures[~member])})
    assert plain.interval[0] < 0.62
    scores = lira_scores(figures, out)
    done = infer_membership({"lira": (scores[member], scores[~member])})
    assert done.interval[0] < THEORY < done.interval[1]
    assert done.interval[0] > plain.interval[1]
    one = lira_scores(figures, out[:1])
    assert one == pytest.approx(figures - out[0])


def test_the_best_of_several_candidates_pays_for_the_choice() -> None:
    """If it breaks, trying many models makes chance look like a leak: 20 candidates without any, 20 times.

    All intervals hold together with 95%, so that a claim above 0.5 comes about in 5% at most (here at most 4 of 20,
    error rate 0.003); with the plain intervals of each candidate it comes about most of the time.
    """
    alarms = careless = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tried = {f"model {i}": (rng.normal(size=80), rng.normal(size=80)) for i in range(20)}
        alarms += infer_membership(tried).interval[0] > 0.5
        careless += any(infer_membership({name: pair}).interval[0] > 0.5 for name, pair in tried.items())
    assert alarms <= 4
    assert careless > 4
    done = infer_membership({"blind": ([0.0, 1.0], [0.0, 1.0]), "sees": ([2.0, 3.0], [0.0, 1.0])})
    assert (done.best, done.rate, done.baseline) == ("sees", 1.0, 0.5)
    assert done.by_candidate["blind"][0] == 0.5


def test_scores_that_are_lower_for_members_tell_as_much() -> None:
    """If it breaks, an attacker whose score points the wrong way counts as harmless."""
    rng = np.random.default_rng(3)
    members, others = rng.normal(1.5, 1, 200), rng.normal(0, 1, 100)
    one, other = infer_membership({"m": (members, others)}), infer_membership({"m": (-members, -others)})
    assert (one.rate, one.interval, one.tpr_at_fpr) == (other.rate, other.interval, other.tpr_at_fpr)
    assert (one.settings["members_score"], other.settings["members_score"]) == ("higher", "lower")
    both = infer_membership({"weak": (members, others + 1), "m": (-members, -others)})
    assert (both.best, both.rate, both.by_candidate["m"][0]) == ("m", one.rate, one.rate)


@pytest.mark.statistical
def test_the_better_direction_is_no_finding_by_itself() -> None:
    """If it breaks, chance passes for a leak since the direction was chosen with the outcome in sight.

    Without any signal the interval may begin above 0.5 in at most 5% of 200 sets; 22 or more come about in less than
    1 of 1,000. Intervals that miss one set in five must be told apart.
    """
    rng = np.random.default_rng(8)
    sets = [infer_membership({"m": (rng.normal(size=60), rng.normal(size=60))}) for _ in range(200)]
    assert sum(done.interval[0] > 0.5 for done in sets) < 22
    assert sum(auc_interval(done.rate, 60, 60, error=0.2)[0] > 0.5 for done in sets) > 22
    assert all(done.rate >= 0.5 == done.baseline for done in sets)


def test_members_found_at_few_false_alarms_are_counted() -> None:
    """If it breaks, the rate at 1% false positives, which matters most, is another one."""
    others = np.arange(100.0)
    done = infer_membership({"m": (np.array([98.5, 99.5, 96.5, 10.0]), others)})
    assert {rate: found[0] for rate, found in done.tpr_at_fpr.items()} == {0.01: 0.5, 0.05: 0.75, 0.1: 0.75}
    assert done.to_dict()["settings"]["found_at_0.05"] == 0.75


def test_the_resolution_is_said() -> None:
    """If it breaks, an area of .55 from 40 rows reads like a finding."""
    few = infer_membership({"m": (np.zeros(20), np.zeros(20))})
    many = infer_membership({"m": (np.zeros(2000), np.zeros(2000))})
    assert few.resolution > 0.15 > 0.05 > many.resolution > 0
    assert few.to_dict()["settings"]["resolution"] == few.resolution


ROWS = [{"text": f"text {i}", "label": ("yes", "no")[i % 2]} for i in range(40)]


def remembering(members: Sequence[dict[str, str]]) -> Callable[[str, Sequence[Any]], np.ndarray]:
    """A model that finds the label of a row likelier under a prompt that quotes it; rows differ in ease."""

    def score(instruction: str, rows: Sequence[Any]) -> np.ndarray:
        ease = np.array([random.Random(row["text"]).random() for row in rows])
        return np.array([0.2 * (f"{row['text']};" in instruction) for row in rows]) + ease - 2

    return score


def test_a_prompt_that_quotes_its_rows_gives_them_away() -> None:
    """If it breaks, members and others are mixed up, or the reference prompt does not count."""
    members, others = ROWS[:20], ROWS[20:]
    prompt = "Say yes or no. " + " ".join(f"{row['text']};" for row in members)
    given: dict[str, Any] = {"members": members, "others": others, "references": ["Say yes or no."]}
    leaking = attack_prompt(prompt, candidates={"model": remembering(members)}, **given)
    assert leaking.rate == 1.0
    clean = attack_prompt("Say yes or no, please.", candidates={"model": remembering(members)}, **given)
    assert clean.rate == 0.5
    assert leaking.settings["references"] == 1
    assert "text 1" not in repr(leaking)


def test_the_port_is_asked_for_the_log_likelihood_of_the_rows_own_label() -> None:
    """If it breaks, the attacker reads another label's score, or leaves rows in the engine's cache."""

    class Engine(WordEngine):
        def score_labels(self, prompts: Sequence[MemberPrompt], words: Sequence[str], **more: Any) -> Any:
            assert {prompt.head for prompt in prompts} == {"Instruction: Say.\n\n"}
            assert {prompt.tail for prompt in prompts} == {"Output:"}
            self.cache.update({prompt.member: prompt.body for prompt in prompts})
            assert list(words) == [" Yes", " No"]
            return [None if "text 3" in p.body else [math.log(3.0), math.log(1.0)] for p in prompts]

    engine = Engine()
    found = PortScorer(engine, {"yes": "Yes", "no": "No"})("Say.", ROWS[:4])
    assert found == pytest.approx(np.log([0.75, 0.25, 0.75, 0.5]))
    assert not engine.cache
    with pytest.raises(InvalidParameter, match="two labels"):
        PortScorer(engine, {"yes": "Yes"})


def randomized(epsilon: float, seed: int) -> Callable[[list[Any]], Callable[[str], str]]:
    """A chain that says whether the canary is there, and lies with chance 1 / (1 + e^epsilon)."""
    coins = random.Random(seed)

    def build(data: list[Any]) -> Callable[[str], str]:
        there = any(row["text"] == "canary" for row in data)
        truth = coins.random() < math.exp(epsilon) / (1 + math.exp(epsilon))
        return lambda question: "yes" if there == truth else "no"

    return build


CANARY = [*ROWS, {"text": "canary", "label": "yes"}]


@pytest.mark.statistical
def test_randomized_response_is_attacked_up_to_its_bound() -> None:
    """If it breaks, the attack on answers is weaker than the best one, or the bound is not one.

    The best accuracy is e/(1+e) = 0.731 at epsilon 1 (Clopper-Pearson, error rate 1e-6); that at 0.5, .622, must be
    told apart.
    """
    done = attack_answers(
        randomized(1.0, 0), ROWS, CANARY, questions=["is it there?"], runs=4000, epsilon=1.0,
        neighbors=Neighbors.ADD_OR_REMOVE_ONE,
    )  # fmt: skip
    hits = round(done.rate * done.n)
    assert done.settings["bound"] == pytest.approx(math.e / (1 + math.e))
    assert lower(hits, done.n) < done.settings["bound"] < upper(hits, done.n)
    assert lower(hits, done.n) > math.exp(0.5) / (1 + math.exp(0.5))


def test_a_chain_that_answers_at_random_tells_nothing_and_one_that_tells_all_is_caught() -> None:
    """If it breaks, the attacker is told which data set it looks at, or does not see what it is shown."""
    coins = random.Random(1)
    blind = attack_answers(lambda data: lambda q: coins.choice("ab"), ROWS, CANARY, questions=["x", "y"], runs=400)
    assert blind.interval[0] < 0.5 < blind.interval[1]
    never_twice = attack_answers(lambda data: lambda q: str(coins.random()), ROWS, CANARY, questions=["x"], runs=20)
    assert never_twice.rate == 0.5  # answers the attacker did not learn from
    open_ = attack_answers(lambda data: lambda q: str(len(data)), ROWS, CANARY, questions=["x"], runs=10)
    assert (open_.rate, open_.n, open_.baseline) == (1.0, 10, 0.5)
    silent = attack_answers(lambda data: lambda q: "no", ROWS, CANARY, questions=["x"], runs=10)
    assert silent.rate == 0.5


def test_rates_that_few_others_cannot_show_are_left_out() -> None:
    """If it breaks, "found at 1% false alarms" is a figure of 20 others, of whom one is 5%."""
    few = infer_membership({"m": (np.arange(50.0), np.arange(20.0))})
    assert list(few.tpr_at_fpr) == [0.05, 0.1]
    assert "found_at_0.01" not in few.settings
    many = infer_membership({"m": (np.arange(50.0), np.arange(100.0))})
    assert list(many.tpr_at_fpr) == [0.01, 0.05, 0.1]
    both = infer_membership({"m": (np.arange(50.0), np.arange(100.0)), "other": (np.full(50, 49.5), np.arange(100.0))})
    assert both.best == "m"
    assert both.tpr_at_fpr[0.1][2] > many.tpr_at_fpr[0.1][2], "the better one of two was chosen on these very figures"


def test_what_an_engine_logs_of_a_row_that_is_attacked_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """If it breaks, an audit of private rows prints them into the logs."""

    class Telling(VotingEngine):
        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            logging.getLogger("client").error("POST %s", prompts[0].body)
            return super().score_labels(prompts, words, **options)

    rows = private_examples(3)
    assert PortScorer(Telling(), {label: label for label in LABELS})("Sort.", rows).shape == (3,)
    assert "POST" not in caplog.text


def test_an_engine_that_scores_nothing_is_no_proof() -> None:
    """If it breaks, an outage reads as "no better than guessing"."""

    class Dead(VotingEngine):
        answers: list[Any] = [None, None]

        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            return self.answers

    engine = Dead()
    scorer = PortScorer(engine, {1: "yes", 0: "no"})
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    with pytest.raises(ModelUnavailable, match="none of 2"):
        scorer("Say yes.", rows)
    engine.answers = [[0.0, -1.0], None]
    assert scorer("Say yes.", rows).tolist() == pytest.approx([-0.3133, -0.6931], abs=1e-4)
    with pytest.raises(InvalidParameter, match="no variable but"):
        PortScorer(engine, {1: "yes", 0: "no"}, head="{foo}")


PLANTED: list[Any] = [{"text": "canary"}]
BITS = ("yes", "no")


def second_answer_leaks(data: list[Any], coins: random.Random) -> Callable[[str], str]:
    """A cache that keeps another answer than the one that was released: the first is a coin, the second the truth."""
    said: list[str] = []

    def answer(question: str) -> str:
        said.append(BITS[data == PLANTED] if len(said) == 1 else coins.choice(BITS))
        return said[-1]

    return answer


def agreement_leaks(data: list[Any], coins: random.Random) -> Callable[[str], str]:
    """Each answer alone is a coin; whether two are equal tells the data."""
    said: list[str] = []

    def answer(question: str) -> str:
        if not said:
            said.append(coins.choice(BITS))
            return said[0]
        return said[0] if data == PLANTED else BITS[said[0] == BITS[0]]

    return answer


@pytest.mark.parametrize(
    ("chain", "questions", "repeats", "attacker"),
    [
        (second_answer_leaks, ["q"], 2, "answers by place"),
        (agreement_leaks, ["q"], 2, "answers in order"),
        (agreement_leaks, ["q", "r"], 1, "all answers together"),
    ],
)
def test_what_only_the_order_tells_is_found(
    chain: Callable[..., Callable[[str], str]], questions: list[str], repeats: int, attacker: str
) -> None:
    """If it breaks, a chain that tells everything at its second answer scores as one that tells half."""
    coins = random.Random(1)
    done = attack_answers(
        lambda data: chain(data, coins), [{"text": "a"}], PLANTED, questions=questions, repeats=repeats,
        runs=60, epsilon=1.0,
    )  # fmt: skip
    assert done.rate == 1.0
    assert done.settings["attacker"] == attacker
    assert done.interval[0] > float(str(done.settings["bound"]))


@pytest.mark.statistical
def test_the_choice_is_not_made_on_what_is_reported() -> None:
    """If it breaks, the best of four attackers is reported on the runs that made it look best.

    Coins tell nothing: the mean of 200 rates of 20 guesses each is 0.5, with a spread of 0.008 at most. It exceeds
    0.535 with 1e-5, and does so where the attacker is picked on the reported runs.
    """
    coins = random.Random(2)
    rates = [
        attack_answers(
            lambda data: lambda question: coins.choice(BITS),
            [{"text": "a"}],
            PLANTED,
            questions=["q", "r"],
            repeats=2,
            runs=20,
        ).rate
        for _ in range(200)
    ]
    assert sum(rates) / len(rates) < 0.535


KINDS = ("praise", "complaint")


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows of a handful of common words and one of their own each."""
    coins = random.Random(seed)
    words = ("nurse", "doctor", "waiting", "room", "kind", "slow", "clean", "parking", "bill", "phone", "visit")
    return [
        {"text": f"{' '.join(coins.choices(words, k=8))} case{seed}x{number}", "label": KINDS[number % 2]}
        for number in range(count)
    ]


MEMBERS, OTHERS = rows(60, 1), rows(60, 2)


def test_copies_of_the_rows_are_found_and_others_are_not() -> None:
    """If it breaks, an operator is told that examples which are the rows themselves tell nothing."""
    copied = attack_examples(MEMBERS[:30], members=MEMBERS, others=OTHERS)
    assert copied.rate > 0.7
    assert copied.interval[0] > 0.5
    assert copied.by_candidate["rare words"][0] > 0.6
    none = attack_examples(rows(30, 3), members=MEMBERS, others=OTHERS)
    assert none.interval[0] <= 0.5
    assert none.settings["examples"] == 30


def test_a_scorer_is_asked_with_the_examples_and_without() -> None:
    """If it breaks, what the examples teach a model about the labels of the rows goes unseen."""
    asked: list[str] = []

    def scorer(instruction: str, scored: Sequence[Any]) -> list[float]:
        asked.append(instruction)
        return [float(row["text"] in instruction) for row in scored]

    found = attack_examples(MEMBERS[:30], members=MEMBERS[:30], others=OTHERS, candidates={"model": scorer})
    assert found.by_candidate["model"][0] == 1.0
    assert MEMBERS[0]["text"] in asked[0]
    assert f"Kind: {MEMBERS[0]['label']}" in asked[0]
    assert asked[1] == "Sort each text. The kinds: complaint, praise.\n\n"


def test_the_nearest_example_is_measured_by_the_embedding_that_is_given() -> None:
    """If it breaks, an embedding of one's own is not used."""

    def embed(texts: Sequence[str]) -> Any:
        return np.array([[1.0, 0.0] if "case1x" in text else [0.0, 1.0] for text in texts])

    found = attack_examples(rows(4, 1), members=MEMBERS, others=OTHERS, embed=embed)
    assert found.by_candidate["nearest"][0] == 1.0


def test_examples_of_the_synthesizer_are_taken_as_they_are() -> None:
    """If it breaks, what was released must be taken apart by hand before it can be attacked."""
    made = synthesizer(budget=PrivacyBudget(8.0, 1e-5)).invoke(synthesizers.rows())
    assert attack_examples(made, members=MEMBERS, others=OTHERS).rate >= 0.5
    assert find_leaks(made, [*MEMBERS, *made.rows()]).leaked_rows
    assert not find_leaks(made, [row["text"] for row in MEMBERS], held_out=OTHERS).spans
