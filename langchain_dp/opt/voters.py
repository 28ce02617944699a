"""One token from one draw of subsets."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from langchain_dp.accounting import PartEvent
from langchain_dp.accounting.events import votes_move
from langchain_dp.ensemble.engine_calls import PromptBudget, ask_together, asked_publicly, forget_members
from langchain_dp.ensemble.subsets import Subset, SubsetSampler
from langchain_dp.errors import ModelUnavailable
from langchain_dp.mechanisms import LimitedDomain, Randomness
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.plan import count_votes
from langchain_dp.opt.reservation import TRAINING, PromptReservation
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import CUE, Demonstration
from langchain_dp.opt.text import Text
from langchain_dp.ports import Continuation, MemberPrompt, NextTokenVoter, Token
from langchain_dp.records import PrivateRecords

_COIN = 2**53


class Demonstrations:
    """Records with the model's answers, cut to the context."""

    def __init__(self, records: PrivateRecords, forward: Forward, settings: Settings, engine: NextTokenVoter) -> None:
        self._records = records
        self._forward = forward
        self._instruction = settings.instruction
        self._prompts = settings.prompts
        self._words = settings.words
        self._shown: dict[str, Demonstration] = {}
        self._room = PromptBudget(engine)
        tails = [self._prompts.backward_tail(i, self._instruction) for i in range(len(self._prompts.messages))]
        public = self._prompts.backward_head(self._instruction), max(tails, key=len), CUE
        self._tokens = self._room.remaining(engine.max_prompt_tokens, *public, more=settings.max_new_tokens)

    def public(self, message: int) -> MemberPrompt:
        head = self._prompts.backward_head(self._instruction)
        tail = self._prompts.backward_tail(message, self._instruction)
        return MemberPrompt(head, "", tail, ("public", head), response_prefix=CUE)

    def members(self, subsets: Sequence[Subset], message: int) -> list[MemberPrompt]:
        public = self.public(message)
        return [
            dataclasses.replace(public, body=body, member=subset.member)
            for subset, body in zip(subsets, self.bodies(subsets), strict=True)
        ]

    def bodies(self, subsets: Sequence[Subset]) -> list[str]:
        missing = [name for subset in subsets for name in subset.record_ids if name not in self._shown]
        rows = [self._records.get(name) for name in missing]
        texts = [self._prompts.render(row) for row in rows]
        answers = self._forward.predict(self._instruction, texts)
        for name, row, text, answer in zip(missing, rows, texts, answers, strict=True):
            word = self._prompts.word(str(row["label"]))
            self._shown[name] = Demonstration(text, word, None if answer is None else self._words[answer])
        return [self._body([self._shown[name] for name in subset.record_ids]) for subset in subsets]

    def _body(self, shown: Sequence[Demonstration]) -> str:
        def whole(texts: Sequence[str]) -> str:
            cut = [dataclasses.replace(one, text=text) for one, text in zip(shown, texts, strict=True)]
            return self._prompts.backward_body(cut)

        return whole(self._room.truncate([one.text for one in shown], whole=whole, tokens=self._tokens))


@dataclasses.dataclass(eq=False, repr=False)
class SubsetVotes:
    """Collects private votes. ``watch`` checks that the engine still answers."""

    engine: NextTokenVoter
    sampler: SubsetSampler
    shown: Demonstrations
    _: dataclasses.KW_ONLY
    watch: Callable[[], object]
    text: Text
    rng: Randomness
    _asked: set[Hashable] = dataclasses.field(default_factory=set)

    def draw(self) -> list[Subset]:
        """Draw by fresh coins. Empty subsets abstain."""
        return [subset for subset in self.sampler.draw() if subset.record_ids]

    def check_answers(self, message: int) -> None:
        public = Continuation(self.shown.public(message), (), 0.0)
        answers = asked_publicly(lambda: self.engine.next_tokens([public], self.text.decoding(())))
        forget_members(self.engine, public.prompt.member)
        if not count_votes(answers):
            raise ModelUnavailable("The engine wrote no token after a text that shows no record. Check the model.")

    def votes(self, subsets: Sequence[Subset], message: int, written: Sequence[Token]) -> Counter[Token]:
        members = self.shown.members(subsets, message)
        continuations = [Continuation(member, tuple(written), self.rng.randbelow(_COIN) / _COIN) for member in members]
        self._asked.update(member.member for member in members)
        try:
            decoding = self.text.decoding(written)
            votes = count_votes(ask_together(lambda some: self.engine.next_tokens(some, decoding), continuations))
            self.watch()
            return votes
        finally:
            if not self.sampler.lasting:
                self.close()

    def close(self) -> None:
        if self._asked:
            forget_members(self.engine, *self._asked)
            self._asked.clear()


class PrivateVote:
    """Releases tokens through LimitedDomain (Algorithm 2), with noise even without votes.

    One record moves at most one vote.
    """

    def __init__(
        self, subset_votes: SubsetVotes, *, reservation: PromptReservation, kbar: int, chain: str, rng: Randomness
    ) -> None:
        self._subset_votes = subset_votes
        self._reservation = reservation
        assert reservation.token is not None  # something is written
        self._mechanism: LimitedDomain[Token] = LimitedDomain(
            reservation.token,
            domain=subset_votes.engine.vocabulary_size,
            kbar=kbar,
            moved_votes=votes_move(reservation.budget.neighbors),
        )
        self._chain = chain
        self._rng = rng

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        """Charge, draw, ask, count, release. None is a bottom."""
        if not written:
            self._subset_votes.check_answers(message)
        self._reservation.plan.spend(PartEvent(TRAINING, self._mechanism.event), caller=self._chain)
        votes = self._subset_votes.votes(self._subset_votes.draw(), message, written)
        return self._mechanism.release(votes, rng=self._rng)

    def left(self) -> int:
        return self._reservation.left()

    def close(self) -> None:
        self._subset_votes.close()
