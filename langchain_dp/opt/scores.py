"""Score of a prompt on a test set, with a confusion table that shows a constant answer."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

NONE = ""
"""Key of answers that named no label, or several, in a confusion."""


@dataclasses.dataclass(frozen=True)
class PromptScore:
    """Score of a prompt on a test set.

    Args:
        accuracy: Share of correct rows, in [0, 1].
        standard_error: Of the accuracy, over rows.
        answered: Share of rows whose answer named exactly one label.
        rows: Number of rows.
        confusion: Correct label -> answered label -> number of rows, for every label; "" stands for answers that named
            no label or several. Comparisons of scores ignore it.

    Examples:
        >>> print(PromptScore(accuracy=0.9, standard_error=0.03, answered=1.0, rows=100))
        accuracy 0.900 +- 0.030 on 100 rows (100% of the answers named one label)
    """

    accuracy: float
    standard_error: float
    answered: float
    rows: int
    confusion: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, said: Sequence[int | None], right: Sequence[str], labels: Sequence[str]) -> PromptScore:
        """Count answers.

        Args:
            said: Index of the answered label; None for none.
            right: Correct label of each row.
            labels: The public labels.

        Examples:
            >>> PromptScore.of([0, 0], ["no", "yes"], ["no", "yes"]).always
            'no'
        """
        pairs = Counter(
            (label, NONE if index is None else labels[index]) for index, label in zip(said, right, strict=True)
        )
        rows = len(right)
        accuracy = sum(pairs[label, label] for label in labels) / rows
        return cls(
            accuracy,
            math.sqrt(accuracy * (1 - accuracy) / rows),
            sum(index is not None for index in said) / rows,
            rows,
            {label: {answer: pairs[label, answer] for answer in (*labels, NONE)} for label in labels},
        )

    @property
    def always(self) -> str | None:
        """The only label ever answered if the rows have several; otherwise None."""
        present = [label for label, counts in self.confusion.items() if any(counts.values())]
        answered = {
            answer for counts in self.confusion.values() for answer, count in counts.items() if count and answer
        }
        return answered.pop() if len(present) > 1 and len(answered) == 1 else None

    def table(self) -> str:
        """Return the confusion as text: a row per correct label, a column per answered label."""
        head = ["right \\ said", *self.confusion, "(no label)"]
        rows = [[label, *map(str, counts.values())] for label, counts in self.confusion.items()]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (head, *rows)
        )

    def __str__(self) -> str:
        always = "" if self.always is None else f"; always says {self.always!r}"
        return (
            f"accuracy {self.accuracy:.3f} +- {self.standard_error:.3f} on {self.rows} rows "
            f"({self.answered:.0%} of the answers named one label{always})"
        )
