"""What a release does inside, made visible to tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from langchain_dp.mechanisms import ReportNoisyMax


@pytest.fixture
def histograms(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The votes that reached the noise, one list of counts per release."""
    seen: list[list[int]] = []
    draw = ReportNoisyMax.release

    def spy(self: ReportNoisyMax, counts: Sequence[int], **kwargs: Any) -> Any:
        seen.append(list(counts))
        return draw(self, counts, **kwargs)

    monkeypatch.setattr(ReportNoisyMax, "release", spy)
    return seen
