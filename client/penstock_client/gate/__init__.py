"""The gate: where rows and ledger meet, and what it decides."""
