"""`make bundle`: build the bundle of deploy/flower_app, and let sites accept it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from penstock.wire.messages import WIRE_VERSION

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "deploy" / "flower_app"
BUILT = ROOT / "server" / "penstock_server" / "transport" / "flower" / "penstock.fab"
ACCEPTED = ROOT / "client" / "penstock_client" / "operate" / "flower" / "bundles.json"

if __name__ == "__main__":
    content = build_fab_from_disk(SOURCE)
    BUILT.write_bytes(content)
    accepted = json.loads(ACCEPTED.read_text())
    # Sites go on accepting the bundles of earlier releases that speak the same wire.
    accepted[hashlib.sha256(content).hexdigest()] = WIRE_VERSION
    ACCEPTED.write_text(json.dumps(accepted, indent=2) + "\n")
