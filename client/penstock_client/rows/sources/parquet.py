"""Rows in a Parquet file: typed columns, and rows that are counted from 1."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.base.errors import Problem
from penstock_client.rows.sources.layout import PLAIN
from penstock_client.rows.sources.source import (
    Batch,
    FileSource,
    Unreadable,
    batch_rows,
    make_typed_batch,
    refuse_same_names,
)

SUFFIXES = (".parquet", ".pq")


class ParquetFile(FileSource):
    """A Parquet file."""

    failures = (*FileSource.failures, OverflowError, pa.ArrowException)

    def make_batches(self) -> Iterator[Batch]:
        if self.layout != PLAIN:
            message = "is a Parquet file, which has no delimiter and no encoding"
            raise Unreadable(Problem("", message, remedy="Remove them from recoding.toml"))
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            names = [name.strip() for name in file.schema_arrow.names]
            refuse_same_names(names)
            at = 0
            for batch in file.iter_batches(batch_rows(len(names))):
                yield make_typed_batch(self, pa.Table.from_batches([batch]), at)
                at += batch.num_rows
            if not at:
                yield make_typed_batch(self, file.schema_arrow.empty_table(), 0)
