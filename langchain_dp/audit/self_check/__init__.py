"""Audits of this package's own code, and the faults that they must find."""
