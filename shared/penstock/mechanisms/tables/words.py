"""What is said of synthetic tables, whichever mechanism makes them."""

from __future__ import annotations

from typing import TypeVar

from penstock.mechanisms.protocol import Asked, Settings

S = TypeVar("S", bound=Settings)

NOTES = {
    "copies": "synthetic data sets per site, 1 to 100",
    "refits": "repeats on synthetic rows that show the mechanism's noise, 0 to 100; free of budget",
}
"""Of the settings that say how many there are, beside them in a draft."""

FILES = "pooled.parquet and pooled.csv"
"""What a pull writes of them."""


def tables_returned(
    asked: Asked[S], counted: bool, *, followed: bool = False, most: int | None = None
) -> str:
    """How many tables come back, and of how many rows.

    Args:
        counted: whether their rows are as many as were counted with noise.
        followed: whether they hold persons with several rows each.
        most: rows of a table, if that is asked for.
    """
    used, per_person = asked.settings, asked.schema.max_rows_per_person
    rows = "one row" if per_person == 1 else f"{per_person} rows"
    if followed:
        rows = f"about as many persons as the site has, of at most {rows} each"
    elif counted:
        rows = f"about as many rows as the site has, at most {rows} for each person of its frame"
    else:
        rows += " for each person of the site's frame"
    if most is not None:
        rows += f", or a share of these that is at most {most:,} rows"
    copies = f"{used.copies} synthetic table{'' if used.copies == 1 else 's'}"
    refits = (
        f", and {used.refits} refits for intervals"
        if used.refits
        else ("; without refits, intervals lack the mechanism's noise")
    )
    return f"comes back: {copies} with {rows}{refits}"
