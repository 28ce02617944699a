"""The seams between the private machinery and the models. Adapters implement these, nothing else.

A port never sees the ledger, the noise or the histogram. What it gets is private, what it returns is private:
both stay inside the trust boundary.

Beside its port an engine may have three attributes, which have no default of their own here:

- ``remote = True`` where its model runs on a server. Then every release asks one public question beside the members,
  and an outage raises ``ModelUnavailable``. Without it an outage is answered by noise alone.
- ``chats``: whether its model carries a chat template. Then chains ask it in that template, unless told otherwise.
- ``notes``: sentences for every certificate, on what this engine cannot keep.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Hashable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

call_abandoned: ContextVar[threading.Event | None] = ContextVar("langchain_dp_call_abandoned", default=None)
"""Set, in the context of a call in a thread, once nobody waits for it any more. A local model may stop by it.

Engines are called in worker threads: what they raise, of whatever kind, is an abstention, and the caller's Ctrl-C does
not reach them. One that keeps caches needs a lock, since a call that was given up may still run beside the next one.
"""


@dataclasses.dataclass(frozen=True, repr=False)
class MemberPrompt:
    """Prompt of one member of an ensemble, in three parts for caches.

    Args:
        head: Public text, the same for every member and every question. May be empty.
        body: The member's own private examples. Never changes while ``member`` stays the same.
        tail: The question, the same for every member of one call. Ends where the label, or the text to be written,
            begins.
        member: Opaque key of this member's content. A change of content comes with a new key.
        response_prefix: Where a text is written: how it begins, the same for every member of one call. It follows the
            tail. In a
            chat template it follows the end of the user's turn, so that the model goes on from there and does not
            talk about what it is going to do. Labels are scored without it.

    Examples:
        >>> MemberPrompt("Sort messages. ", "My parcel is late: delivery. ", "Where is my invoice:", member=7)
        MemberPrompt(<private>)
    """

    head: str
    body: str
    tail: str
    member: Hashable
    response_prefix: str = ""

    def __repr__(self) -> str:
        return "MemberPrompt(<private>)"  # not even whose: a log of those who were drawn is none of noise


@runtime_checkable
class LabelScorer(Protocol):
    """Scores every label for many members at once.

    The score of one member must depend on that member's own head and body, the tail and the labels, and on
    nothing of any other member: not on its content, not on its length, to the last bit.

    A word's score is that of its own tokens alone. A word whose tokens begin another one ("1" and "10")
    never scores below it: choose words of which none begins another.

    Examples:
        >>> isinstance(engine, LabelScorer)
        True
        >>> prompts = [MemberPrompt("Sort: ", body, "My invoice?", member) for member, body in enumerate(bodies)]
        >>> scores = engine.score_labels(prompts, [" delivery", " billing"])  # a row of two numbers a prompt, or None
    """

    @property
    def name(self) -> str:
        """Name of the model, for certificates."""
        ...

    @property
    def max_tail_tokens(self) -> int:
        """Longest question the engine accepts, in tokens: a public constant."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``."""
        ...

    def score_labels(
        self,
        prompts: Sequence[MemberPrompt],
        words: Sequence[str],
        *,
        content_free: Sequence[str] = (),
    ) -> list[list[float] | None]:
        """Log-scores of ``words`` after each prompt: one row a prompt, one column a word.

        Args:
            prompts: Members to ask. Heads and tails are equal within one call.
            words: Label words, distinct.
            content_free: Tails that hold no question ("N/A", ...). When given, scores are divided by the
                scores after these tails under the same member (contextual calibration).

        Returns:
            One row per prompt, or None where that member could not be evaluated (it abstains).
        """
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop everything that is cached of these members, content and scores."""
        ...

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Build the caches of these members, so that answer times no longer show which were cold."""
        ...


Token: TypeAlias = int | str
"""One token of a model: its number, or its text where a server tells no numbers. One engine uses one kind."""


