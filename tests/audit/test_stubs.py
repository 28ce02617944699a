"""The published worst-case model: its own example runs, and what its docstring says of a RunnableLambda holds."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from fakes.voters import is_invented
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.audit import Audited, NamingEngine, audit_mechanism, canary_pair
from langchain_dp.icl import Sampling


def test_the_example_of_the_docstring_is_an_audit() -> None:
    """If it breaks, who copies the example gets an error, or an audit that can see nothing.

    In 400 of 500 runs the canary's label must win at least once: it does in each with probability 0.05.
    """
    code = inspect.getdoc(NamingEngine) or ""
    code = textwrap.dedent(code.split("::\n", 1)[1].split("\nA model of your own")[0]).replace("runs=2_000", "runs=500")
    found: list[Audited] = []
    names: dict[str, Any] = {
        "DPICLClassifier": DPICLClassifier,
        "Sampling": Sampling,
        "NamingEngine": NamingEngine,
        "PrivacyBudget": PrivacyBudget,
        "audit_mechanism": audit_mechanism,
        "canary_pair": canary_pair,
        "print": found.append,
    }
    exec(code, names)  # the example of this package
    [audited] = found
    assert not audited.violated
    assert audited.hits > audited.other_hits
    assert audited.hits > 0


def test_a_runnable_gets_messages() -> None:
    """If it breaks, a stub that was written as the docstring says reads something else than the last example."""
    seen: list[list[BaseMessage]] = []

    def last(messages: list[BaseMessage]) -> Any:
        seen.append(messages)
        return messages[-2].content

    chain = DPICLClassifier(
        llm=RunnableLambda(last), trust_opaque_model=True,
        examples=canary_pair(["yes", "no"], [0, 1]).one, labels=["yes", "no"],
        max_queries=1, budget=PrivacyBudget(50.0), shots=1, subsets=1, sampling=Sampling("fixed", 2, 1.0),
    )  # fmt: skip
    chain.invoke("a question")
    members = [messages for messages in seen if not is_invented(str(messages[1].content))]
    asked = [messages for messages in members if "a question" in str(messages[-1].content)]
    assert {messages[-2].content for messages in asked} == {"yes", "no"}
    assert {len(messages) for messages in asked} == {4}
