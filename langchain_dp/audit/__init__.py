"""Audits: run a mechanism or a whole chain, and bound its epsilon from below, and the report for an auditor.

Use::

    pair = canary_pair(["yes", "no"], votes=[0, 3])  # every record votes. The canary's label trails by three
    print(audit_mechanism(answer, pair.one, pair.other, epsilon=3.0, delta=0.01, neighbors="replace-one"))

where ``answer`` takes examples and returns a release, with fresh randomness in each call. :class:`NamingEngine` is the
worst model for such a chain, and shows a whole audit. :func:`audit_pipeline` needs one run only, over many canaries.

``langchain-dp audit`` writes the report of a ledger. ``make audit`` in a checkout audits this package.
"""

from __future__ import annotations

from langchain_dp._util.binomial import lower_limit, upper_limit
from langchain_dp.audit.bounds import epsilon_bound, runs_needed
from langchain_dp.audit.empirical import AuditResult, audit_mechanism
from langchain_dp.audit.one_run import OneRunAudit, audit_pipeline, canaries_needed, one_run_bound
from langchain_dp.audit.pairs import CanaryPair, NamingEngine, canary_pair, check_neighbors, worst_margin

__all__ = [
    "AuditResult",
    "CanaryPair",
    "NamingEngine",
    "OneRunAudit",
    "audit_mechanism",
    "audit_pipeline",
    "canaries_needed",
    "canary_pair",
    "check_neighbors",
    "epsilon_bound",
    "lower_limit",
    "one_run_bound",
    "runs_needed",
    "upper_limit",
    "worst_margin",
]
