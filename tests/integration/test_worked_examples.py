"""The worked examples of other software have `penstock analyse`'s numbers, from the same folder."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.local import finish
from typer.testing import CliRunner

from penstock.cli.analyse import app
from penstock.inference.pooling import pool
from penstock.mechanisms import Maf, Structured
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import EACH
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema, from_arrow
from penstock.study.study import Study
from penstock.wire.manifest import sign_manifest
from penstock.wire.messages import SiteState
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import sign_study
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.results import production

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ANALYST = generate_key()
PERSONS = 160
SITES = ("east", "north", "west")
SCHEMA = Schema(
    (
        Column("years", "duration", upper=10, decimals=1, event="died"),
        Column("died", "event"),
        Column("age", "integer", lower=18, upper=100),
        Column("smoker", "binary", levels=("no", "yes")),
        Column("ward", "categorical", levels=("a", "b", "=c")),
        Column("sbp", "continuous", lower=60, upper=240, decimals=0, nullable=True),
        Column("moved", "binary", levels=("no", "yes"), nullable=True),
    )
)
DECLARED = {
    "cox: Surv(years, died) ~ age + ward + smoker": Estimand(
        "hazard", "cox", "years", "smoker", adjust=("age", "ward")
    ),
    "logistic: smoker ~ sbp + age": Estimand("odds", "logistic", "smoker", "age", adjust=("sbp",)),
    "ols: sbp ~ smoker + age + ward": Estimand(
        "slope", "ols", "sbp", "ward", adjust=("smoker", "age"), level="=c"
    ),
    "ols: sbp ~ 1": Estimand("mean", "mean", "sbp"),
    "robust: Surv(years, died) ~ ward + age + smoker": Estimand(
        "sandwich", "cox", "years", "smoker", adjust=("ward", "age"), errors="robust"
    ),
    "incidence(years, moved, 5)": Estimand(
        "share", "cumulative-incidence", "years", competing="moved", at=5.0
    ),
}
FURTHER = {
    "ols: sbp ~ smoker + age": "sbp ~ smoker + age",
    "ols: age ~ 1": "mean(age)",
    "robust: Surv(years, died) ~ sbp + smoker": "robust: Surv(years, died) ~ sbp + smoker",
    "incidence(years, moved, 1)": "incidence(years, moved, 1)",
}
"""Of the last term; `analyse` tells the coefficients of both."""
MECHANISMS = {  # of the last a tenth of a table's sampling is new, as it is assumed
    "maf": Maf(copies=3, refits=8),
    "structured": Structured(copies=2, refits=8, planted=0),
    "single": Structured(copies=2, refits=8, planted=0, per_fit=1),
    # Tables of 120 rows, of sites of 240, of 160 and of 100 persons, which has all of its own.
    "shared": Structured(copies=2, refits=8, planted=0, most_rows=120),
}
NEAR = 1e-8
"""Of standard errors. Programs stop at other distances from a maximum; no sampling is in it."""


def frame(study: Study, site: int) -> int:
    """Persons of a site: where tables may have fewer rows, some have more and some less."""
    return (240, PERSONS, 100)[site] if study.name == "shared" else PERSONS


def imagine(
    rng: np.random.Generator, site: int, off: float = 0.0, n: int = PERSONS
) -> dict[str, np.ndarray]:
    """Rows of one table; off: by how much the mechanism erred."""
    age = rng.integers(30, 90, n).astype(float)
    ward = rng.integers(0, 3, n).astype(float)
    smoker = (rng.random(n) < 1 / (1 + np.exp(0.03 * (age - 50)))).astype(float)
    rate = 0.1 * np.exp(0.03 * (age - 60) + (0.4 + 0.15 * site + off) * smoker)
    died, moved = rng.exponential(1 / rate), rng.exponential(25, n)
    years = np.minimum.reduce([died, moved, rng.uniform(2, 30, n), np.full(n, 10)])
    sbp = 110 + 0.4 * age + (5 + 10 * off) * smoker + 3 * site * ward + rng.normal(0, 12, n)
    return {
        "years": years.round(1),
        "died": (years == died).astype(float),
        "age": age,
        "smoker": smoker,
        "ward": ward,
        "sbp": np.where(rng.random(n) < 0.05, np.nan, sbp.round()),
        "moved": imagine_moves(rng, years == moved),
    }


def imagine_moves(rng: np.random.Generator, moved: np.ndarray) -> np.ndarray:
    """Of some it is not known, and some are said to have moved as well, whatever came first."""
    chance = rng.random(len(moved))
    return np.where(chance < 0.03, np.nan, (moved | (chance > 0.95)).astype(float))


def imagine_release(study: Study, site: int) -> list[Part]:
    """Of `maf` the first sites' refits are nearly their copies: they show no noise. The last site's
    are off, as all are of `structured`. One refit of the second site tells nothing of smokers, and
    one of the last site nothing of the first year."""
    rng, found = np.random.default_rng(site), dict[str, dict[str, np.ndarray]]()
    quiet = study.name == "maf" and site < len(SITES) - 1
    for part in shape_of(study, frame(study, site)).parts:
        kind, number = part.name.rsplit("/", 1) if "/" in part.name else part.name.rsplit("-", 1)
        if kind != "refits":
            found[part.name] = imagine(rng, site, 0.0, part.rows)
            continue
        rows = imagine(rng, site, 0.0 if quiet else 0.5 * float(rng.normal()), part.rows)
        if quiet:
            copy = found[f"tables/copy-{EACH.find_copy(int(number), study.mechanism.copies)}"]
            kept = np.arange(PERSONS) >= PERSONS // 5
            rows = {name: np.where(kept, copy[name], new) for name, new in rows.items()}
        if site == 1 and number == "2":
            rows["smoker"] = np.ones(part.rows)
        if site == 2 and number == "3":
            rows["years"] = np.maximum(rows["years"], 1.1)
        found[part.name] = rows
    return [Part(name, rows) for name, rows in found.items()]


@pytest.fixture(scope="module")
def pulled(tmp_path_factory):
    """Folders of pulled studies, by mechanism."""
    root = tmp_path_factory.mktemp("studies")
    make_coordinator(root / "hub")
    hub, found = open_coordinator(root / "hub"), {}
    for site in SITES:
        join = {
            "site": site,
            "federation": "net",
            "gate_key": public_hex(made.KEY),
            "persons": PERSONS,
            "dictionary": SCHEMA.to_dict(),
            "node_key": "ecdsa-sha2-nistp384 AAAA",
        }
        enrol_site(hub, join)
    for name, mechanism in MECHANISMS.items():
        study = made.study(
            mechanism,
            name=name,
            sites=SITES,
            schema=SCHEMA,
            estimands=tuple(DECLARED.values()),
            not_before="2020-01-01T00:00:00Z",
            expires="2099-01-01T00:00:00Z",
        )
        study_id = hub.submit(sign_study(study, ANALYST))
        for place, site in enumerate(SITES):
            deliver(hub, study_id, study, place, site)
        finish(hub, study_id)
        found[name] = root / name
        production.pull_results(hub, study_id, found[name], copies="refits")
        production.pull_results(hub, study_id, root / f"{name}-imputed", copies="imputations")
    return found


def deliver(hub, study_id, study, place, site):
    """A release of the newest wire version, whose refits were made of copies."""
    parts = imagine_release(study, place)
    persons = frame(study, place)
    given = made.streams(study, parts, persons)
    data, listed = b"".join(given.values()), made.list_parts(given)
    path = hub.folder.table(study_id, site)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    rows = {"persons": persons, "rows": listed[0].rows, "parts": listed}
    manifest = replace(made.manifest(study, data, site=site, **rows), study_id=study_id)
    values = {"state": str(SiteState.DELIVERED), "manifest": sign_manifest(manifest, made.KEY)}
    with hub.store.begin() as c:
        hub.store.studies.update_part(c, study_id, site, **values)


@cache
def why_no_r() -> str | None:
    """What is to be installed for the examples in R, or None."""
    packages = ("survival", "metafor", "mitools", "jsonlite")
    remedy = f"`make r`, or install r-base, {', '.join(packages)}"
    if shutil.which("Rscript") is None:
        return f"no Rscript: {remedy}"
    needed = ["Rscript", "-e", "; ".join(f"library({package})" for package in packages)]
    if subprocess.run(needed, capture_output=True, check=False).returncode != 0:
        return f"R lacks a package: {remedy}"
    return None


def python(*given: object) -> pd.DataFrame:
    return run(sys.executable, "-P", str(EXAMPLES / "combine.py"), *map(str, given)).copy()


def r(*given: object) -> pd.DataFrame:
    if (reason := why_no_r()) is not None:
        pytest.skip(reason)
    return run("Rscript", "--vanilla", str(EXAMPLES / "combine.R"), *map(str, given)).copy()


@cache
def run(*command: str) -> pd.DataFrame:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(io.StringIO(done.stdout))


@cache
def analyse(*given: object) -> list[dict]:
    done = CliRunner().invoke(app, [*map(str, given), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["answers"]


def compare(rows: pd.DataFrame, told: dict) -> float:
    """The largest difference between an example's rows of a question and an answer: of estimates
    and ends of intervals in standard errors, of all else relative to the larger."""
    found, (together,) = rows[rows["site"].notna()], rows[rows["site"].isna()].to_dict("records")
    assert list(found["site"]) == [site["site"] for site in told["sites"]] == list(SITES)
    pairs = []
    for mine, site in zip(found.to_dict("records"), told["sites"], strict=True):
        assert mine["n"] == site["n"]
        se = site["variance"] ** 0.5
        pairs += [(mine[key], site["coefficient"][key], se) for key in ("estimate", "low", "high")]
        pairs += [(mine["se"], se, se), (mine["df"], site["df"], site["df"])]
        pairs.append((mine["mechanism_variance"], site["mechanism_variance"], site["variance"]))
    head = told["random"]
    se, ahead = head["se"], head["prediction"]
    pairs += [(together[key], head["coefficient"][key], se) for key in ("estimate", "low", "high")]
    pairs += [(together[f"prediction_{key}"], ahead[key], se) for key in ("low", "high")]
    pairs += [(together["se"], se, se), (together["df"], head["df"], head["df"])]
    pairs.append((together["tau2"], head["tau2"], head["tau2"] + se**2))
    return float(np.max([abs(mine - own) / size for mine, own, size in pairs]))


@pytest.mark.parametrize("program", [python, r])
@pytest.mark.parametrize("name", MECHANISMS)
def test_an_example_has_the_numbers_of_analyse(pulled, name, program):
    found = program(pulled[name], *DECLARED)
    assert list(found["question"].unique()) == list(DECLARED)
    for question, told in zip(DECLARED, analyse(pulled[name]), strict=True):
        assert told["declared"] == DECLARED[question].name
        assert compare(found[found["question"] == question], told) < NEAR, question


@pytest.mark.parametrize("name", MECHANISMS)
def test_analyse_has_the_numbers_of_the_report(pulled, name):
    report = json.loads((pulled[name] / "report.json").read_text())
    for own, told in zip(report["estimands"], analyse(pulled[name]), strict=True):
        assert own["name"] == told["declared"]
        assert own["random"]["coefficient"] == pytest.approx(told["random"]["coefficient"])
        assert own["random"]["se"] == told["random"]["se"]


@pytest.mark.thorough
@pytest.mark.parametrize("program", [python, r])
def test_so_it_has_of_a_further_question_beside_the_studys_own(pulled, program):
    for question, asked in FURTHER.items():
        # Of a question beside the study's own, and not beside each other.
        found = program(pulled["maf"], *DECLARED, "--further", question)
        *_, told = analyse(pulled["maf"], asked)
        assert told["declared"] is None
        assert compare(found[found["question"] == question], told) < NEAR


def impute(folder: Path, asked: Estimand) -> pd.DataFrame:
    """By hand: Rubin's rules of the tables that were pulled."""
    table, sites = pq.read_table(folder / "imputations.parquet"), {}
    site, number = (np.array(table[name]) for name in ("_site", "_imputation"))
    rows = table.select(SCHEMA.names)
    for own in SITES:
        found = [
            estimate(from_arrow(rows.filter((site == own) & (number == i)), SCHEMA), SCHEMA, asked)
            for i in np.unique(number)
        ]
        within, m = np.mean([one.variance for one in found]), len(found)
        between = (1 + 1 / m) * np.var([one.estimate for one in found], ddof=1)
        middle, total = np.mean([one.estimate for one in found]), within + between
        sites[own] = {"estimate": middle, "se": total**0.5, "df": (m - 1) * (total / between) ** 2}
    return pd.DataFrame.from_dict(sites, orient="index")


