"""Interfaces between the private machinery and models. Arguments and results are private.

An engine may also have these attributes:

- ``remote = True`` if its model runs on a server. Every release then sends a public health probe, and an outage raises
  ``ModelUnavailable``. Without it, an outage releases noise alone.
- ``chats``: True if its model has a chat template, which chains then use by default.
- ``notes``: sentences for every certificate, on the engine's limits.
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
"""Set in a worker thread's context once its result is no longer needed, so that a local model may stop.

Any exception of an engine is an abstention, and Ctrl-C does not reach it. An abandoned call may run beside the next
one, so caches need a lock.
"""

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts for contextual calibration (Zhao et al. 2021)."""


@dataclasses.dataclass(frozen=True, repr=False)
class MemberPrompt:
    """Prompt of one member of an ensemble, in parts for caches.

    Args:
        head: Public text, the same for every member and query.
        body: The member's private examples. Fixed per ``member``.
        tail: The query, the same for every member of a call.
        member: Opaque key of this member's content. New content needs a new key.
        response_prefix: Beginning of the text to be written, the same for every member of a call. In a chat template it
            begins the model's turn. Labels are scored without it.

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

    A member's score must depend on its own head and body, the tail and the labels, and on nothing of any other member,
    to the last bit. A word's score is that of its own tokens alone. So choose words of which none begins another ("1",
    "10").

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
        """Longest query in tokens, a public constant."""
        ...

    def count_tokens(self, text: str) -> int:
        """Count the model's tokens."""
        ...

    def score_labels(
        self,
        prompts: Sequence[MemberPrompt],
        words: Sequence[str],
        *,
        content_free: Sequence[str] = (),
    ) -> list[list[float] | None]:
        """Return log-scores, one row per prompt and one column per word. None where a member could not be evaluated (it
        abstains).

        Args:
            prompts: Members with equal heads and tails.
            words: Distinct label words.
            content_free: Tails without a query ("N/A", ...). Scores are divided by those after these tails (contextual
                calibration).
        """
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop everything cached of these members."""
        ...

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Build these members' caches, so that answer times do not show cold ones."""
        ...


Token: TypeAlias = int | str
"""One token: its number, or its text where a server gives no numbers."""


@dataclasses.dataclass(frozen=True, repr=False)
class Continuation:
    """One member's prompt and the text after it so far.

    Args:
        prompt: The member's prompt, with a public tail.
        written: Tokens after the tail. In a private run they are released, hence public.
        draw: The member's own uniform in [0, 1), which picks a token from its distribution.

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
    """Public rule that takes a token from a member's distribution, the same for all members of a call.

    Args:
        temperature: 0 takes the most probable token, ties to the smaller one. Otherwise the member's ``draw`` picks one
            at this temperature.
        repetition_penalty: At least 1. Divides positive and multiplies negative logits of written tokens (Keskar et al.
            2019).
        banned: Tokens that are never taken.
        chat: Present head + body + tail as one user turn in the model's chat template. None: the chain decides, and an
            engine by itself continues the text.

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
    """Base of engines that work token by token: :class:`NextTokenVoter` and :class:`NextTokenScorer`.

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
        """Tokens that end a text. Other control tokens are never taken."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """Most tokens of head + body + tail + written. A longer member abstains or has no scores."""
        ...

    def count_tokens(self, text: str) -> int:
        """Count the model's tokens."""
        ...

    def detokenize(self, tokens: Sequence[Token]) -> str:
        """Return the text. Broken UTF-8 at the ends becomes U+FFFD."""
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop these members' caches."""
        ...


