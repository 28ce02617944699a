"""What a release does inside, made visible to tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from langchain_dp.icl import release


@pytest.fixture
def histograms(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The votes that reached the noise, one list of counts per release."""
    seen: list[list[int]] = []
    draw = release.report_noisy_max

    def spy(counts: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        seen.append(list(counts))
        return draw(counts, *args, **kwargs)

    monkeypatch.setattr(release, "report_noisy_max", spy)
    return seen
