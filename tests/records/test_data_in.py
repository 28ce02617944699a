"""Examples as users have them: every kind of container gives the same records, and errors show positions alone."""

from __future__ import annotations

import csv
import dataclasses
import enum
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.canary import CANARY, shows_nothing
from fakes.optimizers import optimizer
from fakes.synthesizers import generator, replies, rows, synthesizer
from fakes.voters import VotingChat, classifier, private_examples
from langchain_core.documents import Document
from pydantic import BaseModel

from langchain_dp import DPICLClassifier, DPPromptOptimizer, PrivacyBudget, PrivateRecords
from langchain_dp.accounting import MetricLedger, PrivacyLedger
from langchain_dp.errors import InvalidParameter, LangChainDPError
from langchain_dp.rapt import RAPTSanitizer, SanitizingRetriever
from langchain_dp.records.checks import given_labels, label_name, row_fault
from langchain_dp.records.files import read_csv, read_jsonl
from langchain_dp.redact import Redacted
from langchain_dp.synth import DPAnswerGenerator, DPExampleSynthesizer, SyntheticExamples

PAIRS = [(f"note {i} {CANARY}", "ab"[i % 2]) for i in range(6)]
TEXTS = [{"text": text, "label": label} for text, label in PAIRS]


class Mood(enum.Enum):
    """Values that are strings."""

    GOOD = "positive"
    BAD = "negative"


class Rank(enum.IntEnum):
    """Values that are numbers: known by their names."""

    LOW = 1
    HIGH = 2


class Note(BaseModel):
    text: str
    label: str


@dataclasses.dataclass
class Row:
    text: str
    label: str


class Pair(NamedTuple):
    text: str
    label: str


class Frame:
    """What a DataFrame of pandas looks like from outside; iterating over it gives the names of its columns."""

    def __init__(self, table: list[dict[str, Any]]) -> None:
        self.table = table
        self.columns = list(table[0])
        self.iloc = object()

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.table

    def __iter__(self) -> Any:
        return iter(self.columns)


