"""The client: sanitizes texts, without torch or a model."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import PromptValue

from langchain_dp._util import validate
from langchain_dp._util.documents import FileForm, Form
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.ensemble.questions import question_fields
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Embeds
from langchain_dp.rapt import tokenize
from langchain_dp.rapt._tables import load
from langchain_dp.rapt.privatize import Items, TextPrivatizer
from langchain_dp.rapt.release import COUNTED, REUSED, UNNAMED, FormalReleases, Releases, Unit
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.examples import LABELS_IN_CLEAR, Examples, PrivatizedExamples, RawExamples, checked
from langchain_dp.rapt.tuning.plain import PlainSource
from langchain_dp.rapt.tuning.settings import PlainTokens
from langchain_dp.rapt.tuning.wire import MOST, Kind, PredictionRequest, PrivatizedText
from langchain_dp.rapt.vocabulary import Vocabulary, table_name
from langchain_dp.records import Label, check_labels
from langchain_dp.redact import redact_errors

FORMAT = "langchain-dp rapt client 1"
FILE = "client.json"
NOT_PRIVATE = "the texts are not privatized"
AGAIN = (
    "Every question is privatized and charged like a training text. A repeated question is given the release of then."
)
EACH = "Every question is privatized and charged like a training text, each time it is asked."

ACCOUNT = "account"
"""Certificates of one account count the same releases."""
SETTINGS = "settings"

_SAME = 1e-6  # calibrations on two machines may differ in the last digits of eta
_SHOWN = 160  # letters of a foreign certificate in an error
_CUT = "+"  # mark behind the tokens of a truncated text

Question = str | BaseMessage | PromptValue | Document
"""Inputs of a query."""
Users = str | list[str | None] | None


class IdentitySanitizer:
    """A sanitizer for baselines that passes texts in CLEAR, as every certificate tells.

    Args:
        embeddings: Table, as of :func:`langchain_dp.rapt.load`.

    Examples:
        >>> baseline = RAPTPromptTuner(IdentitySanitizer("minilm"), labels=labels).fit(examples)  # texts in CLEAR
    """

    def __init__(self, embeddings: str | PathLike[str] | Embeds | Vocabulary = "minilm") -> None:
        self.vocabulary = load(embeddings)

    def __repr__(self) -> str:
        return f"IdentitySanitizer({self.vocabulary!r}, NOT PRIVATE)"


class TokenEngine:
    """A sanitizer's engine that releases token ids."""

    def __init__(self, words: TextPrivatizer, max_tokens: int) -> None:
        self.event, self.table, self.pads = words.event, words.table, words.pads
        self._privatizer, self._max_tokens = words, max_tokens
        settings = {**json.loads(words.settings), "written": "ids", "max_tokens": max_tokens}
        self.settings = json.dumps(settings, sort_keys=True)

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        parsed = [self._privatizer._parse(number, text) for number, text in enumerate(texts)]
        cut = [len(items.ids) > self._max_tokens for items in parsed]
        for items in parsed:
            del items.ids[self._max_tokens :]
        ids = np.array([i for items in parsed for i in items.ids], dtype=np.int64)
        return lambda: self._rows(parsed, cut, self._privatizer.release(ids).tolist())

    def _rows(self, parsed: list[Items], cut: list[bool], drawn: list[int]) -> list[str]:
        written, start = [], 0
        for items, is_cut in zip(parsed, cut, strict=True):
            released = drawn[start : start + len(items.ids)]
            start += len(items.ids)
            ids: list[int] = []
            before = 0
            for place, literal in items.literals:
                if place > len(released):
                    break
                ids += released[before:place] + self._privatizer.vocabulary.encode(literal)
                before = place
            ids += released[before:]
            is_cut |= len(ids) > self._max_tokens
            written.append(" ".join([*map(str, ids[: self._max_tokens]), *([_CUT] if is_cut else [])]))
        return written


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """Privatization of the training texts. Eta is infinite in clear."""

    eta: float
    mechanism: str
    table: str

    @classmethod
    def of(cls, certificate: MetricCertificate) -> TrainedOn:
        return cls(certificate.eta, certificate.mechanism, certificate.table)

    def note(self, client: RAPTClient) -> str | None:
        """Compare with queries."""
        asked = TrainedOn(client.eta, client.mechanism, client.table)
        same_eta = self.eta == asked.eta or math.isclose(self.eta, asked.eta, rel_tol=_SAME)
        if same_eta and (self.mechanism, self.table) == (asked.mechanism, asked.table):
            return None
        return f"The model was trained on texts privatized at {self}; questions are privatized at {asked}."

    def __str__(self) -> str:
        return f"eta={self.eta:g} ({self.mechanism}, {self.table})"


