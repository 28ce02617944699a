"""Worst-case models for audits of whole chains: they do what their examples say. No model library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from langchain_dp.ports import MemberPrompt


class NamingEngine:
    """An engine that scores a label by how often a member's examples carry it, and keeps what it was asked.

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