def pandas_frame(table: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(table)


def polars_frame(table: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(table)


def hugging_face(table: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(table)


def arrow(table: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(table)


def jsonl(folder: Path) -> Path:
    path = folder / "notes.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in TEXTS), encoding="utf-8")  # blank lines are none
    return path


def table(folder: Path, delimiter: str = ",", ending: str = "csv") -> Path:
    path = folder / f"notes.{ending}"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("text", "label"), *PAIRS])
    return path


FORMS: dict[str, Callable[[Path], Any]] = {
    "mappings": lambda _: TEXTS,
    "generator": lambda _: (row for row in TEXTS),
    "a frame": lambda _: Frame(TEXTS),
    "pandas": lambda _: pandas_frame(TEXTS),
    "polars": lambda _: polars_frame(TEXTS),
    "arrow": lambda _: arrow(TEXTS),
    "datasets": lambda _: hugging_face(TEXTS),
    "documents": lambda _: [Document(text, metadata={"label": label}) for text, label in PAIRS],
    "pydantic": lambda _: [Note(text=text, label=label) for text, label in PAIRS],
    "dataclass": lambda _: [Row(text, label) for text, label in PAIRS],
    "named tuple": lambda _: [Pair(text, label) for text, label in PAIRS],
    "jsonl": jsonl,
    "jsonl as str": lambda folder: str(jsonl(folder)),
    "csv": table,
    "tsv": lambda folder: table(folder, "\t", "tsv"),
    "records": lambda _: PrivateRecords(TEXTS),
}


def kept(records: PrivateRecords) -> list[tuple[str, str]]:
    return [(records.get(name)["text"], records.get(name)["label"]) for name in records.ids()]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_records(form: str, tmp_path: Path) -> None:
    """If it breaks, a user's own data is refused, or its rows are read in another order."""
    records = PrivateRecords(FORMS[form](tmp_path))
    assert kept(records) == PAIRS
    assert records.ids() == [f"#{i}" for i in range(6)]


@pytest.mark.parametrize("form", [Frame, pandas_frame, polars_frame, hugging_face, list])
def test_other_names_of_columns_are_told(form: Callable[[Any], Any]) -> None:
    """If it breaks, who has other columns has to rename them, or a question under the old name is refused."""
    data = form([{"review": text, "stars": i % 2 + 1, "shop": "x"} for i, (text, _) in enumerate(PAIRS)])
    records = PrivateRecords(data, text_key="review", label_key="stars")
    assert kept(records) == [(text, "12"[i % 2]) for i, (text, _) in enumerate(PAIRS)]
    assert dict(records.get("#0")) == {
        "review": PAIRS[0][0],
        "stars": 1,
        "shop": "x",
        "text": PAIRS[0][0],
        "label": "1",
    }
    again = PrivateRecords(records)
    again.add({"review": "more", "stars": 2})
    assert kept(again)[-1] == ("more", "2")
    with pytest.raises(InvalidParameter, match="where the PrivateRecords were made"):
        PrivateRecords(records, text_key="review")


def test_a_document_is_named_by_its_id_and_its_label_may_have_another_name() -> None:
    """If it breaks, a chunk of a store cannot be forgotten by the id that the store knows it by."""
    chunks = [Document("late", id="d1", metadata={"kind": True}), Document("fine", metadata={"kind": False, "text": 7})]
    records = PrivateRecords(chunks, label_key="kind")
    assert records.ids() == ["d1", "#1"]
    assert kept(records) == [("late", "True"), ("fine", "False")]
    assert kept(PrivateRecords(chunks, text_key="page_content", label_key="kind")) == kept(records)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a", "a"), (7, "7"), (-1, "-1"), (True, "True"), (False, "False"), (Mood.GOOD, "positive"),
        (Rank.HIGH, "HIGH"), (None, None), ("", None), (1.0, "1"), (1.5, None), (float("nan"), None),
        (10**50, None), (b"a", None), (["a"], None), (np.int64(1), "1"), (np.bool_(True), "True"), (np.str_("a"), "a"),
    ],
)  # fmt: skip
def test_a_label_has_one_name(given: Any, name: str | None) -> None:
    """If it breaks, the model is asked for "Mood.GOOD" or "1.0", or a missing value becomes the label "nan"."""
    made: str | None
    try:
        made = kept(PrivateRecords([{"text": "x", "label": given}]))[0][1]
    except InvalidParameter as refused:
        assert "example 0 to have a non-empty str under 'label', or an int" in str(refused)  # noqa: PT017  # both ends
        made = None
    assert made == name


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (5, "examples of type int to be a list of mappings, a DataFrame"),
        (None, "type NoneType to be a list"),
        (b"abc", "type bytes to be a list"),
        (TEXTS[0], r"type dict to hold many examples, not one\. Put it into a list.*data\['train'\]"),
        (Document(CANARY), "type Document to hold many examples"),
        (Note(text=CANARY, label="a"), "type Note to hold many examples"),
        (CANARY, r"type str to be a path that ends in one of \['.csv', '.jsonl', '.ndjson', '.tsv'\]"),
        (Path(f"{CANARY}.xlsx"), "to be a path that ends in"),
        ([Row, Row], "examples 0 and 1 to be a mapping with text and label, not type"),
        ([("a", "b")], "example 0 to be a mapping with text and label, not tuple"),
        (Frame([{"body": CANARY, "label": "a"}]), "under 'text'.*name another key with text_key= of PrivateRecords"),
    ],
)
def test_what_holds_no_examples_is_told_so(examples: Any, message: str) -> None:
    """If it breaks, a slip ends in a TypeError of ours, or in an error that shows what was given."""
    with pytest.raises(InvalidParameter, match=message) as caught:
        PrivateRecords(examples)
    assert CANARY not in str(caught.value)


