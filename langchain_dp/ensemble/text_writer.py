"""One private text, token by token, from the scores of its members."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from langchain_dp._util import forks, validate
from langchain_dp.ensemble.engine_calls import ask_together, asked_publicly, count_publicly, forget_members, row_of
from langchain_dp.errors import InvalidParameter, LangChainDPError, ModelUnavailable
from langchain_dp.isolation.worker import call_engine
from langchain_dp.mechanisms import ClippedSum, Randomness
from langchain_dp.ports import Continuation, MemberPrompt, NextTokenScorer, Token, TokenScores

INVENTED = "An example."
_MARGIN = 4  # additional tokens of joined parts


class TextWriter:
    """Writes one text from the clipped sums of its members, charged before.

    Candidates and public weights depend on public and released text alone.
    """

    def __init__(
        self, engine: NextTokenScorer, end: str, noise: ClippedSum, *, candidates: int, chat: bool,
        rng: Randomness,
    ) -> None:  # fmt: skip
        self.noise = noise
        self._engine = engine
        self._end = end.strip(" ") or end
        self._candidates = candidates
        self._chat = chat
        self._rng = rng
        self._barren: dict[Token, bool] = {}  # tokens that begin no text
        self._heard = False  # whether as many members as a text has were scored

    def tokens(
        self,
        head: str,
        tail: str,
        bodies: Mapping[Hashable, str],
        before: Sequence[Token] = (),
        mark: Callable[[], object] = lambda: None,
    ) -> Iterator[Token]:
        return self.continued(
            public_prompt(head, tail),
            lambda: [MemberPrompt(head, body, tail, key) for key, body in bodies.items()],
            before=before,
            mark=mark,
        )

    def continued(
        self,
        public: MemberPrompt,
        members: Callable[[], Sequence[MemberPrompt]],
        before: Sequence[Token] = (),
        mark: Callable[[], object] = lambda: None,
    ) -> Iterator[Token]:
        """Call ``members`` before every token and ``mark`` before every draw."""
        # Bound before the first token: a resumed text may show its beginning earlier.
        return self._continued(public, members, list(before), mark, forks.one_process("a text to be written"))

    def _continued(
        self,
        public: MemberPrompt,
        members: Callable[[], Sequence[MemberPrompt]],
        written: list[Token],
        mark: Callable[[], object],
        check_process: Callable[[], None],
    ) -> Iterator[Token]:
        while len(written) < self.noise.event.tokens and not self.ended(written):
            check_process()
            scores = self._scores(public, members(), tuple(written))
            allowed = self._allowed(written, scores.tokens)
            check_process()
            mark()
            chosen = allowed[self.noise.release(scores.public[allowed], _rows(scores, allowed), rng=self._rng)]
            written.append(_plain(scores.tokens[chosen]))
            yield written[-1]

    def check_answers(self, public: MemberPrompt, invented: str | None = None) -> None:
        """Find a dead model before a charge. With ``invented``, first score a full set."""
        if invented is None or self._heard:
            self._public(Continuation(public, (), 0.0))
            return
        keys = [("invented", public.head, number) for number in range(self.noise.members)]
        try:
            scores = self._scores(public, [dataclasses.replace(public, body=invented, member=key) for key in keys], ())
        finally:
            forget_members(self._engine, *keys)
        heard = sum(row is not None for row in _rows(scores, range(len(scores.tokens))))
        if 2 * heard < len(keys):
            raise ModelUnavailable(
                f"The engine scores its prompt alone, but {heard} of {len(keys)} that show an invented record with it: "
                "no record would take part in the text. Check the engine's memory, or let fewer take part "
                "(members=)."
            )
        self._heard = True

    def can_go_on(self, public: MemberPrompt, written: Sequence[Token]) -> bool:
        def look() -> None:
            self.text(written)
            if not self.ended(written) and len(written) < self.noise.event.tokens:
                self._asked(Continuation(public, tuple(written), 0.0), [])

        if not written:
            return True
        for _ in range(2):  # a server may fail once
            with contextlib.suppress(LangChainDPError):
                asked_publicly(look)
                return True
            self.check_answers(public)
        return False

    def check_room(self, head: str, tail: str, *, more: int = 0, kept: int = 0) -> int:
        """Return the tokens left. ``more`` is public growth, ``kept`` is for private texts."""
        room = self._engine.max_prompt_tokens - kept
        public = count_publicly(self._engine, head) + count_publicly(self._engine, tail)
        needed = public + self.noise.event.tokens + _MARGIN + more
        if needed > room:
            raise InvalidParameter(
                f"Expected {needed} tokens of instruction, question and text to be at most {room}, the longest prompt "
                f"of this model{f' less {kept} that are kept for the records' if kept else ''}. Shorten them, lower "
                "max_new_tokens=, or raise the engine's max_tokens=."
            )
        return room - needed

    def begun(self, tokens: Sequence[Token]) -> str:
        """Omit a possible beginning of the text's end."""
        text = self.text(tokens)
        if self.ended(tokens):
            return text
        withheld = next((n for n in range(len(self._end) - 1, 0, -1) if text.endswith(self._end[:n])), 0)
        return text[: len(text) - withheld]

    def text(self, tokens: Sequence[Token]) -> str:
        spelt = self._engine.detokenize([token for token in tokens if token not in self._engine.end_tokens])
        return spelt.split(self._end, 1)[0].strip().strip("\ufffd")

    def ended(self, tokens: Sequence[Token]) -> bool:
        return bool(tokens) and (tokens[-1] in self._engine.end_tokens or self._end in self._engine.detokenize(tokens))

    def _allowed(self, written: Sequence[Token], candidates: Sequence[Token]) -> Sequence[int]:
        every = range(len(candidates))
        return every if written else [at for at in every if not self._is_barren(candidates[at])] or every

    def _is_barren(self, token: Token) -> bool:
        if token not in self._barren:
            self._barren[token] = token in self._engine.end_tokens or self._end in self._engine.detokenize([token])
        return self._barren[token]

    def _scores(self, prompt: MemberPrompt, prompts: Sequence[MemberPrompt], written: tuple[Token, ...]) -> TokenScores:
        public = Continuation(prompt, written, 0.0)
        members = [Continuation(one, written, 0.0) for one in prompts]
        if (scores := call_engine(lambda: self._asked(public, members)).answer) is not None:
            return scores
        # The public prompt alone says whether the model is there. One member's failure must not silence the others.
        known = self._public(public)
        return dataclasses.replace(known, members=tuple(self._alone(public, member, known) for member in members))

    def _public(self, public: Continuation) -> TokenScores:
        return asked_publicly(lambda: self._asked(public, []))

    def _alone(self, public: Continuation, member: Continuation, known: TokenScores) -> Any:
        [scores] = ask_together(lambda some: [self._asked(public, some)], [member])
        return None if scores is None or scores.tokens != known.tokens else scores.members[0]

    def _asked(self, public: Continuation, members: Sequence[Continuation]) -> TokenScores:
        scores = self._engine.score_next_token(public, members, candidates=self._candidates, chat=self._chat)
        if len(scores.members) != len(members):
            raise ModelUnavailable("The engine did not answer for each member.")
        return scores


def check_scores(model: object) -> None:
    validate.require_instance("model", model)
    if not isinstance(model, NextTokenScorer):
        raise InvalidParameter(
            f"Expected model of type {type(model).__name__} to score next tokens (ports.NextTokenScorer). Use "
            "LlamaCppEnsemble or TransformersEnsemble."
        )


def check_writer(embedded: bool, allow_small_model: bool) -> None:
    """Refuse to write with the embedded model, whose texts were of no use in any trial, unless it is allowed."""
    if embedded and not allow_small_model:
        raise InvalidParameter(
            "Expected a model that writes well, but the embedded one has 135 million parameters, and its texts would "
            "waste the budget. Give model_path= with a GGUF of 1.5 billion or more, or pass allow_small_model=True."
        )


def public_prompt(head: str, tail: str) -> MemberPrompt:
    return MemberPrompt(head, "", tail, ("public", head))


def _plain(token: Token) -> Token:
    """Convert an engine's own number type."""
    return str.__str__(token) if isinstance(token, str) else operator.index(token)


def _rows(scores: TokenScores, kept: Sequence[int]) -> list[Any]:
    rows = (row_of(row, len(scores.tokens)) for row in scores.members)
    return [None if row is None else row[list(kept)] for row in rows]
