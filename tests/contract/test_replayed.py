"""Whatever mechanism there is, is replayed: every choice of its settings, every kind of charge.

The law itself is in tests/laws/test_replay.py.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from scipy.stats import qmc
from tests.support.replay import run, seams
from tests.support.replayed import LOOKS, STUDIES, coarsely, others, planned

from penstock import mechanisms
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.gibbs import settings as gibbs
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
    "trajectory": {"start": trajectory.STARTS, "coupling": trajectory.COUPLINGS},
    "gibbs": {"dynamics": gibbs.DYNAMICS, "baseline": gibbs.BASELINES},
}
"""The settings of each mechanism that choose between ways to look at rows."""

NAMES = {"time"}
"""Settings that name a column."""


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_replayed_in_every_choice_of_its_settings(name: str) -> None:
    assert name in LOOKS
    studies = STUDIES[name]
    assert {study.mechanism.name for study in studies} == {name}
    chosen = {f.name for f in fields(mechanisms._TYPES[name]) if f.type == "str"} - NAMES
    assert chosen == set(CHOICES[name])
    for setting, choices in CHOICES[name].items():
        assert {getattr(s.mechanism, setting) for s in studies} == set(choices), setting
    assert {s.schema.max_rows_per_person > 1 for s in studies} == {True, False}


def test_every_guarantee_that_promises_something_is_replayed() -> None:
    given = {s.guarantee for studies in STUDIES.values() for s in studies}
    assert given == set(GUARANTEES) - {"empirical"}  # whose ε is infinite


def test_every_question_is_replayed() -> None:
    asked = {s.estimand.model for s in STUDIES["gibbs"] if s.estimand is not None}
    assert asked == set(MODELS.names)
    assert {s.mechanism.steps is None for s in STUDIES["gibbs"]} == {True, False}  # type: ignore[union-attr]


def test_a_flow_is_replayed_with_and_without_injection() -> None:
    assert {s.mechanism.w > 0 for s in STUDIES["maf"]} == {True, False}  # type: ignore[union-attr]


def test_particles_are_replayed_with_and_without_sampling() -> None:
    moved = [s.mechanism for s in STUDIES["trajectory"]]
    assert {m.rate < 1 for m in moved} == {True, False}  # type: ignore[union-attr]
    assert {m.subsample is None for m in moved} == {True, False}  # type: ignore[union-attr]


def test_every_kind_of_charge_that_a_plan_can_make_is_replayed() -> None:
    found = {type(e) for studies in STUDIES.values() for s in studies for e in planned(s).events}
    assert found == {DiscreteGaussian, FixedSizeGaussian, Gaussian, NoisyDescent, PoissonGaussian}


def test_every_place_in_a_mechanism_that_adds_noise_is_looked_at() -> None:
    looked = {
        look.where
        for name, studies in STUDIES.items()
        for study in studies
        for look in LOOKS[name](planned(study))
    }
    modules = {m.__name__ for m, _, _ in seams() if m.__name__.startswith("penstock.mechanisms.")}
    assert looked == {name.rpartition(".")[2] for name in modules}


@pytest.mark.parametrize("name", ["maf", "sliced-wasserstein"])
def test_a_replay_is_coarse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is bound before it is made smaller once cost the suite a third of its time."""
    powers, draw = [], qmc.Sobol.random_base2

    def counted(sobol: qmc.Sobol, m: int) -> object:
        powers.append(m)
        return draw(sobol, m)

    monkeypatch.setattr(qmc.Sobol, "random_base2", counted)
    study = STUDIES[name][0]
    assert study.mechanism.refits
    rng = np.random.default_rng(0)
    everybody = others(study.schema, study.persons, "mixed", rng)
    with coarsely():
        run(study.mechanism, planned(study), Encoding(study.schema), everybody)
    assert powers
    assert max(powers) <= 5
