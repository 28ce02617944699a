"""Stores of ledgers: a file with its key, or a database."""
