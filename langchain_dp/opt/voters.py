"""From one draw of subsets to one token: privately, or as the non-private twin does it."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from langchain_dp.accounting import LimitedDomainEvent
from langchain_dp.ensemble.engine_calls import ask_together, asked_publicly, forget_members
from langchain_dp.ensemble.prompt_budget import PromptBudget
from langchain_dp.ensemble.subsets import KeyedCoins, Subset, SubsetSampler
from langchain_dp.ensemble.text_writer import INVENTED, TextWriter
from langchain_dp.errors import ModelUnavailable
from langchain_dp.mechanisms import LimitedDomain, Randomness
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.glossary import LabelTexts
from langchain_dp.opt.plan import count_votes
from langchain_dp.opt.reservation import PromptReservation
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import CUE, Demonstration
from langchain_dp.opt.text import Text
from langchain_dp.ports import Continuation, MemberPrompt, NextTokenScorer, NextTokenVoter, Token
from langchain_dp.records import PrivateRecords

_COIN = 2**53


class Demonstrations:
    """What the subsets show: records with the model's answers to them, found when first needed.

    Each answer depends on its own record, the instruction and the model alone. Long records are cut so that the subset
    fits into the model's context.
    """

    def __init__(
        self, records: PrivateRecords, forward: Forward, settings: Settings, engine: NextTokenVoter
    ) -> None:  # fmt: skip
        self._records = records
        self._forward = forward
        self._instruction = settings.instruction
        self._prompts = settings.prompts
        self._words = settings.words
        self._shots = settings.shots
        self._shown: dict[str, Demonstration] = {}
        self._room = PromptBudget(engine)
        tails = [self._prompts.backward_tail(i, self._instruction) for i in range(len(self._prompts.messages))]
        public = self._prompts.backward_head(self._instruction), max(tails, key=len), CUE
        self._tokens = self._room.remaining(engine.max_prompt_tokens, *public, more=settings.max_new_tokens)

    apart = False

    def public(self, message: int) -> MemberPrompt:
        """The prompt without a record, with the request of this number."""
        head = self._prompts.backward_head(self._instruction)
        tail = self._prompts.backward_tail(message, self._instruction)
        return MemberPrompt(head, "", tail, ("public", head), response_prefix=CUE)

    def invented(self, message: int) -> str:
        """What a subset would show of invented records."""
        return self._prompts.backward_body([Demonstration(INVENTED, self._words[0], self._words[0])] * self._shots)

    def members(self, subsets: Sequence[Subset], message: int) -> list[MemberPrompt]:
        """Prompts of the subsets, with the request of this number."""
        public = self.public(message)
        return [
            dataclasses.replace(public, body=body, member=subset.member)
            for subset, body in zip(subsets, self.bodies(subsets), strict=True)
        ]

    def bodies(self, subsets: Sequence[Subset]) -> list[str]:
        """The private part of the prompt of each subset."""
        missing = [name for subset in subsets for name in subset.record_ids if name not in self._shown]
        rows = [self._records.get(name) for name in missing]
        texts = [self._prompts.render(row) for row in rows]
        for name, row, text, answer in zip(
            missing, rows, texts, self._forward.predict(self._instruction, texts), strict=True
        ):
            self._shown[name] = self._shot(row, text, answer)
        return [self._body([self._shown[name] for name in subset.record_ids]) for subset in subsets]

    def _body(self, shown: Sequence[Demonstration]) -> str:
        def whole(texts: Sequence[str]) -> str:
            cut = [dataclasses.replace(one, text=text) for one, text in zip(shown, texts, strict=True)]
            return self._prompts.backward_body(cut)

        return whole(self._room.truncate([one.text for one in shown], whole=whole, tokens=self._tokens))

    def _shot(self, row: Mapping[str, Any], text: str, answer: int | None) -> Demonstration:
        word = self._prompts.word(str(row["label"]))
        return Demonstration(text, word, None if answer is None else self._words[answer])


class ShowsRecords(Protocol):
    """What the subsets show."""

    @property
    def apart(self) -> bool:
        """Whether each text of a run shows other records than the one before it."""

    def public(self, message: int) -> MemberPrompt:
        """The prompt without a record."""

    def invented(self, message: int) -> str:
        """The body of a prompt that shows what no record holds."""

    def members(self, subsets: Sequence[Subset], message: int) -> list[MemberPrompt]:
        """One prompt for each subset that has something to show. Private, as is their number."""


class TokenSource(Protocol):
    """Gives the next token of a candidate prompt, or None: no token had votes enough."""

    @property
    def whole(self) -> bool:
        """Whether a text that has begun is lost unless it goes on to its end."""

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        """One call. What it returns has left."""

    def left(self, message: int | None = None, written: Sequence[Token] = ()) -> int:
        """Tokens that may still be written after these, for this request; by default over all of them."""

    def close(self) -> None:
        """Drop what is cached of the subsets."""


class SubsetVotes:
    """Collects the votes of one draw of subsets.

    Args:
        engine: The local model.
        sampler: Subsets and sampling coins.
        shown: What they show.
        watch: Asked after every call whether the engine still answers: :meth:`Forward.watch`.
        text: Says how the next token is taken.
        rng: Source of the members' own coins.
    """

    def __init__(
        self,
        engine: NextTokenVoter,
        sampler: SubsetSampler,
        shown: ShowsRecords,
        *,
        watch: Callable[[], object],
        text: Text,
        rng: Randomness,
    ) -> None:
        self._engine = engine
        self._sampler = sampler
        self._shown = shown
        self._watch = watch
        self._text = text
        self._rng = rng
        self._asked: set[Hashable] = set()
        self._message: int | None = None

    def draw(self) -> list[Subset]:
        """Subsets of one call, by fresh coins; those without records abstain and are left out."""
        return [subset for subset in self._sampler.draw() if subset.record_ids]

    def check_answers(self, message: int) -> None:
        """Ask for a token after a public prompt, so that a dead model is found before anything is charged."""
        public = Continuation(self._shown.public(message), (), 0.0)
        answers = asked_publicly(lambda: self._engine.next_tokens([public], self._text.decoding(())))
        forget_members(self._engine, public.prompt.member)
        if not count_votes(answers):
            raise ModelUnavailable("The engine wrote no token after a text that shows no record. Check the model.")

    def votes(self, subsets: Sequence[Subset], message: int, written: Sequence[Token]) -> Counter[Token]:
        """One vote a subset. Private.

        Raises:
            ModelUnavailable: A public text showed that the engine's server does not answer.
        """
        if self._shown.apart and message != self._message:
            self.close()
        self._message = message
        members = self._shown.members(subsets, message)
        asked = [Continuation(member, tuple(written), self._rng.randbelow(_COIN) / _COIN) for member in members]
        self._asked.update(member.member for member in members)
        try:
            decoding = self._text.decoding(written)
            votes = count_votes(ask_together(lambda some: self._engine.next_tokens(some, decoding), asked))
            self._watch()
            return votes
        finally:
            if not self._sampler.lasting:
                self.close()

    @property
    def domain(self) -> int:
        """Number of tokens that may be voted for."""
        return self._engine.vocabulary_size

    def close(self) -> None:
        """Drop what the engine keeps of the subsets."""
        if self._asked:
            forget_members(self._engine, *self._asked)
            self._asked.clear()


class PrivateVote:
    """Every token through LimitedDomain, charged before anybody is asked (Algorithm 2, with this package's noise).

    Formal guarantee:
        One call costs the plan's event: it is charged first, then fresh coins draw the subsets, one record moves at
        most one vote, and the mechanism draws its noise also when nobody voted.
    """

    whole = False

    def __init__(
        self,
        subset_votes: SubsetVotes,
        *,
        reservation: PromptReservation,
        kbar: int,
        chain: str,
        rng: Randomness,
    ) -> None:
        self._subset_votes = subset_votes
        self._reservation = reservation
        assert isinstance(reservation.token, LimitedDomainEvent)
        self._mechanism: LimitedDomain[Token] = LimitedDomain(
            reservation.token, domain=subset_votes.domain, kbar=kbar, moved_votes=reservation.moved_votes
        )
        self._chain = chain
        self._rng = rng

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        """One call of the mechanism: charge, draw, ask, count, release."""
        if not written:
            self._subset_votes.check_answers(message)
        self._reservation.plan.spend(
            self._reservation.calls.charged(self._mechanism.event, message), caller=self._chain
        )
        votes = self._subset_votes.votes(self._subset_votes.draw(), message, written)
        return self._mechanism.release(votes, rng=self._rng)

    def left(self, message: int | None = None, written: Sequence[Token] = ()) -> int:
        """Calls that the plan still holds."""
        return self._reservation.left(message)

    def close(self) -> None:
        """Drop what is cached of the subsets."""
        self._subset_votes.close()


class _Clipped:
    """What texts by clipped sums have in common: the text under way, its charge, and who was asked."""

    def __init__(
        self, writer: TextWriter, shown: ShowsRecords, *, reservation: PromptReservation, engine: NextTokenScorer,
        chain: str,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._shown = shown
        self._reservation = reservation
        self._engine = engine
        self._chain = chain
        self._asked: set[Hashable] = set()
        self._tokens: Iterator[Token] | None = None

    @property
    def _length(self) -> int:
        return self._writer.noise.event.tokens

    def _event(self, message: int) -> Any:
        """What a text is charged as."""
        return self._reservation.calls.charged(self._writer.noise.event, message)

    def _check_model(self, message: int) -> None:
        """See that the model answers, once also as many members, before anything is charged: it sees no record."""
        self._writer.check_answers(self._shown.public(message), self._shown.invented(message))

    def _written_by(self, members: Sequence[MemberPrompt], message: int, *text: Any) -> Iterator[Token]:
        self._asked.update(member.member for member in members)
        return self._writer.continued(self._shown.public(message), lambda: members, *text)

    def close(self) -> None:
        """Drop what is cached of the members."""
        if self._asked:
            forget_members(self._engine, *self._asked)
            self._asked.clear()


class ClippedTexts(_Clipped):
    """Every text from the clipped sums of subsets that are drawn once, charged before anybody is asked.

    Formal guarantee:
        A text costs the plan's event: it is charged first, then fresh coins draw the subsets, which stay the same to
        its end; one record moves one of them. What another run began is not gone on with: it would draw others.
    """

    whole = True

    def __init__(self, writer: TextWriter, sampler: SubsetSampler, shown: ShowsRecords, **charged: Any) -> None:
        super().__init__(writer, shown, **charged)
        self._sampler = sampler

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        """The next token of a text; None where it has come to its end, or its engine failed."""
        if not written:
            self._tokens = self._begun(message)
        return None if self._tokens is None else next(self._tokens, None)

    def _begun(self, message: int) -> Iterator[Token]:
        self._check_model(message)
        self._reservation.plan.spend(self._event(message), caller=self._chain)
        subsets = [subset for subset in self._sampler.draw() if subset.record_ids]
        return self._written_by(self._shown.members(subsets, message), message)

    def left(self, message: int | None = None, written: Sequence[Token] = ()) -> int:
        """Tokens of the texts that the plan still holds; of one that has begun, those that are to come.

        None where another process began it.
        """
        if written:
            return 0 if self._tokens is None else self._length - len(written)
        return self._reservation.left(message) * self._length


class ClippedGlossary(_Clipped):
    """The descriptions of all labels from one draw of records, each of which is a member of its label's text.

    Formal guarantee:
        One round, charged before anybody is asked. Each record takes part by a coin of its own, which hangs on a secret
        key and its slot: so a run that is taken up again goes on with the same members. That a token is drawn is kept
        before, and the token after it; none is drawn twice. A record whose label is replaced, too, leaves one text and
        joins another.

    Args:
        writer: Draws tokens.
        coins: Who takes part.
        shown: What members show.
        mark: Keeps that a token is being drawn.
        take_up: Keeps that a text is begun, or taken up; False if that was done often enough.
        **charged: As of texts.
    """

    whole = False

    def __init__(
        self, writer: TextWriter, coins: KeyedCoins, shown: LabelTexts, *, mark: Callable[[], object],
        take_up: Callable[[], bool], **charged: Any,
    ) -> None:  # fmt: skip
        super().__init__(writer, shown, **charged)
        self._coins = coins
        self._mark = mark
        self._take_up = take_up
        self._most = self._length * shown.texts
        self._key = secrets.token_hex(8)  # two runs on one engine never share a cache entry
        self._message: int | None = None

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        """The next token of a description; None where its engine failed, or one of its members ends the process."""
        if self._message != message:
            self._message = message
            self.close()
            self._tokens = self._begun(message, written)
        return None if self._tokens is None else next(self._tokens, None)

    def _begun(self, message: int, written: Sequence[Token]) -> Iterator[Token]:
        self._check_model(message)
        self._reservation.plan.spend_up_to(self._event(message), 1, caller=self._chain)
        if not self._take_up():
            return iter(())
        drawn = self._coins.drawn(0, self._writer.noise.event.sampling_probability)
        some = [Subset((self._key, place), (name,)) for place, name in enumerate(drawn)]
        return self._written_by(self._shown.members(some, message), message, written, self._mark)

    def left(self, message: int | None = None, written: Sequence[Token] = ()) -> int:
        """Tokens that a description may still have; by default those of them all: the round pays for each label."""
        return (self._most if message is None else self._length) - len(written)
