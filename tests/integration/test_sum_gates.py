"""Gates that add up: one release of four sites over their real sockets, and what goes wrong."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace

import psutil
import pytest
from tests.conftest import ESTIMAND, World
from tests.support.adding import NOTHING, SHORT, Adding, make_gates, sign_joint
from tests.support.replayed_sums import audit_sums
from typer.testing import CliRunner

from penstock.aggregation.exchanges import write_asking, write_sum
from penstock.base.errors import Refused
from penstock.mechanisms import Scoring, SlicedWasserstein, Trajectory
from penstock.mechanisms.joint.rounds import conclude
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.estimands import Estimand
from penstock.wire import gate_pb2
from penstock.wire.manifest import read_manifest
from penstock.wire.signed import sign_cancel
from penstock_client.cli import app as steward_app
from penstock_client.ledger.sqlite_file import Database
from penstock_client.site.peer_keys import Peers, read_peers, write_peers
from penstock_server.intake.uploads import check_manifest
from penstock_server.store.round_sums import RoundSum
from penstock_server.store.sites import Site

NAMES = ("east", "north", "south", "west")
SCORING = Scoring()
TRAJECTORY = Trajectory(
    "age", points=3, copies=1, refits=0, particles=4, paths=3, path_times=3, steps=2
)
SKETCH = SlicedWasserstein(copies=1, refits=0, steps=4, bases=2, bins=16)

FEWEST: dict[str, object] = {"estimands": ()}
"""Three rounds, where nothing rests on what is asked."""


def start(world: World, settings: object = SHORT, **changes: object) -> Adding:
    adding = Adding(world, sign_joint(world, settings, **{**FEWEST, **changes}))
    for site in world.sites:
        site.start()
    adding.submit()
    adding.meet()
    return adding


EVERY = [
    pytest.param(SHORT, (), id="structured, three rounds"),
    *(
        pytest.param(settings, asked, id=settings.name, marks=pytest.mark.thorough)
        for settings, asked in (
            (SHORT, (ESTIMAND,)),
            (SCORING, (ESTIMAND,)),
            (SKETCH, (ESTIMAND,)),
            (TRAJECTORY, ()),
        )
    ),
]


@pytest.mark.parametrize(("settings", "asked"), EVERY)
def test_four_gates_make_one_release(
    world: World, settings: object, asked: tuple[Estimand, ...]
) -> None:
    make_gates(world, NAMES)
    adding = start(world, settings, estimands=asked)
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
    audit_gates(adding)
    for site in world.sites:
        request = adding.requests[site.name]
        assert site.poll(request).state == "delivered"
        data, table = site.collect(request)
        manifest = read_manifest(data, site.paths.gate_public())
        assert (manifest.rows, manifest.parts, table) == (0, (), b"")
        enrolled = Site(site.name, "net", site.paths.gate_public(), manifest.persons, {})
        study = adding.signed.study
        known = check_manifest(
            data, study, adding.signed.study_id, enrolled, ledger_seen={}, simulation=True
        )
        assert known == manifest
        assert site.ledger().charges[request].status == "committed"


def audit_gates(adding: Adding) -> None:
    """What the gates keep in their databases, held to the signed study and to the sums."""
    with contextlib.ExitStack() as stack:
        gates = {}
        for site in adding.world.sites:
            # A copy: the record's tables are made where they are missing.
            copy = shutil.copy(site.paths.database, adding.world.root / f"{site.name}-copy.db")
            gates[site.name] = Database(copy)
            stack.callback(gates[site.name].close)
        rounds = [RoundSum(NAMES, data) for data in adding.told()]
        audited = audit_sums(adding.signed.data, gates, rounds)
        assert audited.plan.events == adding.plan.events


@pytest.mark.thorough
def test_gates_that_trust_nobody_make_one_release_with_noise_of_their_own(world: World) -> None:
    """Nobody's gate is pinned, one site drops out of a round, and each charge is plain."""
    make_gates(world, NAMES)
    for site in world.sites:
        write_peers(site.paths.peers, Peers())
    shared = sign_joint(world, SHORT, **FEWEST)
    scope = replace(shared.study.aggregation, colluders=0, noise="local")
    adding = Adding(world, sign_joint(world, SHORT, aggregation=scope, **FEWEST))
    for site in world.sites:
        site.start()
    adding.submit()
    adding.meet()
    while len(adding.sums) < adding.plan.rounds - 1:
        adding.add_round()
    adding.add_round(absent=[NAMES[2]])
    for site in world.sites:
        [charge] = site.ledger().charges.values()
        assert charge.events == adding.plan.events
        assert {type(event) for event in charge.events} == {DiscreteGaussian}
        assert charge.alone_epsilon == ""
    assert list(
        conclude(adding.mechanism, adding.plan, adding.encoding, adding.sums, SeededNoise(1))
    )


def test_a_request_waits_for_a_steward_who_pins_the_other_gates(world: World) -> None:
    make_gates(world, NAMES)
    site = world.sites[0]
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace('"automatic"', '"by-hand"'))
    before = read_peers(site.paths.peers)
    write_peers(site.paths.peers, Peers({NAMES[1]: before.keys[NAMES[1]]}))
    site.start()
    signed = sign_joint(world, SCORING)
    request = site.submit(signed).request_id
    assert site.poll(request).state == "awaiting-approval"

    def steward(*args: str, code: int = 0) -> str:
        done = CliRunner().invoke(steward_app, [*args, "--dir", str(site.paths.root)])
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    assert "not pinned here: south, west" in steward("requests")
    shown = steward("preview", request[:12])
    assert "formal (distributed)" in shown
    assert "site peers add" in shown
    assert "if all other sites collude" in shown
    steward("approve", request[:12], code=4)
    write_peers(site.paths.peers, before)
    assert "not pinned" not in steward("requests")
    steward("approve", request[:12])
    assert site.poll(request).state == "queued"


