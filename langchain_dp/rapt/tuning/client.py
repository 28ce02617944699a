"""The client's part: sanitises, puts plain tokens before, and hands out nothing else. No torch, no model."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from langchain_dp import _validate
from langchain_dp._whole_files import write_whole
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.metric_exponential import MetricExponential
from langchain_dp.ports import Embeds
from langchain_dp.rapt import tokenise
from langchain_dp.rapt._engine import WordEngine, table_name
from langchain_dp.rapt.formal import FormalReleases
from langchain_dp.rapt.privatise import TextPrivatiser
from langchain_dp.rapt.release import Releases, Unit
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.examples import RawExamples, read_json
from langchain_dp.rapt.tuning.plain import Ids, PlainSource
from langchain_dp.rapt.tuning.settings import PlainTokens
from langchain_dp.rapt.tuning.wire import Kind, Plain, Privatised, Request
from langchain_dp.rapt.vocabulary import Vocabulary, load

FORMAT = "langchain-dp rapt client 1"
FILE = "client.json"
NOT_PRIVATE = "the texts are not privatised"

_BUCKETS = 12_800  # at most so many numbers a word
_PLAIN_BYTES = 800_000_000
_CUT = "+"  # after the tokens of a text that was cut


class NotSanitized:
    """Stands where a sanitizer should: texts pass in CLEAR. For baselines only; every certificate says so.

    Args:
        embeddings: The table that cuts texts and names plain tokens, as of :func:`langchain_dp.rapt.load`.
    """

    def __init__(self, embeddings: str | PathLike[str] | Embeds | Vocabulary = "minilm") -> None:
        self.vocabulary = load(embeddings)

    def __repr__(self) -> str:
        return f"NotSanitized({self.vocabulary!r}, NOT PRIVATE)"


@dataclasses.dataclass(frozen=True, repr=False)
class Released:
    """Privatised texts, and how many of them were cut."""

    inputs: list[Privatised]
    truncated: int


class RAPTClient:
    """What a user of somebody else's model runs: text in, a :class:`Request` of privatised tokens out.

    Args:
        sanitizer: Charges and privatises. :class:`NotSanitized` is for baselines.
        plain: The plain tokens of the model's training.
        kind: "tokens" where the sanitizer's table is the vocabulary of the backbone: then the privatised tokens
            themselves reach it, one for one. "text" for any other table: the backbone's tokenizer cuts the text.
        max_tokens: Longest text in tokens, under "tokens"; what is longer is cut before it is privatised.

    Raises:
        InvalidParameter: A value is of another type, or the sanitizer's is the mode without a formal promise.

    Formal guarantee:
        That of the sanitizer, for every text; one release each. Plain tokens are public. Everything a provider does
        with a request is post-processing.
    """

    def __init__(
        self,
        sanitizer: RAPTSanitizer | NotSanitized,
        plain: PlainTokens | None = None,
        *,
        kind: Kind = "tokens",
        max_tokens: int = 128,
    ) -> None:
        if not isinstance(sanitizer, (RAPTSanitizer, NotSanitized)):
            raise InvalidParameter(
                f"Expected sanitizer of type {type(sanitizer).__name__} to be a RAPTSanitizer. "
                "Give RAPTSanitizer('minilm', target_replacement=0.15)."
            )
        self.sanitizer = sanitizer
        self.kind: Kind = _validate.one_of("kind", kind, ("tokens", "text"))
        self.max_tokens = _validate.integer("max_tokens", max_tokens, at_least=1)
        self._formal: FormalReleases | None = None
        self._plain_words: MetricExponential | None = None
        if isinstance(sanitizer, RAPTSanitizer):
            self._formal = sanitizer._formal()
            privatiser = self._formal.engine.privatiser
            self.vocabulary = privatiser.vocabulary
            engine = TokenEngine(self._formal.engine, self.max_tokens) if kind == "tokens" else self._formal.engine
            self._releases = {
                fresh: Releases(
                    engine,
                    self._formal.ledger,
                    reuse=self._formal._reuse and not fresh,
                    chain=str(sanitizer.name),
                )
                for fresh in (False, True)
            }
        else:
            self.vocabulary = sanitizer.vocabulary
        self.plain = PlainSource(self.vocabulary, plain or PlainTokens())

    # ------------------------------------------------------------------------------------------------- releases

    def request(self, texts: Sequence[str], *, user: str | None = None) -> Request:
        """Privatise texts and put plain tokens before them: all are charged together, or none.

        Args:
            texts: Private texts.
            user: Whose account is charged.

        Raises:
            InvalidParameter: Something is no text. Nothing was charged.
            BudgetExceeded: An account has too little left. Nothing was charged and nothing released.
            LedgerError: The ledger cannot be trusted or written. Nothing was released.
        """
        released = self.release(RawExamples(list(texts), [], [user] * len(texts)))
        _, rows = self.plain_rows(len(released.inputs), np.random.default_rng())
        return Request(self.kind, rows, released.inputs)

    def release(self, examples: RawExamples, *, fresh: bool = False) -> Released:
        """Privatise texts, without plain tokens.

        Args:
            examples: Private texts and whose they are.
            fresh: Whether texts that were released before are privatised, and charged, again.
        """
        for position, text in enumerate(examples.texts):
            if not isinstance(text, str):
                raise InvalidParameter(f"Expected text {position} to be a string, not {type(text).__name__}.")
        if self._formal is None:
            return self._in_clear(examples.texts)
        units = [Unit((text,), user) for text, user in zip(examples.texts, examples.users, strict=True)]
        released = [texts[0] for texts in self._releases[fresh].release(units)]
        if self.kind == "text":
            return Released(list(released), 0)
        pieces = [text.split() for text in released]
        inputs: list[Privatised] = [[int(i) for i in row if i != _CUT] for row in pieces]
        return Released(inputs, sum(row[-1:] == [_CUT] for row in pieces))

    def plain_rows(self, count: int, coins: np.random.Generator) -> tuple[Ids, list[Plain]]:
        """Plain tokens for so many texts: what is to be reconstructed, (count, m), and what is sent. It is free."""
        targets, ids = self.plain.draw(count, coins, None if self._formal is None else self._privatised_plain)
        if self.kind == "tokens":
            return targets, ids.tolist()
        return targets, [[self._word(i) for i in row] for row in ids.tolist()]

    def _privatised_plain(self, ids: Ids) -> Ids:
        """M on public ids, by the sanitizer's law. Its tables stay in memory: there are only |T| words."""
        assert self._formal is not None
        privatiser = self._formal.engine.privatiser
        if privatiser.mechanism != "exponential":
            return privatiser.release(ids)
        if self._plain_words is None:
            needed = 8 * _BUCKETS * len(self.plain)
            self._plain_words = MetricExponential(
                self.vocabulary.table, privatiser.eta, cache_bytes=min(needed, _PLAIN_BYTES), threads=privatiser.threads
            )
        return self._plain_words.draw(ids, self.vocabulary.points, rng=privatiser._rng)

    def _word(self, place: int) -> str:
        return "".join(self.vocabulary.decode([place])).replace(tokenise.GLUE, "")

    def _in_clear(self, texts: Sequence[str]) -> Released:
        if self.kind == "text":
            return Released(list(texts), 0)
        rows = [self.vocabulary.encode(tokenise.clean(text)) for text in texts]
        inputs: list[Privatised] = [row[: self.max_tokens] for row in rows]
        return Released(inputs, sum(len(row) > self.max_tokens for row in rows))

    # ---------------------------------------------------------------------------------------------- the promise

    @property
    def table(self) -> str:
        """Name of the table, with a digest of its vectors."""
        return table_name(self.vocabulary) if self._formal is None else self._formal.engine.table

    @property
    def eta(self) -> float:
        """Loss of one release in nats per unit of distance; infinite if texts pass in clear."""
        return math.inf if self._formal is None else self._formal.engine.eta

    def certificate(
        self, notes: Sequence[str] = (), parameters: Mapping[str, float | int | str] | None = None
    ) -> MetricCertificate:
        """The promise, with what is spent so far."""
        said = (
            f"The {self.plain.settings.length} plain tokens before every text are public; privatising them is free.",
            *notes,
        )
        if self._formal is not None:
            return self._formal.certificate((*self._formal.notes(), *said), parameters or {})
        return MetricCertificate(
            mechanism="none",
            eta=math.inf,
            table=self.table,
            private=False,
            reason=NOT_PRIVATE,
            notes=said,
            parameters=parameters or {},
        )

    # ------------------------------------------------------------------------------------------- save and load

    def save(self, folder: str | PathLike[str]) -> None:
        """Write ``client.json``: public facts only, so that another machine can build the same requests."""
        fields = {
            "format": FORMAT,
            "kind": self.kind,
            "max_tokens": self.max_tokens,
            "table": self.table,
            "eta": None if self._formal is None else self.eta,
            "settings": dataclasses.asdict(self.plain.settings),
            "plain": self.plain.to_dict(self.vocabulary),
        }
        write_whole(Path(folder) / FILE, json.dumps(fields).encode())

    @classmethod
    def load(cls, folder: str | PathLike[str], sanitizer: RAPTSanitizer | NotSanitized) -> RAPTClient:
        """Build the client that :meth:`save` described, around a sanitizer of this machine.

        Raises:
            InvalidParameter: The file is none, or the sanitizer draws from another table.
        """
        fields = read_json(Path(folder) / FILE, FORMAT)
        settings = PlainTokens(**fields["settings"])
        client = cls(sanitizer, PlainTokens(length=0), kind=fields["kind"], max_tokens=fields["max_tokens"])
        if client.table != fields["table"]:
            raise InvalidParameter(
                f"Expected a sanitizer over the table {fields['table']!r}, as in training, got {client.table!r}."
            )
        plain = fields["plain"]
        client.plain = PlainSource.restored(client.vocabulary, settings, plain["candidates"], plain["rows"])
        return client

    def __repr__(self) -> str:
        return f"RAPTClient({self.kind}, {self.sanitizer!r})"


