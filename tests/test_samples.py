"""The invented tickets: no templates, balanced, and of other customers in the test file."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from langchain_dp import sample


def test_no_two_tickets_share_more_than_half_of_their_words() -> None:
    """If it breaks, templates leak from training into test, and accuracies of the demo are too good."""
    train, test = sample.load_tickets()
    bags = [set(re.findall(r"\w+", row["text"].casefold())) for row in [*train, *test]]
    places = {word: place for place, word in enumerate(sorted(set().union(*bags)))}
    table = np.zeros((len(bags), len(places)), dtype=np.float32)
    for row, bag in zip(table, bags, strict=True):
        row[[places[word] for word in bag]] = 1
    shared = table @ table.T / np.maximum.outer(table.sum(axis=1), table.sum(axis=1))
    np.fill_diagonal(shared, 0)
    assert shared.max() <= 0.5, "of the words of the longer one"


def test_tickets_are_balanced_and_customers_are_in_one_file() -> None:
    """If it breaks, a queue is missing, or a customer of the training rows is asked for in the test."""
    train, test = sample.load_tickets()
    assert len(train) >= 1000
    assert len(test) >= 150
    for rows in (train, test):
        queues = Counter(row["label"] for row in rows)
        assert len(queues) == 6
        assert max(queues.values()) < 1.3 * min(queues.values())
        assert all(set(row) == {"text", "label", "customer"} and row["text"].strip() for row in rows)
    customers = [{row["customer"] for row in rows} for rows in (train, test)]
    assert not customers[0] & customers[1]
    assert len(customers[0]) < len(train), "some customers wrote several"
    assert len({row["text"] for row in [*train, *test]}) == len(train) + len(test)
