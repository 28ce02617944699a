"""Audits of whole sanitizers: what every face releases of texts on a small table, against the account that paid."""

from __future__ import annotations

import asyncio
import collections
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from audits.check import Check, Finding, likely
from audits.laws import frequencies, softmax, tally
from audits.stubs import at_once
from langchain_dp.accounting import MetricLedger
from langchain_dp.errors import BudgetExceeded, LedgerError, MissingExtra
from langchain_dp.rapt import DocumentRules, RAPTSanitizer, SanitizingExampleSelector, SanitizingRetriever, Vocabulary
from langchain_dp.rapt.privatize import Mechanism

_LINE = {"ant": 0.0, "bee": 1.0, "cat": 2.5, "dog": 3.0, "elk": 5.0}
_TABLE = Vocabulary(list(_LINE), np.array([[place] for place in _LINE.values()]), name="line")
_UNKNOWN = "Quillfeather"
_WORDS = (*_LINE, _UNKNOWN)
_ETA = {"exponential": 1.0, "laplace": 0.5}
Face = Callable[[RAPTSanitizer, Sequence[str], str], list[str]]


def _chunks(text: str) -> Iterator[str]:
    yield from (f"{word} " for word in text.split())


async def _achunks(text: str) -> AsyncIterator[str]:
    for chunk in _chunks(text):
        yield chunk


async def _gathered(parts: AsyncIterator[str]) -> str:
    return "".join([part async for part in parts])


def _documents(texts: Sequence[str], user: str) -> list[Document]:
    return [Document(text, metadata={"owner": user}) for text in texts]


def _queries(sanitizer: RAPTSanitizer, texts: Sequence[str], user: str) -> list[str]:
    seen: list[str] = []

    def search(query: str) -> list[Document]:
        seen.append(query)
        return []

    retriever = SanitizingRetriever(retriever=RunnableLambda(search), sanitizer=sanitizer)
    for text in texts:
        retriever.invoke(text, user=user)
    return seen


def _found(sanitizer: RAPTSanitizer, texts: Sequence[str], user: str) -> list[str]:
    def search(query: str) -> list[Document]:
        return _documents(texts, user)

    inner = RunnableLambda(search)
    retriever = SanitizingRetriever(retriever=inner, sanitizer=sanitizer, query=False, documents=True)
    return [each.page_content for each in retriever.invoke("?")]


def _examples(sanitizer: RAPTSanitizer, texts: Sequence[str], user: str) -> list[str]:
    rows = [{"text": text, "owner": user} for text in texts]
    selected = SanitizingExampleSelector(rows, sanitizer, user_key="owner").select_examples({})
    return [str(each["text"]) for each in selected]


def _agent(sanitizer: RAPTSanitizer, texts: Sequence[str], user: str) -> list[str]:
    """What the model of an agent is told; as messages do where the extra is not installed."""
    try:
        from langchain_dp.rapt.middleware import RAPTMiddleware  # first: it says which extra is missing
    except MissingExtra:
        return FACES["messages"](sanitizer, texts, user)
    from langchain.agents.middleware import ModelRequest, ModelResponse

    told: list[str] = []

    def model(request: Any) -> Any:
        told.extend(str(message.content) for message in request.messages)
        return ModelResponse(result=[AIMessage("ant")])

    messages: list[Any] = [HumanMessage(text) for text in texts]
    request = ModelRequest(model=None, messages=messages, state={"messages": messages})  # type: ignore[arg-type,typeddict-item]  # nobody asks it
    RAPTMiddleware(sanitizer, user=user).wrap_model_call(request, model)
    return told


FACES: dict[str, Face] = {
    "invoke": lambda it, texts, user: [it.invoke(text, user=user) for text in texts],
    "ainvoke": lambda it, texts, user: at_once(it.ainvoke(text, user=user) for text in texts),
    "batch": lambda it, texts, user: it.batch(list(texts), user=user),
    "abatch": lambda it, texts, user: asyncio.run(it.abatch(list(texts), user=user)),
    "stream": lambda it, texts, user: ["".join(it.stream(text, user=user)) for text in texts],
    "chunks": lambda it, texts, user: ["".join(it.transform(_chunks(text), user=user)) for text in texts],
    "async chunks": lambda it, texts, user: [
        asyncio.run(_gathered(it.atransform(_achunks(text), user=user))) for text in texts
    ],
    "messages": lambda it, texts, user: [
        str(each.content) for each in it.invoke([HumanMessage(text) for text in texts], user=user)
    ],
    "documents": lambda it, texts, user: [
        each.page_content for each in it.transform_documents(_documents(texts, user))
    ],
    "mappings": lambda it, texts, user: [
        str(each["text"])
        for each in it.sanitize_mappings([{"text": text, "owner": user} for text in texts], user_key="owner")
    ],
    "query": _queries,
    "found": _found,
    "examples": _examples,
    "agent": _agent,
}
"""Every way to sanitize texts of a user, each a document."""

_ONE_CALL = {"batch", "abatch", "messages", "documents", "mappings", "found", "examples", "agent"}
"""Faces that release all texts in one call: two of them that are equal are two documents."""


def chances(word: str, mechanism: str, eta: float) -> dict[str, float]:
    """Law of what is written for a word, by hand: the table is a line, and an unknown word stands at its mean."""
    place = _LINE.get(word, sum(_LINE.values()) / len(_LINE))
    if mechanism == "exponential":
        return softmax({other: -abs(place - there) for other, there in _LINE.items()}, eta / 2)
    ends = [-math.inf, *((a + b) / 2 for a, b in itertools.pairwise(_LINE.values())), math.inf]

    def below(end: float) -> float:
        share = math.exp(-eta * abs(end - place)) / 2
        return share if end < place else 1 - share

    return {other: below(high) - below(low) for other, (low, high) in zip(_LINE, itertools.pairwise(ends), strict=True)}


