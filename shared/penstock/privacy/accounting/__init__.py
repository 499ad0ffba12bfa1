"""What releases cost: accountants, each with its theorem."""
