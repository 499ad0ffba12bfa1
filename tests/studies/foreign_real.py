"""Real tables for the study of tables that nobody here simulated, with a newcomer's dictionaries.

flchain, nwtco, rotterdam, colon (deaths), mgus2 and nafld1 are those of R's survival package:
`for (t in c("flchain", "nwtco", "rotterdam", "colon", "mgus2", "nafld1"))
write.csv(get(t, "package:survival"), gzfile(paste0(t, ".csv.gz")), row.names = FALSE)`, in the
folder that PENSTOCK_TABLES names (`nafld1` is part of the data set `nafld`); adult, whose first
10,000 rows are taken, and heart_cleveland, heart_hungarian, heart_switzerland and heart_va are of
the UCI repository, in the same folder. They are no part of this package, and what is absent is
skipped. gbsg2, rossi and kidney (transplants) ship with lifelines, fair, anes96 and randhie (its
first 6,000 rows) with statsmodels, diabetes and breast (cancer) with scikit-learn.

Rows that lack a column of the question are left out, so that real and synthetic fits are of the
same rows; follow-ups are round numbers, and what happens later has not happened. Names, kinds,
units and bounds are out of the help pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
from lifelines.datasets import load_gbsg2, load_kidney_transplant, load_rossi
from statsmodels.datasets import anes96, fair, randhie
from tests.studies.foreign_tables import Table, binary, finish, outcome

from penstock.schema import Coded, Column, Schema


@cache
def read_table(name: str) -> Table | None:
    """The real table of that name; None if it is not there."""
    try:
        return _MAKERS[name]()
    except (FileNotFoundError, ModuleNotFoundError):
        return None


def read_csv(name: str) -> pd.DataFrame:
    """A file of the folder.

    Raises:
        FileNotFoundError: it is not there.
    """
    folder = Path(os.environ.get("PENSTOCK_TABLES", "."))
    found = [path for end in ("csv", "csv.gz") if (path := folder / f"{name}.{end}").exists()]
    if not found:
        raise FileNotFoundError(name)
    return pd.read_csv(found[0], na_values=["?", "-9", "-9.0"])


def arrange_survival(
    found: pd.DataFrame, time: str, event: str, columns: Sequence[Column], named: tuple[str, ...]
) -> Table:
    """Columns by their names in the file; the first two of ``columns`` are the outcome's."""
    return arrange_columns(
        found, {time: columns[0].name, event: columns[1].name}, columns, named, "cox"
    )


def arrange_columns(
    found: pd.DataFrame,
    names: dict[str, str],
    columns: Sequence[Column],
    named: tuple[str, ...],
    model: str,
) -> Table:
    """Columns by ``names`` of the file's, the outcome first, in codes; complete rows alone."""
    frame = found.rename(columns=names)[[c.name for c in columns]].dropna()
    coded: Coded = {}
    for column in columns:
        values = frame[column.name]
        if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
            values = values.map({level: i for i, level in enumerate(column.levels)})
        coded[column.name] = values.to_numpy(float)
    return finish(coded, Schema(tuple(columns)), named, model=model)


# -- survival --------------------------------------------------------------------------------------


def _flchain() -> Table:
    t = read_csv("flchain")
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
    return arrange_survival(t, "futime", "death", columns, ("age", "sex", "kappa", "creatinine"))


def _nwtco() -> Table:
    t = read_csv("nwtco")
    t = t.assign(unfavourable=t["histol"] - 1, stage=t["stage"] - 1, study=t["study"] - 3)
    columns = (
        *outcome(3652, "days", "relapse"),
        Column("age", "integer", 0, 240, unit="months"),
        Column("stage", "ordered", levels=("I", "II", "III", "IV")),
        *binary("unfavourable", "study"),
    )
    return arrange_survival(t, "edrel", "rel", columns, ("stage", "unfavourable", "age"))


def _rotterdam() -> Table:
    t = read_csv("rotterdam")
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
    return arrange_survival(t, "dtime", "death", columns, ("nodes", "grade3", "chemo", "age"))


def _colon() -> Table:
    t = read_csv("colon")
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
    return arrange_survival(t, "time", "status", columns, ("rx=Lev+5FU", "nodes", "extent", "age"))


