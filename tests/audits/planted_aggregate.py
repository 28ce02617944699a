"""Faults planted into private sums over public encoders. NOT PRIVATE."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from audits.planted import StandIn, Swap, method
from langchain_dp.accounting import Neighbors, PrivacyBudget
from langchain_dp.aggregate import names, prototypes
from langchain_dp.aggregate.features import Projection
from langchain_dp.mechanisms import VectorSum, exponential_choice
from langchain_dp.mechanisms.vector_sum import NORM
from langchain_dp.records import PrivateRecords


def charged_once(real: StandIn, budget: PrivacyBudget) -> float:
    """Noise for the distance of add/remove, R, where a record may be replaced, 2R."""
    return real(PrivacyBudget(budget.epsilon, budget.delta, Neighbors.ADD_OR_REMOVE_ONE))


def in_two_parts(real: StandIn, mechanism: VectorSum, total: Any, **options: Any) -> Any:
    """Noise for each of two partitions, added up."""
    return real(mechanism, total // 2, **options) + real(mechanism, total - total // 2, **options)


def quarter_of_the_noise(real: StandIn, mechanism: VectorSum, total: Any, **options: Any) -> Any:
    """Noise per partition that is made for the whole: a sixteenth of its variance in each of four."""
    return total + (real(mechanism, np.zeros_like(total), **options) // 2)


def rounded_up(real: StandIn, projection: Projection, rows: Any) -> Any:
    """Vectors clipped in floats, and rounded to the nearest whole numbers, or up."""
    vectors = real(projection, rows).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    longest = vectors * np.divide(NORM, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return (np.sign(longest) * np.ceil(np.abs(longest))).astype(np.int64)


def own_mean(real: StandIn, fitting: Any, projection: Projection, notes: Any) -> Any:
    """The mean that is removed is that of the private rows."""
    texts = [text for text in _texts(fitting) if "unencodable" not in text]
    unit = np.array([row / np.linalg.norm(row) for row in np.array(fitting._encoder.embed_documents(texts))])
    mean = np.rint(unit.mean(axis=0) * 2**15).astype(np.int64)
    return real(fitting, dataclasses.replace(projection, mean=mean), notes)


def own_components(real: StandIn, fitting: Any) -> int:
    """The number of components is the one that fits the private rows best."""
    return real(fitting) + sum(len(text) for text in _texts(fitting)) % 3 - 1


def without_empty_labels(real: StandIn, fitting: Any, promise: Any, records: Any, labels: Any, encoder: Any) -> None:
    """Labels that no record has are left out."""
    there = {records.get(name)["label"] for name in records.ids()}
    real(fitting, promise, records, tuple(label for label in labels if label in there), encoder)


def each_alone(real: StandIn, records: PrivateRecords, **options: Any) -> list[list[str]]:
    """Every record of a user counts as a user of its own."""
    return [[name] for name in records.ids()]


def whole_weight(real: StandIn, exponent: Any) -> Any:
    """Counts charged lambda where a replaced record moves two: the exponent is twice what was charged."""
    return real(2 * exponent)


def points_as_records(real: StandIn, *arguments: Any, **options: Any) -> Any:
    """Ten points of one record weigh as ten records."""
    return 10 * real(*arguments, **options)


def offered_as_they_come(real: StandIn, mechanism: Any, counts: Sequence[Sequence[int]], rng: Any) -> Any:
    """Only entries that some record chose are offered."""
    there = [[count + 50 * (count > 0) for count in row] for row in counts]
    return real(mechanism, there, rng)


def _texts(fitting: Any) -> list[str]:
    records = fitting._records
    return [records.get(name)["text"] for name in records.ids()]


SUMS: dict[str, Sequence[Swap]] = {
    "2R charged as R": [(prototypes, "calibrate_vector_sum", method(charged_once)),
                        (prototypes.VectorSumEvent, "distance", method(lambda real, event, neighbors: 1.0))],
    "vectors rounded up": [(Projection, "vectors", method(rounded_up))],
    "mean of the private rows": [(prototypes._Fitting, "release", method(own_mean))],
    "components by private rows": [(prototypes._Fitting, "components", method(own_components))],
    "empty labels left out": [(prototypes._Fitting, "__init__", method(without_empty_labels))],
    "records of a user apart": [(PrivateRecords, "users", method(each_alone))],
}  # fmt: skip
NOISE: dict[str, Sequence[Swap]] = {
    "noise in each of two parts": [(VectorSum, "release", method(in_two_parts))],
    "noise of a part": [(VectorSum, "release", method(quarter_of_the_noise))],
}
USERS: dict[str, Sequence[Swap]] = {
    "a coin per record of a user": [
        (PrivateRecords, "users", method(each_alone)),
        (PrivateRecords, "user_of", method(lambda real, records, record_id: record_id)),
    ],
    "all records of a user read": [(PrivateRecords, "one_per_user", method(lambda real, records: records))],
}
NAMES: dict[str, Sequence[Swap]] = {
    "counts charged lambda": [(exponential_choice, "below_exp", method(whole_weight))],
    "points as records": [(names, "_counts", method(points_as_records))],
    "only chosen entries offered": [(names, "_chosen", method(offered_as_they_come))],
    "a vote per record of a user": [(PrivateRecords, "users", method(each_alone))],
}
