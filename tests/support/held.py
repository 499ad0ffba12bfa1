"""Sites whose answers go with a number of the site, as an analyst has pulled them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support import made

from penstock.enquiry.holdings import COPY, REFIT, SITE, Holding, Holdings
from penstock.schema import Coded, Column, Schema, to_arrow

SITES = ("aric-f", "aric-m", "chs-f", "chs-m", "fos-f", "fos-m", "mesa-f", "mesa-m")
SCHEMA = Schema(
    (
        Column("age", "continuous", lower=0.0, upper=100.0, decimals=1),
        Column("sex", "binary", levels=("F", "M")),
        Column("sbp", "continuous", lower=0.0, upper=300.0, decimals=1),
    )
)
COPIES, ROWS = 4, 300


def hold(*, refits: int = 6, spread: float = 6.0, noise: float = 0.0, sites: int = 8) -> Holdings:
    """Sites of which the slope of sbp by sex goes with mean age; noise moves each refit's age."""
    rng = np.random.default_rng(3)

    def draw(age: float, moved: float) -> Coded:
        old = np.clip(age + moved + 8 * rng.standard_normal(ROWS), 0, 100)
        male = rng.random(ROWS) < 0.5
        pressure = 120 + (0.5 * (age - 55) + 3) * male + 5 * rng.standard_normal(ROWS)
        columns = {"age": old, "sex": male.astype(np.float64), "sbp": pressure}
        return columns

    tables = {}
    for site, age in zip(SITES[:sites], 55 + spread * np.linspace(-1, 1, sites), strict=True):
        copies = tuple(draw(age, 0.0) for _ in range(COPIES))
        again = tuple(draw(age, noise * rng.standard_normal()) for _ in range(refits))
        tables[site] = Holding(copies, again)
    mechanism = replace(made.MECHANISMS["maf"], copies=COPIES, refits=refits)
    study = made.study(mechanism, schema=SCHEMA, estimands=(), sites=SITES)
    return Holdings(study, {"estimands": [], "effects": [], "holds": []}, tables)


def write_held(held: Holdings, folder: Path) -> None:
    """The files that ``pull --refits`` writes, as far as answers read them."""
    folder.mkdir()
    told = {"study": held.study.to_dict(), "fresh": 1.0}
    (folder / "study.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(held.report), encoding="utf-8")
    for name, number in (("pooled", COPY), ("refits", REFIT)):
        tables = []
        for site, own in held.sites.items():
            for place, rows in enumerate(own.copies if number == COPY else own.refits):
                table = to_arrow(rows, SCHEMA).append_column(SITE, pa.array([site] * ROWS))
                labels = {COPY: place % COPIES + 1, number: place + 1}
                for label, value in labels.items():
                    table = table.append_column(label, pa.array([value] * ROWS))
                tables.append(table)
        pq.write_table(pa.concat_tables(tables), folder / f"{name}.parquet")