def test_software_for_multiple_imputation_takes_refits(pulled):
    """R's mitools has Rubin's numbers of one refit of each fit."""
    name = "structured"
    if (reason := why_no_r()) is not None:
        pytest.skip(reason)
    folder = pulled[name].parent / f"{name}-imputed"
    assert not (folder / "refits.parquet").exists()
    assert "Rubin" in json.loads((folder / "dictionary.json").read_text())["imputations"]
    refits = pd.read_parquet(pulled[name] / "refits.parquet")
    imputed = pd.read_parquet(folder / "imputations.parquet")
    assert set(imputed._imputation) == set(refits._fit)
    first = refits.groupby(["_site", "_fit"])._refit.transform("min") == refits._refit
    columns = list(SCHEMA.names)
    pd.testing.assert_frame_equal(
        imputed[columns].reset_index(drop=True), refits[first][columns].reset_index(drop=True)
    )
    question = "ols: sbp ~ smoker + age + ward"
    found = run("Rscript", "--vanilla", str(EXAMPLES / "impute.R"), str(folder), question)
    own = impute(folder, DECLARED[question])
    near = {"rtol": 1e-6, "atol": 0}
    assert list(found.site)[:-1] == list(SITES)
    np.testing.assert_allclose(found[["estimate", "se", "df"]][:-1], own, **near)
    pooled = pool(own.estimate, own.se**2)
    together = found.iloc[-1]
    np.testing.assert_allclose([together.estimate, together.se], [pooled.estimate, pooled.se], 1e-4)