def test_a_lazy_frame_and_a_single_column_are_told_so() -> None:
    """If it breaks, they end in an error of polars, or row after row is refused."""
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    with pytest.raises(InvalidParameter, match=r"type LazyFrame to be collected\. Call \.collect\(\)"):
        PrivateRecords(polars.LazyFrame(TEXTS))
    with pytest.raises(InvalidParameter, match="not str"):
        PrivateRecords(pandas.Series([CANARY]))
    empty = pandas.DataFrame([*TEXTS, {"text": None, "label": "a"}, {"text": "x", "label": None}])
    with pytest.raises(InvalidParameter, match=r"example 6 to have .* 'text'.* example 7 to have .* 'label'"):
        PrivateRecords(empty)


def test_a_key_is_a_name_or_the_number_of_a_column() -> None:
    """If it breaks, a wrong key is taken for a missing column of each row, or columns need names."""
    for keys in [{"text_key": 3.5}, {"label_key": ""}, {"text_key": None}, {"label_key": ["a"]}]:
        with pytest.raises(InvalidParameter, match=r"(text|label)_key of type \w+ to be the name of a key"):
            PrivateRecords(TEXTS, **keys)
    records = PrivateRecords(pandas_frame([{0: "Good.", 1: "praise"}]), text_key=0, label_key=1)
    assert dict(records.get("#0")) == {"0": "Good.", "1": "praise", "text": "Good.", "label": "praise"}
    assert PrivateRecords([{0: "Good.", 1: "praise"}], text_key=0, label_key=1).get("#0")["label"] == "praise"
    with pytest.raises(InvalidParameter, match="the number of a column"):
        PrivateRecords([], text_key=True)


def test_one_error_names_all_bad_rows_and_nothing_of_them() -> None:
    """If it breaks, a user repairs a thousand rows one run at a time, or reads private text in the error."""
    bad: list[Any] = [dict(row) for row in TEXTS * 10]
    for place in range(3, 40, 2):
        bad[place]["text"] = " "
    bad[0] = {"text": CANARY}
    bad[4] = CANARY
    bad[8] = {"text": CANARY, "label": CANARY + chr(0xD800)}
    with pytest.raises(InvalidParameter) as caught:
        PrivateRecords(bad)
    said = str(caught.value)
    assert said.count("Expected") == 4
    assert "Expected example 0 to have a non-empty str under 'label'" in said
    assert (
        "Expected examples 3, 5, 7, 9, 11, 13, 15, 17, 19, 21 and 9 more to have a non-empty str under 'text'" in said
    )
    assert "Expected example 4 to be a mapping" in said
    assert CANARY not in said


def test_labels_that_do_not_fit_the_chain_are_named_in_one_error() -> None:
    """If it breaks, unknown labels come to light one by one, or nobody is told of capitals or numbers."""
    examples = private_examples(24)
    for place in (1, 5, 20):
        examples[place] = {**examples[place], "label": CANARY}
    with pytest.raises(InvalidParameter, match=r"label of examples 1, 5 and 20 to be one of labels=\[") as caught:
        classifier(examples=examples)
    assert CANARY not in str(caught.value)
    for given in ["Positive", " positive", "positive\n", "POSITIVE "]:
        examples = private_examples(24)
        examples[0] = {**examples[0], "label": given}
        with pytest.raises(InvalidParameter, match=r"of example 0 to be one of .* in capitals, in white space"):
            classifier(examples=examples)
    for labels in [[False, True], _Codes]:
        examples = [{**row, "label": place % 2} for place, row in enumerate(private_examples(24))]
        with pytest.raises(InvalidParameter, match=r"but it is a number\. Give the numbers as labels="):
            classifier(examples=examples, labels=labels)


