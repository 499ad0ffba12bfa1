"""The study of tables that nobody had looked at: its worlds and questions stay what they were."""

from __future__ import annotations

import hashlib
import math

import pytest
from tests.studies.coverage_cells import find_truth, pose_questions, read_world
from tests.studies.unseen import WORLDS
from tests.studies.unseen_tables import DECLARED, MAKERS, PRODUCTS, UNDECLARED

DIGEST = "ae96e417cad7ed03"
"""Of worlds and questions, as they were before the first run."""


def test_worlds_and_questions_are_those_of_before_the_first_run() -> None:
    digest = hashlib.sha256(repr((WORLDS, DECLARED, PRODUCTS, UNDECLARED)).encode())
    assert digest.hexdigest()[:16] == DIGEST
    assert {world.table for world in WORLDS} == MAKERS.keys()


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_every_question_can_be_asked_and_has_a_truth(world) -> None:
    table = read_world(world.table)
    if table is None:
        pytest.skip(f"{world.table} is not in the folder that PENSTOCK_TABLES names")
    asked = pose_questions(world, table)
    assert len({e.model for e in asked.every.values()}) >= 4
    if not world.unlike:
        truth = find_truth(world)
        assert all(math.isfinite(truth[name]) for name in asked.every)
