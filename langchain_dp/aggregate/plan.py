"""What a prototype classifier will be worth, from public numbers alone."""

from __future__ import annotations

import dataclasses

from langchain_dp.accounting import PrivacyBudget
from langchain_dp.errors import InvalidParameter

_FEWEST, _MOST = 8, 256


def components_for(users: int | None, labels: int, noise_multiplier: float) -> int:
    """Number of principal components: more where the sums stand out of the noise, fewer where they do not.

    Args:
        users: Number of users where it is public; None is refused.
        labels: Number of labels.
        noise_multiplier: Noise per coordinate in units of the largest norm.
    """
    if users is None:
        raise InvalidParameter(
            "Expected components= under add/remove neighbors, where the number of users is private and nothing may "
            "follow from it. Give 16 for some hundred examples, 64 for some thousand."
        )
    per_label = users / labels / noise_multiplier
    return max(_FEWEST, min(_MOST, round((1.2 if labels > 2 else 0.5) * per_label)))


@dataclasses.dataclass(frozen=True)
class PrototypePlan:
    """Forecast of a prototype classifier."""

    examples: int
    labels: int
    budget: PrivacyBudget
    components: int
    noise_multiplier: float