class _Codes(enum.Enum):
    PRAISE = 1
    COMPLAINT = 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("n.jsonl", f'{{"a": 1}}\n[1]\n\n{CANARY}\n7', "lines 2, 4 and 5 of n.jsonl to be a JSON object"),
        ("n.csv", f"text,label\n{CANARY},a\n{CANARY}\n{CANARY},a,b\n", "rows 2 and 3 of n.csv to have as many fields"),
        ("n{0}.csv", f"text,label\n{CANARY}\n", r"row 1 of n\{0\}.csv"),
        ("n.csv", b"text,label\nb,a\n\xff\xfe,a\n", "n.csv to be UTF-8, but line 3 is not"),
        ("n.csv", "text;label\na;b\n", "commas between the columns of n.csv, but its header has semicolons"),
        ("n.csv", "text\tlabel\nGood.\tb\n", "its header has tabs. Save it with commas, or in Python"),
        (
            "n.jsonl",
            '[\n  {"text": "a", "label": "b"}\n]',
            "n.jsonl to hold one JSON object a line, but it is one list",
        ),
        ("n.jsonl", '{"certificate": {}, "settings": {}}\n{"text": "a", "label": "b"}', "SyntheticExamples.load"),
        (
            "n.jsonl",
            f'{{"text": "fine", "label": "a"}}\n{{"text": "{CANARY}", "x": {"[" * 100_000}',
            "line 2 of n.jsonl",
        ),
        ("n.jsonl", b'{"text": "' + CANARY.encode() + b'\xff", "label": "a"}', "line 1 of n.jsonl|line 1 is not"),
        ("n.jsonl", f'{{"text": "{CANARY}"}}', "'label'"),
        ("n.jsonl", gzip.compress(b'{"text": "a", "label": "b"}', mtime=0), "a line, but it is compressed. Unpack it"),
    ],
)
def test_a_bad_file_is_named_with_its_lines(name: str, content: Any, message: str, tmp_path: Path) -> None:
    """If it breaks, a broken file is quoted, or only its first line is named."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidParameter, match=message) as caught:
        PrivateRecords(path)
    shows_nothing(caught.value)
    with pytest.raises(FileNotFoundError):
        PrivateRecords(tmp_path / "none.csv")


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    """If it breaks, a long note in a table is called no table; or this process reads others otherwise."""
    path, limit = tmp_path / "n.csv", csv.field_size_limit()
    path.write_text("text,label\n" + "x" * 200_000 + ",a\n")
    assert len(PrivateRecords(path).get("#0")["text"]) == 200_000
    assert csv.field_size_limit() == limit


def broken(tmp_path: Path) -> dict[str, Callable[[], object]]:
    """What cannot be read to its end, and holds private text."""
    texts = {
        "long.csv": f"text,label\n{CANARY},a,b\n",
        "latin.csv": f"text,label\n{CANARY} \xe9,a\n",
        "short.csv": f"text;label\n{CANARY};a\n",
        "rows.jsonl": f'{{"text": "{CANARY}"}}\n{CANARY}\n',
        "none.jsonl": f'{{"text": "{CANARY}"}}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    made: dict[str, Callable[[], object]] = {name: functools.partial(PrivateRecords, tmp_path / name) for name in texts}
    made |= {f"load {name}": functools.partial(SyntheticExamples.load, tmp_path / name) for name in texts}
    made["read_jsonl"] = functools.partial(read_jsonl, tmp_path / "rows.jsonl")
    made["read_csv"] = functools.partial(read_csv, tmp_path / "long.csv")
    made["generator"] = lambda: PrivateRecords({"text": text, "label": int(text)} for text in [CANARY])
    made["surrogate"] = lambda: PrivateRecords(iter([{"text": f"{CANARY} \ud800", "label": "a"}]))
    return made


@pytest.mark.parametrize("streamed", [False, True])
def test_numbers_that_stand_for_classes_are_named(streamed: bool) -> None:
    """If it breaks, the usual form of public data sets asks a model for "0" and "1", or is refused."""
    datasets = pytest.importorskip("datasets")
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["praise", "complaint"])}
    rows = {"text": ["a", "b", "c"], "label": [1, 0, 1]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    records = PrivateRecords(made.to_iterable_dataset() if streamed else made)
    assert [records.get(name)["label"] for name in records.ids()] == ["complaint", "praise", "complaint"]
    rows["label"][1] = -1  # what the library writes for none
    unlabelled = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    with pytest.raises(InvalidParameter, match="one of labels"):
        classifier(examples=unlabelled, labels=["praise", "complaint"])


@pytest.mark.parametrize("form", ["numpy", "pandas", "arrow", "polars"])
def test_a_dataset_in_another_format_gives_the_same_records(form: str) -> None:
    """If it breaks, classes come out as "1" and "0" once somebody has set a format, or the data set is refused."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip({"arrow": "pyarrow"}.get(form, form))
    features = {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["praise", "complaint"]),
        "rest": datasets.Value("int64"),
    }
    rows = {"text": ["a", "b"], "label": [1, 0], "rest": [7, 8]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    records = PrivateRecords(made.with_format(form, columns=["text", "label"]))
    assert [dict(records.get(name)) for name in records.ids()] == [
        {"text": "a", "label": "complaint"},
        {"text": "b", "label": "praise"},
    ]
    shouting = made.with_transform(lambda batch: {**batch, "text": [text.upper() for text in batch["text"]]})
    assert PrivateRecords(shouting).get("#0")["text"] == "A"  # its owner's function is asked


def test_a_prompt_that_names_no_key_at_all_is_told_so() -> None:
    """If it breaks, who writes {ticket} for the text reads that all examples lack something, and repairs the data."""
    with pytest.raises(InvalidParameter, match=r"no example has \['ticket'\]\. Write \{text\} for the text"):
        classifier(examples=private_examples(24), prompt="Ticket: {ticket}\nLabel:")


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_a_record_matches_its_label_however_accents_are_encoded() -> None:
    """If it breaks, rows of one file are refused since another program encodes the same letters otherwise."""
    rows = [{"text": f"row {number}", "label": (COMPOSED, DECOMPOSED, "tea")[number % 3]} for number in range(48)]
    for labels in ([COMPOSED, "tea"], [DECOMPOSED, "tea"]):
        chain = classifier(examples=rows, labels=labels)
        assert chain.invoke("x") in labels
    assert {label_name(label) for label in (COMPOSED, DECOMPOSED)} == {COMPOSED}
    hint = row_fault({"text": "x", "label": "caf\u00e9\u200b"}, (COMPOSED, "tea"), ("text",))
    assert "in characters that nobody sees" in hint


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (COMPOSED, DECOMPOSED, r"'caf\xe9' and 'cafe\u0301'"),
        ("a", "a\u200b", r"'a' and 'a\u200b'"),
        ("re\u00adfund", "refund", r"'re\xadfund' and 'refund'"),
        ("thank you", "thank\u00a0you", r"'thank you' and 'thank\xa0you'"),
    ],
)
def test_labels_that_look_alike_are_refused_and_told_apart(one: str, other: str, shown: str) -> None:
    """If it breaks, votes for one label are split in two, and the error shows the same word twice."""
    with pytest.raises(InvalidParameter, match=re.escape(f"two of them look alike: {shown}")):
        given_labels([one, "other", other])


