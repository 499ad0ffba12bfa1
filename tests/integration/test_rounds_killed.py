"""One release of four sites over real daemons, while every kind of process is killed in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from tests.support.adding import sign_joint, trust_gates
from tests.support.federation import COORDINATOR, Federation

from penstock.mechanisms import Scoring
from penstock_server.install.founding import open_coordinator
from penstock_server.store.folder import Folder
from penstock_server.store.round_sums import RoundSum

NAMES = ("east", "north", "south", "west")
Kill = tuple[str, str]
KILLS: tuple[Kill, ...] = (
    (COORDINATOR, "superlink"),
    ("east", "gate"),
    (COORDINATOR, "runner"),
    ("north", "supernode"),
    ("south", "worker"),
    (COORDINATOR, "supervisor"),
    ("east", "runner"),
    (COORDINATOR, "api"),
    ("north", "supervisor"),
)
"""Every kind of process on either side; a worker is killed while a round is worked on."""
GONE = 5
"""After so many sums a site is gone for good."""


@pytest.fixture
def federation() -> Iterator[Federation]:
    made = Federation(NAMES, n=150)
    try:
        trust_gates(made.world)
        settings = Folder(made.folder(COORDINATOR)).settings
        known = json.loads(settings.read_text())
        settings.write_text(json.dumps({**known, "round_patience": 60}))
        made.start()
        yield made
    finally:
        made.close()


def read_sums(federation: Federation, study: str) -> list[RoundSum]:
    coordinator = open_coordinator(federation.folder(COORDINATOR))
    try:
        return list(coordinator.store.summing.sums(study))
    finally:
        coordinator.store.close()


def again(federation: Federation, machine: str) -> None:
    """Start a machine whose supervisor was killed, as soon as its other processes have ended."""
    federation.until(lambda: not federation.pids(machine), f"the orphans of {machine}")
    federation.start(machine)


def follow(federation: Federation, study: str, kills: Sequence[Kill], gone: int = 0) -> None:
    """After each sum kill two processes; and a site for good after so many."""
    left = list(kills)
    for done in range(1, federation.status_of(study)["rounds"]["of"]):
        federation.until(
            lambda least=done: len(read_sums(federation, study)) >= least, f"sum {done}", 240
        )
        if done == gone:
            federation.kill("west", "supervisor")
        for machine, kind in left[:2]:
            federation.kill(machine, kind)
            if kind == "supervisor":
                again(federation, machine)
        left = left[2:]
    assert not left


def test_a_release_outlives_a_pump_and_a_gate(federation: Federation) -> None:
    study = federation.hand_in(sign_joint(federation.world, Scoring(), name="short"))
    follow(federation, study, [(COORDINATOR, "runner"), ("east", "gate")])
    status = federation.ended(study, 200)
    assert status["state"] == "finished"
    assert {part["state"] for part in status["sites"]} == {"delivered"}
    assert {each.survivors for each in read_sums(federation, study)} == {NAMES}
    assert set(map(tuple, federation.charges(study).values())) == {("committed",)}
    assert federation.draws(study) == dict.fromkeys(NAMES, 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_release_outlives_the_death_of_every_process_and_a_site(federation: Federation) -> None:
    study = federation.hand_in(sign_joint(federation.world, Scoring(), name="killed"))
    follow(federation, study, KILLS, gone=GONE)
    status = federation.ended(study, 400)
    assert status["state"] == "finished"
    parts = {part["site"]: (part["state"], part["code"]) for part in status["sites"]}
    assert parts.pop("west") == ("timed-out", "sum-left")
    assert set(parts.values()) == {("delivered", "")}
    sums = read_sums(federation, study)
    assert sums[0].survivors == NAMES
    assert sums[-1].survivors == NAMES[:3]
    # Each ledger holds one charge, of the whole plan, whatever was killed and begun again.
    charges = federation.charges(study)
    assert charges.pop("west") == ["reserved"]
    assert set(map(tuple, charges.values())) == {("committed",)}
    assert federation.draws(study) == dict.fromkeys(NAMES, 1)
