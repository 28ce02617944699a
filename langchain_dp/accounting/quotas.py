"""Quotas per user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from langchain_dp._util import validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.errors import InvalidParameter

POOLED = "users can pool their answers: the promise is the whole plan's"

_FEW = 8  # names that are shown one by one


@dataclasses.dataclass(frozen=True, repr=False)
class Quotas(MadeOfFields):
    """Largest number of releases of a plan per user, team or tenant.

    User ids are public: the ledger stores them and messages show them. Use no person's name. Quotas may add up to more
    than the plan.

    Args:
        default: Quota of users without an override. None: such users are refused.
        overrides: Quota by user id, 1 to 200 printable characters.

    Formal guarantee:
        None: users can pool their answers, so only the (epsilon, delta) of the plan and its ledger holds.

    Examples:
        >>> shared = [(NoisyMaxEvent(20.0), 50)]
        >>> plan = ledger.reserve(shared, name="shared", quotas=Quotas(default=5, overrides={"team-7": 20}))
        >>> plan.spend(NoisyMaxEvent(20.0), user_id="team-7")
        >>> plan.remaining(NoisyMaxEvent(20.0), user_id="team-7"), plan.remaining(NoisyMaxEvent(20.0), user_id="team-8")
        (19, 5)
    """

    default: int | None = None
    overrides: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.default is not None:
            validate.integer("default", self.default, at_least=1, at_most=10**12)
        if not isinstance(self.overrides, Mapping):
            raise InvalidParameter("Expected overrides to be a mapping from a user id to a number of releases.")
        for user_id, most in self.overrides.items():
            validate.short_text("the user id of a quota", user_id, at_least=1)
            validate.integer("the quota of a user", most, at_least=1, at_most=10**12)
        if self.default is None and not self.overrides:
            raise InvalidParameter("Expected default= or overrides= of Quotas to be given. Give one of them, or both.")
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))

    def of(self, user_id: str) -> int | None:
        """Return the user's quota, or None."""
        return self.overrides.get(user_id, self.default)

    def __repr__(self) -> str:
        many = len(self.overrides) > _FEW
        overrides = f"{len(self.overrides):,} names" if many else repr(dict(self.overrides))
        return f"Quotas(default={self.default!r}, overrides={overrides})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the ledger."""
        return {"default": self.default, "overrides": dict(sorted(self.overrides.items()))}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Return the quotas of :meth:`to_dict`."""
        return cls(kept["default"], kept["overrides"])