def test_no_frame_of_an_error_holds_what_was_read(tmp_path: Path) -> None:
    """If it breaks, callbacks of an enclosing run, and error reporters, get the whole file with the error."""
    for read in broken(tmp_path).values():
        with pytest.raises((InvalidParameter, Redacted)) as caught:
            read()
        shows_nothing(caught.value)


def test_a_row_that_cannot_be_read_keeps_its_text_to_itself() -> None:
    """If it breaks, the error of a foreign object carries private text."""

    class Odd(Note):
        def model_dump(self, **_: Any) -> Any:
            raise RuntimeError(CANARY)

    class Broken(Frame):
        def to_dict(self, orient: str) -> Any:
            raise RuntimeError(CANARY)

    for examples in ([Odd(text="a", label="b")], Broken(TEXTS)):
        with pytest.raises(Redacted, match=r"RuntimeError while examples were read, text withheld\.") as caught:
            PrivateRecords(examples)
        assert caught.value.__context__ is None


REVIEWS = [{"review": f"note {i} {CANARY}", "stars": 5} for i in range(24)]
COLUMNS = {"text_key": "review", "label_key": "stars"}


def settings_of(kind: type, helper: Callable[[], Any]) -> dict[str, Any]:
    """The arguments that a fake makes a chain with, the examples apart."""
    caught: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "__init__", lambda self, **given: caught.update(given))
        helper()
    return {name: value for name, value in caught.items() if name != "examples"}