@runtime_checkable
class NextTokenVoter(TextGenerator, Protocol):
    """Writes the next token for many members at once.

    A member's token must depend on its own prompt, written tokens and draw, and the decoding, and on nothing of any
    other member, to the last bit of a logit.

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
        """Return every member's next token, in order. None where it could not be evaluated (it abstains).

        Args:
            asked: Members with equal heads and tails.
            decoding: Rule that takes a token.
        """
        ...


@dataclasses.dataclass(frozen=True, repr=False)
class TokenScores:
    """Log-probabilities of the public model and the members for the same candidates.

    Args:
        tokens: Distinct candidates, found from the public prompt alone.
        public: The public model's log-probabilities, (candidates,).
        members: Each member's own, in order. None for a failed member. Private.

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
    """Scores candidates for the next token, for many members and for the same model without private text.

    Log-probabilities are normalized over the vocabulary. A member's must depend on its own prompt, its written tokens
    and the candidates. Candidates and public log-probabilities must depend on the public prompt alone, to the last bit.

    Examples:
        >>> public = Continuation(MemberPrompt("Texts of one kind: ", "", "Text:", "public"), written=(), draw=0.0)
        >>> scores = engine.score_next_token(public, members, candidates=512)
        >>> likely = scores.tokens[scores.public.argmax()]  # what the model would write without a record
    """

    def score_next_token(
        self, public: Continuation, members: Sequence[Continuation], *, candidates: int, chat: bool = False
    ) -> TokenScores:
        """Score the most probable next tokens of the public prompt. Failure on it raises ModelUnavailable.

        Args:
            public: The prompt without private examples. No ``draw`` is used.
            members: Members with the heads, tails and written tokens of ``public``, or none.
            candidates: Number of tokens, beside those that end a text.
            chat: As in :class:`Decoding`.
        """
        ...


@runtime_checkable
class ChecksPrompts(Protocol):
    """A chat model that can check a public prompt without a call. Private chains do so before they charge.

    Examples:
        >>> if isinstance(chat_model, ChecksPrompts):
        ...     chat_model.check_prompt([HumanMessage("Where is my parcel?")])
    """

    def check_prompt(self, messages: list[Any]) -> None:
        """Raise InvalidParameter if a call would refuse these LangChain messages."""
        ...


@runtime_checkable
class HasFile(Protocol):
    """A model in one local file.

    Examples:
        >>> if isinstance(engine, HasFile):
        ...     print(engine.name, engine.file_sha256())
    """

    def file_sha256(self) -> str:
        """Return the file's hexadecimal SHA-256."""
        ...


@runtime_checkable
class HasCache(Protocol):
    """An engine with a bounded cache of members.

    Examples:
        >>> if isinstance(engine, HasCache):
        ...     print(f"{engine.cache_bytes / 2**30:.1f} GiB")
    """

    @property
    def cache_bytes(self) -> int:
        """Largest size in bytes, a setting."""
        ...


@runtime_checkable
class ReportsThroughput(Protocol):
    """An engine that knows its speed and memory, for estimates before a run.

    Examples:
        >>> if isinstance(engine, ReportsThroughput):
        ...     print(f"about {tokens / engine.tokens_per_second():.0f} seconds")
    """

    def tokens_per_second(self) -> float:
        """Prompt tokens evaluated per second, on public text."""
        ...

    def bytes_per_token(self) -> int:
        """Cache bytes per token."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """A public table of embeddings: one vector per word.

    Examples:
        >>> isinstance(table, Embeds)
        True
        >>> vector = table.vectors[list(table.words).index("parcel")]
    """

    @property
    def words(self) -> Sequence[str]:
        """Distinct words or subwords."""
        ...

    @property
    def vectors(self) -> NDArray[np.floating]:
        """Vectors, (words, dimension)."""
        ...


@runtime_checkable
class EmbedsSubwords(Embeds, Protocol):
    """A table that cuts texts into its own subwords.

    Examples:
        >>> isinstance(table, EmbedsSubwords)
        True
        >>> text = table.decode(table.encode("My parcel is late."))
    """

    @property
    def unknown_id(self) -> int | None:
        """Id of unknown words, if any."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """Ids of control, padding and unused tokens, which are never written."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Return ids, without begin or end tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        ...
