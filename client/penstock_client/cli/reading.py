"""The ledger as the commands read it: from the running gate, or from its file where none runs."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.base.errors import GateUnavailable
from penstock.wire.calls import listens
from penstock_client.cli.common import call_document
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.records import verify_records
from penstock_client.ledger.replay import read_records
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import State
from penstock_client.site.site_paths import SitePaths


def read_ledger(paths: SitePaths) -> tuple[Json, State]:
    """The export, and the state that it folds to; chain and signatures are checked here.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    public = paths.gate_public()
    if listens(paths.steward_socket):
        try:
            export: Json = call_document(paths, "Ledger")["export"]
            return export, verify_records(read_records(export), public)
        except GateUnavailable:
            pass  # It ended meanwhile.
    database = Database(paths.database, read_only=True)
    try:
        ledger = Ledger(database, None)
        return ledger.export(public), ledger.verify(public)
    finally:
        database.close()
