"""Private records: kept in memory, shown to nobody, refused to every serializer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from os import PathLike
from types import MappingProxyType
from typing import Any, NoReturn, Self, TypeVar

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import as_int, reject_unknown_arguments, shown
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.records.checks import column_of_people, encodable, exact, is_missing, label_name, row_fault
from langchain_dp.records.files import READING, RowErrors, fields_of, placed, rows_of
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, redact_errors, run_redacted

T = TypeVar("T")
AUTOMATIC = "#"


class PrivateRecords:
    """Labelled private examples under stable ids.

    An example is a mapping with ``text`` and ``label``. Further keys fill a prompt's other variables. An ``id`` key
    names the record for :meth:`forget`, otherwise its place does: "#0", "#1", ... Printing shows nothing, and pickling,
    copying or serializing is an error: under add/remove neighbors even the number of records is private.

    Args:
        examples: Mappings, documents, pydantic objects, dataclass objects or named tuples. A DataFrame, an Arrow table,
            a dataset of Hugging Face, or a path to JSONL or CSV. Or another ``PrivateRecords``, copied.
        text_key: Key, or column, of the text, which is kept under ``text``, too.
        label_key: Key, or column, of the label: a str, an int, a bool, or a member of an Enum. Its name is kept under
            ``label``.
        label: Label of those that have no ``label_key``. Each may then be a plain str.
        user_key: Key, or column, of the record's user, a str or a whole number. Then neighbors differ in all records of
            one user, and replace-one makes the number of users public.
        records_per_user: Most records of one user that take part, oldest first. None: all in sums, one in prompts and
            counts.

    Raises:
        InvalidParameter: Examples lack text or label, or an id occurs twice. One message gives all positions, never
            content.

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
            vars(self).update(vars(others), _records=dict(others._records), _users=dict(others._users))
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
                    given = option == "label_key" and self._label is not None
                    without[option] += not given and fields is not None and getattr(self, option) not in fields
            else:
                self._keep(*made)
        if lacking := [option for option, count in without.items() if count == rows > 1]:
            keys = " or ".join(repr(getattr(self, option)) for option in lacking)
            unlabelled = ". For texts without labels give one for all with label=" if lacking == ["label_key"] else ""
            raise InvalidParameter(
                f"Expected examples to have {keys}, but no example has it. Say what text and label are called with "
                f"text_key= and label_key= of PrivateRecords{unlabelled}."
            )
        faults.raise_any()

    @redact_errors(READING)
    def add(self, example: object, *, record_id: str | None = None) -> str:
        """Add one record and return its id. InvalidParameter: It is unfit, or its id taken."""
        made = self._named(example, record_id)
        if isinstance(made, str):
            raise InvalidParameter(placed(made, "the example"))
        return self._keep(*made)

    def forget(self, record_id: str) -> None:
        """Remove one record for good. InvalidParameter: It is unknown."""
        self._check_known(record_id)
        del self._records[record_id]
        self._users.pop(record_id, None)

    def _check_known(self, record_id: object) -> None:
        if not isinstance(record_id, str) or record_id not in self._records:
            raise unknown_id(record_id)

    def get(self, record_id: str) -> Mapping[str, Any]:
        """Return one record's private content. It must not leave the trust boundary."""
        self._check_known(record_id)
        return self._records[record_id]

    def ids(self) -> list[str]:
        """Return ids, oldest first."""
        return list(self._records)

    def users(self, *, at_most: int | None = None) -> list[list[str]]:
        """Return the ids of each user's records, oldest first. Private."""
        groups: dict[str, list[str]] = {}
        for name in self._records:
            groups.setdefault(self.user_of(name), []).append(name)
        return [group[: self.records_per_user or at_most] for group in groups.values()]

    def count_users(self) -> int:
        """Count users. Private under add/remove."""
        return len(self.users())

    def total(self, step: Callable[[PrivateRecords], T]) -> T:
        """Run a step over all records. Private."""
        return step(self)

    def records_of(self, user: str, *, at_most: int | None = None) -> list[str]:
        """Return a user's ids. Private."""
        own = [name for name in self._records if self.user_of(name) == user]
        return own[: self.records_per_user or at_most]

    def user_of(self, record_id: str) -> str:
        """Return a record's user. Private."""
        self._check_known(record_id)
        return self._users.get(record_id, record_id)

    def one_per_user(self) -> PrivateRecords:
        """Return each user's oldest record. Private."""
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
        """Note the privacy unit."""
        from langchain_dp.accounting.certificate import USERS  # late: accounting loads slowly

        return () if self.user_key is None else (USERS,)

    @redact_errors(READING)
    def read(self, example: object) -> Mapping[str, Any]:
        """Return an example as it would be kept. Private."""
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
                hint = " For texts without labels give one for all: PrivateRecords(texts, label=...)."
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
        # Every record takes a place, so that an id of one does not renumber the others.
        key = f"{AUTOMATIC}{self._places}" if given is None else given
        if key in self._records:
            return (
                "Expected the id of {where} to be new, but it is taken. Give every record its own id. Where ids are "
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
"""See :class:`PrivateRecords`."""


_EXACT = 2**53


def whole_number(value: object) -> object:
    """Return a whole float as an int: missing values make columns floats."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT
    return int(value) if is_whole else value  # type: ignore[call-overload]  # a float


def id_of(value: object) -> object:
    """Return a row's id as a str, None without one, or the unfit value."""
    value = whole_number(value)
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return None
    no_id = isinstance(value, (bool, float, bytes)) or (isinstance(value, Collection) and not isinstance(value, str))
    return value if no_id else str(value)


def unknown_id(record_id: object) -> InvalidParameter:
    """Make the error, which shows no id."""
    what = " to be a known id" if isinstance(record_id, str) else f"{shown(record_id)} to be a str"
    return InvalidParameter(f"Expected record_id{what}: the 'id' that the record came with, or the result of add().")


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
    """Raise InvalidParameter unless every record fits, with positions and no content."""
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
    people = column_of_people(records.get(names[0])) if names and records.user_key is None and protects_users else None
    if people is not None:
        warn_caller(
            f"The promise holds for one record, and {people!r} may name a person with several. If so, give "
            f"user_key={people!r} of PrivateRecords, and it holds for all records of one person.",
            UserWarning,
        )
    lacking = [one for one in variables if names and all(one not in records.get(name) for name in names)]
    if lacking:
        raise InvalidParameter(
            f"Expected the {whose} to name keys of the examples, but no example has {lacking}. Write {{text}} for the "
            "text, whatever its column is called, or name that column with text_key= of PrivateRecords."
        )
    for position, name in enumerate(names):
        if fault := row_fault(records.get(name), labels, variables, whose=whose, plain=plain):
            faults.add(position, fault)
    faults.raise_any()


class FromDataFrame:
    """Constructs from a DataFrame."""

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
        """Make one over a DataFrame, with the keys of :class:`PrivateRecords`."""
        read = functools.partial(PrivateRecords, text_key=text_key, label_key=label_key, label=label)
        return cls._over(run_redacted(read, PrivateArgs.of(data), READING), settings)

    @classmethod
    def _over(cls, records: PrivateRecords, settings: Mapping[str, Any]) -> Self:
        return cls(examples=records, **settings)  # type: ignore[call-arg]  # of those who take this as a base


class KeepsExamples(HeldInputs, FromDataFrame):
    """Base of classes that get their examples when they run."""

    settings: Any
    _given: PrivateRecords | None = None

    def as_tool(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an agent has already read a tool's input."""
        raise InvalidParameter(
            f"Expected {type(self).__name__} to be no tool: an agent that calls one has read the examples already. "
            "Call it before, and give the agent the result."
        )

    @classmethod
    def _over(cls, records: PrivateRecords, settings: Mapping[str, Any]) -> Self:
        made = cls(**settings)
        made._given = records
        return made

    def _examples(self, examples: Examples | None) -> PrivateRecords:
        if isinstance(examples, PrivateArgs):
            [examples] = examples.values
        if examples is None and self._given is None:
            raise InvalidParameter(
                "Expected examples, but found 0. Give them, or make this by from_dataframe(), which keeps them."
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
        given = as_int(examples)
        if isinstance(given, int):
            return None, given
        records = self._checked(given)
        return records, len(records)
