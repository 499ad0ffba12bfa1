"""The privacy ledger: its file, its records, what they cost, and views of them."""
