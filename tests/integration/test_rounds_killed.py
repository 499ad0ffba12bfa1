"""One release of four sites over real daemons, while every kind of process is killed in turn."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping

import pytest
from tests.support.adding import SHORT, sign_joint, trust_gates
from tests.support.federation import COORDINATOR, Federation
from tests.support.replayed_sums import audit_sums
from tests.support.soak import KEPT_IN, Killed, Watch, write_record

from penstock.mechanisms import Trajectory
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.sum_record import list_open_sums
from penstock_server.store.folder import Folder

pytestmark = pytest.mark.thorough

NAMES = ("east", "north", "south", "west")
STAYING, GONE = NAMES[:3], NAMES[3]
ROUNDS, GONE_AFTER = 60, 20
SITE = "site"
PATHS = Trajectory(
    "age", points=4, copies=2, refits=1, particles=6, paths=20, path_times=7, steps=ROUNDS - 1
)
"""Snapshots by age: a start, and a round for each step. Its sums are small, as gates ask."""
KINDS = (
    (COORDINATOR, "superlink"),
    (SITE, "gate"),
    (COORDINATOR, "runner"),
    (SITE, "supernode"),
    (SITE, "worker"),
    (COORDINATOR, "supervisor"),
    (SITE, "runner"),
    (COORDINATOR, "api"),
    (SITE, "supervisor"),
)
"""Every kind of process on either side that a round needs; a worker is killed at work."""
CALM = 2
"""A process is killed in one of so many rounds: the others show what a round takes."""
LATEST = 4.0
"""Seconds of a round after which a process is killed at the latest: all stages are met."""
PATIENCE = 120
"""Seconds that the others wait for a site: a machine that is busy, too, is back by then."""
SUM_SECONDS = 600

# The gate as its steward starts it, by a clock that is a day later.
NEXT_DAY = """
import sys
from datetime import timedelta
from pathlib import Path
from penstock.base import times

times.stamp_now = lambda: times.stamp(times.utc_now() + timedelta(days=1))

from penstock_client.gate import service
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""


@pytest.fixture
def federation() -> Iterator[Federation]:
    made = Federation(NAMES, n=150)
    try:
        trust_gates(made.world)
        settings = Folder(made.folder(COORDINATOR)).settings
        known = json.loads(settings.read_text())
        settings.write_text(json.dumps({**known, "round_patience": PATIENCE}))
        made.start()
        yield made
    finally:
        made.close()


def kill(federation: Federation, machine: str, kind: str) -> None:
    """Kill a process; who started a machine's daemon starts it again, once its orphans are gone."""
    federation.kill(machine, kind)
    if kind == "supervisor":
        federation.until(lambda: not federation.pids(machine), f"the orphans of {machine}")
        # Not until all sites are heard of again: one may be gone for good.
        federation.start(machine, wait=False)


