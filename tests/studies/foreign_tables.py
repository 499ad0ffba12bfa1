"""Real tables for the study of tables that nobody here simulated, with a newcomer's dictionaries.

flchain, nwtco, rotterdam, colon (deaths), mgus2 and nafld1 are those of R's survival package:
`for (t in c("flchain", "nwtco", "rotterdam", "colon", "mgus2", "nafld1"))
write.csv(get(t, "package:survival"), gzfile(paste0(t, ".csv.gz")), row.names = FALSE)`, in the
folder that PENSTOCK_TABLES names (`nafld1` is part of the data set `nafld`). They are no part of
this package, and what is absent is skipped. gbsg2, rossi and kidney (transplants) ship with
lifelines. Rows that lack a column of the question are left out, so that real and synthetic fits
are of the same rows; follow-ups are round numbers, and what happens later has not happened.

Names, kinds, units and bounds are out of the help pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines.datasets import load_gbsg2, load_kidney_transplant, load_rossi
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema, end_follow_up, follow_suggestions

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Table:
    """A table in codes, a newcomer's dictionary, and what a study would ask of it.

    Args:
        schema: its first two columns are the duration and its event.
        named: the declared coefficients of one Cox model, ``column`` or ``column=level``.
        products: declared interactions, ``a:b`` of two columns that are named.
        undeclared: interactions that nobody declares, of any two columns.
    """

    rows: Coded
    schema: Schema
    named: tuple[str, ...]
    products: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.rows[self.schema.names[0]])

    def suggested(self) -> Schema:
        """The dictionary as `site check` suggests it: scales, spikes, decimals."""
        return replace(self.schema, columns=tuple(map(follow_suggestions, self.schema.columns)))

    def take(self, places: Places) -> Table:
        """Some of its rows, each as often as it is named."""
        return replace(self, rows={name: values[places] for name, values in self.rows.items()})


def estimands(table: Table, *, products: bool = False) -> tuple[Estimand, ...]:
    """As a study declares them: each named coefficient, adjusted for the others.

    Args:
        products: the declared interactions, too, each adjusted for all that is named.
    """
    time, named = table.schema.names[0], [name.partition("=") for name in table.named]
    asked = []
    for number, (term, _, level) in enumerate(named):
        adjust = tuple(other for other, _, _ in named if other != term)
        asked.append(
            Estimand(f"effect{number}", "cox", time, term, adjust=adjust, level=level or None)
        )
    if products:
        adjust = tuple(term for term, _, _ in named)
        for number, name in enumerate(table.products):
            asked.append(Estimand(f"product{number}", "cox", time, name, adjust=adjust))
    return tuple(asked)


@cache
def can_declare_products() -> bool:
    """Whether an estimand's term may be an interaction, ``a:b``, in this version of the package."""
    try:
        Estimand("product", "cox", "time", "a:b", adjust=("a", "b"))
    except InvalidInput:
        return False
    return True


def _table(
    found: pd.DataFrame, time: str, event: str, columns: Sequence[Column], named: tuple[str, ...]
) -> Table:
    """Columns by their names in the file; the first two of ``columns`` are the outcome's."""
    frame = found.rename(columns={time: columns[0].name, event: columns[1].name})
    frame = frame[[c.name for c in columns]].dropna()
    coded: Coded = {}
    for column in columns:
        values = frame[column.name]
        if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
            values = values.map({level: i for i, level in enumerate(column.levels)})
        coded[column.name] = values.to_numpy(float)
    schema = Schema(tuple(columns))
    return finish(coded, schema, named)


def finish(
    coded: Coded,
    schema: Schema,
    named: tuple[str, ...],
    products: tuple[str, ...] = (),
    undeclared: tuple[str, ...] = (),
) -> Table:
    """What follows the end of follow-up has not happened, and values are as a site takes them."""
    ended = end_follow_up(coded, schema)
    rows = {c.name: c.snap(ended[c.name]) for c in schema.columns}
    return Table(rows, schema, named, products, undeclared)


def outcome(upper: float, unit: str, event: str = "death") -> tuple[Column, Column]:
    decimals = 0 if unit in ("weeks", "days", "months") else 2
    time = Column("time", "duration", upper=upper, decimals=decimals, event=event, unit=unit)
    return time, Column(event, "event")


def binary(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "binary") for name in names)


@cache
def read_table(name: str) -> Table | None:
    """The real table of that name; None if it is not there."""
    if name in _HERE:
        return _HERE[name]()
    folder = Path(os.environ.get("PENSTOCK_TABLES", "."))
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.exists():
            return _ELSEWHERE[name](pd.read_csv(path))
    return None


