"""Private records: kept in memory, shown to nobody, refused to every serializer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from os import PathLike
from types import MappingProxyType
from typing import Any, NoReturn, Self, TypeVar

from langchain_dp._util import validate
from langchain_dp._util.validate import as_int, reject_unknown_arguments, shown
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.records.checks import encodable, exact, is_missing, label_name, row_fault
from langchain_dp.records.files import READING, RowErrors, placed
from langchain_dp.records.tables import fields_of, rows_of
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, redact_errors, run_redacted

T = TypeVar("T")
USERS = "the promise holds for all records of one user"
"""Note of a certificate whose neighbors differ in a user."""
AUTOMATIC = "#"
"""First letter of the ids that number records by their place. No given id may start with it."""


class PrivateRecords:
    """Labelled private examples under stable ids.

    An example is a mapping with ``text`` and ``label``. Further keys fill a prompt's other variables. An ``id`` key
    names the record (for :meth:`forget`). Without one the record is named by its place: "#0", "#1", ...

    The object prints as ``PrivateRecords(<private>)``, and pickling, copying or serializing it is an error: under
    add/remove neighbours even the number of records is private.

    Args:
        examples: The examples: mappings, LangChain documents, pydantic objects, dataclass objects or named tuples. A
            DataFrame of pandas or polars, an Arrow table, a dataset of Hugging Face, or a path to a JSONL or CSV file.
            Or another ``PrivateRecords``: its records as they are now, under the same ids. What is added to or
            forgotten by one of the two later does not reach the other.
        text_key: Key, or column, of the text. Its number, where it has no name. It is kept under ``text``, too, in
            place of what else is called so. Of a document "text" is its content.
        label_key: Key, or column, of the label: a str, an int, a bool, or a member of an Enum. Under ``label`` its
            name is kept, a str: a label as it is written, or the value of an Enum's member (its own name, if the value
            is no str).
        label: Label of those that have no ``label_key`` at all: for texts without labels. Each may then be a plain str.
        user_key: Key, or column, of the user that a record belongs to, a str or a whole number. Then neighbors differ
            in all records of one user, and the number of users, not of records, is what replace-one makes public. None:
            each record is a user of its own.
        records_per_user: Most records of one user that take part, the oldest first. None: all of them in sums, one in
            prompts and counts. Runs of DP-OPT and of the synthesizer take one.

    Raises:
        InvalidParameter: Examples lack text or label, or an id occurs twice. One message gives the positions of all of
            them, counted from 0, never their content.

    Examples:
        >>> records = PrivateRecords([{"note": "Nobody came.", "kind": 1}], text_key="note", label_key="kind")
        >>> dict(records.get("#0"))
        {'note': 'Nobody came.', 'kind': 1, 'text': 'Nobody came.', 'label': '1'}
    """

    @reject_unknown_arguments
    def __init__(
        self,
        examples: Examples = (),
        *,
        text_key: str | int = "text",
        label_key: str | int = "label",
        label: str | None = None,
        user_key: str | int | None = None,
        records_per_user: int | None = None,
    ) -> None:
        held, others = PrivateArgs(examples), examples if isinstance(examples, PrivateRecords) else None
        del examples  # error reporters read the locals of each frame
        self._records: dict[str, Mapping[str, Any]] = {}
        self._places = 0
        self.text_key = _key("text_key", text_key)
        self.label_key = _key("label_key", label_key)
        self._label = label
        self.user_key = None if user_key is None else _key("user_key", user_key)
        self._users: dict[str, str] = {}
        if records_per_user is not None:
            validate.integer("records_per_user", records_per_user, at_least=1)
            if user_key is None:
                raise InvalidParameter("Expected user_key= beside records_per_user=: name the key of the user.")
        self.records_per_user = records_per_user
        if label is not None and not (isinstance(label, str) and label.strip() and encodable(label)):
            raise InvalidParameter(f"Expected label of type {type(label).__name__} to be a non-empty str.")
        if others is not None:
            if (text_key, label_key, label, user_key, records_per_user) != ("text", "label", None, None, None):
                raise InvalidParameter(
                    "Expected text_key=, label_key=, label=, user_key= and records_per_user= to be given where the "
                    "PrivateRecords were made, not again."
                )
            self.text_key, self.label_key, self._label = others.text_key, others.label_key, others._label
            self.user_key, self._users = others.user_key, dict(others._users)
            self.records_per_user = others.records_per_user
            self._records.update(others._records)
            self._places = others._places
            return
        run_redacted(self._fill, held, READING)

    def _fill(self, examples: Examples) -> None:
        faults, rows, without = RowErrors(), 0, {"text_key": 0, "label_key": 0}
        for position, example in enumerate(rows_of(examples)):
            rows += 1
            made = self._named(example, None)
            if isinstance(made, str):
                faults.add(position, made)
                fields = fields_of(example)
                for option in without:
                    without[option] += fields is not None and getattr(self, option) not in fields
            else:
                self._keep(*made)
        self._check_keys([option for option, count in without.items() if count == rows > 1])
        faults.raise_any()

    def _check_keys(self, lacking: list[str]) -> None:
        """Refuse examples of which none has the key that an option names: it is the option that is wrong, not a row."""
        if lacking:
            keys = " or ".join(repr(getattr(self, option)) for option in lacking)
            unlabelled = "; of texts without labels name one for all with label=" if lacking == ["label_key"] else ""
            raise InvalidParameter(
                f"Expected examples to have {keys}, but none of them has. Say what text and label are called with "
                f"text_key= and label_key= of PrivateRecords{unlabelled}."
            )

    @redact_errors(READING)
    def add(self, example: object, *, record_id: str | None = None) -> str:
        """Add one record and return its id.

        Raises:
            InvalidParameter: Text or label is missing, or the id is taken.
        """
        made = self._named(example, record_id)
        if isinstance(made, str):
            raise InvalidParameter(placed(made, "the example"))
        return self._keep(*made)

    def forget(self, record_id: str) -> None:
        """Remove one record for good.

        Raises:
            InvalidParameter: There is no such record.
        """
        self._check_known(record_id)
        del self._records[record_id]
        self._users.pop(record_id, None)

    def _check_known(self, record_id: object) -> None:
        if not isinstance(record_id, str) or record_id not in self._records:
            raise unknown_id(record_id)

    def get(self, record_id: str) -> Mapping[str, Any]:
        """Private content of one record. It must not leave the trust boundary.

        Raises:
            InvalidParameter: There is no such record.
        """
        self._check_known(record_id)
        return self._records[record_id]

    def ids(self) -> list[str]:
        """Ids of all records, oldest first."""
        return list(self._records)

    def users(self, *, at_most: int | None = None) -> list[list[str]]:
        """Ids of the records of each user, users in the order of their oldest record. Private.

        Args:
            at_most: Records of one user, the oldest first, where no ``records_per_user`` was given. None is all.
        """
        groups: dict[str, list[str]] = {}
        for name in self._records:
            groups.setdefault(self.user_of(name), []).append(name)
        return [group[: self.records_per_user or at_most] for group in groups.values()]

    def count_users(self) -> int:
        """Number of users. Private under add/remove."""
        return len(self.users())

    def total(self, step: Callable[[PrivateRecords], T]) -> T:
        """Result of a step over all records, as :class:`RecordShards` has the sum over their parts. Private."""
        return step(self)

    def records_of(self, user: str, *, at_most: int | None = None) -> list[str]:
        """Ids of the records of one user, as :meth:`users` has them. Private."""
        own = [name for name in self._records if self.user_of(name) == user]
        return own[: self.records_per_user or at_most]

    def user_of(self, record_id: str) -> str:
        """Key of the user of a record: the record's id, where there is no ``user_key``. Private."""
        self._check_known(record_id)
        return self._users.get(record_id, record_id)

    def one_per_user(self) -> PrivateRecords:
        """Return the oldest record of each user, for systems whose promise is about one record. Private.

        Raises:
            InvalidParameter: ``records_per_user`` asks for more.
        """
        if (self.records_per_user or 1) > 1:
            raise InvalidParameter(
                f"Expected records_per_user={self.records_per_user} to be 1: here one record stands for each user. "
                "Leave it out."
            )
        records = PrivateRecords(self)
        if self.user_key is not None:
            oldest = {group[0] for group in records.users()}
            for name in records.ids():
                if name not in oldest:
                    records.forget(name)
        return records

    def unit_notes(self) -> tuple[str, ...]:
        """Note of a certificate on the unit of privacy, where it is not one record."""
        return () if self.user_key is None else (USERS,)

    @redact_errors(READING)
    def read(self, example: object) -> Mapping[str, Any]:
        """One example as it would be kept, with ``text`` and ``label``. Nothing is added. Private.

        Raises:
            InvalidParameter: Text or label is missing.
        """
        row = self._read(example)
        if isinstance(row, str):
            raise InvalidParameter(placed(row, "the example"))
        return row

    def _read(self, example: object) -> dict[str, Any] | str:
        """Return the row, or its fault."""
        bare = self._label is not None and isinstance(example, str)
        fields: Mapping[str, Any] | None = {self.text_key: example} if bare else fields_of(example)
        if fields is None:
            hint = ""
            if isinstance(example, str):
                hint = " Of texts without labels name one for all: PrivateRecords(texts, label=...)."
            elif isinstance(example, tuple):
                hint = " Of pairs make [dict(text=text, label=label) for text, label in pairs]."
            return f"Expected {{where}} to be a mapping with text and label, not {type(example).__name__}.{hint}"
        text, label = fields.get(self.text_key), label_name(whole_number(fields.get(self.label_key, self._label)))
        if not isinstance(text, str) or not text.strip():
            return (
                f"Expected {{where}} to have a non-empty str under {self.text_key!r}. Drop or repair it, or name "
                "another key with text_key= of PrivateRecords."
            )
        if label is None:
            return (
                f"Expected {{where}} to have a non-empty str under {self.label_key!r}, or an int, a bool or a member "
                "of an Enum. Drop or repair it, or name another key with label_key= of PrivateRecords."
            )
        if self.user_key is not None and not isinstance(id_of(fields.get(self.user_key)), str):
            return (
                f"Expected {{where}} to have a user under {self.user_key!r}, a str or a whole number. Drop or repair "
                "it, or name another key with user_key= of PrivateRecords."
            )
        for name, value in fields.items():
            if isinstance(value, str) and not encodable(value):
                where = f"under {name!r}" if name in (self.text_key, self.label_key) else "in every field"
                return f"Expected {{where}} to hold valid Unicode {where}: it has a lone surrogate."
        return {**{name: exact(value) for name, value in fields.items()}, "text": exact(text), "label": label}

    def _named(self, example: object, record_id: str | None) -> tuple[str, dict[str, Any]] | str:
        row = self._read(example)
        if isinstance(row, str):
            return row
        given = id_of(row.get("id")) if record_id is None else record_id
        if given is not None and not isinstance(given, str):
            kind = type(given).__name__
            if record_id is not None:
                return f"Expected record_id of type {kind} to be a str. Give str(record_id)."
            return f"Expected the id of {{where}} to be a str or a whole number, not {kind}. Write it as a str."
        if given is not None and given.startswith(AUTOMATIC):
            return f"Expected the id of {{where}} not to start with {AUTOMATIC!r}, which numbers records."
        # Every record takes a place, named or not: whether one has an id must not renumber the others.
        key = f"{AUTOMATIC}{self._places}" if given is None else given
        if key in self._records:
            return (
                "Expected the id of {where} to be new, but it is taken. Give every record its own id; where ids are "
                "people, keep one record of each, or merge them into one: a person with k records has k times epsilon."
            )
        return key, row

    def _keep(self, key: str, row: dict[str, Any]) -> str:
        self._places += 1
        self._records[key] = MappingProxyType(row)
        if self.user_key is not None:
            self._users[key] = f"u{id_of(row[self.user_key])}"
        return key

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return "PrivateRecords(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("PrivateRecords cannot be pickled, copied or serialized: load them where they are used.")


