"""Every test by name, sorted, to compare lists made before and after files move.

`python -m tests.support.collected [FOLDER…]`

A line is ``file::class::function`` without parameters, and how many cases it has.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest


class Names:
    """Counts the cases of each test that pytest finds."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.found.update(item.nodeid.partition("[")[0] for item in session.items)


def collect(arguments: list[str]) -> tuple[int, list[str]]:
    """Pytest's exit status, and a line for each test."""
    names = Names()
    status = pytest.main(["--collect-only", "-qqq", *arguments], plugins=[names])
    return int(status), [f"{name} {count}" for name, count in sorted(names.found.items())]


if __name__ == "__main__":
    code, lines = collect(sys.argv[1:])
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(code)
