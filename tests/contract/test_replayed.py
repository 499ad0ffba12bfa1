"""Whatever mechanism there is, is replayed: every choice of its settings, every kind of charge.

The law itself is in tests/laws/test_replay.py.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc
from tests.support.replay import SEAM, run, seams
from tests.support.replayed import LOOKS, STUDIES, coarsely, others, planned

import penstock
import penstock_client
import penstock_server
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.copula import population
from penstock.mechanisms.gibbs import settings as gibbs
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.maf import settings as maf
from penstock.mechanisms.sliced_wasserstein import settings as sliced_wasserstein
from penstock.mechanisms.trajectory import settings as trajectory
from penstock.privacy.events import (
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    NoisyDescent,
    PoissonGaussian,
)
from penstock.privacy.request import GUARANTEES
from penstock.questions.models import MODELS
from penstock.schema.encoding import Encoding

CHOICES = {
    "maf": {"sampling": maf.SAMPLINGS},
    "sliced-wasserstein": {"variant": sliced_wasserstein.VARIANTS},
    "structured": {},
    "trajectory": {"start": trajectory.STARTS, "coupling": trajectory.COUPLINGS},
    "gibbs": {"dynamics": gibbs.DYNAMICS, "baseline": gibbs.BASELINES},
    "scoring": {},
}
"""The settings of each mechanism that choose between ways to look at rows."""

NAMES = {"time"}
"""Settings that name a column."""


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_replayed_in_every_choice_of_its_settings(name: str) -> None:
    assert name in LOOKS
    studies = STUDIES[name]
    assert {study.mechanism.name for study in studies} == {name}
    chosen = {f.name for f in fields(MECHANISMS[name].settings) if f.type == "str"} - NAMES
    assert chosen == set(CHOICES[name])
    for setting, choices in CHOICES[name].items():
        assert {getattr(s.mechanism, setting) for s in studies} == set(choices), setting
    assert {s.schema.max_rows_per_person > 1 for s in studies} == {True, False}


def test_every_guarantee_that_promises_something_is_replayed() -> None:
    given = {s.guarantee for studies in STUDIES.values() for s in studies}
    assert given == set(GUARANTEES) - {"empirical"}  # whose ε is infinite


def test_every_question_is_replayed() -> None:
    asked = {s.estimand.model for s in STUDIES["gibbs"] if s.estimand is not None}
    assert asked == {name for name in MODELS.names if not POSINGS.of(name).refused}
    assert {s.mechanism.steps is None for s in STUDIES["gibbs"]} == {True, False}  # type: ignore[union-attr]


def test_a_flow_is_replayed_with_and_without_injection() -> None:
    assert {s.mechanism.w > 0 for s in STUDIES["maf"]} == {True, False}  # type: ignore[union-attr]


def test_particles_are_replayed_with_and_without_sampling() -> None:
    moved = [s.mechanism for s in STUDIES["trajectory"]]
    assert {m.rate < 1 for m in moved} == {True, False}  # type: ignore[union-attr]
    assert {m.subsample is None for m in moved} == {True, False}  # type: ignore[union-attr]


def test_what_sites_add_up_is_replayed_from_every_start_that_particles_have() -> None:
    added = {s.mechanism.start for s in STUDIES["trajectory"] if s.summed}  # type: ignore[union-attr]
    assert added == set(trajectory.STARTS) - {"counts"}  # which asks for such sums in any case


def test_every_kind_of_charge_that_a_plan_can_make_is_replayed() -> None:
    found = {type(e) for studies in STUDIES.values() for s in studies for e in planned(s).events}
    assert found == {DiscreteGaussian, FixedSizeGaussian, Gaussian, NoisyDescent, PoissonGaussian}


def test_every_measurement_of_a_plan_is_looked_at() -> None:
    for name, studies in STUDIES.items():
        for study in studies:
            looked = {look.asked for look in LOOKS[name](planned(study))}
            assert looked == set(planned(study).measurements), study


def test_numbers_get_their_noise_in_measurements_and_nowhere_else() -> None:
    """The two functions are defined in two modules, and named in one more: not even an import."""
    names, found = {real.__name__ for real in SEAM}, set()
    for root in (penstock, penstock_client, penstock_server):
        for path in Path(next(iter(root.__path__))).rglob("*.py"):
            if names & _named(ast.parse(path.read_text())):
                found.add(path.name)
    assert found == {"measurements.py", "discrete.py", "sources.py"}
    assert {module.__name__ for module, _, _ in seams()} == {
        "penstock.privacy.measurements",
        "penstock.privacy.noise.discrete",
        "penstock.privacy.noise.sources",
    }


def _named(tree: ast.Module) -> set[str]:
    """Every name that a module defines, imports, reads, or reaches for; and every short text."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.add(text)
    return found


@pytest.mark.parametrize("name", ["maf", "sliced-wasserstein", "structured"])
def test_a_replay_is_coarse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is bound before it is made smaller once cost the suite a third of its time."""
    powers, draw = [], qmc.Sobol.random_base2

    def counted(sobol: qmc.Sobol, m: int) -> object:
        powers.append(m)
        return draw(sobol, m)

    monkeypatch.setattr(qmc.Sobol, "random_base2", counted)
    population.quasi_random.cache_clear()  # what others looked at before is not drawn again
    study = STUDIES[name][0]
    assert study.mechanism.refits
    rng = np.random.default_rng(0)
    everybody = others(study.schema, study.persons, "mixed", rng)
    with coarsely():
        run(study.mechanism, planned(study), Encoding(study.schema), everybody)
    assert powers
    # Rows themselves are drawn by such points, too: as many as the copies have, coarse or not.
    places = study.persons * study.schema.max_rows_per_person * study.mechanism.copies
    rows = places if name == "structured" else 0
    assert max(powers) <= max(5, rows.bit_length())