def _texts(number: int) -> list[str]:
    """Texts that differ, each with every word twice."""
    orders = itertools.islice(itertools.permutations(_WORDS), 0, None, 720 // number)
    return [" ".join((*order, *order)) for order in itertools.islice(orders, number)]


def faces(number: int = 6) -> Finding:
    """Texts of two users on every face: entries, accounts, words in clear, and the law at the eta that was charged."""
    try:
        return _faces(number)
    except LedgerError as error:  # a ledger keeps no text whose charge is not there
        return Finding(True, f"a text without its charge was refused: {type(error).__name__}")


def _faces(number: int) -> Finding:
    written: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    pairs: list[bool] = []
    alike: list[float] = []
    texts = _texts(number)
    for place, (name, face) in enumerate(FACES.items()):
        mechanism: Mechanism = "laplace" if place % 2 else "exponential"
        eta = _ETA[mechanism]
        keyed = {"documents": DocumentRules(user_key="owner")} if name in ("documents", "found") else {}
        with MetricLedger() as ledger:
            sanitizer = RAPTSanitizer(_TABLE, eta=eta, mechanism=mechanism, ledger=ledger, threads=1, **keyed)  # type: ignore[arg-type]
            released = [*face(sanitizer, texts, "one"), *face(sanitizer, texts[:2], "two")]
            entries = list(ledger.entries())
            charged = {user: ledger.spent(user=user) for user in ("one", "two")}
        due = {"one": number * eta, "two": 2 * eta}
        if len(entries) != number + 2 or any(abs(charged[user] - due[user]) > 1e-6 for user in due):
            return Finding(True, f"{name}: {len(entries)} charges for {number + 2} releases, {charged} for {due}")
        if len(released) != number + 2:
            return Finding(True, f"{name}: {len(released)} texts came out of {number + 2}")
        for text, out in zip([*texts, *texts[:2]], released, strict=True):
            words = out.split()
            if len(words) != len(text.split()) or not set(words) <= set(_LINE):
                return Finding(True, f"{name}: a text came out in other words than the table's, or in more of them")
            for word, drawn in zip(text.split(), words, strict=True):
                written[mechanism, word][drawn] += 1
            half = len(words) // 2
            for word, *both in zip(text.split()[:half], words[:half], words[half:], strict=True):
                pairs.append(both[0] == both[1])
                alike.append(sum(chance**2 for chance in chances(word, mechanism, entries[0].eta).values()))
        if (wrong := _again(face, name, mechanism)) is not None:
            return Finding(True, f"{name}: {wrong}")
    tests = _followed(written)
    tests[f"{sum(pairs)} of {len(pairs)} pairs of equal words came out equal, {sum(alike):.0f} expected"] = tally(
        sum(pairs), alike
    )
    return likely(tests)


def _again(face: Face, name: str, mechanism: Mechanism) -> str | None:
    """Two equal texts, and then a third beyond what the user may spend."""
    eta = _ETA[mechanism]
    text = "ant bee cat " * 30
    keyed = {"documents": DocumentRules(user_key="owner")} if name in ("documents", "found") else {}
    with MetricLedger(2.5 * eta) as ledger:
        sanitizer = RAPTSanitizer(_TABLE, eta=eta, mechanism=mechanism, ledger=ledger, threads=1, **keyed)  # type: ignore[arg-type]
        first, second = face(sanitizer, [text, text], "one")
        entries = len(list(ledger.entries()))
        if entries != 1 + (first != second) or (name in _ONE_CALL and first == second):
            return f"{entries} charges for two equal texts that came out {'equal' if first == second else 'different'}"
        try:
            face(sanitizer, ["ant", "bee cat", "dog elk"][entries - 1 :], "one")
        except BudgetExceeded:
            return None if ledger.spent(user="one") <= 2.5 * eta else "an account exceeds its limit"
        return "texts were released beyond the limit of their user"


def padded(number: int = 300, length: int = 8) -> Finding:
    """Texts of no word to more than fit: how many words come out, and the law of each that fills a text up."""
    written: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for mechanism, eta in _ETA.items():
        sanitizer = RAPTSanitizer(_TABLE, eta=eta, mechanism=mechanism, length=length, threads=1)  # type: ignore[arg-type]
        texts = [" ".join(itertools.islice(itertools.cycle(_LINE), size % (length + 2))) for size in range(number)]
        for text, out in zip(texts, sanitizer.batch(texts), strict=True):
            words = out.split()
            if len(words) != length or not set(words) <= set(_LINE):
                return Finding(True, f"a text of {len(text.split())} words came out as {len(words)} of {length}")
            for word, drawn in itertools.zip_longest(text.split()[:length], words, fillvalue=_UNKNOWN):
                written[mechanism, word][drawn] += 1
    return likely(_followed(written))


def _followed(written: Mapping[tuple[str, str], collections.Counter[str]]) -> dict[str, float]:
    """How likely what was written for each word is, by its law."""
    return {
        f"what was written for {word!r} ({mechanism})": frequencies(counts, chances(word, mechanism, _ETA[mechanism]))
        for (mechanism, word), counts in written.items()
    }


CHECKS = [
    Check("texts", "every face: one charge a text, its law", faces),
    Check("padded", "length=: as many words a text, by law", padded),
]
