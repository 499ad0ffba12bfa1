"""A release's file: a worker writes it as parts are made, and a gate checks it; of one release of
many sites the coordinator does both.

Since wire 1.2 it is one Arrow stream for each part, one after the other, in the order of the
release's shape. Studies of older versions are answered by one stream in which labels tell the
parts apart (:mod:`penstock.mechanisms.labelled`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

import pyarrow as pa

from penstock.base.errors import JobFailed
from penstock.mechanisms import labelled
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import PartShape, Shape
from penstock.wire.manifest import ManifestPart
from penstock.wire.messages import names_parts

BATCH_ROWS = 65_536


def write_release(path: Path, shape: Shape, parts: Iterable[Part], wire: str) -> None:
    """Write parts as they come; no more than one piece of one is ever held.

    Raises:
        JobFailed: parts are missing, or others, or in another order than was promised.
    """
    given = _in_order(shape, parts)
    with pa.OSFile(str(path), "wb") as sink:
        if names_parts(wire):
            for name, pieces in groupby(given, lambda part: part.name):
                form = shape.part(name)
                _write_stream(sink, (form.table(piece.columns) for piece in pieces))
        else:
            _write_stream(sink, labelled.join_parts(shape, given))


def _write_stream(sink: pa.NativeFile, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
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


def measure_release(path: Path, shape: Shape, wire: str) -> tuple[int, tuple[ManifestPart, ...]]:
    """What a manifest says of a file whose parts are as was promised.

    Returns:
        Rows of the first part and of each copy: what the release's noisy count says, within the
        public bounds; and since wire 1.2 each part's name and size.

    Raises:
        JobFailed: they are not; what is wrong stays unsaid, since it may depend on rows.
    """
    parts: tuple[ManifestPart, ...] | None = ()
    if names_parts(wire):
        parts = _measure_parts(path, shape)
        rows = None if parts is None else {part.name: part.rows for part in parts}
    else:
        rows = _count_labelled(path, shape)
    if parts is None or rows is None or not shape.counts_fit(rows):
        raise JobFailed("the worker's table is not what was planned")
    return rows[shape.first.name], parts


def _measure_parts(path: Path, shape: Shape) -> tuple[ManifestPart, ...] | None:
    found = []
    with pa.memory_map(str(path)) as source:
        for part in shape.parts:
            begins = source.tell()
            rows = _count_part(source, part)
            if rows is None:
                return None
            found.append(ManifestPart(part.name, rows, source.tell() - begins))
        return tuple(found) if source.tell() == source.size() else None


def _count_part(source: pa.NativeFile, part: PartShape) -> int | None:
    """Rows of the stream that begins here, where it has the part's columns."""
    whole, rows = [c.name for c in part.schema.columns if not c.nullable], 0
    try:
        with pa.ipc.open_stream(source) as batches:
            if not batches.schema.equals(part.arrow()):
                return None
            for batch in batches:
                if any(batch.column(name).null_count for name in whole):
                    return None
                rows += batch.num_rows
    except (pa.ArrowException, OSError):
        return None
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
