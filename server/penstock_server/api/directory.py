"""The analyst's calls on a coordinator's directory, on the coordinator's own machine."""

from __future__ import annotations

from pathlib import Path

from penstock.base.documents import Json
from penstock.wire.messages import Copies, StudyState
from penstock.wire.signed import read_signed_cancel, read_signed_study
from penstock_server.access.access_chain import name_local_visitor
from penstock_server.api.enrolled import list_sites
from penstock_server.install.founding import open_coordinator


class Directory:
    """The analyst's view (:class:`penstock.analyst.Coordinator`) of a coordinator's directory.

    Whoever holds the directory is its admin: any key may sign, and every study can be read.
    """

    def __init__(self, where: str) -> None:
        self._coordinator = open_coordinator(Path(where))

    def require_wire(self, wire: str) -> None:
        """It is the coordinator itself, which refuses what it does not know."""

    def submit(self, signed: bytes) -> str:
        return self._coordinator.submit(read_signed_study(signed))

    def studies(self) -> list[Json]:
        return self._coordinator.studies()

    def sites(self) -> list[Json]:
        return list_sites(self._coordinator)

    def status(self, study: str) -> Json:
        return self._coordinator.status(study)

    def cancel(self, signed: bytes) -> None:
        self._coordinator.cancel(read_signed_cancel(signed))

    def close_study(self, signed: bytes) -> None:
        self._coordinator.close(read_signed_cancel(signed))

    def pull(self, study: str, out: Path, *, copies: Copies) -> list[Path]:
        from penstock_server.results import production

        found = self._coordinator.find(study)
        if found.state is StudyState.FINISHED:
            by = name_local_visitor().fields
            self._coordinator.access.write("read", study=found.id, what="*", copies=copies, **by)
        return production.pull_results(self._coordinator, found.id, out, copies=copies)