@dataclasses.dataclass(frozen=True, repr=False)
class Continuation:
    """One member's prompt and the text after it so far.

    Args:
        prompt: The member's prompt. Here the tail is public, like the head.
        written: Tokens that follow the tail: of a private run those released so far, hence public.
        draw: The member's own coin, uniform in [0, 1), which picks a token from its distribution.

    Examples:
        >>> asked = Continuation(prompt, written=(), draw=0.25)
        >>> token = engine.next_tokens([asked], Decoding(temperature=0.7))[0]
        >>> longer = dataclasses.replace(asked, written=(*asked.written, token))
    """

    prompt: MemberPrompt
    written: tuple[Token, ...]
    draw: float

    def __repr__(self) -> str:
        return "Continuation(<private>)"


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Public rule that takes a token from a member's next-token distribution, the same for all members of one call.

    Args:
        temperature: 0 takes the most probable token, ties to the smaller one. Above, the distribution is flattened
            or sharpened by it and the member's coin picks a token.
        repetition_penalty: At least 1. The logit of a token that was written already is divided by it if positive
            and multiplied by it if negative (Keskar et al. 2019): a function of released tokens only.
        banned: Tokens that are never taken.
        chat: Present head + body + tail as one user turn, in the chat template that the model carries, and let the
            model answer it. Without, the text is simply continued. None leaves that to the chain, which takes the
            template of a model that has one. An engine that is asked directly takes it for False.

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> Decoding(temperature=0.7, banned=["#"]).banned
        frozenset({'#'})
    """

    temperature: float = 0.0
    repetition_penalty: float = 1.0
    banned: frozenset[Token] = frozenset()
    chat: bool | None = None

    def __post_init__(self) -> None:
        validate.number("temperature", self.temperature, at_least=0.0)
        validate.number("repetition_penalty", self.repetition_penalty, at_least=1.0)
        if isinstance(self.banned, str):
            raise InvalidParameter("Expected banned of type str to be a list of tokens. Give [banned].")
        object.__setattr__(self, "banned", frozenset(self.banned))


@runtime_checkable
class TextGenerator(Protocol):
    """Base of engines that work token by token: their tokens, and their caches of members.

    :class:`NextTokenVoter` and :class:`NextTokenScorer` say how a token is found.

    Examples:
        >>> isinstance(engine, TextGenerator)
        True
        >>> room = engine.max_prompt_tokens - engine.count_tokens("My parcel is late.")
        >>> text = engine.detokenize([token for token in written if token not in engine.end_tokens])
    """

    @property
    def name(self) -> str:
        """Name of the model, for certificates."""
        ...

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Tokens that end a text. Other control tokens are never taken, and are no candidates."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """Longest head + body + tail + written of one member, in tokens. A longer one abstains or has no scores."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``."""
        ...

    def detokenize(self, tokens: Sequence[Token]) -> str:
        """Text of ``tokens``, which this engine has written or scored. Broken UTF-8 at the ends becomes U+FFFD."""
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop everything that is cached of these members."""
        ...


@runtime_checkable
class NextTokenVoter(TextGenerator, Protocol):
    """Writes the next token for many members at once.

    The token of one member must depend on that member's own head, body and tail, its written tokens, its coin and the
    decoding, and on nothing of any other member: not on its content, not on its length, to the last bit of a logit.

    Examples:
        >>> asked = [Continuation(prompt, written=(), draw=0.5) for prompt in prompts]
        >>> votes = collections.Counter(engine.next_tokens(asked, Decoding()))  # private: None is an abstention
        >>> engine.forget(*(prompt.member for prompt in prompts))
    """

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the model can write."""
        ...

    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, in order. None where a member could not be evaluated (it abstains).

        Args:
            asked: Members to ask, each with its own written tokens. Heads and tails are equal within one call.
            decoding: How a token is taken from the distribution.
        """
        ...


@dataclasses.dataclass(frozen=True, repr=False)
class TokenScores:
    """Log-probabilities of the public model and the members for the same candidates of the next token.

    Args:
        tokens: Candidates, each once, found from the public prompt alone.
        public: The public model's log-probabilities of them, (number of candidates,).
        members: Each member's own, in order. None for one that could not be evaluated. Private.

    Examples:
        >>> ledger.spend(mechanism.event)  # a ClippedSum's: a whole round, before its first token
        >>> scores = engine.score_next_token(public, members, candidates=512)
        >>> token = scores.tokens[mechanism.release(scores.public, scores.members)]
    """

    tokens: tuple[Token, ...]
    public: NDArray[np.float64]
    members: tuple[NDArray[np.float64] | None, ...]

    def __repr__(self) -> str:
        return f"TokenScores({len(self.tokens)} candidates, <private>)"


@runtime_checkable
class NextTokenScorer(TextGenerator, Protocol):
    """Scores candidates for the next token for many members at once, beside the same model without private text.

    Log-probabilities are normalized over the whole vocabulary. Those of one member must depend on that member's own
    head, body and tail, its written tokens and the candidates. Candidates and public log-probabilities on the public
    prompt alone: on nothing of any member, to the last bit.

    Examples:
        >>> public = Continuation(MemberPrompt("Texts of one kind: ", "", "Text:", "public"), written=(), draw=0.0)
        >>> scores = engine.score_next_token(public, members, candidates=512)
        >>> likely = scores.tokens[scores.public.argmax()]  # what the model would write without a record
    """

    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        """Score the most probable next tokens of the public prompt.

        Args:
            public: The prompt without a private example. Coins of continuations are not used.
            members: Members to ask. Heads, tails and written tokens are those of ``public``. May be empty.
            candidates: How many tokens, at least 1, beside those that end a text, which are always among them.
            chat: As in :class:`Decoding`.

        Raises:
            ModelUnavailable: The public prompt could not be evaluated.
        """
        ...


@runtime_checkable
class ChecksPrompts(Protocol):
    """A chat model that can tell, without a call, whether it would refuse a prompt.

    Private chains ask it about public prompts before they charge.

    Examples:
        >>> if isinstance(chat_model, ChecksPrompts):
        ...     chat_model.check_prompt([HumanMessage("Where is my parcel?")])
    """

    def check_prompt(self, messages: list[Any]) -> None:
        """Check the length of a prompt, and that it can be tokenized.

        Args:
            messages: LangChain messages.

        Raises:
            InvalidParameter: A call would refuse the prompt.
        """
        ...


@runtime_checkable
class HasFile(Protocol):
    """A model that is one file on this machine.

    Examples:
        >>> if isinstance(engine, HasFile):
        ...     print(engine.name, engine.file_sha256())
    """

    def file_sha256(self) -> str:
        """Hexadecimal SHA-256 of the file, for the record of a prompt's writer."""
        ...