@pytest.mark.timeout(900)  # a busy machine: four sites share its cores with other tests
def test_a_release_outlives_a_pump_and_a_gate(federation: Federation) -> None:
    study = federation.hand_in(sign_joint(federation.world, SHORT, name="short"))
    watch = Watch(federation, study)
    for count, (machine, kind) in enumerate(((COORDINATOR, "runner"), ("east", "gate")), 1):
        watch.await_sum(count, 240)
        kill(federation, machine, kind)
    status = federation.ended(study, 400)
    assert status["state"] == "finished"
    assert {part["state"] for part in status["sites"]} == {"delivered"}
    assert watch.look() == status["rounds"]["of"]
    assert {each.survivors for each in watch.sums} == {NAMES}
    assert set(map(tuple, federation.charges(study).values())) == {("committed",)}
    assert federation.draws(study) == dict.fromkeys(NAMES, 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_sixty_rounds_outlive_the_death_of_every_process_and_of_a_site(
    federation: Federation,
) -> None:
    """60 rounds of four sites; in every other round ``kill -9`` of one process, each kind in turn,
    at any moment of its first seconds. One site is gone for good after 20 rounds.

    Then what gates and the coordinator kept is held to each other by an auditor: one charge, one
    input and one set of survivors a round at each gate, and each sum that of what its sites said.
    """
    signed = sign_joint(federation.world, PATHS, name="soak", estimands=(), deadline_hours=3.0)
    began, study = time.monotonic(), federation.hand_in(signed)
    assert federation.status_of(study)["rounds"]["of"] == ROUNDS
    watch, killed = Watch(federation, study), Killed()
    kill_in_turn(watch, killed)
    status = federation.ended(study, SUM_SECONDS)
    assert status["state"] == "finished", status
    parts = {part["site"]: (part["state"], part["code"]) for part in status["sites"]}
    assert parts.pop(GONE) == ("timed-out", "sum-left")
    assert set(parts.values()) == {("delivered", "")}
    check_survivors(watch)
    assert set(killed.find_recoveries(watch.moments)) >= {name_kind(*each) for each in KINDS}
    # Each ledger holds one charge, of the whole plan, whatever was killed and begun again.
    charges = federation.charges(study)
    assert charges.pop(GONE) == ["reserved"]
    assert set(map(tuple, charges.values())) == {("committed",)}
    assert federation.draws(study) == dict.fromkeys(NAMES, 1)
    federation.stop(COORDINATOR, *STAYING)
    with open_gates(federation) as gates:
        audit_sums(signed.to_bytes(), gates, watch.sums)
        heard = watch.check_said(gates)
    assert {verb for _, verb, _ in watch.said} == set(KEPT_IN)
    settle_gone(federation, study)
    if os.environ.get("PENSTOCK_RECORD"):
        note = test_sixty_rounds_outlive_the_death_of_every_process_and_of_a_site.__doc__
        write_record(watch, killed, began, heard, str(note))


def kill_in_turn(watch: Watch, killed: Killed) -> None:
    """Kill one process in every other round, and a site for good."""
    federation, chance = watch.federation, random.Random(7)
    for number in range(1, ROUNDS - 1):
        watch.await_sum(number, SUM_SECONDS)
        turn, calm = divmod(number, CALM)
        if number == GONE_AFTER:
            federation.kill(GONE, "supervisor")
            killed.note(number, "a site, for good,")
        elif calm:
            place, kind = KINDS[turn % len(KINDS)]
            site = chance.choice(NAMES if number < GONE_AFTER else STAYING)
            time.sleep(chance.uniform(0, LATEST))
            kill(federation, site if place == SITE else place, kind)
            killed.note(watch.look(), name_kind(place, kind))
    watch.await_sum(ROUNDS, SUM_SECONDS)


def name_kind(machine: str, kind: str) -> str:
    return f"{machine}'s {kind}"


def check_survivors(watch: Watch) -> None:
    """One sum a round: of all sites while there were four, then of the three that were left."""
    survivors = [each.survivors for each in watch.sums]
    assert len(survivors) == ROUNDS
    assert set(survivors[:GONE_AFTER]) == {NAMES}
    # The round in which it was killed may have had what it said.
    assert set(survivors[GONE_AFTER + 1 :]) == {STAYING}
    assert survivors[GONE_AFTER] in (NAMES, STAYING)


@contextlib.contextmanager
def open_gates(federation: Federation) -> Iterator[Mapping[str, Database]]:
    """The databases of gates that do not run."""
    with contextlib.ExitStack() as stack:
        gates = {}
        for site in federation.world.sites:
            gates[site.name] = Database(site.paths.database)
            stack.callback(gates[site.name].close)
        yield gates


def settle_gone(federation: Federation, study: str) -> None:
    """The site that was gone starts its gate once more when the study's time is over: its charge
    stays, settled, and the secrets of its sums are erased."""
    site = federation.site(GONE)
    site.start(driver=NEXT_DAY)
    federation.until(lambda: federation.charges(study)[GONE] == ["burnt"], "the charge to be burnt")
    with open_gates(federation) as gates:
        federation.until(lambda: not list_open_sums(gates[GONE]), "secrets to be erased")
        assert list_open_sums(gates[STAYING[0]]) == []
    site.close()
