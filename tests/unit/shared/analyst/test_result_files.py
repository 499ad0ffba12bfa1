"""Whatever `pull` may write, its readers are told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.analyst import RESULT_FILES

README = Path(__file__).parents[4] / "README.md"


@pytest.mark.parametrize("name", RESULT_FILES)
def test_a_file_of_pull_has_its_row(name: str) -> None:
    stem = name.partition(".")[0]
    rows = [line for line in README.read_text().splitlines() if line.startswith("| `")]
    assert any(f"`{stem}." in row.split(" | ")[0] for row in rows)
