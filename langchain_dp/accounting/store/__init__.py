"""Stores of ledgers."""
