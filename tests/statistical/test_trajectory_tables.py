"""Tables of snapshots vary as samples do: what combining rules and refits count on."""

from __future__ import annotations

import numpy as np

from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.particle_tables import Model, table
from penstock.mechanisms.trajectory.plan import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema((Column("visit", "integer", 1, 3), Column("x", "continuous", 0, 100)))
PERSONS, TABLES = 400, 400


def test_rows_of_a_table_are_independent_draws() -> None:
    """Means and time points vary from table to table as those of n independent rows.

    The variance of 400 means has a relative standard error of .07; 5 of them: .35. Particles that
    were taken in turn leave the kernel's part alone, a hundredth of it; even shares leave none.
    """
    planned = plan(Trajectory("visit", particles=5), SCHEMA, PERSONS, PrivacyRequest(1.0, 1e-5))
    places = np.linspace(-0.4, 0.4, 5)[None, :, None] * np.ones((3, 1, 1))
    kernels = np.full((3, 1, 1), 0.001)
    couplings = np.full((2, 5, 5), 1 / 5)
    model = Model(places, np.full(3, 1 / 3), float(PERSONS), places, kernels, couplings)
    noise, encoding = SeededNoise(0), Encoding(SCHEMA)
    tables = [table(planned, encoding, model, noise) for _ in range(TABLES)]
    means = np.array([t["x"].mean() for t in tables])
    spread = np.concatenate([t["x"] for t in tables]).var()
    assert 0.65 < means.var() / (spread / PERSONS) < 1.35
    first = np.array([np.mean(t["visit"] == 1) for t in tables])
    assert 0.65 < first.var() / (2 / 9 / PERSONS) < 1.35
