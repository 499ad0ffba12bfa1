"""The log of a process that a supervisor runs: ours on standard error, and what troubles Flower."""

from __future__ import annotations

import logging
import sys


def log_to_stderr() -> None:
    """Send the ``penstock`` loggers to standard error, and Flower's from WARNING on.

    Flower writes eight coloured lines for every message, which nobody reads and a disk keeps.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("penstock", logging.INFO), ("flwr", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