def test_a_classifier_is_made_of_a_dataframe_and_answers_as_it_was_given() -> None:
    """If it breaks, columns have to be renamed, or answers are of another kind than the labels."""
    settings = settings_of(DPICLClassifier, classifier) | {"labels": [5, 1]}
    chain = DPICLClassifier.from_dataframe(Frame(REVIEWS), **COLUMNS, **settings)
    assert chain.invoke("x") == 5
    assert type(chain.invoke({"review": "y"})) is int
    assert chain.invoke_with_certificate("z").label == 5
    added = chain.add({"review": "new", "stars": 1})
    chain.forget(added)
    with pytest.raises(InvalidParameter, match=r"label of the example to be one of labels=\['5', '1'\]"):
        chain.add({"review": "new", "stars": 3})
    assert chain.baseline("vote", private=False).invoke("x") == 5


@pytest.mark.parametrize(
    ("labels", "label"),
    [([True, False], True), (Mood, Mood.GOOD), (list(Mood), "positive"), (Rank, "LOW"), (["LOW", "b"], Rank.LOW)],
)
def test_an_answer_is_a_label_as_it_was_given(labels: Any, label: Any) -> None:
    """If it breaks, a caller compares an Enum's member with a string, and finds them different."""
    examples = [{"text": f"note {i}", "label": label} for i in range(24)]
    chain = classifier(examples=examples, labels=labels)
    answer, expected = chain.invoke_with_certificate("x"), next(iter(labels))
    assert (type(answer.label), answer.label) == (type(expected), expected)


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array(["a", "b"])])
def test_labels_of_an_array_come_back_as_pythons_own(labels: Any) -> None:
    """If it breaks, an answer is a number of numpy's, which json.dumps refuses."""
    examples = [{"text": f"note {i}", "label": labels[0]} for i in range(24)]
    assert type(classifier(examples=examples, labels=labels).invoke("x")) in (int, str)


def test_the_answer_generator_reads_the_same() -> None:
    """If it breaks, one door of four takes less than the others."""
    data = Frame([{"ask": row["text"], "reply": row["label"]} for row in replies()])
    settings = settings_of(DPAnswerGenerator, generator)
    chain = DPAnswerGenerator.from_dataframe(data, text_key="ask", label_key="reply", **settings)
    assert chain.invoke({"ask": "where is it"}) == chain.invoke("where is it")
    assert chain.answers_left() == 4


def test_the_synthesizer_and_the_optimizer_keep_a_dataframe_for_their_run() -> None:
    """If it breaks, from_dataframe() makes something that forgot its rows."""
    for kind, helper, data in ((DPExampleSynthesizer, synthesizer, rows()), (DPPromptOptimizer, optimizer, None)):
        table = data or [{"text": f"note {i} {CANARY}", "label": ["negative", "positive"][i % 2]} for i in range(40)]
        renamed = Frame([{"body": row["text"], "kind": row["label"]} for row in table])
        made: Any = kind.from_dataframe(renamed, text_key="body", label_key="kind", **settings_of(kind, helper))
        made.plan()
        assert made.invoke(None) is not None
        assert CANARY not in repr(made)
        with pytest.raises(InvalidParameter, match="Expected examples, but found 0"):
            helper().invoke(None)


