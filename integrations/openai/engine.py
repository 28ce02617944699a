"""An engine on a completions server."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import numpy as np

from langchain_dp._util.validate import integer, number
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token, TokenScores

from .._engine import BaseEngine, Scores, check_public
from .batch_invariance import COMPANY, compared
from .calls import Calibrations, Calls, scores
from .dialect import END, LISTED, probed
from .http import Server, ServerError

_FRAMES = 100


class CompletionServerEnsemble(BaseEngine):
    """Next tokens and label scores of many private prompts from an OpenAI-compatible completions server.

    THE SERVER SEES THE PRIVATE RECORDS. It must stand inside the trust boundary, with its logs, caches and other users.
    Only the server can promise that a member's answer holds nothing of another, and certificates say so by
    :attr:`notes`. For a promise of this package use ``LlamaCppEnsemble`` or ``TransformersEnsemble``.

    Implements ``ports.NextTokenVoter``, ``ports.LabelScorer`` and ``ports.NextTokenScorer``. The server reads special
    tokens in a record as such. Tokens are texts, and the empty text is the end. A member abstains at a control token, a
    broken character, or a banned token that the server cannot leave out. A label's score is the log-softmax, over the
    words, of listed tokens that begin this word alone, or -100.

    Args:
        base_url: Address of the API, as in "http://127.0.0.1:8000/v1". Plain http to another machine is refused.
        model: Name of the model on the server.
        api_key: Bearer token.
        vocabulary_size: Tokens of the model, if the server does not report it.
        max_prompt_tokens: Longest prompt, if the server does not report it.
        chat_turn: The chat template's text before and after a user's turn, if the server does not report it.
        timeout: Seconds after which the member of a request abstains.
        in_flight: Prompts or requests at once. Default 1, or 32 on a server declared batch-invariant.
        prefix_cache: Let the server keep evaluated prefixes. Tokens are faster, but answers may depend on earlier
            requests, and records stay in the server's memory.
        batch_invariant: Declare that company changes no bit of an answer. A check on public prompts can refute that,
            never prove it.
        allow_plain_http: Send private records over the network in clear.

    Formal guarantees:
        A member's request depends only on its own prompt, written tokens, coin and the public parameters of the call.
        Only calibrations are kept. Above temperature 0 the server draws from a seed of 31 bits made of the member's
        coin. Exceptions hold no text of a call.

    Raises:
        InvalidParameter: A parameter is out of bounds or missing for this server, the model is not served, or a server
            declared batch-invariant is not.
        MissingExtra: httpx is not installed.
        ModelUnavailable: The server does not answer public text.

    Examples:
        >>> engine = CompletionServerEnsemble("http://127.0.0.1:8000/v1", model_name)
        >>> chain = DPICLClassifier(model=engine, examples=examples, labels=labels, budget=PrivacyBudget(3.0))
    """

    _HOLDS = "an API key and private calibrations"
    remote: ClassVar[bool] = True
    """A release also asks one public prompt, and raises if that fails."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        vocabulary_size: int | None = None,
        max_prompt_tokens: int | None = None,
        chat_turn: tuple[str, str] | None = None,
        timeout: float = 60.0,
        in_flight: int | None = None,
        prefix_cache: bool = False,
        batch_invariant: bool = False,
        allow_plain_http: bool = False,
    ) -> None:
        number("timeout", timeout, above=0)
        if in_flight is None:
            in_flight = COMPANY if batch_invariant else 1
        integer("in_flight", in_flight, at_least=1, at_most=256 if batch_invariant else 4096)
        company = max(COMPANY, in_flight)
        self._timeout = timeout
        connections = 2 * company if batch_invariant else in_flight  # the check asks the needle beside its company
        self._server = Server(base_url, api_key, timeout, connections, allow_plain_http)
        self._dialect = probed(self._server, model, prefix_cache=prefix_cache)
        super().__init__(f"{self._dialect.model} (completions server, {self._dialect.kind})")
        self.vocabulary_size = _told("vocabulary_size", vocabulary_size, self._dialect.vocabulary_size)
        room = None if self._dialect.context is None else self._dialect.context - 1
        prompt_tokens = _told("max_prompt_tokens", max_prompt_tokens, room)
        if chat_turn is not None and not (isinstance(chat_turn, (tuple, list)) and len(chat_turn) == 2):
            raise InvalidParameter("Expected chat_turn to be a pair: (text before, text after) a user's turn.")
        self._turn = chat_turn
        if self._turn is None and self._dialect.kind == "llama.cpp":
            with suppress(InvalidParameter):  # where the server does not tell, chat=True will say so
                self._turn = self._dialect.turn()
        try:
            framed = sum(map(self._dialect.count, self._turn or ()))
        except ServerError:
            raise InvalidParameter(
                "Expected the server to count the tokens of chat_turn, but it tells no usage."
            ) from None
        self.max_prompt_tokens = integer(
            "max_prompt_tokens less those of chat_turn", prompt_tokens - framed, at_least=2
        )
        self.max_tail_tokens = self.max_prompt_tokens // 2
        self._compared = compared(self._dialect, company, self.max_prompt_tokens) if batch_invariant else 0
        self.end_tokens = frozenset({END})
        self._in_flight = in_flight
        self._calls = Calls(self._dialect, in_flight)
        self._fitting: set[tuple[str, str, str]] = set()
        self._calibrations = Calibrations()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for certificates."""
        notes = [
            "The model ran on a completions server, which saw the private records.",
            "This library does not control which requests the server evaluates together. The server promises that "
            "a member's answer holds nothing of another member.",
        ]
        if self._compared:
            notes.append(
                "The server was declared batch-invariant. When the engine was made this was not refuted by "
                f"{self._compared} comparisons of public prompts, alone and among others."
            )
        together = f"Up to {self._in_flight} members were under way at once" if self._in_flight > 1 else "One at a time"
        notes.append(
            f"{together}: a member with a long record that keeps the server busy may cost others their votes, once "
            f"they are silent for {self._timeout:g} seconds. That is not accounted for."
        )
        if 0 < self.listed_tokens < LISTED[0]:
            notes.append(
                f"The server lists {self.listed_tokens} tokens after a prompt at most: a text is drawn from these "
                "alone, and a label that begins with none of them is not scored."
            )
        if self._dialect.prefix_cache:
            notes.append("The server was allowed to keep evaluated prefixes between requests.")
        if self._dialect.kind == "vLLM":
            notes.append("A repetition penalty weighed the tokens of each member's own prompt too.")
        return tuple(notes)

    @property
    def listed_tokens(self) -> int:
        """Number of tokens that the server lists with log-probabilities: at most 1,000, and 0 for none."""
        return self._dialect.listed

    def _count(self, text: str) -> int:
        try:
            return self._dialect.count(text)
        except ServerError as problem:
            why = str(problem)
        raise ModelUnavailable(f"The server does not count the tokens of a text ({why}). Check it, and ask again.")

    def _text(self, tokens: Sequence[Token]) -> str:
        _check_texts("tokens", tokens)
        return "".join(map(str, tokens))

    def _rules(self, decoding: Decoding) -> None:
        _check_texts("decoding.banned", decoding.banned)

    def _written(self, asked: Sequence[Continuation], decoding: Decoding, rules: None) -> list[Token | None]:
        self._check_frame(asked[0].prompt)
        return self._calls.next_tokens(asked, decoding, self._framed(bool(decoding.chat)))

    def _token_scores(self, asked: Sequence[Continuation], candidates: int, chat: bool) -> TokenScores:
        self._check_lists()
        self._check_frame(asked[0].prompt)
        frame = self._framed(chat)
        first, why = {}, "no log-probabilities"
        try:  # alone: it decides the candidates
            [first] = self._calls.together_after(asked[:1], turn=frame)
        except Exception as problem:  # of a public prompt, whatever the server answered
            why = str(problem) if isinstance(problem, ServerError) else type(problem).__name__
        if not first:
            raise ModelUnavailable(
                f"The server does not answer the public prompt ({why}). Check it, and the prompt's length."
            )
        rows = self._calls.listed_after(asked[1:], frame)
        whole = {text: value for text, value in first.items() if "\ufffd" not in text and text != END}
        tokens = [*sorted(whole, key=lambda text: (-whole[text], text))[:candidates], END]
        known, *scored = (None if not row else _after(row, tokens) for row in (first, *rows))
        assert known is not None
        return TokenScores(tuple(tokens), known, tuple(scored))

    def _check_lists(self) -> None:
        if not self._dialect.listed:
            raise InvalidParameter("Expected the server to list log-probabilities (logprobs). Use another server.")

    def _scores(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]:
        if not words or not all(words) or len(set(words)) < len(words):
            raise InvalidParameter(f"Expected words={list(words)!r} to be distinct and not empty.")
        self._check_lists()
        for tail in {prompts[0].tail, *content_free}:
            tokens = self._count(tail)
            if not 0 < tokens <= self.max_tail_tokens:
                raise InvalidParameter(
                    f"Expected a question of {tokens} tokens to have 1 to {self.max_tail_tokens}, half of "
                    f"max_prompt_tokens={self.max_prompt_tokens}. Shorten it."
                )

        answers = self._calls.listed(prompts)
        rows = [None if answer is None else scores(words, answer) for answer in answers]
        if content_free:
            means = self._calibrations.means(self._calls, prompts, tuple(words), tuple(content_free))
            rows = [None if row is None or mean is None else row - mean for row, mean in zip(rows, means, strict=True)]
        return [None if row is None else [float(score) for score in row] for row in rows]

    def _drop(self, members: Sequence[Hashable]) -> None:
        self._calibrations.forget(members)

    def _free(self) -> None:
        self._calibrations.clear()
        self._server.close()

    def _framed(self, chat: bool) -> tuple[str, str]:
        if not chat:
            return "", ""
        return self._turn or self._dialect.turn()  # which raises: it was asked before

    def _check_frame(self, prompt: MemberPrompt) -> None:
        """Count each public text once."""
        public = (prompt.head, prompt.tail, prompt.response_prefix)
        if len("".join(public).encode(errors="replace")) <= self.max_prompt_tokens:  # no token is shorter than a byte
            return
        if public not in self._fitting:
            check_public(sum(self._count(text) for text in public if text), self.max_prompt_tokens)
            if len(self._fitting) >= _FRAMES:
                self._fitting.clear()
            self._fitting.add(public)


def _after(listed: Mapping[str, float], tokens: Sequence[str]) -> Scores:
    least = min(listed.values())
    return np.array([listed.get(token, least) for token in tokens])


def _told(name: str, given: int | None, told: int | None) -> int:
    if given is None and told is None:
        raise InvalidParameter(f"Expected {name}= to be given, since this server does not tell it.")
    value = given if told is None else told
    if given is not None and given != value:
        raise InvalidParameter(f"Expected {name}={given} to be {told}, which is what this server tells. Leave it out.")
    assert value is not None  # of the two at least one is
    return integer(name, value, at_least=2)


def _check_texts(name: str, tokens: Sequence[Token] | frozenset[Token]) -> None:
    if not all(isinstance(token, str) for token in tokens):
        raise InvalidParameter(
            f"Expected {name} to hold texts, the tokens of a server. Take them from the engine that is asked."
        )
