"""Paths that end: who dies and who drops out by the last value comes back, and nobody is seen after
the end."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from tests.studies import ended
from tests.support.carried_out import release

from penstock.mechanisms.parts import Part
from penstock.mechanisms.plans import plan
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.mechanisms.trajectory.histories import read_courses
from penstock.mechanisms.trajectory.mechanism import TRAJECTORY
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.persons import keep_first
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

N = 1500


def test_survival_and_visits_come_back_and_no_visit_is_after_the_end() -> None:
    """At n = 4 000 and ε = 3. Without the link between values and the end the hazard ratio, which
    is 20 of its standard errors, would be off by them."""
    rng = np.random.default_rng(3)
    found = ended.compare(ended.simulate(4000, rng), rng)
    assert found["after"] == 0
    assert found["survival"] < 0.05
    assert found["there"] < 0.06
    assert found["died"] < 0.05
    assert found["hazard"] < 8
    assert found["mean"] < 0.06
    assert found["between"] < 0.08


@cache
def released() -> tuple[RepeatsPlan, Schema, dict[str, Part]]:
    cohort, schema, how = ended.simulate(N, np.random.default_rng(8))
    how = replace(how, copies=1, refits=1, particles=60, paths=300, path_times=9)
    made = plan(how, schema, N, PrivacyRequest(6.0, 1e-5))
    assert isinstance(made, RepeatsPlan)
    encoding, rng, shape = Encoding(schema), np.random.default_rng(0), cohort.there.shape
    flat = {name: np.where(cohort.there, x, np.nan).ravel() for name, x in cohort.varying.items()}
    flat |= {name: np.repeat(x, shape[1]) for name, x in cohort.constants.items()}
    flat["visit"] = np.tile(np.arange(shape[1]) * 1.0, N)
    rows, present = encoding.encode(flat, rng)
    given = (rows.reshape(*shape, -1), present.reshape(shape), SeededNoise(2))
    return made, schema, {part.name: part for part in release(how, made, encoding, *given)}


def test_no_row_of_a_table_is_after_its_persons_end() -> None:
    made, schema, parts = released()
    assert made.follow_up is not None
    for name in ("tables/copy-1", "refits/1"):
        table = {key: np.asarray(x, dtype=float) for key, x in parts[name].columns.items()}
        assert (table["visit"] <= table["years"]).all()
        assert set(np.unique(table["died"])) == {0.0, 1.0}
        # A person's rows agree on the end.
        how = ended.simulate(10, np.random.default_rng(0))[2]
        courses = read_courses(how, schema, table)
        assert courses.person is not None
        first = keep_first(table, courses)
        for column in ("years", "died"):
            assert (first[column][courses.person] == table[column]).all()
        assert 0.2 < first["died"].mean() < 0.4


def test_paths_and_particles_say_nothing_after_their_end() -> None:
    _, schema, parts = released()
    for name in (PARTICLES, PATHS):
        table = {key: np.asarray(x, dtype=float) for key, x in parts[name].columns.items()}
        clock = table["visit"] if name == PARTICLES else np.tile(np.linspace(0, 4, 9).round(), 300)
        after = clock > table["years"]
        assert 0.05 < after.mean() < 0.6
        for column in schema.columns:
            if column.varies and column.name != "visit":
                assert np.isnan(table[column.name][after]).all()
                assert not np.isnan(table[column.name][~after]).any()


def test_a_release_is_as_its_shape_promises() -> None:
    """What a column says after the end is missing, and only there: a gate refuses it elsewhere."""
    _, schema, parts = released()
    how = replace(ended.simulate(10, np.random.default_rng(0))[2], copies=1, refits=1)
    how = replace(how, particles=60, paths=300, path_times=9)
    shape = TRAJECTORY.shape(Asked(how, schema, PrivacyRequest(6.0, 1e-5)), N)
    assert {part.name for part in shape.parts} == set(parts)
    missing = {}
    for part in shape.parts:
        for column in part.schema.columns:
            gone = np.isnan(np.asarray(parts[part.name].columns[column.name], dtype=float)).any()
            assert column.nullable or not gone, (part.name, column.name)
            missing[part.name, column.name] = gone
    assert missing[PATHS, "sbp"]
    assert not missing["tables/copy-1", "sbp"]
