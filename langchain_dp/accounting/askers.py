"""Shares of a plan's releases for those who ask: an account each, so that one of them cannot use up the others'."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from langchain_dp._util import validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.errors import InvalidParameter

POOLED = "askers can pool their answers: the promise is the whole plan's"
"""What a certificate says of a plan with accounts."""

_FEW = 8  # names that are shown one by one


@dataclasses.dataclass(frozen=True, repr=False)
class Askers(MadeOfFields):
    """Accounts of the users, teams or tenants who ask: how many releases of a plan each may use.

    Names are public: they are stored in the ledger as they stand and shown in messages. Give a team or a number, and
    no person's name. Shares may add up to more than the plan: then who comes first is served, up to the plan's end.

    Args:
        each: Releases for every asker that ``named`` does not list. None: such an asker is refused.
        named: Releases by name of an asker, each at least 1.

    Raises:
        InvalidParameter: Neither was given, a count is below 1, or a name is not 1 to 200 printable characters.

    Formal guarantee:
        None of its own. Askers can pool their answers, so what holds is the (epsilon, delta) of the plan and of its
        ledger, whoever asks. A share is a limit of operation.

    Examples:
        >>> shared = [(NoisyMaxEvent(20.0), 50)]
        >>> plan = ledger.reserve(shared, name="shared", askers=Askers(each=5, named={"team-7": 20}))
        >>> plan.spend(NoisyMaxEvent(20.0), asker="team-7")
        >>> plan.remaining(NoisyMaxEvent(20.0), asker="team-7"), plan.remaining(NoisyMaxEvent(20.0), asker="team-8")
        (19, 5)
    """

    each: int | None = None
    named: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.each is not None:
            validate.integer("each", self.each, at_least=1, at_most=10**12)
        if not isinstance(self.named, Mapping):
            raise InvalidParameter("Expected named to be a mapping from the name of an asker to a number of releases.")
        for name, most in self.named.items():
            validate.short_text("the name of an asker", name, at_least=1)
            validate.integer("the releases of an asker", most, at_least=1, at_most=10**12)
        if self.each is None and not self.named:
            raise InvalidParameter(
                "Expected each=None or named={} to give somebody a share. Give each=, named= or both."
            )
        object.__setattr__(self, "named", MappingProxyType(dict(self.named)))

    def share(self, asker: str) -> int | None:
        """How many releases are this asker's; None for one who has no account."""
        return self.named.get(asker, self.each)

    def __repr__(self) -> str:
        named = f"{len(self.named):,} names" if len(self.named) > _FEW else repr(dict(self.named))
        return f"Askers(each={self.each!r}, named={named})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger."""
        return {"each": self.each, "named": dict(sorted(self.named.items()))}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Those of :meth:`to_dict`."""
        return cls(kept["each"], kept["named"])
