"""Real tables that nobody had looked at when everything else was set, and what is asked of them.

Chosen in November 2026 for what they are about. Their columns' ranges and levels were looked at for
the dictionaries, and the answers of all rows to see that each question has one; then all was
written down, before a release of any of them was made. Whoever sets something by one of them moves
it out of here. In the folder that PENSTOCK_TABLES
names, made in R (Debian's r-cran-timereg, r-cran-epi, r-cran-aer and r-cran-mice) by
`data(TRACE, package = "timereg"); data(DMlate, package = "Epi"); data(HMDA, NMES1988,
HealthInsurance, package = "AER"); fdgs <- mice::fdgs` and, for each of them,
`write.csv(TRACE, gzfile("TRACE.csv.gz"), row.names = FALSE)`; what is absent is skipped.

`trace` are 1,878 Danes after a myocardial infarction, `diabetes-dk` 10,000 after a diagnosis of
diabetes, `mortgages` 2,380 applications in Boston, `medicare` visits to physicians of 4,406
Americans, `insured` 8,802 Americans of working age, and `heights` 10,030 Dutch children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from tests.studies.foreign_real import arrange_columns, arrange_survival, read_csv
from tests.studies.foreign_tables import Table, outcome

from penstock.schema import Column

_YES = ("no", "yes")


@cache
def read_unseen(name: str) -> Table | None:
    """The table of that name; None if it is not there."""
    try:
        return MAKERS[name]()
    except FileNotFoundError:
        return None


def _answers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "binary", levels=_YES) for name in names)


def _trace() -> Table:
    found = read_csv("TRACE")
    found = found.assign(death=(found["status"] != 0).astype(int))
    columns = (
        *outcome(8.5, "years"),
        Column("wmi", "continuous", 0.3, 3, 1, label="Wall motion index"),
        Column("age", "continuous", 18, 110, 1, unit="years"),
        *(Column(name, "binary") for name in ("chf", "sex", "diabetes", "vf")),
    )
    return arrange_survival(found, "time", "death", columns, ("wmi", "chf", "age", "diabetes"))


def _diabetes_dk() -> Table:
    found = read_csv("DMlate")
    death = found["dodth"].notna() & (found["dodth"] <= found["dox"])
    found = found.assign(
        time=found["dox"] - found["dodm"],
        death=death.astype(int),
        age=found["dodm"] - found["dobth"],
        year=found["dodm"].astype(int),
        tablets=(found["dooad"] - found["dodm"] <= 0).astype(int),
    )
    columns = (
        *outcome(15, "years"),
        Column("age", "continuous", 0, 110, 1, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("year", "integer", 1995, 2009, label="Year of diagnosis"),
        Column("tablets", "binary", label="Tablets from the first day"),
    )
    named = ("age", "sex", "year", "tablets")
    return arrange_survival(found[found["time"] > 0], "time", "death", columns, named)


def _mortgages() -> Table:
    columns = (
        Column("deny", "binary", levels=_YES),
        Column("pirat", "continuous", 0, 3, 3, label="Payments to income"),
        Column("hirat", "continuous", 0, 3, 3, label="Housing expense to income"),
        Column("lvrat", "continuous", 0, 2, 3, label="Loan to value"),
        Column("chist", "integer", 1, 6, label="Credit history, from good to bad"),
        Column("mhist", "integer", 1, 4, label="Mortgage history, from good to bad"),
        Column("unemp", "continuous", 0, 15, 1, label="Unemployment in the industry", unit="%"),
        *_answers("phist", "selfemp", "condomin", "afam", "single"),
    )
    named = ("pirat", "chist", "phist", "afam")
    return arrange_columns(read_csv("HMDA"), {}, columns, named, "logistic")


def _medicare() -> Table:
    found = read_csv("NMES1988")
    found = found.assign(age=found["age"] * 10, income=found["income"].clip(lower=0))
    columns = (
        Column("visits", "integer", 0, 100, label="Visits to a physician"),
        Column("age", "integer", 65, 110, unit="years"),
        Column("chronic", "integer", 0, 10, label="Chronic conditions"),
        Column("school", "integer", 0, 20, unit="years"),
        Column("income", "continuous", 0, 60, 2, label="Family income", unit="10,000 USD"),
        Column("health", "categorical", levels=("average", "poor", "excellent")),
        Column("adl", "binary", levels=("normal", "limited")),
        Column("region", "categorical", levels=("other", "midwest", "northeast", "west")),
        Column("gender", "binary", levels=("female", "male")),
        *_answers("afam", "married", "employed", "insurance", "medicaid"),
    )
    named = ("chronic", "age", "insurance", "gender")
    return arrange_columns(found, {}, columns, named, "poisson")


def _insured() -> Table:
    columns = (
        Column("insurance", "binary", levels=_YES),
        Column("age", "integer", 18, 64, unit="years"),
        Column("family", "integer", 1, 20, label="Persons in the family"),
        Column("region", "categorical", levels=("south", "midwest", "west", "northeast")),
        Column("ethnicity", "categorical", levels=("cauc", "afam", "other")),
        Column(
            "education",
            "categorical",
            levels=("none", "ged", "highschool", "other", "bachelor", "master", "phd"),
        ),
        Column("gender", "binary", levels=("female", "male")),
        *_answers("health", "limit", "married", "selfemp"),
    )
    named = ("age", "selfemp", "married", "education=bachelor")
    return arrange_columns(read_csv("HealthInsurance"), {}, columns, named, "logistic")


def _heights() -> Table:
    columns = (
        Column("hgt", "continuous", 30, 220, 1, label="Height", unit="cm"),
        Column("age", "continuous", 0, 22, 2, unit="years"),
        Column("wgt", "continuous", 1, 150, 1, label="Weight", unit="kg"),
        Column("sex", "binary", levels=("girl", "boy")),
        Column("reg", "categorical", levels=("North", "East", "South", "West", "City")),
    )
    return arrange_columns(read_csv("fdgs"), {}, columns, ("age", "sex", "reg=City"), "ols")


MAKERS: Mapping[str, Callable[[], Table]] = {
    "trace": _trace,
    "diabetes-dk": _diabetes_dk,
    "mortgages": _mortgages,
    "medicare": _medicare,
    "insured": _insured,
    "heights": _heights,
}

DECLARED: Mapping[str, tuple[str, ...]] = {
    "trace": ("survival(time, 4)", "mean(age)", "share(wmi < 1)"),
    "diabetes-dk": ("survival(time, 5)", "mean(age)", "share(age > 70)"),
    "mortgages": ("mean(pirat)", "median(lvrat)", "share(single == 'yes')"),
    "medicare": ("mean(visits)", "median(school)", "share(health == 'poor')"),
    "insured": ("mean(age)", "median(family)", "share(ethnicity == 'afam')"),
    "heights": ("mean(age)", "median(wgt)", "share(reg == 'City')"),
}
"""Beside the named coefficients and a product."""

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "trace": ("chf:age",),
    "diabetes-dk": ("sex:age",),
    "mortgages": ("pirat:afam",),
    "medicare": ("chronic:insurance",),
    "insured": ("age:selfemp",),
    "heights": ("age:sex",),
}

UNDECLARED: Mapping[str, tuple[str, ...]] = {
    "trace": (
        *("median(wmi)", "wmi ~ age + sex", "chf ~ wmi + age"),
        *("time ~ vf + age", "time ~ wmi:age", "time ~ age where chf == '1'"),
    ),
    "diabetes-dk": (
        *("median(age)", "age ~ sex + year", "tablets ~ age + sex"),
        *("time ~ sex + age", "time ~ year:age", "time ~ sex where tablets == '1'"),
    ),
    "mortgages": (
        *("quantile(pirat, 0.9)", "lvrat ~ pirat + single", "afam ~ chist + pirat"),
        *("mean(unemp)", "deny ~ lvrat:single", "deny ~ pirat where single == 'yes'"),
    ),
    "medicare": (
        *("quantile(age, 0.9)", "school ~ age + gender", "insurance ~ school + income"),
        *("mean(chronic)", "visits ~ school:gender", "visits ~ chronic where gender == 'male'"),
    ),
    "insured": (
        *("quantile(age, 0.9)", "age ~ selfemp + gender", "selfemp ~ age + gender"),
        *("mean(family)", "insurance ~ age:gender", "insurance ~ age where gender == 'male'"),
    ),
    "heights": (
        *("quantile(hgt, 0.9)", "wgt ~ age + sex", "sex ~ age + wgt"),
        *("mean(hgt)", "hgt ~ wgt:sex", "hgt ~ age where sex == 'girl'"),
    ),
}
"""Asked of the released tables alone, as in the study of coverage."""
