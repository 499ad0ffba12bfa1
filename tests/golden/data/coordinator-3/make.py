"""How this store was made, by version 0.1.0 with a store of format 3, on 2026-11-22.

``python make.py FOLDER`` made a coordinator there, with two sites and one study that both have
delivered to. It is still open, as a coordinator leaves it that is killed while results are made.
``store.sql`` is the dump of its store; ``north.arrow`` and ``south.arrow`` are the sites' tables.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

from tests.support import made

from penstock.wire.manifest import sign_manifest
from penstock.wire.messages import SiteState
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import sign_study
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator

HERE = Path(__file__).parent
SITES = ("north", "south")


def main(root: Path) -> None:
    make_coordinator(root)
    coordinator = open_coordinator(root)
    for name in SITES:
        join = {
            "site": name,
            "federation": "net",
            "gate_key": public_hex(made.KEY),
            "persons": made.PERSONS,
            "dictionary": made.SCHEMA.to_dict(),
            "node_key": "ecdsa-sha2-nistp384 AAAA",
        }
        enrol_site(coordinator, join)
    study = made.study(
        made.MECHANISMS["gibbs"], name="trial", sites=SITES, expires="2099-01-01T00:00:00Z"
    )
    study_id = coordinator.submit(sign_study(study, generate_key()))
    for i, site in enumerate(SITES):
        data = made.stream(made.table(study, seed=i))
        (HERE / f"{site}.arrow").write_bytes(data)
        manifest = replace(made.manifest(study, data, site=site), study_id=study_id)
        signed = sign_manifest(manifest, made.KEY)
        with coordinator.store.begin() as c:
            values = {"state": str(SiteState.DELIVERED), "manifest": signed}
            coordinator.store.studies.update_part(c, study_id, site, **values)
    coordinator.store.close()
    with sqlite3.connect(root / "coordinator.db") as database:
        (HERE / "store.sql").write_text("\n".join(database.iterdump()) + "\n")
    shutil.rmtree(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