def test_tables_are_there_in_which_the_rule_has_much_to_do(pulled):
    """Sites of which refits show no noise, and much; a refit without an estimate; sites that
    differ, and such as do not."""
    told = [each for name in MECHANISMS for each in analyse(pulled[name])]
    added = [site["mechanism_variance"] for each in told for site in each["sites"]]
    assert min(added) == 0 < max(added)
    assert min(each["random"]["tau2"] for each in told) == 0
    assert max(each["random"]["tau2"] for each in told) > 0
    weights = pd.read_parquet(pulled["shared"] / "pooled.parquet").groupby("_site")["_weight"]
    assert [*weights.min()] == [*weights.max()] == [2.0, pytest.approx(4 / 3), 1.0]
    told = analyse(pulled["shared"])[0]
    assert [site["n"] for site in told["sites"]] == [240, PERSONS, 100]
    page = (pulled["shared"] / "report.html").read_text()
    assert "Rows that a copy stands for" in page
    assert "n and events: as many as synthetic copies stand for" in page
    assert "at most 120, of larger sites a share of as many" in page
    described = json.loads((pulled["shared"] / "dictionary.json").read_text())
    assert "_weight" in [column["name"] for column in described["columns"]]
    assert "(1/w + 1/m)" in described["combining"]
    assert "(1 + 1/m)" in json.loads((pulled["maf"] / "dictionary.json").read_text())["combining"]
    rows = pd.read_parquet(pulled["maf"] / "refits.parquet")
    assert (rows.groupby(["_site", "_refit"])["smoker"].nunique() == 1).sum() == 1


