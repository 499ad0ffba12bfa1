"""Every kind of charge has a line that a steward can read."""

from __future__ import annotations

import pytest

from penstock.privacy import events
from penstock_client.cli.steward import event_line

LINES = [
    (events.Gaussian(2.5, label="moments"), "moments: Gaussian, noise multiplier 2.5"),
    (events.Gaussian(2.5, 3), "3 × Gaussian, noise multiplier 2.5"),
    (
        events.PoissonGaussian(0.2, 1.1, 300, "flow"),
        "flow: 300 × Gaussian on Poisson samples, noise multiplier 1.1, rate 0.2",
    ),
    (
        events.FixedSizeGaussian(50, 2_000_000, 2.0),
        "Gaussian on batches of fixed size, noise multiplier 2, batch 50, of 2000000",
    ),
    (events.Laplace(2 / 3, label="counts"), "counts: Laplace, scale 0.6667"),
    (
        events.NoisyDescent(3.0, 0.9, 40),
        "noisy descent, last iterate only, noise multiplier 3, steps 40, contraction 0.9",
    ),
    (
        events.ShuffledGaussian(1000, 2.0, 1e-11, 1e-6, 2),
        "2 × Gaussian rows in random order, noise multiplier 2, δ 1e-06, a row's own δ 1e-11, "
        "persons 1000",
    ),
    (
        events.DistributedGaussian(2.0, 8, 1, 2),
        "Gaussian noise of several sites, noise multiplier 2, sites 8, drop-outs 1, colluders 2",
    ),
    (events.Pure(0.5), "pure DP, ε 0.5"),
    (events.Approximate(0.5, 1e-6, 4), "4 × approximate DP, ε 0.5, δ 1e-06"),
    (events.Unbounded("maf"), "maf: without any bound, ε = ∞"),
    (
        events.OnStratum("men", events.Pure(1.0, 2, "counts")),
        "stratum men: counts: 2 × pure DP, ε 1",
    ),
]


@pytest.mark.parametrize(("event", "line"), LINES)
def test_an_event_reads(event, line):
    assert event_line(events.to_dict(event)) == line


def test_discrete_noise_is_said_to_be_discrete():
    event = {"kind": "discrete-gaussian", "noise_multiplier": 2.0, "count": 1, "label": "margins"}
    assert event_line(event) == "margins: discrete Gaussian, noise multiplier 2"


def test_every_kind_has_its_line():
    said = {events.to_dict(e)["kind"] for e, _ in LINES} | {"discrete-gaussian"}
    assert said == set(events._KINDS)
