"""A table's plan has nothing that is not charged: what has no noise, or no class, has no price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.base.errors import InvalidEvent, InvalidInput
from penstock.mechanisms import Maf
from penstock.mechanisms.maf.body import Autoregressive
from penstock.mechanisms.maf.plan import plan
from penstock.mechanisms.sliced_wasserstein.batches import Resampling, measure_batches
from penstock.mechanisms.tables.plan import Plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema

SCHEMA = Schema((Column("t", "duration", upper=5, event="died"), Column("died", "event")))


def made() -> Plan:
    return plan(Maf(steps=3), SCHEMA, 200, PrivacyRequest(2.0, 1e-4))


@pytest.mark.parametrize("stage", ["margins", "moments", "outcome", "body"])
def test_a_formal_fit_with_a_stage_without_noise_has_no_price(stage: str) -> None:
    found = made()
    assert len(found.events) == 4
    body = found.stages.body
    assert isinstance(body, Autoregressive)
    noiseless = replace(body, training=replace(body.training, noise_multiplier=None))
    broken = replace(found.stages, **{stage: noiseless if stage == "body" else None})
    with pytest.raises(InvalidInput, match="not private"):
        _ = replace(found, stages=broken).events


def test_a_guarantee_that_nobody_knows_has_no_price() -> None:
    with pytest.raises(InvalidInput, match="unknown"):
        _ = replace(made(), guarantee="formally").events


def test_batches_are_drawn_from_the_population_that_they_are_charged_for() -> None:
    measurement = measure_batches(1.0, 2.0, 1, 500, 20, 3)
    Resampling(measurement, 500, 2, 1, SeededNoise(1))
    with pytest.raises(InvalidEvent, match="population"):
        Resampling(measurement, 100, 2, 1, SeededNoise(1))
