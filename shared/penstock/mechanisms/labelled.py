"""Releases before wire 1.2: all parts in one table, told apart by numbers before the columns.

Nothing else knows of these labels, and of what columns came later: answers under labels lack them,
and are read as if nothing were known of it. Kept releases and uploads of older versions are read by
:func:`split_table`; a study that was signed for an older wire version is answered by
:func:`join_parts`.

===========  =========  =============================================
part         ``_copy``  ``_path``, where there are particles and paths
===========  =========  =============================================
copies       1, 2, …    0
refits       -1, -2, …  0
what stands  1          no such column
alone
particles    0          -1
paths        0          the path's number, from 1
===========  =========  =============================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import DOUBT, PARTICLES, PATHS, Kind, PartShape, Shape
from penstock.schema import Floats

if TYPE_CHECKING:
    import pyarrow as pa

COPY, PATH = "_copy", "_path"
_LATER = frozenset({DOUBT})
_LABELLED = (Kind.COPY, Kind.REFIT, Kind.ONCE)
_PARTICLE = -1

_NOTHING = np.iinfo(np.int32).min
"""What a missing label is read as: no label at all."""

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.intp]


def has_labels(shape: Shape) -> bool:
    """Whether labels can tell a release's parts apart: whether older versions could hold it."""
    alike = len({part.schema for part in shape.parts}) == 1
    once = shape.of_kind(Kind.ONCE)
    if any(part.kind not in _LABELLED for part in shape.parts):
        return False
    return alike and (len(shape.parts) == 1 or all(p.name in (PARTICLES, PATHS) for p in once))


def list_labels(shape: Shape) -> tuple[str, ...]:
    """The columns before those of the parts."""
    return (COPY, PATH) if len(shape.parts) > 1 and shape.of_kind(Kind.ONCE) else (COPY,)


def arrow_schema(shape: Shape) -> pa.Schema:
    """Names and types of the table."""
    return _label_rows(shape, Part(shape.first.name, _no_rows(shape)), 0).schema


def join_parts(shape: Shape, parts: Iterable[Part]) -> Iterator[pa.Table]:
    """The parts under their labels, one after the other, as they come."""
    before = ("", 0)
    for part in parts:
        first = before[1] if before[0] == part.name else 0
        yield _label_rows(shape, part, first)
        before = (part.name, first + part.rows)


def count_rows(shape: Shape, labels: pa.Table) -> dict[str, int] | None:
    """How many rows each part has, by the labels of all rows; None where they are others."""
    places = _find_parts(shape, labels)
    return None if places is None else {name: len(rows) for name, rows in places.items()}


def split_table(shape: Shape, table: pa.Table) -> dict[str, pa.Table] | None:
    """The parts of a table, without their labels, in the shape's order; None if it has others.

    Copies and refits may come in any order; particles come before paths, and paths by number.
    """
    places = _find_parts(shape, table)
    if places is None:
        return None
    plain = _add_later(shape, table.drop_columns(list(list_labels(shape))))
    return {name: _take_rows(plain, rows) for name, rows in places.items()}


def _number_parts(shape: Shape) -> dict[str, int]:
    """:data:`COPY` of each part."""
    if not has_labels(shape):
        raise TypeError(f"no wire version before 1.2 can hold {', '.join(shape.names)}")
    if len(shape.parts) == 1:
        return {shape.first.name: 1}
    numbers = {part.name: 0 for part in shape.of_kind(Kind.ONCE)}
    for kind, sign in ((Kind.COPY, 1), (Kind.REFIT, -1)):
        numbers |= {part.name: sign * (i + 1) for i, part in enumerate(shape.of_kind(kind))}
    return {name: numbers[name] for name in shape.names}


def _number_paths(part: PartShape, first: int, rows: int) -> Numbers:
    """:data:`PATH` of so many rows of a part, of which so many came before."""
    if part.name == PATHS:
        return ((first + np.arange(rows)) // part.each + 1).astype(np.int32)
    return np.full(rows, _PARTICLE if part.name == PARTICLES else 0, dtype=np.int32)


def _no_rows(shape: Shape) -> dict[str, Floats]:
    return {name: np.zeros(0) for name in shape.first.schema.names}


def _label_rows(shape: Shape, part: Part, first: int) -> pa.Table:
    import pyarrow as pa

    form = shape.part(part.name)
    found = form.table(part.columns)
    found = found.drop_columns(sorted(_LATER.intersection(found.column_names)))
    copy = np.full(part.rows, _number_parts(shape)[part.name], dtype=np.int32)
    labels = {COPY: copy, PATH: _number_paths(form, first, part.rows)}
    for place, name in enumerate(list_labels(shape)):
        found = found.add_column(place, name, pa.array(labels[name], pa.int32()))
    return found


def _add_later(shape: Shape, table: pa.Table) -> pa.Table:
    """With the columns that came later, all of them missing."""
    import pyarrow as pa

    for place, field in enumerate(shape.first.arrow()):
        if field.name in _LATER:
            table = table.add_column(place, field, pa.nulls(len(table), field.type))
    return table


def _find_parts(shape: Shape, labels: pa.Table) -> dict[str, Places] | None:
    """The rows of each part; None if labels are missing, unknown, or not in their order."""
    copies, numbers = _read_labels(labels, COPY), _number_parts(shape)
    if not np.isin(copies, list(numbers.values())).all():
        return None
    order = np.argsort(copies, kind="stable")
    at = copies[order]
    rows = {
        name: order[slice(*np.searchsorted(at, [number, number + 1]))]
        for name, number in numbers.items()
    }
    if PATH not in list_labels(shape):
        return rows
    # Particles and paths have one label; they lie one after the other.
    paths, rest, expected = _read_labels(labels, PATH), rows[shape.of_kind(Kind.ONCE)[0].name], []
    for part in shape.of_kind(Kind.ONCE):
        rows[part.name], rest = rest[: part.rows], rest[part.rows :]
        expected.append(_number_paths(part, 0, part.rows))
    other = copies == 0
    right = (paths[~other] == 0).all() and np.array_equal(paths[other], np.concatenate(expected))
    return rows if right else None


def _take_rows(table: pa.Table, rows: Places) -> pa.Table:
    """Without a copy where they lie one after the other, as genuine ones do."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(rows[0], len(rows))
    return table.take(rows)


def _read_labels(table: pa.Table, name: str) -> Numbers:
    found: Numbers = table.column(name).fill_null(_NOTHING).to_numpy()
    return found
