"""Worst-case models for audits of whole chains: they do what their examples say. No model library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from langchain_dp.ports import MemberPrompt


class NamingEngine:
    """A worst-case model for audits: it scores a label by how often a member's examples carry it, whatever is asked.

    With one example a subset each example casts the vote that its label says, so a chain over this engine is the vote
    of :func:`canary_pair`, and nothing of the model stands between a record and the answer. It keeps what it was asked:
    use it on made-up examples. In an audit every call builds a fresh chain with a budget of its own::

        labels, budget = ["yes", "no"], PrivacyBudget(3.0, 0.05)
        pair = canary_pair(labels, votes=[0, 3])

        def answer(examples):
            chain = DPICLClassifier(
                llm=NamingEngine(), examples=examples, labels=labels, budget=budget, max_queries=1,
                shots=1, subsets=1, partitions=len(examples), sampling_probability=1.0, calibrate=False,
            )
            return chain.invoke("Is the canary there?")

        print(audit_mechanism(answer, pair.one, pair.other, epsilon=budget.epsilon, delta=budget.delta,
                              neighbors=pair.neighbors, runs=2_000))

    A model of your own can be a ``RunnableLambda`` given as ``llm``. It receives a list of messages, as a chat model
    does: instruction, then question and label of each example in turn, then the question; and it returns the label as
    text. ``RunnableLambda(lambda messages: messages[-2].content)`` names the label of the last example.

    Attributes:
        asked: Body of each member that is cached, by its key.
        forgotten: Members that were to be forgotten, in order.
    """

    name = "a stub that names the label of its examples"
    max_tail_tokens = 1_000

    def __init__(self) -> None:
        self.asked: dict[Hashable, str] = {}
        self.forgotten: list[Hashable] = []

    def count_tokens(self, text: str) -> int:
        """Words."""
        return len(text.split())

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """Number of lines that end in each word; a member without any abstains."""
        rows: list[list[float] | None] = []
        for prompt in prompts:
            self.asked[prompt.member] = prompt.body
            row = [float((prompt.body + "\n").count(f"{word}\n")) for word in words]
            rows.append(row if any(row) else None)
        return rows

    def forget(self, *members: Hashable) -> None:
        """Drop what is kept of these members."""
        for member in members:
            self.forgotten.append(member)
            self.asked.pop(member, None)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Keep these members."""
        self.asked.update({prompt.member: prompt.body for prompt in prompts})


class Ballots:
    """Votes for tokens that were decided beforehand, each cast by a subset that takes part by its own coin.

    Stands in for the electorate of a prompt: ``draw``, ``votes``, ``domain`` and ``close``.
    """

    domain = 1_000

    def __init__(self, votes: Sequence[int | None]) -> None:
        self._votes = votes

    def draw(self) -> Sequence[int | None]:
        """Every subset takes part."""
        return self._votes

    def votes(self, subsets: Sequence[int | None], message: int, written: Sequence[Any]) -> Counter[Any]:
        """One vote a subset; None abstains."""
        return Counter(vote for vote in subsets if vote is not None)

    def close(self) -> None:
        """Nothing is kept here."""
