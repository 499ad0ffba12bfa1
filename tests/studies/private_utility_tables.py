"""The tables of the study of whole tables, and the margins in which two of them are compared."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_real import read_table
from tests.studies.large_tables import LARGE, read_large

from penstock.schema import Coded, Column, Schema

Codes = NDArray[np.intp]
Margins = tuple[tuple[int, ...], ...]

ADULT, ADULT_ROWS = "adult, 13 columns", 10_000
NUMBERS = {
    "age": (16, 91),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 4_500),
    "hours-per-week": (0, 100),
}
DROPPED = ["fnlwgt", "education-num"]

REAL = (
    *("flchain", "nwtco", "rotterdam", "nafld1", "adult", "randhie", "fair"),
    *("mgus2", "colon", "gbsg2", "kidney", "anes96", "heart", "breast", "diabetes", "rossi"),
)
SIMULATED = ("weibull", "thresholds", "interactions")
SIZES, MOST, SIMULATED_ROWS = (300, 2000), 50_000, 10_000
BINS, TRIPLES = 20, 60
NAMES = ("one-way", "two-way", "three-way")
"""Of the margins, by how many columns they have."""


@dataclass(frozen=True, slots=True)
class Private:
    """The rows that a release is made of, and their dictionary."""

    schema: Schema
    rows: Coded


# -- tables ----------------------------------------------------------------------------------------


@cache
def read_adult() -> Private:
    """All of Adult's rows."""
    path = Path(os.environ.get("PENSTOCK_TABLES", ".")) / "adult.csv.gz"
    found = pd.read_csv(path).drop(columns=DROPPED)
    columns, coded = list[Column](), Coded()
    for name in found:
        key = str(name).replace("-", "_")
        if name in NUMBERS:
            spike = 0 if str(name).startswith("capital") else None
            columns.append(Column(key, "integer", *NUMBERS[str(name)], spike=spike))
            coded[key] = found[name].to_numpy(np.float64)
            continue
        levels = sorted(found[name].unique())
        coded[key] = found[name].map({level: i for i, level in enumerate(levels)}).to_numpy(float)
        kind = "binary" if len(levels) == 2 else "categorical"
        columns.append(Column(key, kind, levels=() if kind == "binary" else tuple(levels)))
    return Private(Schema(tuple(columns)), coded)


def draw_adult(number: int) -> tuple[Private, Private]:
    """A site's rows, and all others."""
    whole = read_adult()
    order = np.random.default_rng(number).permutation(len(next(iter(whole.rows.values()))))
    mine, others = (
        Private(whole.schema, {name: values[places] for name, values in whole.rows.items()})
        for places in (order[:ADULT_ROWS], order[ADULT_ROWS:])
    )
    return mine, others


def list_tables() -> dict[str, tuple[int, ...]]:
    """The sizes of each table that is there, the largest one last."""
    found: dict[str, tuple[int, ...]] = {}
    for name in REAL:
        table = read_table(name)
        if table is not None:
            most = min(table.n, MOST)
            found[name] = (*(n for n in SIZES if n < most), most)
    for name in LARGE:  # drawn in one size
        whole = read_large(name)
        if whole is not None:
            found[name] = (min(whole.n, MOST),)
    return found | {name: (*SIZES, SIMULATED_ROWS) for name in SIMULATED}


def draw_table(name: str, n: int, number: int) -> Private:
    """So many rows, the same for each arm and ε, with the dictionary that `site check` suggests.

    Raises:
        KeyError: a table that is not there.
    """
    rng = np.random.default_rng(seed_of(name, n, number))
    if name in SIMULATED:
        table = FROZEN[name](n, rng)
        return Private(table.suggested(), table.rows)
    found = read_large(name) if name in LARGE else read_table(name)
    if found is None:
        raise KeyError(name)
    return Private(found.suggested(), found.take(rng.permutation(found.n)[:n]).rows)


# -- margins ---------------------------------------------------------------------------------------


def count_cells(schema: Schema) -> list[int]:
    """How many cells each column has, with one for what is missing."""
    return [(len(c.levels) or BINS) + c.nullable for c in schema.columns]


def to_codes(rows: Coded, schema: Schema) -> Codes:
    """(N, d) cells: levels as they are, numbers in even bins between their bounds."""
    found = []
    for column in schema.columns:
        values, last = rows[column.name], len(column.levels) or BINS
        if not column.levels:
            low, high = column.bounds
            values = np.clip(np.floor((values - low) / (high - low) * BINS), 0, BINS - 1)
        if column.nullable:
            values = np.where(np.isnan(values), last, values)
        found.append(values.astype(np.intp))
    return np.column_stack(found)


@cache
def list_margins(columns: int) -> tuple[Margins, Margins, Margins]:
    """Of one, two and three columns: all of the first two, and of the last one 60 or all."""
    every = range(columns)
    triples: Margins = tuple(combinations(every, 3))
    if len(triples) > TRIPLES:
        rng = np.random.default_rng(0)
        triples = tuple(
            tuple(sorted(rng.choice(columns, 3, replace=False).tolist())) for _ in range(TRIPLES)
        )
    return tuple((j,) for j in every), tuple(combinations(every, 2)), triples


def compare_margins(ours: Codes, theirs: Codes, cells: list[int]) -> list[float]:
    """Mean total variation distance over the margins of each size."""

    def share(codes: Codes, columns: tuple[int, ...]) -> NDArray[np.float64]:
        shape = tuple(cells[j] for j in columns)
        place = np.ravel_multi_index(tuple(codes[:, j] for j in columns), shape)
        return np.bincount(place, minlength=math.prod(shape)) / len(codes)

    return [
        float(np.mean([np.abs(share(ours, m) - share(theirs, m)).sum() / 2 for m in margins]))
        for margins in list_margins(len(cells))
    ]
