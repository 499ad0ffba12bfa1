"""Sources of rows that lie in no file: Arrow tables and frames of texts; and files read whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from penstock.base.errors import Problem
from penstock_client.rows import validation
from penstock_client.rows.sources.layout import PLAIN, Layout
from penstock_client.rows.sources.registry import SOURCES, AddressKind, Registry
from penstock_client.rows.sources.source import (
    Batch,
    Source,
    Unreadable,
    make_typed_batch,
    read_batches,
    refuse_same_names,
)


@dataclass
class ArrowSource:
    """Record batches at an address of a database, say: no file, no lines, no suffix."""

    address: str
    batches: list[pa.RecordBatch]
    layout: Layout = PLAIN
    failures: tuple[type[Exception], ...] = field(
        default=(ValueError, OverflowError, pa.ArrowException)
    )

    @property
    def name(self) -> str:
        return self.address

    def make_batches(self) -> Iterator[Batch]:
        if self.layout != PLAIN:
            raise Unreadable(Problem("", "is memory, which has no delimiter and no encoding"))
        refuse_same_names(self.batches[0].schema.names)
        before = 0
        for batch in self.batches:
            yield make_typed_batch(self, pa.Table.from_batches([batch]), before)
            before += batch.num_rows

    def explain_failure(self, error: Exception) -> Problem:
        return Problem("", "cannot be asked", value=type(error).__name__)

    def guess_layout(self) -> Layout:
        return PLAIN

    def is_same(self, other: Source) -> bool:
        return self.name == other.name


def registry_with(tables: dict[str, pa.Table], rows: int = 70) -> Registry:
    """The registry with one kind more: ``memory://NAME``, in batches of so many rows."""

    def make(address: str, layout: Layout) -> Source:
        table = tables[address.removeprefix("memory://")]
        return ArrowSource(address, table.to_batches(max_chunksize=rows), layout)

    return Registry(SOURCES.files, (AddressKind(make, ("memory",)),), SOURCES.remedy)


def batches_of(frame: pd.DataFrame) -> list[Batch]:
    """A frame of stripped texts as one batch; its index says where rows lie."""
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    source = ArrowSource("a frame", [])
    return [Batch(source, columns, frame.index.tolist(), str(frame.index.name or "line"))]


def read_text(path: Path, layout: Layout = PLAIN) -> pd.DataFrame:
    """A whole file as a frame of stripped texts, by line or row."""
    batches = read_batches(SOURCES.open(path, layout))
    return pd.concat([pd.DataFrame({n: b.read_text(n) for n in b.names}) for b in batches])


def check(rows: pd.DataFrame | Iterable[Batch], *args: Any, **more: Any) -> validation.Checked:
    """``site check`` of a frame, or of batches."""
    return validation.check_rows(_batches(rows), *args, **more)


def outside_values(
    rows: pd.DataFrame | Iterable[Batch], *args: Any
) -> dict[str, list[tuple[str, int]]]:
    """``site check --values`` of a frame, or of batches."""
    return validation.find_outside_values(_batches(rows), *args)


def _batches(rows: pd.DataFrame | Iterable[Batch]) -> Iterable[Batch]:
    return batches_of(rows) if isinstance(rows, pd.DataFrame) else rows
