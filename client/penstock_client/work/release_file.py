"""A release's file: a worker writes it as parts are made, and a gate checks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from penstock.base.errors import JobFailed
from penstock.mechanisms import labelled
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import Shape

BATCH_ROWS = 65_536


def write_release(path: Path, shape: Shape, parts: Iterable[Part]) -> None:
    """One Arrow stream; no more than one part is ever held.

    Raises:
        JobFailed: parts are missing, or others, or in another order than was promised.
    """
    tables = labelled.join_parts(shape, _in_order(shape, parts))
    first = next(tables)
    with pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_stream(sink, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table, max_chunksize=BATCH_ROWS)


def _in_order(shape: Shape, parts: Iterable[Part]) -> Iterator[Part]:
    """The parts, as long as they are those of the shape, each name in its turn."""
    turn = -1
    for part in parts:
        if turn < 0 or shape.parts[turn].name != part.name:
            turn += 1
            if turn == len(shape.parts) or shape.parts[turn].name != part.name:
                raise JobFailed("a part of the release is not the one that was planned")
        yield part
    if turn + 1 < len(shape.parts):
        raise JobFailed("a part of the release is missing")


def count_rows(path: Path, shape: Shape) -> dict[str, int]:
    """How many rows each part has, of a file whose parts are as was promised.

    Raises:
        JobFailed: they are not; what is wrong stays unsaid, since it may depend on rows.
    """
    rows = _count_labelled(path, shape)
    if rows is None or not shape.counts_fit(rows):
        raise JobFailed("the worker's table is not what was planned")
    return rows


def _count_labelled(path: Path, shape: Shape) -> dict[str, int] | None:
    expected, names = labelled.arrow_schema(shape), labelled.list_labels(shape)
    whole = [*names, *(c.name for c in shape.first.schema.columns if not c.nullable)]
    labels = []
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as batches:
        good = batches.schema.equals(expected)
        for batch in batches if good else ():
            labels.append(batch.select(list(names)))
            good = good and not any(batch.column(n).null_count for n in whole)
    return labelled.count_rows(shape, pa.Table.from_batches(labels)) if good and labels else None