def test_a_ledger_may_be_a_path(tmp_path: Path) -> None:
    """If it breaks, ledger="file" is an AttributeError, or a path opens a ledger of an unknown budget."""
    path = tmp_path / "privacy.ledger"
    classifier(ledger=str(path), budget=PrivacyBudget(50.0)).invoke("x")
    again = classifier(ledger=path, budget=PrivacyBudget(50.0))
    assert again.answers_left() == 4
    for helper in (classifier, generator, synthesizer, optimizer):
        with pytest.raises(InvalidParameter, match="budget= beside ledger= of a path"):
            helper(ledger=path)
        with pytest.raises(InvalidParameter, match="ledger of type float to be a PrivacyLedger, or a path"):
            helper(ledger=3.0)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("f.csv", 'label,text\npos,fine\npos,"hello\nneg,foo\npos,bar\n', 3),
        ("f.tsv", 'text\tlabel\nfine\tpos\n"Great" movie\tpos\n', 3),
    ],
)
def test_an_open_quote_takes_nobody_elses_record(tmp_path: Path, name: str, content: str, line: int) -> None:
    """If it breaks, one person's text swallows those that follow, and the public number of records is another one."""
    (path := tmp_path / name).write_text(content)
    with pytest.raises(InvalidParameter, match=f"the row that begins in line {line} of {name} to close its quotes"):
        PrivateRecords(path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """If it breaks, the last of them wins without a word, and others' texts are used."""
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    (path := tmp_path / "f.csv").write_text("text,label,text\na,pos,OTHER\n")
    frame = pd.DataFrame([["a", "pos", "z"]], columns=["text", "label", "text"])
    table = pa.table([["a"], ["pos"], ["z"]], names=["text", "label", "text"])
    for given in (path, frame, table):
        with pytest.raises(InvalidParameter, match="columns 1 and 3 share one"):
            PrivateRecords(given)


def test_ids_that_are_none_are_refused() -> None:
    """If it breaks, a record is known by the repr of whatever stood there, or two by one number."""
    for wrong in (b"x", True, {"x": 1}, [1], 2.0**60, 0.5):
        with pytest.raises(InvalidParameter, match="to be a str or a whole number"):
            PrivateRecords([{"text": "a", "label": "b", "id": wrong}])
    assert PrivateRecords([{"text": "a", "label": "b", "id": np.float32(12)}]).ids() == ["12"]


def test_errors_of_the_system_say_what_they_are_about_only() -> None:
    """If it breaks, whatever a generator puts into an OSError leaves with it."""

    def rows() -> Iterator[dict[str, str]]:
        yield {"text": "a", "label": "b"}
        raise OSError(22, "SECRET patient text")

    with pytest.raises(OSError, match="Invalid argument") as caught:
        PrivateRecords(rows())
    assert "SECRET" not in str(caught.value)


def test_a_key_that_no_example_has_is_one_sentence_and_no_list_of_rows() -> None:
    """The rows of a LangSmith dataset, or a table with other columns, are all called broken: 0, 1, 2 and 590 more."""
    rows = [{"inputs": {"text": CANARY}, "outputs": "a"} for _ in range(20)]
    with pytest.raises(InvalidParameter, match=r"to have 'text' or 'label', but no example has it\.") as caught:
        PrivateRecords(rows)
    assert CANARY not in str(caught.value)
    with pytest.raises(InvalidParameter, match="to have 'label', but no example"):
        PrivateRecords([{"text": "a"}, {"text": ""}])
    with pytest.raises(InvalidParameter, match="example 0 to have a non-empty str under 'text'"):
        PrivateRecords([{"label": "a"}, {"text": "a", "label": "a"}])


@pytest.mark.parametrize("given", [["a note", "another"], [{"text": "a note"}, {"text": "another"}], "pandas"])
def test_texts_without_labels_have_the_one_that_is_named(given: Any) -> None:
    """If it breaks, who has texts alone cannot use them, or a missing label is filled in where it is a fault."""
    if given == "pandas":
        given = pytest.importorskip("pandas").Series(["a note", "another"])
    records = PrivateRecords(given, label="note")
    assert kept(records) == kept(PrivateRecords([{"text": text, "label": "note"} for text in ("a note", "another")]))
    assert dict(PrivateRecords(records).get("#0"))["label"] == "note"
    assert records.add("a third") == "#2"
    for wrong in ([{"text": "a note", "label": None}], [{"note": "SECRET"}], [3], [("SECRET", "b")]):
        with pytest.raises(InvalidParameter) as caught:
            PrivateRecords(wrong, label="note")
        assert "SECRET" not in str(caught.value)
    mixed = PrivateRecords([{"text": "x", "label": "other"}, {"text": "y"}], label="note")
    assert [mixed.get(name)["label"] for name in mixed.ids()] == ["other", "note"]


def test_texts_alone_say_what_they_lack() -> None:
    """If it breaks, whoever has a list of texts, or rows without labels, is not told how to give them."""
    with pytest.raises(InvalidParameter, match=r"not str\. For texts without .*PrivateRecords\(texts, label="):
        PrivateRecords(["a note", "another"])
    with pytest.raises(InvalidParameter, match=r"not tuple\. Of pairs make \[dict\(text=text, label=label\)"):
        PrivateRecords([("a note", "note")])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match="For texts without labels give one for all with label="):
        PrivateRecords([{"text": "a note"}, {"text": "another"}])
    for wrong in ("", " ", 3):
        with pytest.raises(InvalidParameter, match="label"):
            PrivateRecords([], label=wrong)  # type: ignore[arg-type]


