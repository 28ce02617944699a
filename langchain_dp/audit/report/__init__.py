"""The report of a ledger as plain data and as one page: releases, their times, and their promise."""

from langchain_dp.audit.report.contents import Plan, Release, Report, UserShare, report
from langchain_dp.audit.report.results import ReportedPseudonyms

__all__ = ["Plan", "Release", "Report", "ReportedPseudonyms", "UserShare", "report"]
