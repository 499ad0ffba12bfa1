"""A simulated table on disk, as a hospital would have it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from penstock.schema import Schema
from penstock.study.toml import write_dictionary


def frame(persons: int) -> int:
    """A declared frame for so many simulated persons: the next hundred above.

    No example for a real site, whose frame is decided before anybody has counted. A simulation has
    nothing to hide; its frame is round, and not the count, so that all that works with it works
    with places that nobody takes.
    """
    return 100 * (persons // 100 + 1)


def write_rows(
    directory: Path, table: Mapping[str, npt.NDArray[Any]], schema: Schema, persons: int
) -> None:
    """Write ``data.csv`` and ``dictionary.toml``, which declares :func:`frame`.

    The directory is made when it is not there; files of these names are replaced.

    Args:
        table: columns of one length, the person's column first; numbers are written with their
            column's decimals, text as it is.
        persons: how many are simulated.
    """
    decimals = {c.name: c.decimals or 0 for c in schema.columns}
    columns = [
        [f"{value:.{decimals[name]}f}" for value in values] if values.dtype.kind == "f" else values
        for name, values in table.items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "data.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*columns, strict=True))
    text = write_dictionary(schema, frame(persons))
    (directory / "dictionary.toml").write_text(text, encoding="utf-8")
