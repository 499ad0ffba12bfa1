"""Files that an analyst pulls, by mechanism, and what is computed from hand-made releases."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import PERSONS, SCHEMA, TRAJECTORY

from penstock.inference.floor import variance_floor
from penstock.inference.floored import estimate_floored
from penstock.mechanisms import Gibbs, Trajectory
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.labelled import COPY, join_parts
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import ANSWER, name_copy
from penstock.mechanisms.trajectory.histories import read_courses
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.mechanisms import writing
from penstock_server.mechanisms.answered import read_answer
from penstock_server.mechanisms.gibbs.exports import write_answers
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.scoring.exports import write_answers as write_all
from penstock_server.mechanisms.tables.codebook import combining
from penstock_server.mechanisms.tables.exports import write_pooled
from penstock_server.mechanisms.trajectory import exports
from penstock_server.mechanisms.trajectory.codebook import SNAPSHOTS

STUDY = made.study(TRAJECTORY)
ASKED = made.study(Gibbs())
REPORT = {"sites": [], "estimands": [], "effects": [], "holds": []}


def test_paths_have_sites_numbers_and_exact_times(tmp_path: Path) -> None:
    uploads = made.uploads(STUDY, tmp_path)
    parquet, plain = exports.write_paths(uploads, STUDY, TRAJECTORY, tmp_path)
    table = pq.read_table(parquet)
    assert table.column_names == ["_site", "_path", "_time", *SCHEMA.names]
    assert table.num_rows == 3 * 5 * 9
    assert table["_site"].unique().to_pylist() == list(made.SITES)
    # The column is rounded to whole visits; the exact time is not.
    assert table["_time"].to_pylist()[:9] == [0.5 * i for i in range(9)]
    assert table["visit"].to_pylist()[:9] == [0, 0, 1, 2, 2, 2, 3, 4, 4]
    with open(plain, newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["_path"] for line in lines[:10]] == ["1"] * 9 + ["2"]
    assert {line["ward"] for line in lines} == {"a", "b", "'=c"}
    for upload in uploads:
        mine = table.filter(pc.equal(table["_site"], upload.site))
        assert mine.drop_columns(["_site", "_path", "_time"]).equals(upload.part("paths"))
        assert mine["_path"].to_pylist() == np.repeat(np.arange(1, 6), 9).tolist()


@pytest.mark.parametrize("opener", ["=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n"])
def test_full_width_formulas_are_text_in_a_spreadsheet(opener: str) -> None:
    """Some programs read ＝ (U+FF1D) as =: a level of a schema would be run."""
    cell = f"{opener}HYPERLINK(1)"
    table = pa.table({"ward": [cell, "plain", None], "n": [1, 2, 3]})
    assert writing.csv_safe(table)["ward"].to_pylist() == [f"'{cell}", "plain", None]


def test_particles_have_numbers_that_couplings_use(tmp_path: Path) -> None:
    uploads = made.uploads(STUDY, tmp_path)
    parquet, _ = exports.write_particles(uploads, STUDY, TRAJECTORY, tmp_path)
    table = pq.read_table(parquet)
    assert table.column_names == ["_site", "_point", "_particle", *SCHEMA.names]
    assert table["_point"].to_pylist()[:18] == [p for p in (1, 2, 3) for _ in range(6)]
    assert table["_particle"].to_pylist()[:18] == [1, 2, 3, 4, 5, 6] * 3
    [path] = exports.write_couplings(uploads, STUDY, TRAJECTORY, tmp_path)
    couplings = pq.read_table(path).to_pandas()
    assert set(couplings._point) == {1, 2}
    assert set(couplings._particle) == set(couplings.next_particle) == set(range(1, 7))
    # Each pair of neighbouring times adds up to one, each particle to its share of it.
    total = couplings.groupby(["_site", "_point"]).mass.sum()
    assert total.to_numpy() == pytest.approx(np.ones(6), abs=1e-4)
    each = couplings.groupby(["_site", "_point", "_particle"]).mass.sum()
    assert each.to_numpy() == pytest.approx(np.full(36, 1 / 6), abs=1e-4)


def test_couplings_join_what_is_near(tmp_path: Path) -> None:
    """Two clusters, far apart in pressure, hardly mix; an exact coupling joins one to one."""
    schema = replace(SCHEMA, columns=SCHEMA.columns[:2])
    exact = replace(TRAJECTORY, coupling="exact")
    study = made.study(exact, schema=schema, estimands=())
    table = made.table(study)
    at = np.flatnonzero(table[COPY].to_numpy() == 0)[:18]
    values = table["sbp"].to_pylist()
    for place in at:
        values[place] = 90.0 if place % 2 else 210.0
    position = table.column_names.index("sbp")
    upload = made.read(study, table.set_column(position, "sbp", [values]), tmp_path)
    mass = exports.couplings(upload, study, exact)
    far = np.add.outer(np.arange(6), np.arange(6)) % 2 == 1
    assert mass.shape == (2, 6, 6)
    assert (mass[:, far] == 0).all()
    assert ((mass > 0).sum(axis=2) == 1).all()


def test_couplings_are_the_same_again(tmp_path: Path) -> None:
    upload = made.read(STUDY, made.table(STUDY), tmp_path)
    first, again = (exports.couplings(upload, STUDY, TRAJECTORY) for _ in range(2))
    assert np.array_equal(first, again)


def test_why_there_are_no_couplings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exports.why_no_couplings(STUDY, TRAJECTORY) is None
    many = replace(TRAJECTORY, particles=2000, subsample=None)
    assert exports.why_no_couplings(made.study(many), many) is None
    monkeypatch.setattr(exports, "MOST_PAIRS", 10)
    assert "pairs of particles" in str(exports.why_no_couplings(STUDY, TRAJECTORY))
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    assert "torch" in str(exports.why_no_couplings(STUDY, TRAJECTORY))
    said = kind_of(STUDY).load_results().describe(REPORT, "all")["trajectory"]["couplings"]
    assert said["files"] == []
    assert "torch" in said["missing"]


def test_pooled_rows_are_snapshots_only(tmp_path: Path) -> None:
    uploads = made.uploads(STUDY, tmp_path)
    for every, copies in ((False, {1}), (True, {1, 2})):
        table = pq.read_table(write_pooled(uploads, tmp_path, all_copies=every)[0])
        assert table.column_names == ["_site", "_copy", *SCHEMA.names]
        assert set(table["_copy"].to_pylist()) == copies
        assert table.num_rows == len(copies) * 2 * sum(u.manifest.persons for u in uploads)


def test_answers_are_written_with_their_terms(tmp_path: Path) -> None:
    uploads = made.uploads(ASKED, tmp_path)
    plain, exact = write_answers(uploads, ASKED, Gibbs(), tmp_path)
    terms = list(answer_terms(SCHEMA, made.QUESTION, Gibbs()))
    found = json.loads(exact.read_text())
    assert found["terms"] == terms == ["(intercept)", "sbp", "ward=b", "ward==c", "smoker"]
    assert [s["site"] for s in found["sites"]] == list(made.SITES)
    for upload, site in zip(uploads, found["sites"], strict=True):
        estimates, covariance = read_answer(upload)
        assert list(site["estimates"].values()) == estimates.tolist()
        assert site["covariance"] == covariance.tolist()
    with open(plain, newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * len(terms)
    for line, i in zip(lines, list(range(5)) * 3, strict=True):
        assert line["term"] == terms[i]
        assert float(line["se"]) ** 2 == pytest.approx(float(line[f"cov_{i + 1}"]))


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_the_dictionary_describes_every_file_and_column(name: str, tmp_path: Path) -> None:
    study = made.study(made.MECHANISMS[name])
    uploads = made.uploads(study, tmp_path)
    found = kind_of(study).load_results().describe(REPORT, "all")
    json.dumps(found, allow_nan=False)
    named = [c["name"] for c in found["columns"]]
    if name == "gibbs":
        written = write_answers(uploads, study, study.mechanism, tmp_path)
        assert set(found["files"]) == {f.name for f in written}
        with open(written[0], newline="") as file:
            assert next(csv.reader(file)) == named
        assert "No table" in found["combining"]
        return
    if name == "scoring":
        written = write_all(uploads, study, tmp_path)
        assert set(found["files"]) == {f.name for f in written}
        with open(written[0], newline="") as file:
            assert next(csv.reader(file)) == named
        assert "No table" in found["combining"]
        return
    assert "Never stack" in found["combining"]
    assert found["combining"] == combining(study) + (SNAPSHOTS if name == "trajectory" else "")
    assert ("without refits" in found["combining"]) == (study.mechanism.refits == 0)
    pooled = write_pooled(uploads, tmp_path, all_copies=True)
    assert pq.read_schema(pooled[0]).names == named
    for kind, write in (
        ("paths", exports.write_paths),
        ("particles", exports.write_particles),
        ("couplings", exports.write_couplings),
    ):
        if name != "trajectory":
            assert "trajectory" not in found
            continue
        written = write(uploads, study, TRAJECTORY, tmp_path)
        said = found["trajectory"][kind]
        assert said["files"] == [f.name for f in written]
        before = [c["name"] for c in said["columns"]]
        assert pq.read_schema(written[0]).names[: len(before)] == before


# -- estimates -----------------------------------------------------------------------------------


def test_an_answers_last_term_is_the_estimate(tmp_path: Path) -> None:
    upload = made.read(ASKED, made.table(ASKED), tmp_path)
    estimates, covariance = read_answer(upload)
    found = made.estimates(upload, ASKED)
    assert list(found) == ["falls"]
    site = found["falls"]
    assert site.estimate == estimates[-1]
    assert site.variance == site.within == covariance[-1, -1]
    assert (site.n, site.events, site.copies, site.copies_used) == (None, None, 1, 1)
    assert site.mechanism_variance == 0
    assert site.problem is None


def test_an_answer_cannot_claim_more_than_its_rows_can_know(tmp_path: Path) -> None:
    columns = made.answer(5, np.random.default_rng(0))
    columns |= {f"cov_{i + 1}": 1e-12 * np.eye(5)[i] for i in range(5)}
    [table] = join_parts(shape_of(ASKED, PERSONS), [Part(ANSWER, columns)])
    upload = made.read(ASKED, table, tmp_path)
    floor = variance_floor(SCHEMA, made.QUESTION, 2 * PERSONS)
    assert made.estimates(upload, ASKED)["falls"].variance == floor > 1e-4


@pytest.mark.parametrize("name", ["maf", "sliced-wasserstein", "trajectory"])
def test_estimates_come_from_copies(name: str, tmp_path: Path) -> None:
    study = made.study(made.MECHANISMS[name])
    upload = made.read(study, made.table(study, persons=200), tmp_path, persons=200)
    found = made.estimates(upload, study)
    m = study.mechanism.copies
    pressures = [np.asarray(upload.part(name_copy(i + 1))["sbp"].to_pylist()) for i in range(m)]
    means = found["mean-sbp"]
    assert means.problem is None
    assert means.estimate == pytest.approx(np.mean([p.mean() for p in pressures]), rel=1e-12)
    within = np.mean([p.var(ddof=1) / 400 for p in pressures])
    assert means.within == pytest.approx(within, rel=1e-12)
    assert means.n == 400
    assert found["falls"].events == pytest.approx(
        np.mean(
            [sum(upload.part(name_copy(i + 1))["falls"].to_pylist()) for i in range(len(pressures))]
        ),
        abs=1,
    )
    assert all(math.isfinite(e.variance) for e in found.values())


ENDED = made.study(
    Trajectory("visit", copies=2, refits=1, particles=6, paths=5, path_times=9, end="years"),
    schema=Schema(
        (
            *SCHEMA.columns,
            Column("years", "duration", upper=5, event="died", unit="years", varies=False),
            Column("died", "event", varies=False),
        ),
        "patient",
        2,
    ),
    estimands=(Estimand("hazard", "cox", "years", "sbp"), Estimand("mean", "mean", "sbp")),
)


def test_nothing_of_paths_and_particles_is_written_after_an_end(tmp_path: Path) -> None:
    """Ends are at 1.5 and 3.5 years, and particles at 0, 1, 2, 3 and 4."""
    uploads, how = [], ENDED.mechanism
    for i, site in enumerate(ENDED.sites):
        # Parts of paths may lack what other parts may not, which no labelled table can say.
        given = made.streams(ENDED, made.parts(ENDED, seed=i))
        (tmp_path / site).mkdir()
        uploads.append(made.read_parts(ENDED, given, tmp_path / site, site=site))
    assert isinstance(how, Trajectory)
    [paths, _] = exports.write_paths(uploads, ENDED, how, tmp_path)
    [particles, _] = exports.write_particles(uploads, ENDED, how, tmp_path)
    [couplings] = exports.write_couplings(uploads, ENDED, how, tmp_path)
    for path, rows in ((paths, 5 * 9), (particles, 6 * 5)):
        table = pq.read_table(path).to_pandas()
        assert (table["visit"] <= table["years"]).all()
        assert {1.5, 3.5} == set(table["years"])
        assert 0.3 * 3 * rows < len(table) < 0.9 * 3 * rows
    gone = pq.read_table(particles).to_pandas().set_index(["_site", "_point", "_particle"]).index
    joined = pq.read_table(couplings).to_pandas()
    later = zip(joined["_site"], joined["_point"] + 1, joined["next_particle"], strict=True)
    assert set(later) <= set(gone)
    said = kind_of(ENDED).load_results().describe(REPORT, "one")["trajectory"]
    assert "years" in said["paths"]["meaning"]
    assert said["paths"]["rows"].endswith("none after its own years")


def test_a_duration_that_does_not_vary_counts_each_person_once() -> None:
    """As their first row has it; a mean of visits counts every row."""
    table = {n: x for n, x in made.rows(np.random.default_rng(0), 400).items()}
    table["visit"] = np.tile([1.0, 3.0], 200)
    table["years"] = np.repeat(np.random.default_rng(1).exponential(2, 200).clip(0.1, 5), 2)
    table["died"] = np.repeat((np.arange(200) % 3 > 0) * 1.0, 2)
    how, schema = ENDED.mechanism, ENDED.schema
    assert isinstance(how, Trajectory)
    read = partial(read_courses, how, schema)
    hazard, mean = ENDED.estimands
    first = {name: values[::2] for name, values in table.items()}
    found = estimate_floored(schema, hazard, table, read_courses=read)
    assert found == estimate_floored(schema, hazard, first)
    assert found.n == 200
    assert estimate_floored(schema, mean, table, read_courses=read).n == 400
    varying = replace(schema["years"], varies=True), replace(schema["died"], varies=True)
    each = Schema((*SCHEMA.columns, *varying), "patient", 2)
    assert estimate_floored(each, hazard, table, read_courses=read).n == 400