class RAPTClient:
    """The client of a foreign model: makes a :class:`PredictionRequest` of privatized tokens from texts.

    Args:
        sanitizer: Charges and privatizes.
        plain: Plain tokens of the model's training.
        kind: "tokens" if the sanitizer's table is the backbone's vocabulary, otherwise "text".
        max_tokens: Longest text, under "tokens". Longer ones are truncated first.

    Formal guarantee:
        That of the sanitizer, one release per text. Plain tokens are public. A provider's work is post-processing. So
        is the choice of plain tokens, by public seed and releases.

    Examples:
        >>> client = RAPTClient(RAPTSanitizer("minilm", target_replacement=0.5))
        >>> request = client.request(["The film was a joy."])
        >>> body = request.to_json()  # to be posted to the provider
    """

    eta: float
    """Loss per unit of distance, in nats. Infinite in clear."""
    settings: str
    """Digest of the privatization except eta."""

    def __init__(
        self,
        sanitizer: RAPTSanitizer | IdentitySanitizer,
        plain: PlainTokens | None = None,
        *,
        kind: Kind = "tokens",
        max_tokens: int = 128,
    ) -> None:
        remedy = "Give RAPTSanitizer('minilm', target_replacement=0.15)."
        validate.instance("sanitizer", sanitizer, (RAPTSanitizer, IdentitySanitizer), "a RAPTSanitizer", remedy)
        self.sanitizer = sanitizer
        self.kind: Kind = validate.one_of("kind", kind, get_args(Kind))
        self.max_tokens = validate.integer("max_tokens", max_tokens, at_least=1)
        self.trained: TrainedOn | None = None
        self._formal: FormalReleases | None = None
        words: TextPrivatizer | None = None
        if isinstance(sanitizer, IdentitySanitizer):
            self.vocabulary, self.table = sanitizer.vocabulary, table_name(sanitizer.vocabulary)
            self.eta, self.mechanism, self.settings = math.inf, "none", ""
            self.question_notes: tuple[str, ...] = ()
        else:
            self._formal = formal = sanitizer._releases
            words = formal.words
            engine = TokenEngine(words, self.max_tokens) if kind == "tokens" else words
            self._releases = Releases(engine, formal.ledger, reuse=formal._reuse, chain=str(sanitizer.name))
            self.vocabulary, self.table = words.vocabulary, words.table
            self.eta, self.mechanism, self.settings = words.eta, words.mechanism, words.treatment
            self.question_notes = (AGAIN if formal._reuse else EACH,)
        self.plain = PlainSource(self.vocabulary, plain or PlainTokens(), words, self.kind)

    @redact_errors()
    def request(self, texts: Sequence[Question], *, user: str | None = None) -> PredictionRequest:
        """Privatize texts and put plain tokens before them: all are charged together, or none.

        Raises:
            InvalidParameter: A value is no text, or one string replaces the list. Nothing was charged.
            BudgetExceeded: An account has too little left. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written.
        """
        if len(texts) > MOST and not isinstance(texts, (str, bytes)):
            raise InvalidParameter(
                f"Expected at most {MOST} texts in a request, got {len(texts)}. Give them in several calls."
            )
        requests = self._requests_of(texts, user, at_once=MOST)
        return requests[0] if requests else PredictionRequest(self.kind, [], [])

    def _requests_of(
        self, texts: Sequence[Question], user: Users, seen: Counter[str] | None = None, *, at_once: int = 256
    ) -> list[PredictionRequest]:
        """Make requests under one charge."""
        if isinstance(texts, (str, bytes)):  # each letter would be charged
            raise InvalidParameter("Expected texts to be a list of strings, not one. Give [text].")
        kinds = (BaseMessage, PromptValue, Document)
        plain_texts = [question_fields(one, ["text"])["text"] if isinstance(one, kinds) else one for one in texts]
        users = user if isinstance(user, list) else [user] * len(plain_texts)
        inputs, _ = self._released(RawExamples(plain_texts, [], users), seen)
        plain = self.plain.before(inputs)
        parts = (slice(start, start + at_once) for start in range(0, len(inputs), at_once))
        return [PredictionRequest(self.kind, plain[part], inputs[part]) for part in parts]

    @redact_errors()
    def privatize(
        self, examples: Examples, *, labels: Iterable[Label], user_key: str | None = None
    ) -> PrivatizedExamples:
        """Privatize labelled texts once, for a provider. Labels are in clear. Charges as of :meth:`request`."""
        names = check_labels(labels)
        return self.privatize_checked([checked(examples, names, user_key=user_key)], names)[0]

    @redact_errors()
    def privatize_checked(self, raw: Sequence[RawExamples], labels: Sequence[str]) -> list[PrivatizedExamples]:
        """Privatize several lists under one charge."""
        texts, users = [text for each in raw for text in each.texts], [user for each in raw for user in each.users]
        inputs, truncated = self._released(RawExamples(texts, [], users))
        # The name of the account tells whether two certificates count the same releases.
        account = {ACCOUNT: self.account} if self.account else {}
        account |= {SETTINGS: self.settings} if self.settings else {}
        certificate = self._certificate([LABELS_IN_CLEAR], account)
        rows = iter(zip(inputs, truncated, strict=True))
        parts = [list(itertools.islice(rows, len(each))) for each in raw]
        return [
            PrivatizedExamples(
                self.kind, [text for text, _ in part], [labels[number] for number in each.labels],
                sum(cut for _, cut in part), certificate,
            )
            for each, part in zip(raw, parts, strict=True)
        ]  # fmt: skip

    def _released(
        self, examples: RawExamples, seen: Counter[str] | None = None
    ) -> tuple[list[PrivatizedText], list[bool]]:
        for position, text in enumerate(examples.texts):
            if not isinstance(text, str):
                raise InvalidParameter(
                    f"Expected text {position} to be a string, not {type(text).__name__}; or a message, a prompt value "
                    "or a document. Give its text."
                )
        if self._formal is not None:
            self._formal.warn_unreachable_limit(named=None not in examples.users)
            units = [Unit((text,), user) for text, user in zip(examples.texts, examples.users, strict=True)]
            texts = [texts[0] for texts in self._releases.release(units, seen)]
            if self.kind == "tokens":
                rows = [text.split() for text in texts]
                return [[int(i) for i in row if i != _CUT] for row in rows], [row[-1:] == [_CUT] for row in rows]
            return list(texts), [False] * len(texts)
        if self.kind == "text":
            return list(examples.texts), [False] * len(examples)
        whole = [self.vocabulary.encode(tokenize.clean(text)) for text in examples.texts]
        return [row[: self.max_tokens] for row in whole], [len(row) > self.max_tokens for row in whole]

    @property
    def plain_notes(self) -> tuple[str, ...]:
        length = self.plain.settings.length
        return (f"The {length} plain tokens before every text are public. Privatizing them is free.",) * bool(length)

    @property
    def account(self) -> str:
        """Opaque account name."""
        if self._formal is None:
            return ""
        ledger = self._formal.ledger
        return ledger.digest("account", str(ledger._store.ledger_id)).hex()[:16]

    def certificate(self, notes: Sequence[str] = ()) -> MetricCertificate:
        """Return the promise for queries."""
        return self._certificate((*self.plain_notes, *notes), {})

    def _certificate(self, notes: Sequence[str], parameters: Mapping[str, float | int | str]) -> MetricCertificate:
        if self._formal is not None:
            return self._formal.certificate((*self._formal.notes(), *notes), parameters)
        return MetricCertificate(
            mechanism="none", eta=math.inf, table=self.table, private=False, reason=NOT_PRIVATE, notes=tuple(notes),
            parameters=parameters,
        )  # fmt: skip

    def differences(self, certificate: MetricCertificate) -> list[str]:
        """Compare promises, except eta."""
        differences = []
        if self._formal is not None and self._formal.engine.private and not certificate.private:
            differences.append(f"they are NOT private ({certificate.reason[:_SHOWN]!r})")
        for name in ("mechanism", "table"):
            theirs, own = getattr(certificate, name), getattr(self, name)
            if theirs != own:
                differences.append(f"their {name} is {theirs[:_SHOWN]!r}, here it is {own!r}")
        settings = certificate.parameters.get(SETTINGS)
        if settings is not None and self.settings and settings != self.settings:
            differences.append(
                "they were privatized under other settings: other kept words, policies, lengths or vectors"
            )
        ignored = {REUSED, *COUNTED, UNNAMED, LABELS_IN_CLEAR}  # of the account, and of every training
        theirs_only = set(certificate.notes) - ignored
        own_only = set(() if self._formal is None else self._formal.notes()) - ignored
        differences += [f"only their certificate notes: {note[:_SHOWN]!r}" for note in sorted(theirs_only - own_only)]
        differences += [
            f"only the certificate here notes: {note[:_SHOWN]!r}" for note in sorted(own_only - theirs_only)
        ]
        return differences

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the public facts."""
        fields = {
            "format": FORMAT,
            "kind": self.kind,
            "max_tokens": self.max_tokens,
            "table": self.table,
            "trained": None if self.trained is None else json_etas(dataclasses.asdict(self.trained)),
            "settings": dataclasses.asdict(self.plain.settings),
            "plain": self.plain.to_dict(),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_whole(Path(folder) / FILE, json.dumps(fields).encode())

    @classmethod
    def load(cls, folder: str | PathLike[str], sanitizer: RAPTSanitizer | IdentitySanitizer) -> RAPTClient:
        """Load a saved client. InvalidParameter: The sanitizer has another table."""
        form = _ClientForm.load(Path(folder) / FILE, FORMAT)
        client = cls(sanitizer, PlainTokens(length=0), kind=form.kind, max_tokens=form.max_tokens)
        if client.table != form.table:
            raise InvalidParameter(
                f"Expected a sanitizer over the table {form.table!r}, as in training, got {client.table!r}."
            )
        if (trained := form.trained) is not None:
            client.trained = TrainedOn(float(trained.eta), trained.mechanism, trained.table)
        client.plain.restore(PlainTokens.from_dict(form.settings), form.plain.candidates, form.plain.rows)
        return client

    @safe_repr
    def __repr__(self) -> str:
        return f"RAPTClient({self.kind}, {self.sanitizer!r})"

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return copy.copy(self)  # it must share the releases


def json_etas(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


class _TrainedForm(Form):
    eta: float | Literal["inf"]
    mechanism: str
    table: str


class _PlainForm(Form):
    candidates: list[str]
    rows: list[list[int]]


class _ClientForm(FileForm):
    kind: Kind
    max_tokens: int
    table: str
    trained: _TrainedForm | None
    settings: dict[str, Any]
    plain: _PlainForm