Examples = Iterable[Any] | str | PathLike[str] | PrivateRecords
"""Types of private examples. See :class:`PrivateRecords`."""


_EXACT = 2**53
"""Whole numbers up to this are exact as floats."""


def whole_number(value: object) -> object:
    """A float that is a whole number as an int, and all else as it is.

    A column of whole numbers in which one is missing is one of floats to a DataFrame, and the rest are the same.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT
    return int(value) if is_whole else value  # type: ignore[call-overload]  # a float


def id_of(value: object) -> object:
    """Return the id of a row as a str, None if it has none, or the value itself if it cannot be an id."""
    value = whole_number(value)
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return None
    no_id = isinstance(value, (bool, float, bytes)) or (isinstance(value, Collection) and not isinstance(value, str))
    return value if no_id else str(value)


def unknown_id(record_id: object) -> InvalidParameter:
    """Return the error for an unknown id. A str is not shown, since it may be a name or a record's text."""
    what = " to be a known id" if isinstance(record_id, str) else f"{shown(record_id)} to be a str"
    return InvalidParameter(f"Expected record_id{what}: the 'id' that the record came with, or what add() returned.")


def _key(name: str, given: object) -> str:
    given = str(given) if isinstance(given, Integral) and not isinstance(given, bool) else given
    if not isinstance(given, str) or not given:
        raise InvalidParameter(
            f"Expected {name} of type {type(given).__name__} to be the name of a key, a str; or the number of a column "
            "without a name."
        )
    return given


