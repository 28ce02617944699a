"""Calls of an engine on private texts: a joint one for many members, in which none can spoil another's, and a count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter, LangChainDPError, ModelUnavailable
from langchain_dp.quiet.context import sealed
from langchain_dp.quiet.filters import Level
from langchain_dp.redact import interruption

Member = TypeVar("Member")
Answer = TypeVar("Answer")
_PLAIN = "This is a test."


class Counts(Protocol):
    """What of an engine counts."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text."""
        ...


def is_remote(engine: object) -> bool:
    """Whether the engine asks a server, which may die: then every member abstains, and only noise is left.

    Such an engine says so with an attribute ``remote = True``, and one PUBLIC prompt is asked beside its members.
    """
    return getattr(engine, "remote", False) is True


def count_quietly(engine: Counts, text: str) -> int:
    """Tokens of a private text; what the engine logs, warns of or traces goes nowhere.

    Raises:
        ModelUnavailable: The engine could not count them.
    """
    stop: BaseException | None = None
    try:
        with sealed(Level.QUIET):
            return engine.count_tokens(text)
    except BaseException as error:  # raised again below, without its text; a library may raise kinds of its own
        stop, failure = interruption(error), type(error).__name__
    if stop is not None:
        raise stop
    raise ModelUnavailable(f"The engine failed to count tokens ({failure}); its text is withheld.")


def asked_publicly(ask: Callable[[], Answer]) -> Answer:
    """What an engine answers to a text that shows no record, asked before anything is charged.

    Raises:
        ModelUnavailable: It failed, of whatever kind its error is.
    """
    stop: BaseException | None = None
    try:
        with sealed(Level.QUIET):
            return ask()
    except LangChainDPError:
        raise
    except BaseException as error:  # a library may raise kinds of its own
        stop, failure = interruption(error), type(error).__name__
    if stop is not None:
        raise stop
    raise ModelUnavailable(f"The engine failed on a text that shows no record ({failure}). Check the model.")


def count_publicly(engine: Counts, text: str) -> int:
    """Return the tokens of a public text.

    Raises:
        InvalidParameter: The engine cannot tokenize this text, though it tokenizes others.
        ModelUnavailable: The engine counts no text.
    """
    try:
        return asked_publicly(lambda: engine.count_tokens(text))
    except ModelUnavailable as error:
        why = str(error)
    asked_publicly(lambda: engine.count_tokens(_PLAIN))
    raise InvalidParameter(
        f"Expected the model to tokenize a public text of {len(text):,} characters, but it could not, while it "
        f"tokenizes others. It said: {why} Shorten the text, or break up long runs of one kind of character."
    )


def row_of(scores: object, length: int) -> npt.NDArray[np.float64] | None:
    """One member's scores as so many numbers; None if they are none. Private: an engine may answer one member oddly."""
    stop: BaseException | None = None
    try:
        row = np.asarray(scores, dtype=np.float64)
        return row if row.shape == (length,) else None
    except BaseException as error:  # whatever an engine answered: its member could not be asked
        stop = interruption(error)
    if stop is not None:
        raise stop
    return None


def ask_together(
    ask: Callable[[Sequence[Member]], list[Answer | None]], members: Sequence[Member]
) -> list[Answer | None]:
    """Answers of ``ask``, one a member; None for a member whose content breaks the call.

    If the joint call fails, or does not answer for each, every member is asked alone: what one of them holds can then
    silence nobody else. What was raised is dropped, whatever its kind, for it may hold private text; Ctrl-C and its kin
    pass, empty. An engine may be a client of a server, or stand on LangChain: what it logs, warns of or traces inside
    the call goes nowhere.
    """
    if not members:
        return []
    stop = None
    try:
        with sealed(Level.QUIET):
            answers = ask(members)
        if len(answers) == len(members):
            return answers
    except BaseException as error:  # a library may raise kinds of its own that are no Exception
        stop = interruption(error)
    if stop is not None:
        raise stop
    if len(members) == 1:
        return [None]
    return [ask_together(ask, [member])[0] for member in members]
