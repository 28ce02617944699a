"""Private records: examples in memory that are never printed or serialized."""

from langchain_dp.records.blocks import PrivacyBlocks as PrivacyBlocks
from langchain_dp.records.checks import TEXT_OR_NUMBER as TEXT_OR_NUMBER
from langchain_dp.records.checks import Label as Label
from langchain_dp.records.checks import check_labels as check_labels
from langchain_dp.records.checks import column_of_people as column_of_people
from langchain_dp.records.checks import encodable as encodable
from langchain_dp.records.checks import exact as exact
from langchain_dp.records.checks import given_labels as given_labels
from langchain_dp.records.checks import is_missing as is_missing
from langchain_dp.records.checks import label_name as label_name
from langchain_dp.records.checks import label_words as label_words
from langchain_dp.records.checks import named_words as named_words
from langchain_dp.records.checks import row_fault as row_fault
from langchain_dp.records.files import read_csv as read_csv
from langchain_dp.records.files import read_file as read_file
from langchain_dp.records.files import read_jsonl as read_jsonl
from langchain_dp.records.private import AUTOMATIC as AUTOMATIC
from langchain_dp.records.private import Examples as Examples
from langchain_dp.records.private import FromDataFrame as FromDataFrame
from langchain_dp.records.private import KeepsExamples as KeepsExamples
from langchain_dp.records.private import PrivateRecords as PrivateRecords
from langchain_dp.records.private import check_records as check_records
from langchain_dp.records.private import id_of as id_of
from langchain_dp.records.private import unknown_id as unknown_id
from langchain_dp.records.shards import CheckedShards as CheckedShards
from langchain_dp.records.shards import RecordShards as RecordShards
