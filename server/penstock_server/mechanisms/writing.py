"""How files that an analyst pulls are written and described.

They are written whole or not at all, and a spreadsheet finds no formula in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.base.files import replace_file
from penstock.base.text import FORMULA_START

SITE, COPY, PERSON, WEIGHT = "_site", "_copy", "_person", "_weight"
"""Columns of exported tables: the site that released the row; of tables, the synthetic copy; of
tables of persons with several rows, whose each is; of tables with a share of as many rows as the
site has, how many each row stands for."""


_KINDS = {str: pa.string(), int: pa.int32(), float: pa.float64()}


def describe_column(name: str, kind: str, label: str) -> dict[str, str]:
    """A column that the study's schema does not have."""
    return {"name": name, "kind": kind, "label": label}


def label_table(table: pa.Table, labels: dict[str, str | int | float]) -> pa.Table:
    """The table behind a column for each label, which is the same in all rows."""
    for place, (name, label) in enumerate(labels.items()):
        kind = _KINDS[type(label)]
        table = table.add_column(place, name, pa.array([label] * len(table), kind))
    return table


def write_tables(tables: Iterator[pa.Table], out: Path, name: str) -> list[Path]:
    """Tables of one form, one after the other, as Parquet and as CSV."""
    parquet, plain = out / f"{name}.parquet", out / f"{name}.csv"
    with replace_file(parquet) as p, replace_file(plain) as c:
        writers: tuple[Any, Any] | None = None
        try:
            for table in tables:
                if writers is None:
                    writers = (
                        pq.ParquetWriter(p, table.schema, compression="zstd"),
                        pacsv.CSVWriter(c, table.schema),
                    )
                for writer, part in zip(writers, (table, csv_safe(table)), strict=True):
                    writer.write_table(part)
        finally:
            for writer in writers or ():
                writer.close()
    return [parquet, plain]


def csv_safe(table: pa.Table) -> pa.Table:
    """Levels are text from a schema; a spreadsheet must not run one as a formula."""
    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            values = table.column(position).to_pylist()
            if any(v and v.startswith(FORMULA_START) for v in set(values)):
                safe = [f"'{v}" if v and v.startswith(FORMULA_START) else v for v in values]
                table = table.set_column(position, field, pa.array(safe, pa.string()))
    return table


def write(path: Path, data: bytes) -> None:
    """Replace a file in one rename."""
    with replace_file(path) as name, open(name, "wb") as file:
        file.write(data)
