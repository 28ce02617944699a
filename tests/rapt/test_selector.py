"""Few-shot examples on their way into a prompt."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import pytest
from fakes.rapt import CLOSE, sanitizer
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.prompts import FewShotPromptTemplate, PromptTemplate

from langchain_dp.errors import BudgetExceeded, PrivateDataError
from langchain_dp.rapt.privatize import Policies
from langchain_dp.rapt.retriever import SanitizingExampleSelector

RAW = "quetzal"
EXAMPLES = [
    {"text": f"the patient {RAW} has pain in case {i}", "label": ("urgent", "calm")[i % 2], "patient": f"p{i % 2}"}
    for i in range(4)
]
SHOT = PromptTemplate.from_template("Text: {text}\nLabel: {label}")


def selector(**options: Any) -> SanitizingExampleSelector:
    return SanitizingExampleSelector(
        EXAMPLES,
        options.pop("sanitizer", None) or sanitizer(),
        **({"keep": ["label"], "user_key": "patient"} | options),
    )


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_few_shot_prompt_holds_sanitized_examples(how: str) -> None:
    """If it breaks, private examples stand in a prompt as they are, or their labels are lost."""
    made = FewShotPromptTemplate(
        example_selector=selector(), example_prompt=SHOT, suffix="Text: {question}", input_variables=["question"]
    )
    prompt = made.format(question="pain") if how == "sync" else asyncio.run(made.aformat(question="pain"))
    assert RAW not in prompt
    assert prompt.count("Label: urgent") == prompt.count("Label: calm") == 2
    assert prompt.endswith("Text: pain")


def test_braces_in_an_example_do_not_break_a_template_that_formats_twice() -> None:
    """If it breaks, one example with a brace fails every prompt from then on."""
    made = FewShotPromptTemplate(
        example_selector=SanitizingExampleSelector(
            [{"text": "pain {in} the { arm", "label": "calm"}],
            sanitizer(policies=Policies(punctuation="keep")),
            keep=["label"],
        ),
        example_prompt=SHOT,
        suffix="Text: {question}",
        input_variables=["question"],
    )
    prompt = made.format(question="{pain}")
    assert (prompt.count("("), prompt.count(")"), prompt.count("{")) == (2, 1, 1)


def test_examples_are_paid_once_by_their_users() -> None:
    """If it breaks, every prompt pays for all examples anew, or nobody's account does."""
    kept = sanitizer()
    made = selector(sanitizer=kept)
    first = made.select_examples({"question": "a"})
    assert made.select_examples({"question": "b"}) == first
    assert kept.ledger.spent(user="p0") == kept.ledger.spent(user="p1") == pytest.approx(2 * CLOSE)
    assert "patient" not in first[0]
    empty = selector(sanitizer=sanitizer(eta=1.0, limit=1.5))
    with pytest.raises(BudgetExceeded):
        empty.select_examples({})


class Nosy(BaseExampleSelector):
    """A selector that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.examples = list(EXAMPLES)

    def add_example(self, example: dict[str, str]) -> str:
        self.examples.append(example)
        return "id"

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        self.asked.append(input_variables)
        return self.examples[:2]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_inner_selector_selects(how: str) -> None:
    """If it breaks, a selector inside is ignored, or its examples come as they are."""
    inner = Nosy()
    made = SanitizingExampleSelector(inner, sanitizer(), user_key="patient")
    found = made.select_examples({"q": RAW}) if how == "sync" else asyncio.run(made.aselect_examples({"q": RAW}))
    assert len(found) == 2
    assert RAW not in repr(found)
    assert inner.asked == [{"q": RAW}]
    added = made.add_example({"text": "a"}) if how == "sync" else asyncio.run(made.aadd_example({"text": "a"}))
    assert added == "id"


def test_a_list_grows_and_nothing_is_shown() -> None:
    """If it breaks, an added example is not selected, or a repr or a pickle holds the examples."""
    made = selector()
    made.add_example({"text": "new", "label": "calm", "patient": "p9"})
    assert len(made.select_examples({})) == 5
    assert RAW not in repr(made)
    with pytest.raises(PrivateDataError):
        pickle.dumps(made)


def test_keys_inside_the_values_of_examples_do_not_pass() -> None:
    """If it breaks, a name that is a key of an example's JSON stands in the prompt as it is."""
    examples = [{"input": f'{{"{RAW}": {{"{RAW} old": 1}}}}', "output": {RAW: [None, True]}}]
    kept = sanitizer()
    found = SanitizingExampleSelector(examples, kept).select_examples({})
    assert RAW not in repr(found)
    assert found[0].keys() == {"input", "output"}
    assert len(json.loads(found[0]["input"])) == 1, "the shape stays"
    said = " ".join(kept.certificate().notes)
    assert "Of mappings (examples, variables of prompts) the keys are in clear" in said
    assert "values that keep= names" in said
