"""Private records: what comes in as examples, kept in memory, shown to nobody, refused to every serializer."""

from langchain_dp.records.checks import Label, check_labels, encodable, exact, given_labels, label_name, row_fault
from langchain_dp.records.files import read_csv, read_jsonl
from langchain_dp.records.private import (
    AUTOMATIC,
    Examples,
    FromDataFrame,
    KeepsExamples,
    PrivateRecords,
    check_records,
)

__all__ = [
    "AUTOMATIC",
    "Examples",
    "FromDataFrame",
    "KeepsExamples",
    "Label",
    "PrivateRecords",
    "check_labels",
    "check_records",
    "encodable",
    "exact",
    "given_labels",
    "label_name",
    "read_csv",
    "read_jsonl",
    "row_fault",
]
