"""Where ledgers are kept: one file, its key beside it, and what each kind of ledger writes there."""
