"""What answers will be worth, before anything is charged: from planning values, not from rows."""

RUNS = 40
"""Runs of the mechanism at each site's size unless another number is asked for."""
