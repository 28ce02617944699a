"""What is wrong with rows, by position: one error names them all, and shows nothing of them."""

from __future__ import annotations

from langchain_dp.errors import InvalidParameter

MOST = 10
"""Positions that a message lists; of the others it gives the number."""


class Faults:
    """Collects the faults of rows, and raises one error about all of them.

    Args:
        rows: What a row is called, and where it is from: "example {}" or "line {} of notes.jsonl".

    Examples:
        >>> faults = Faults("line {} of notes.jsonl")
        >>> for line in (2, 5, 7):
        ...     faults.add(line, "Expected {where} to be a JSON object. Repair it.")
        >>> faults.raise_any()
        Traceback (most recent call last):
        langchain_dp.errors.InvalidParameter: Expected lines 2, 5 and 7 of notes.jsonl to be a JSON object. Repair it.
    """

    def __init__(self, rows: str = "example {}") -> None:
        self._rows = rows
        self._found: dict[str, list[int]] = {}

    def add(self, position: int, fault: str) -> None:
        """One fault of a row; ``{where}`` in it stands for the row."""
        self._found.setdefault(fault, []).append(position)

    def raise_any(self) -> None:
        """Raise InvalidParameter if anything was added."""
        if self._found:
            raise InvalidParameter(" ".join(placed(fault, self._where(at)) for fault, at in self._found.items()))

    def _where(self, positions: list[int]) -> str:
        listed = [str(position) for position in positions[:MOST]]
        if len(positions) > MOST:
            listed.append(f"{len(positions) - MOST} more")
        if len(listed) == 1:
            return self._rows.format(listed[0])
        noun, _, rest = self._rows.partition(" ")
        return f"{noun}s {rest.format(' and '.join([', '.join(listed[:-1]), listed[-1]]))}"


def placed(fault: str, where: str) -> str:
    """The sentence about one place."""
    return fault.replace("{where}", where)