def test_tables_are_there_in_which_events_compete(pulled):
    """Either event first, both at one time, rows that have both; one table in which nobody has
    the event until the time that is asked. And a sandwich is not the model's variance."""
    folder = pulled["maf"]
    both = [pd.read_parquet(folder / f"{name}.parquet") for name in ("pooled", "refits")]
    rows = pd.concat(both, keys=["copy", "refit"], names=["part"]).reset_index(level="part")
    died, moved = rows["died"].astype(int) == 1, rows["moved"] == "yes"
    assert (died & moved).any()
    early = rows["years"] < 5
    tables = ["part", "_site", "_copy", "_refit"]
    kinds = rows.assign(died=died, moved=moved & ~died).groupby([*tables, "years"], dropna=False)
    shared = kinds[["died", "moved"]].any()
    assert (shared["died"] & shared["moved"])[shared.index.get_level_values("years") < 5].any()
    assert (moved & ~died & early).sum() > 100
    first = (died & (rows["years"] <= 1)).groupby([rows[x] for x in tables], dropna=False).any()
    assert (~first).sum() == 1
    found = python(folder, *DECLARED).set_index("question")["se"]
    plain, robust = (found.loc[name] for name in DECLARED if "Surv" in name)
    assert (np.abs(robust.to_numpy() / plain.to_numpy() - 1) > 0.01).any()


def test_an_example_needs_nothing_of_ours():
    text = (EXAMPLES / "combine.py").read_text()
    assert "import penstock" not in text
    assert "from penstock" not in text


def test_a_planted_difference_would_be_seen(pulled):
    (question, *_), (told, *_) = DECLARED, analyse(pulled["maf"])
    found = python(pulled["maf"], *DECLARED)
    found.loc[0, "estimate"] += 1e-7 * found.loc[0, "se"]
    assert compare(found[found["question"] == question], told) > NEAR