def check_records(
    records: PrivateRecords,
    labels: Collection[str] | None,
    variables: Iterable[str],
    *,
    whose: str = "template",
    plain: bool = False,
    protects_users: bool = False,
) -> None:
    """Raise InvalidParameter unless every record has a known label and the keys of a template.

    One message gives the positions of all that do not, never their content. Arguments as of :func:`row_fault`.
    ``protects_users`` says whether the caller's promise holds for all records of a user.
    """
    if records.user_key is not None and not protects_users:
        raise InvalidParameter(
            f"Expected PrivateRecords without user_key={records.user_key!r}: this class protects single records, not "
            "all records of a user. Keep one record of each user. Users are protected by DPPrototypeClassifier, "
            "DPLabelNamer, DPSurvey, private_accuracy, DPExampleSelector, DPExampleSynthesizer, DPPromptOptimizer, "
            "DPPromptSelector, and DPICLClassifier without replicas."
        )
    faults, variables = RowErrors(), tuple(variables)
    for kept, key in (("text", records.text_key), ("label", records.label_key)):
        if key != kept and {key, kept} <= {*variables}:
            raise InvalidParameter(
                f"Expected the {whose} to name {key!r} or {kept!r}, not both: {kept}_key={key!r} makes them one field. "
                f"Give a column of the examples that is called {kept!r} another name."
            )
    names = records.ids()  # and no rows: error reporters read the locals of each frame
    lacking = [one for one in variables if names and all(one not in records.get(name) for name in names)]
    if lacking:
        raise InvalidParameter(
            f"Expected the {whose} to name keys of the examples, but none of them has {lacking}. Write {{text}} for "
            "the text and {label} for the label, or name the key of the text with text_key= of PrivateRecords."
        )
    for position, name in enumerate(names):
        if fault := row_fault(records.get(name), labels, variables, whose=whose, plain=plain):
            faults.add(position, fault)
    faults.raise_any()