def refused(call: object) -> str:
    """The code with which a call is refused."""
    with pytest.raises(Refused) as error:
        call()  # type: ignore[operator]
    return error.value.reason


@pytest.mark.thorough
def test_a_coordinator_that_breaks_its_word_gets_the_first_answer_or_none(world: World) -> None:
    """A second input, other sums, a present site called absent, other survivors, strangers."""
    make_gates(world, NAMES)
    adding = start(world)
    name, other = NAMES[0], NAMES[1]
    assert refused(lambda: adding.open(name, b"no message")) == "malformed"
    assert refused(lambda: adding.step(name, round=10**6, advertise=NOTHING)) == "malformed"
    collector = adding.gather()
    first = collector.next_messages()[name]
    assert refused(lambda: adding.open(name, first, [b"x" * 12])) == "malformed"  # a sum too many
    adding.mask(collector)
    assert adding.open(name, first) == adding.masked[0, name]
    # The same in a message of the network: the same bytes, and the same refusals.
    told = gate_pb2.Opening(opening=first)
    assert adding.forward(name, round=0, open=told).stepped.message == adding.masked[0, name]
    assert adding.forward(name).failure.code == "wire-version"
    other_opening = gate_pb2.Opening(opening=collector.next_messages().get(other, first[:-1]))
    assert adding.forward(name, round=0, open=other_opening).failure.code == "conflict"
    # Of three of the four, as if one had sent no advert: another input of the same round.
    fewer = Adding(world, adding.signed, adding.requests).gather(absent=[NAMES[3]])
    assert refused(lambda: adding.open(name, fewer.next_messages()[name])) == "conflict"
    absent = gate_asking([site for site in NAMES if site != name])
    assert refused(lambda: adding.step(name, round=0, asking=absent)) == "conflict"
    adding.reveal(collector)
    lost = gate_asking(NAMES[:3])
    assert refused(lambda: adding.step(name, round=0, asking=lost)) == "conflict"
    adding.sums.append(collector.find_sum())
    # Other sums than were told in the round before.
    second = adding.gather()
    adding.mask(second)
    third = [[value + 1 for value in adding.sums[0]], [0] * 3]
    adding.sums.append([0] * 3)
    posting = adding.step(other, round=2, advertise=NOTHING).message
    assert posting == adding.step(other, round=2, advertise=NOTHING).message
    told = [write_sum(each) for each in third]
    assert refused(lambda: adding.open(other, first, told)) == "conflict"


def gate_asking(survivors: object) -> bytes:
    return write_asking(list(survivors))  # type: ignore[call-overload]


@pytest.mark.thorough
def test_a_gate_and_a_worker_may_be_killed_at_any_time_and_add_once(world: World) -> None:
    """kill -9 while a round is worked on, and after; what was said is said again, byte by byte."""
    make_gates(world, NAMES)
    adding = start(world)
    victim = world.sites[0]

    def kill_gate() -> None:
        victim.kill(victim.processes[-1])
        victim.start()

    collector = adding.gather()
    posting = adding.step(victim.name, round=0, advertise=NOTHING).message
    adding.mask(collector, meanwhile=kill_gate)
    [charge] = victim.ledger().charges.values()
    assert charge.status == "reserved"
    kill_gate()
    assert adding.step(victim.name, round=0, advertise=NOTHING).message == posting
    opening = adding.openings[0, victim.name]
    assert adding.open(victim.name, opening) == adding.masked[0, victim.name]
    adding.reveal(collector)
    adding.sums.append(collector.find_sum())

    def kill_worker() -> None:
        parent = psutil.Process(victim.processes[-1].pid)
        end = time.monotonic() + 60
        while not (workers := parent.children()) and time.monotonic() < end:
            time.sleep(0.01)
        assert workers
        with contextlib.suppress(psutil.NoSuchProcess):
            workers[0].kill()

    second = adding.gather()
    adding.mask(second, meanwhile=kill_worker)
    adding.reveal(second)
    adding.sums.append(second.find_sum())
    assert len(victim.ledger().charges) == 1
    assert victim.poll(adding.requests[victim.name]).state == "running"


@pytest.mark.thorough
def test_a_site_may_drop_out_and_cancel_burns_what_is_left(world: World) -> None:
    make_gates(world, NAMES)
    adding = start(world)
    collector = adding.gather()
    adding.mask(collector, absent=[NAMES[2]])
    adding.reveal(collector)
    assert collector.survivors == tuple(name for name in NAMES if name != NAMES[2])
    adding.sums.append(collector.find_sum())
    cancel = sign_cancel(adding.signed.study_id, world.analyst).to_bytes()
    for site in world.sites:
        site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=cancel))
    for site in world.sites:
        request = adding.requests[site.name]
        assert site.wait(request).state == "cancelled"
        charges = site.ledger().charges
        assert [c.status for c in charges.values()] == ["burnt"] * len(charges)
        assert refused(lambda name=site.name: adding.step(name, introduce=NOTHING)) == "no-round"
