"""A private vote through a real OpenAI-compatible server and the real client."""

from __future__ import annotations

import importlib.util

import pytest
from fakes.llama_server import llama_server
from fakes.voters import LABELS, left
from langchain_openai import ChatOpenAI

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.icl import ModelCallOptions

NAME = "smollm2-135m-instruct"

REVIEWS = {
    "positive": ["a joy from start to end", "warm and funny", "I loved it", "a small masterpiece"],
    "negative": ["dull and far too long", "I walked out", "a waste of time", "badly acted"],
}


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp has no wheel for this platform, so no server"
)
async def test_a_vote_through_a_real_server_answers_with_a_label(histograms: list[list[int]]) -> None:
    """The classifier works with doubles only: real requests fail, and every vote abstains."""
    examples = [
        {"text": f"{text}, take {i}", "label": label} for i in range(3) for label in LABELS for text in REVIEWS[label]
    ]
    with llama_server(NAME) as address:
        model = ChatOpenAI(base_url=f"{address}/v1", api_key="none", model=NAME, max_tokens=4, temperature=0)
        chain = DPICLClassifier(
            model=model,
            examples=examples,
            labels=LABELS,
            budget=PrivacyBudget(50.0),
            max_queries=10,
            shots=2,
            subsets=6,
            model_calls=ModelCallOptions(timeout=60),
        )
        assert chain.scheme.groups == 12
        answer = chain.invoke_with_certificate("one of the best films of the year")
        assert answer.label in LABELS
        assert answer.certificate.model == NAME
        assert answer.certificate.remaining == left(chain) == 9
        assert await chain.ainvoke("the worst film of the year") in LABELS
        assert left(chain) == 8
    # 6 of 12 subsets are expected: that none takes part in either question has a chance of 0.5^24 = 6e-8.
    assert len(histograms) == 2
    assert sum(map(sum, histograms)) >= 1
