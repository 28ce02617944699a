"""The report of a ledger: what was released, when, under which promise, as plain data and as one page."""

from langchain_dp.audit.report.contents import AskerShare, Plan, Release, Report, report
from langchain_dp.audit.report.results import ReportedPseudonyms

__all__ = ["AskerShare", "Plan", "Release", "Report", "ReportedPseudonyms", "report"]
