"""Certified rows: an Arrow file that only the gate's user can read."""

from __future__ import annotations

import hashlib
import hmac
import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.base.files import write_atomic
from penstock.schema import Schema

if TYPE_CHECKING:
    # With scipy: half a second that every command of a site would wait for.
    from penstock.schema.encoding import Encoding

    # Validation is pandas, 40 MB of it, which no worker needs.
    from penstock_client.rows.validation import Checked

PERSON = "\x00person"
"""The person's index; no dictionary column can have this name."""

Array = NDArray[np.float64]
Bytes = bytes | mmap.mmap


def encode_rows(checked: Checked) -> bytes:
    """The coded rows as an Arrow IPC file."""
    columns = {PERSON: pa.array(checked.person)}
    columns.update({name: pa.array(values) for name, values in checked.coded.items()})
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def keyed_fingerprint(data: Bytes, secret: bytes, *more: Bytes) -> str:
    """HMAC-SHA256 of the rows: a plain hash would confirm a guess of the whole file.

    Args:
        more: what follows ``data``, without a copy of both together.
    """
    found = hmac.new(secret, b"penstock/rows\x00", hashlib.sha256)
    for part in (data, *more):
        found.update(part)
    return found.hexdigest()


def locate_rows(folder: Path, lineage: str, version: int) -> Path:
    return folder / f"{lineage}-{version}.arrow"


def save_rows(folder: Path, lineage: str, version: int, data: bytes) -> Path:
    """Write a version's rows, mode 0600."""
    path = locate_rows(folder, lineage, version)
    write_atomic(path, data)
    return path


def load_rows(data: Bytes) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """Coded columns and the person index of each row, copied out of a snapshot's bytes."""
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    person = table.column(PERSON).to_numpy().astype(np.int64)
    coded = {
        name: table.column(name).to_numpy().astype(np.float64)
        for name in table.column_names
        if name != PERSON
    }
    return coded, person


def recode_levels(coded: dict[str, Array], dictionary: Schema, study: Schema) -> dict[str, Array]:
    """The study's columns, with level indices in the study's order.

    Levels that the study does not know become missing (the schemas were compared before; this
    only follows a dictionary that lists its levels in another order).
    """
    result = {}
    for column in study.columns:
        values = coded[column.name]
        theirs = dictionary[column.name].levels
        if column.levels and column.levels != theirs:
            place = {level: float(i) for i, level in enumerate(column.levels)}
            table = np.array([place.get(level, math.nan) for level in theirs] + [math.nan])
            index = np.where(np.isnan(values), len(theirs), values).astype(np.intp)
            values = table[index]
        result[column.name] = values
    return result


def hold_first_known(values: Array) -> Array:
    """Values (n, k), each replaced by the first of its line that is known; NaN where none is."""
    first = values[:, -1]
    for column in values.T[-2::-1]:
        first = np.where(np.isnan(column), first, column)
    return np.repeat(first[:, None], values.shape[1], axis=1)


def arrange_by_person(
    coded: dict[str, Array],
    person: NDArray[np.int64],
    persons: int,
    encoding: Encoding,
    rng: np.random.Generator,
) -> tuple[Array, NDArray[np.bool_]]:
    """Lay rows out by person and encode them: (persons, k, d), with a presence mask (persons, k).

    At most k = ``max_rows_per_person`` rows of a person are used, the first ones; absent
    rows, and rows with a missing value in a column that is not nullable, are null. In a column that
    does not vary all of a person's rows have the first value that is known of one. All persons · k
    places are encoded, the absent ones too: what it costs is public, but for the sorting of as many
    rows as the file has, which is the same for every study.
    """
    schema = encoding.schema
    k = schema.max_rows_per_person
    order = np.argsort(person, kind="stable")
    ordered = person[order]
    rows_of = np.bincount(person, minlength=persons)
    rank = np.arange(len(ordered)) - (np.cumsum(rows_of) - rows_of)[ordered]
    # What is beyond the k-th row goes to one place more, which is not looked at.
    place = np.where(rank < k, ordered * k + rank, persons * k)

    def laid_out(values: NDArray[np.generic], nothing: float) -> Array:
        found = np.full(persons * k + 1, nothing)
        found[place] = values[order]
        return found[:-1]

    there = laid_out(np.ones(len(person)), 0.0) > 0
    placed = {name: laid_out(values, math.nan) for name, values in coded.items()}
    for column in schema.columns:
        if not column.varies:
            placed[column.name] = hold_first_known(placed[column.name].reshape(persons, k)).ravel()
    rows, present = encoding.encode(placed, rng)
    mask = present & there
    x = np.where(mask[:, None], rows, 0.0)
    return x.reshape(persons, k, encoding.d), mask.reshape(persons, k)
