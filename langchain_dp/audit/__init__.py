"""Audits: bound the epsilon of a mechanism or chain from below, and report on a ledger."""

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