class FromDataFrame:
    """Mixin: construction from a DataFrame in one call."""

    @classmethod
    @hold_arguments("data")
    def from_dataframe(
        cls,
        data: Examples,
        *,
        text_key: str | int = "text",
        label_key: str | int = "label",
        label: str | None = None,
        **settings: Any,
    ) -> Self:
        """Make one over the rows of a DataFrame, or of any other input of :class:`PrivateRecords`.

        Args:
            data: The private examples.
            text_key: Column of the text.
            label_key: Column of the label.
            label: Label of those that have no such column.
            **settings: The other arguments of the class.

        Raises:
            InvalidParameter: As of :class:`PrivateRecords`, and of the class.
        """
        read = functools.partial(PrivateRecords, text_key=text_key, label_key=label_key, label=label)
        return cls._over(run_redacted(read, PrivateArgs.of(data), READING), settings)

    @classmethod
    def _over(cls, records: PrivateRecords, settings: Mapping[str, Any]) -> Self:
        return cls(examples=records, **settings)  # type: ignore[call-arg]  # of those who take this as a base


class KeepsExamples(HeldInputs, FromDataFrame):
    """As :class:`FromDataFrame`, for classes that get their examples when they run. The DataFrame replaces None.

    Its ``settings`` have the public ``labels``, and ``prompts`` with ``variables``. LangChain's own ways to call it get
    the examples held: an event tells of its input, and error reporters read the locals of LangChain's frames, too.
    """

    settings: Any
    _given: PrivateRecords | None = None

    def as_tool(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a model that calls a tool has read what it gives to it."""
        raise InvalidParameter(
            f"Expected {type(self).__name__} to be no tool: an agent that calls one has read the examples already. "
            "Call it before, and give the agent what comes out."
        )

    @classmethod
    def _over(cls, records: PrivateRecords, settings: Mapping[str, Any]) -> Self:
        made = cls(**settings)
        made._given = records
        return made

    def _examples(self, examples: Examples | None) -> PrivateRecords:
        """Private records of a run."""
        if isinstance(examples, PrivateArgs):
            [examples] = examples.values
        if examples is None and self._given is None:
            raise InvalidParameter(
                "Expected examples, but there are none. Give them, or make this by from_dataframe(), which keeps them."
            )
        given = self._given if examples is None else examples
        if isinstance(given, PrivateRecords):
            return PrivateRecords(given)
        labels = tuple(self.settings.labels)
        return PrivateRecords(given, label=labels[0] if len(labels) == 1 else None)  # type: ignore[arg-type]  # not None

    def _checked(self, examples: Examples | None) -> PrivateRecords:
        records = self._examples(examples).one_per_user()
        check_records(records, self.settings.labels, self.settings.prompts.variables, protects_users=True)
        return records

    def _counted(self, examples: Examples | int | None) -> tuple[PrivateRecords | None, int]:
        """Private records of a plan and their number. Of a number alone that number."""
        given = as_int(examples)
        if isinstance(given, int):
            return None, given
        records = self._checked(given)
        return records, len(records)
