"""Attacks on what was released: tools by which an operator sees what a prompt betrays. Their output is private."""

from __future__ import annotations

from langchain_dp.attacks._leak_report import LeakedSpan, LeakReport, NearestRow
from langchain_dp.attacks.leakage import find_leaks

__all__ = ["LeakReport", "LeakedSpan", "NearestRow", "find_leaks"]