class TokenEngine:
    """An engine of releases whose outcome is token ids, written as numbers.

    Args:
        words: The sanitizer's own engine.
        max_tokens: Where a text is cut, before it is privatised.
    """

    def __init__(self, words: WordEngine, max_tokens: int) -> None:
        self.eta, self.table, self.pads = words.eta, words.table, words.pads
        self._privatiser: TextPrivatiser = words.privatiser
        self._max_tokens = max_tokens
        settings = {**json.loads(words.settings), "written": "ids", "max_tokens": max_tokens}
        self.settings = json.dumps(settings, sort_keys=True)

    def privatise(self, texts: Sequence[str]) -> list[str]:
        """Draw a fresh release of every text: its ids, with a mark at the end if it was cut."""
        parsed = [self._privatiser._parse(number, text) for number, text in enumerate(texts)]
        cut = [len(items.ids) > self._max_tokens for items in parsed]
        for items in parsed:
            del items.ids[self._max_tokens :]
        drawn = self._privatiser.release(np.array([i for items in parsed for i in items.ids], dtype=np.int64)).tolist()
        written, start = [], 0
        for items, is_cut in zip(parsed, cut, strict=True):
            released = drawn[start : start + len(items.ids)]
            start += len(items.ids)
            ids: list[int] = []
            before = 0
            for place, literal in items.literals:
                if place > len(released):
                    break
                ids += released[before:place] + self._privatiser.vocabulary.encode(literal)
                before = place
            ids += released[before:]
            is_cut |= len(ids) > self._max_tokens
            written.append(" ".join([*map(str, ids[: self._max_tokens]), *([_CUT] if is_cut else [])]))
        return written
