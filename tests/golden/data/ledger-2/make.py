"""How this site was made, and the coordinator beside it (../coordinator-4), by version 0.1.0.

Ledgers of format 2, a store of format 4, on 2026-11-22. In the root of the project:

    python tests/golden/data/ledger-2/make.py

wrote both folders anew: frozen since, as what a later version must open and go on with. Make new
ones beside them (ledger-3, coordinator-5) when a format rises; never these again.

``site`` is a site with made-up rows whose steward decides by hand. It has certified its rows,
approved a study, which is delivered, and rejected one; a charge was burnt, and one was reserved
when the gate was killed. ``coordinator-4`` has the delivered study's table and results; its store
is a dump (store.sql), and it lacks what every start makes anew.

The keys (site/keys/gate.key, coordinator-4/access.key) are TEST KEYS: they were made for this, and
guard nothing.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.conftest import World
from tests.golden.mechanisms import MEAN, SLOPE, finish, rows_of, schema_of
from tests.support.here import GateHere
from tests.support.ledgers import DIGESTS

from penstock.mechanisms import SlicedWasserstein
from penstock.privacy.events import Gaussian, NoisyDescent
from penstock.privacy.request import PrivacyRequest
from penstock.wire.messages import JobState
from penstock_client.ledger import decisions
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge
from penstock_client.site.site_paths import SitePaths
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.studies.coordinator import Coordinator

HERE = Path(__file__).parent
HUB = HERE.with_name("coordinator-4")
QUESTION = {
    "schema": schema_of("sketch"),
    "estimands": (SLOPE, MEAN),
    "mechanism": SlicedWasserstein(copies=2, refits=1, steps=4, bases=2, bins=8),
    "privacy": PrivacyRequest(2.0, 1e-5),
}


def main(root: Path) -> None:
    world = World(root)
    made = world.site(
        "site", csv=rows_of("sketch"), schema=schema_of("sketch"), approval="by-hand", persons=60
    )
    paths = made.paths
    policy = paths.policy.read_text()
    paths.policy.write_text(policy.replace('["maf"]', '["sliced-wasserstein"]'))
    shutil.move(root / "site.csv", paths.root / "rows.csv")
    settings = paths.settings.read_text()
    paths.settings.write_text(settings.replace("../site.csv", "rows.csv"))
    make_coordinator(root / "hub")
    hub = open_coordinator(root / "hub")
    enrol_site(hub, json.loads(paths.join.read_text()))
    here = GateHere(paths)
    refused = here.gate.submit(world.signed(name="refused", **QUESTION).to_bytes())
    here.gate.reject(refused.request_id, reason="not ours")
    signed = world.signed(name="trial", **QUESTION)
    request = here.gate.submit(signed.to_bytes()).request_id
    here.gate.approve(request, reason="as agreed")
    while here.gate.poll(request).state is not JobState.DELIVERED:
        time.sleep(0.1)
    hub.submit(signed)
    finish(hub, {"site": paths.gate_socket})
    here.close()
    charge_more(paths)
    keep_site(paths)
    keep_hub(root / "hub", hub)


def charge_more(paths: SitePaths) -> None:
    """A burnt charge, and one that is open, as a killed gate leaves it."""
    ledger = Ledger(Database(paths.database), paths.key())
    digests = DIGESTS | {"decisions": decisions.read_decisions(paths)[-1]["hash"]}
    charge = Charge("", "main", 1, "s", "ann", "maf", (), 1e-5, **digests)
    burnt = (NoisyDescent(30.0, 0.95, 200, label="chain"),)
    for name, events in (("burnt", burnt), ("open", (Gaussian(9.0, 2, "margins"),))):
        ledger.reserve(replace(charge, id=name, events=events), signer_epsilon=10.0)
    ledger.burn("burnt", "failed")
    ledger.database.close()


def keep_site(paths: SitePaths) -> None:
    shutil.rmtree(HERE / "site", ignore_errors=True)
    anew = shutil.ignore_patterns("run", "work", "log", "lock", "network", "*-journal")
    shutil.copytree(paths.root, HERE / "site", ignore=anew)


def keep_hub(root: Path, hub: Coordinator) -> None:
    hub.store.close()
    shutil.rmtree(HUB, ignore_errors=True)
    HUB.mkdir()
    for name in ("coordinator.json", "access.key"):
        shutil.copy(root / name, HUB)
    for part in ("studies", "uploads"):
        shutil.copytree(root / part, HUB / part)
    with sqlite3.connect(root / "coordinator.db") as database:
        (HUB / "store.sql").write_text("\n".join(database.iterdump()) + "\n")


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="pk-"))
    try:
        main(folder)
    finally:
        shutil.rmtree(folder)