def _mgus2() -> Table:
    t = read_csv("mgus2")
    columns = (
        *outcome(120, "months"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("hgb", "continuous", 3, 22, 1, label="Hemoglobin", unit="g/dl"),
        Column("creat", "continuous", 0.2, 30, 1, label="Creatinine", unit="mg/dl"),
        Column("mspike", "continuous", 0, 5, 1, label="Monoclonal spike", unit="g/dl"),
    )
    return arrange_survival(t, "futime", "death", columns, ("age", "sex", "hgb", "creat"))


def _nafld1() -> Table:
    t = read_csv("nafld1")
    columns = (
        *outcome(3652, "days"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("bmi", "continuous", 8, 90, 1, unit="kg/m2"),
        *binary("male"),
    )
    return arrange_survival(t, "futime", "status", columns, ("age", "male", "bmi"))


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
    return arrange_survival(
        load_gbsg2(), "time", "cens", columns, ("horTh", "pnodes", "tgrade", "age")
    )


def _rossi() -> Table:
    columns = (
        *outcome(52, "weeks", "arrest"),
        Column("age", "integer", 15, 80, unit="years"),
        Column("prio", "integer", 0, 40, label="Number of prior convictions"),
        *binary("fin", "race", "wexp", "mar", "paro"),
    )
    return arrange_survival(load_rossi(), "week", "arrest", columns, ("fin", "age", "prio"))


def _kidney() -> Table:
    columns = (
        *outcome(1826, "days"),
        Column("age", "integer", 0, 100, unit="years"),
        *binary("black_male", "white_male", "black_female"),
    )
    return arrange_survival(
        load_kidney_transplant(), "time", "death", columns, ("age", "black_male")
    )


# -- other outcomes --------------------------------------------------------------------------------

_MARITAL = (
    *("Never-married", "Married-civ-spouse", "Divorced", "Separated", "Widowed"),
    *("Married-spouse-absent", "Married-AF-spouse"),
)
_RACE = ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other")


def _adult() -> Table:
    """Who earns more than 50,000 dollars."""
    return _of_adult("logistic", "rich", ("age", "educ", "hours", "sex"))


def _adult_hours() -> Table:
    """How long they work a week."""
    return _of_adult("ols", "hours", ("age", "educ", "sex"))


def _of_adult(model: str, first: str, named: tuple[str, ...]) -> Table:
    names = {
        **{"class": "rich", "education-num": "educ", "hours-per-week": "hours"},
        **{"capital-gain": "gain", "capital-loss": "loss", "marital-status": "marital"},
    }
    columns = (
        Column("rich", "binary", levels=("<=50K", ">50K")),
        Column("age", "integer", 16, 100, unit="years"),
        Column("educ", "integer", 1, 16, label="Education, from preschool to doctorate"),
        Column("hours", "integer", 0, 100, unit="hours"),
        Column("gain", "integer", 0, 100_000, label="Capital gain", unit="USD"),
        Column("loss", "integer", 0, 10_000, label="Capital loss", unit="USD"),
        Column("sex", "binary", levels=("Female", "Male")),
        Column("marital", "categorical", levels=_MARITAL),
        Column("race", "categorical", levels=_RACE),
    )
    ordered = sorted(columns, key=lambda column: column.name != first)
    return arrange_columns(read_csv("adult").head(10_000), names, ordered, named, model)


def _randhie() -> Table:
    """Visits to a doctor in a year, RAND's experiment."""
    found = randhie.load_pandas().data
    found = found[found["physlm"].isin([0, 1])].head(6000)
    columns = (
        Column("mdvis", "integer", 0, 100, label="Visits"),
        Column("lncoins", "continuous", 0, 5, 2, label="log(coinsurance rate + 1)"),
        Column("lpi", "continuous", 0, 8, 2, label="log(incentive payment)"),
        Column("fmde", "continuous", 0, 9, 2, label="log(medical deductible)"),
        Column("disea", "continuous", 0, 60, 1, label="Chronic diseases"),
        *binary("idp", "physlm", "hlthg", "hlthf", "hlthp"),
    )
    return arrange_columns(found, {}, columns, ("lncoins", "disea", "physlm", "hlthf"), "poisson")


def _fair() -> Table:
    """Who had an affair."""
    found = fair.load_pandas().data
    found = found.assign(affair=found["affairs"] > 0, occupation=found["occupation"] - 1)
    columns = (
        Column("affair", "binary"),
        Column("rate_marriage", "integer", 1, 5),
        Column("age", "continuous", 17, 45, 1, unit="years"),
        Column("yrs_married", "continuous", 0, 25, 1, unit="years"),
        Column("children", "continuous", 0, 6, 1),
        Column("religious", "integer", 1, 4),
        Column("educ", "integer", 8, 20, unit="years"),
        Column("occupation", "categorical", levels=("a", "b", "c", "d", "e", "f")),
    )
    named = ("rate_marriage", "age", "yrs_married", "religious")
    return arrange_columns(found, {}, columns, named, "logistic")


def _anes96() -> Table:
    """Who meant to vote for Dole."""
    columns = (
        Column("vote", "binary"),
        Column("popul", "integer", 0, 8000, label="Population, thousands"),
        Column("TVnews", "integer", 0, 7, unit="days"),
        Column("selfLR", "integer", 1, 7),
        Column("PID", "integer", 0, 6),
        Column("age", "integer", 18, 100, unit="years"),
        Column("educ", "integer", 1, 7),
        Column("income", "integer", 1, 24, label="Income, in groups"),
    )
    found = anes96.load_pandas().data
    return arrange_columns(found, {}, columns, ("selfLR", "age", "educ", "income"), "logistic")


def _heart() -> Table:
    """Largest heart rates of four hospitals' patients."""
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    found = pd.concat([read_csv(f"heart_{name}") for name in hospitals])
    found = found.assign(cp=found["cp"] - 1, disease=found["num"] > 0)
    columns = (
        Column("thalach", "integer", 40, 240, unit="bpm"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("trestbps", "integer", 60, 260, unit="mmHg"),
        Column("oldpeak", "continuous", -5, 10, 1, unit="mm"),
        Column("cp", "categorical", levels=("typical", "atypical", "other", "none")),
        *binary("sex", "exang", "disease"),
    )
    return arrange_columns(found, {}, columns, ("age", "exang", "disease", "sex"), "ols")


def _diabetes() -> Table:
    """How far a disease is after a year."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(as_frame=True, scaled=False).frame
    found = found.assign(sex=found["sex"] - 1)
    columns = (
        Column("target", "integer", 0, 400, label="Progression"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("bmi", "continuous", 10, 60, 1, unit="kg/m2"),
        Column("bp", "continuous", 40, 160, 1, unit="mmHg"),
        Column("s1", "integer", 50, 400, label="Total cholesterol", unit="mg/dl"),
        Column("s3", "integer", 10, 150, label="HDL", unit="mg/dl"),
        Column("s6", "integer", 40, 200, label="Blood sugar", unit="mg/dl"),
        *binary("sex"),
    )
    return arrange_columns(found, {}, columns, ("bmi", "bp", "s3", "sex"), "ols")


def _breast() -> Table:
    """Which tumours are malignant."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True).frame
    found = found.assign(malignant=1 - found["target"])
    names = {f"mean {name}": name for name in ("texture", "smoothness", "symmetry", "concavity")}
    columns = (
        Column("malignant", "binary"),
        Column("texture", "continuous", 5, 50, 2),
        Column("smoothness", "continuous", 0, 0.3, 4),
        Column("symmetry", "continuous", 0, 0.5, 4),
        Column("concavity", "continuous", 0, 1, 4),
    )
    return arrange_columns(found, names, columns, ("texture", "smoothness", "symmetry"), "logistic")


_MAKERS: dict[str, Callable[[], Table]] = {
    "flchain": _flchain,
    "nwtco": _nwtco,
    "rotterdam": _rotterdam,
    "nafld1": _nafld1,
    "adult": _adult,
    "adult-hours": _adult_hours,
    "randhie": _randhie,
    "diabetes": _diabetes,
    "gbsg2": _gbsg2,
    "rossi": _rossi,
    "kidney": _kidney,
    "colon": _colon,
    "mgus2": _mgus2,
    "fair": _fair,
    "anes96": _anes96,
    "heart": _heart,
    "breast": _breast,
}