def _flchain(t: pd.DataFrame) -> Table:
    t = t[t["futime"] > 0]  # three died on the day of their sample
    columns = (
        *outcome(4000, "days"),
        Column("age", "integer", 50, 110, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("kappa", "continuous", 0, 50, label="Free light chain, kappa", unit="mg/dl"),
        Column("lambda", "continuous", 0, 50, label="Free light chain, lambda", unit="mg/dl"),
        Column("creatinine", "continuous", 0.2, 20, 1, unit="mg/dl"),
        *binary("mgus"),
    )
    return _table(t, "futime", "death", columns, ("age", "sex", "kappa", "creatinine"))


def _nwtco(t: pd.DataFrame) -> Table:
    t = t.assign(unfavourable=t["histol"] - 1, stage=t["stage"] - 1, study=t["study"] - 3)
    columns = (
        *outcome(3652, "days", "relapse"),
        Column("age", "integer", 0, 240, unit="months"),
        Column("stage", "ordered", levels=("I", "II", "III", "IV")),
        *binary("unfavourable", "study"),
    )
    return _table(t, "edrel", "rel", columns, ("stage", "unfavourable", "age"))


def _rotterdam(t: pd.DataFrame) -> Table:
    t = t.assign(grade3=t["grade"] - 2)
    columns = (
        *outcome(3652, "days"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("size", "ordered", levels=("<=20", "20-50", ">50"), unit="mm"),
        Column("nodes", "integer", 0, 60, label="Number of positive lymph nodes"),
        Column("pgr", "integer", 0, 10_000, label="Progesterone receptors", unit="fmol/l"),
        Column("er", "integer", 0, 10_000, label="Estrogen receptors", unit="fmol/l"),
        *binary("meno", "grade3", "hormon", "chemo"),
    )
    return _table(t, "dtime", "death", columns, ("nodes", "grade3", "chemo", "age"))


def _colon(t: pd.DataFrame) -> Table:
    t = t[t["etype"] == 2]
    t = t.assign(differ=t["differ"] - 1, extent=t["extent"] - 1)
    columns = (
        *outcome(1826, "days"),
        Column("rx", "categorical", levels=("Obs", "Lev", "Lev+5FU"), label="Treatment"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("nodes", "integer", 0, 60, label="Number of positive lymph nodes"),
        Column("differ", "ordered", levels=("well", "moderate", "poor")),
        Column("extent", "ordered", levels=("submucosa", "muscle", "serosa", "contiguous")),
        *binary("sex", "obstruct", "adhere", "surg"),
    )
    return _table(t, "time", "status", columns, ("rx=Lev+5FU", "nodes", "extent", "age"))


def _mgus2(t: pd.DataFrame) -> Table:
    columns = (
        *outcome(120, "months"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("hgb", "continuous", 3, 22, 1, label="Hemoglobin", unit="g/dl"),
        Column("creat", "continuous", 0.2, 30, 1, label="Creatinine", unit="mg/dl"),
        Column("mspike", "continuous", 0, 5, 1, label="Monoclonal spike", unit="g/dl"),
    )
    return _table(t, "futime", "death", columns, ("age", "sex", "hgb", "creat"))


def _nafld1(t: pd.DataFrame) -> Table:
    columns = (
        *outcome(3652, "days"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("bmi", "continuous", 8, 90, 1, unit="kg/m2"),
        *binary("male"),
    )
    return _table(t, "futime", "status", columns, ("age", "male", "bmi"))


_ELSEWHERE: dict[str, Callable[[pd.DataFrame], Table]] = {
    "flchain": _flchain,
    "nwtco": _nwtco,
    "rotterdam": _rotterdam,
    "colon": _colon,
    "mgus2": _mgus2,
    "nafld1": _nafld1,
}


def _gbsg2() -> Table:
    columns = (
        *outcome(1826, "days", "recurrence"),
        Column("horTh", "binary", levels=("no", "yes")),
        Column("age", "integer", 18, 100, unit="years"),
        Column("menostat", "binary", levels=("Pre", "Post")),
        Column("tsize", "integer", 0, 200, label="Tumour size", unit="mm"),
        Column("tgrade", "ordered", levels=("I", "II", "III")),
        Column("pnodes", "integer", 0, 60, label="Number of positive nodes"),
        Column("progrec", "integer", 0, 10_000, label="Progesterone receptors", unit="fmol/l"),
        Column("estrec", "integer", 0, 10_000, label="Estrogen receptors", unit="fmol/l"),
    )
    return _table(load_gbsg2(), "time", "cens", columns, ("horTh", "pnodes", "tgrade", "age"))


def _rossi() -> Table:
    columns = (
        *outcome(52, "weeks", "arrest"),
        Column("age", "integer", 15, 80, unit="years"),
        Column("prio", "integer", 0, 40, label="Number of prior convictions"),
        *binary("fin", "race", "wexp", "mar", "paro"),
    )
    return _table(load_rossi(), "week", "arrest", columns, ("fin", "age", "prio"))


def _kidney() -> Table:
    columns = (
        *outcome(1826, "days"),
        Column("age", "integer", 0, 100, unit="years"),
        *binary("black_male", "white_male", "black_female"),
    )
    return _table(load_kidney_transplant(), "time", "death", columns, ("age", "black_male"))


_HERE: dict[str, Callable[[], Table]] = {"gbsg2": _gbsg2, "rossi": _rossi, "kidney": _kidney}

REAL = (*_ELSEWHERE, *_HERE)
"""Names of the real tables."""
