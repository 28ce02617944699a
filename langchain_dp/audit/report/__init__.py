"""The report of a ledger."""

from langchain_dp.audit.report.contents import Plan, Release, Report, UserShare, report
from langchain_dp.audit.report.results import ReportedPseudonyms

__all__ = ["Plan", "Release", "Report", "ReportedPseudonyms", "UserShare", "report"]
