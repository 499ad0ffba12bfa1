"""Gates that add up: one release of four sites over their real sockets, and what goes wrong."""

from __future__ import annotations

import pytest
from tests.conftest import World
from tests.support.adding import Adding, make_gates, sign_joint

from penstock.mechanisms import Scoring, Structured
from penstock.mechanisms.joint.rounds import conclude
from penstock.privacy.events import DistributedGaussian
from penstock.privacy.noise.sources import SeededNoise
from penstock.wire.manifest import read_manifest

NAMES = ("east", "north", "south", "west")
SCORING = Scoring()
STRUCTURED = Structured(copies=1, refits=0, planted=0)


def start(world: World, settings: object = SCORING, **changes: object) -> Adding:
    adding = Adding(world, sign_joint(world, settings, **changes))
    for site in world.sites:
        site.start()
    adding.submit()
    adding.meet()
    return adding


@pytest.mark.parametrize("settings", [SCORING, STRUCTURED], ids=lambda s: s.name)
def test_four_gates_make_one_release(world: World, settings: object) -> None:
    make_gates(world, NAMES)
    adding = start(world, settings)
    assert {site.poll(adding.requests[site.name]).state for site in world.sites} == {"queued"}
    assert not any(site.ledger().charges for site in world.sites)
    adding.add_round()
    for site in world.sites:
        [charge] = site.ledger().charges.values()
        assert charge.events == adding.plan.events
        assert charge.status == "reserved"
        assert float(charge.alone_epsilon) >= adding.plan.epsilon_alone > adding.plan.epsilon
        assert all(isinstance(event, DistributedGaussian) for event in charge.events)
    adding.add_all()
    parts = list(
        conclude(adding.mechanism, adding.plan, adding.encoding, adding.sums, SeededNoise(1))
    )
    assert parts
    for site in world.sites:
        request = adding.requests[site.name]
        assert site.poll(request).state == "delivered"
        data, table = site.collect(request)
        manifest = read_manifest(data, site.paths.gate_public())
        assert (manifest.rows, manifest.parts, table) == (0, (), b"")
        assert site.ledger().charges[request].status == "committed"