@runtime_checkable
class HasCache(Protocol):
    """An engine that keeps what it has evaluated of a member for the next call, up to a bound.

    Examples:
        >>> if isinstance(engine, HasCache):
        ...     print(f"{engine.cache_bytes / 2**30:.1f} GiB")
    """

    @property
    def cache_bytes(self) -> int:
        """Bytes of member states kept at most. A setting, not what is kept now."""
        ...


@runtime_checkable
class ReportsThroughput(Protocol):
    """An engine that knows its speed and its appetite, for estimates before a run.

    Examples:
        >>> if isinstance(engine, Measured):
        ...     print(f"about {tokens / engine.tokens_per_second():.0f} seconds")
    """

    def tokens_per_second(self) -> float:
        """Tokens of a prompt evaluated per second, measured on public text."""
        ...

    def bytes_per_token(self) -> int:
        """Bytes of cache that one token of one member takes."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """A public table of embeddings: one vector a word, the same for every text.

    Examples:
        >>> isinstance(table, Embeds)
        True
        >>> vector = table.vectors[list(table.words).index("parcel")]
    """

    @property
    def words(self) -> Sequence[str]:
        """Words or subwords, each once."""
        ...

    @property
    def vectors(self) -> NDArray[np.floating]:
        """Their vectors, (number of words, dimension)."""
        ...


@runtime_checkable
class EmbedsSubwords(Embeds, Protocol):
    """A table that cuts texts into its own subwords: byte pairs, sentence pieces.

    Both directions are public functions: they know no text but the one that is given.

    Examples:
        >>> isinstance(table, EmbedsSubwords)
        True
        >>> text = table.decode(table.encode("My parcel is late."))
    """

    @property
    def unknown_id(self) -> int | None:
        """Id of words that the table does not hold, if it has one."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """Ids that are never written out: control, padding and unused tokens."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text, all of it, without any that begin or end a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...
