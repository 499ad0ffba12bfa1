"""A frame has more places than persons: every mechanism works with places that nobody takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support import made
from tests.support.carried_out import release
from tests.support.made import SCHEMA, TRAJECTORY

from penstock.mechanisms import Gibbs, Maf, Settings, SlicedWasserstein, Structured
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding
from penstock_client.rows.snapshot import arrange_by_person

COUNT, FRAME = 400, 1000
MECHANISMS = [
    Maf(copies=1, refits=0, steps=20),
    SlicedWasserstein(copies=1, refits=0, steps=5),
    Structured(copies=1, refits=0),
    replace(TRAJECTORY, steps=4, particles=30, paths=20, subsample=None, copies=1, refits=0),
    Gibbs(),
]


def padded(schema: Schema, count: int, frame: int) -> tuple[Encoding, np.ndarray, np.ndarray]:
    """Rows of so many persons in a frame, as a worker lays them out."""
    rng = np.random.default_rng(7)
    k = schema.max_rows_per_person
    coded = {n: v for n, v in made.rows(rng, count * k).items() if n in schema.names}
    person = np.repeat(np.arange(count), k)
    rows, present = arrange_by_person(coded, person, frame, Encoding(schema), rng)
    return Encoding(schema), rows, present


@pytest.mark.parametrize("person", [None, "patient"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_a_release_of_a_frame_that_is_not_full(mechanism: Settings, person: str | None) -> None:
    """Planned for the frame; its numbers are those of the persons, and not drawn to the empty."""
    schema = SCHEMA if person else replace(SCHEMA, person=None, max_rows_per_person=1)
    study = made.study(mechanism, schema=schema, privacy=PrivacyRequest(50.0, 1e-5))
    encoding, rows, present = padded(schema, COUNT, FRAME)
    assert rows.shape[:2] == present.shape == (FRAME, schema.max_rows_per_person)
    assert not present[COUNT:].any()
    assert not rows[COUNT:].any()
    planned = plan(mechanism, schema, FRAME, study.privacy, study.estimands)
    parts = list(release(mechanism, planned, encoding, rows, present, SeededNoise(3)))
    assert parts
    for part in parts:
        finite = [np.isfinite(v).all() for n, v in part.columns.items() if n != "chol"]
        assert all(finite)
        if "sbp" in part.columns:
            assert abs(np.mean(part.columns["sbp"]) - 128) < 8
