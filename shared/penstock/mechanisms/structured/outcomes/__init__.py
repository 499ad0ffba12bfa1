"""Models of outcomes: what each adds to a score, and how an outcome is drawn from it."""