WRONG = [{"text": f"{CANARY} {number}", "label": "a label that nobody named"} for number in range(40)]


def _tuner_without_backbone() -> None:
    pytest.importorskip("torch", reason="needs the extra tuning")
    from langchain_dp.rapt.tuning import RAPTPromptTuner

    RAPTPromptTuner(None, labels=["a"])  # type: ignore[arg-type]


def test_examples_that_come_in_pieces_are_taken_together() -> None:
    """If it breaks, a chain that streams its rows in writes from the last of them alone."""
    rows = [{"text": f"my parcel is late {n}", "label": ("delivery", "billing")[n % 2]} for n in range(120)]
    [made] = synthesizer().transform([row] for row in rows)
    assert len([*made, *made.dropped]) == 6


@pytest.mark.parametrize(
    "call",
    [
        lambda: DPICLClassifier(model=VotingChat(), examples=list(WRONG), labels=["a", "b"], max_queries=1),
        lambda: DPPromptOptimizer(model=None, labels=["a", "b"]),  # type: ignore[arg-type]
        lambda: synthesizer(members=0),
        lambda: generator(max_queries=0),
        lambda: RAPTSanitizer(eta=-1.0),
        lambda: PrivacyLedger(PrivacyBudget(1.0), "no such folder/ledger.db"),
        lambda: MetricLedger(-1.0),
        lambda: _tuner_without_backbone(),
        lambda: SanitizingRetriever(retriever=None, sanitizer=None),  # type: ignore[arg-type]
    ],
)
def test_an_object_that_was_refused_prints(call: Callable[[], Any]) -> None:
    """If it breaks, a log that shows the locals of each frame loses the error in another one, or ends the program."""
    with pytest.raises((LangChainDPError, TypeError, ValueError)) as caught:
        call()
    at, frames = caught.tb, 0
    while at is not None:
        me = at.tb_frame.f_locals.get("self")
        if type(me).__module__.startswith("langchain_dp"):
            assert CANARY not in repr(me)
            frames += 1
        at = at.tb_next  # type: ignore[assignment]
    assert frames or isinstance(caught.value, TypeError)
