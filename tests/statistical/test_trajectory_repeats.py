"""Measured dependence: what persons' visits have in common comes back, and does not of itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.studies.panels import compare, draw, look, simulate
from tests.support.carried_out import release

from penstock.mechanisms import Trajectory
from penstock.mechanisms.parts import Part
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

N, VISITS, REFITS = 800, 4, 2
HOW = Trajectory("visit", copies=2, refits=REFITS, particles=40, paths=60, path_times=7)


@cache
def panel(n: int = N, visits: int = VISITS) -> tuple[object, Schema]:
    return simulate(n, visits, np.random.default_rng(11))


@pytest.mark.parametrize("arm", ["ours", "visits apart"])
def test_dependence_between_visits_returns_only_where_it_is_measured(arm: str) -> None:
    """Within what the study's targets allow one seed, twice over; without it, far beyond."""
    cohort, schema = panel(4000, 4)
    found = draw(arm, cohort, schema, np.random.default_rng(5))
    errors = compare(look(found, schema), look(cohort, schema), 4, 5)
    assert errors["mean"] < 0.1
    assert errors["spread"] < 0.1
    assert errors["within"] < 0.1
    kept = errors["between"] < 0.08 and errors["change"] < 0.2
    assert kept == (arm == "ours"), errors


@cache
def released() -> tuple[RepeatsPlan, Schema, list[Part]]:
    cohort, schema = panel()
    made = plan(HOW, schema, N, PrivacyRequest(6.0, 1e-5))
    assert isinstance(made, RepeatsPlan)
    encoding, rng = Encoding(schema), np.random.default_rng(0)
    flat = {name: np.where(cohort.there, x, np.nan).ravel() for name, x in cohort.varying.items()}
    flat["male"] = np.repeat(cohort.constants["male"], VISITS)
    flat["visit"] = np.tile(np.arange(VISITS) * 1.0, N)
    rows, present = encoding.encode(flat, rng)
    shape = (N, VISITS)
    parts = release(
        HOW, made, encoding, rows.reshape(*shape, -1), present.reshape(shape), SeededNoise(2)
    )
    return made, schema, list(parts)


def test_parts_are_those_of_every_trajectory() -> None:
    _, _, parts = released()
    names = [part.name for part in parts]
    assert names == ["tables/copy-1", "tables/copy-2", PARTICLES, PATHS, "refits/1", "refits/2"]
    assert parts[2].rows == HOW.particles * VISITS
    assert parts[3].rows == HOW.paths * HOW.path_times
    assert parts[0].rows == parts[1].rows <= N * VISITS


def test_rows_are_as_many_as_visits_and_not_as_places() -> None:
    cohort, _ = panel()
    _, _, parts = released()
    for part in (parts[0], parts[4]):
        assert abs(part.rows - cohort.there.sum()) < 0.1 * cohort.there.sum()


def test_all_along_a_path_nobody_changes_sex() -> None:
    _, schema, parts = released()
    paths = parts[3].columns
    male = np.asarray(paths["male"]).reshape(HOW.paths, HOW.path_times)
    assert (male == male[:, :1]).all()
    assert 0.1 < male.mean() < 0.7
    for column in schema.columns:
        values = np.asarray(paths[column.name], dtype=float)
        assert np.array_equal(column.snap(values), values)


def test_levels_stay_levels_and_visits_of_a_person_stand_together() -> None:
    _, _, parts = released()
    table = parts[0].columns
    assert set(np.unique(table["oedema"])) <= {0.0, 1.0}
    visit, male = (np.asarray(table[name], dtype=float) for name in ("visit", "male"))
    same = np.diff(visit) > 0  # mostly the same person's next visit
    assert (male[1:] == male[:-1])[same].mean() > 0.85


def test_one_path_is_not_another_visit_of_everybody() -> None:
    """Paths' blood pressures at different times go together as the cohort's do."""
    cohort, _ = panel()
    _, _, parts = released()
    sbp = np.asarray(parts[3].columns["sbp"], dtype=float).reshape(HOW.paths, HOW.path_times)
    both = cohort.there[:, 0] & cohort.there[:, 2]
    real = np.corrcoef(cohort.varying["sbp"][both][:, [0, 2]].T)[0, 1]
    found = np.corrcoef(sbp[:, 0], sbp[:, 4])[0, 1]
    assert real > 0.5
    assert abs(found - real) < 0.3


def test_it_is_inferred_where_it_is_asked_to_be() -> None:
    _, schema = panel()
    assert HOW.measures(schema)
    assert not replace(HOW, dependence="inferred").measures(schema)
    assert not HOW.measures(replace(schema, max_rows_per_person=1))
    assert not replace(HOW, subsample=2).measures(schema)
    assert not replace(HOW, start="public").measures(schema)
