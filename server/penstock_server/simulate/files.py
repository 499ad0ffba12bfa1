"""A simulated table on disk, as a hospital would have it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from penstock.schema import Schema
from penstock.toml import dictionary_toml


def write_rows(directory: Path, table: Mapping[str, npt.NDArray[Any]], schema: Schema) -> None:
    """Write ``data.csv`` and ``dictionary.toml``.

    The directory is made when it is not there; files of these names are replaced.

    Args:
        table: columns of one length, the person's column first; numbers are written with their
            column's decimals.
    """
    decimals = {c.name: c.decimals or 0 for c in schema.columns}
    columns = [
        [f"{value:.{decimals[name]}f}" for value in values] if name in decimals else values
        for name, values in table.items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "data.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*columns, strict=True))
    (directory / "dictionary.toml").write_text(dictionary_toml(schema), encoding="utf-8")
