"""The log of a process that a supervisor runs: ours on standard error, at INFO."""

from __future__ import annotations

import logging
import sys


def to_stderr() -> None:
    """Send the ``penstock`` loggers to standard error; other libraries' loggers stay theirs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    ours = logging.getLogger("penstock")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
