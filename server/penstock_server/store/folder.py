"""A coordinator's directory: where everything lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import CoordinatorError
from penstock.processes.sockets import check_path


@dataclass(frozen=True, slots=True)
class Folder:
    """Every file of a coordinator, below one directory of mode 0700."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "coordinator.json"

    @property
    def access_key(self) -> Path:
        """Signs the access log; made with its first record."""
        return self.root / "access.key"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def superlink_socket(self) -> Path:
        return self.run / "superlink.sock"

    @property
    def spool(self) -> Path:
        """Bodies of calls while they are under way; files without names."""
        return self.run / "spool"

    @property
    def lock(self) -> Path:
        return self.root / "pump.lock"

    @property
    def home(self) -> Path:
        return self.root / "flower"

    @property
    def secret(self) -> Path:
        return self.home / "secret"

    @property
    def superlink_database(self) -> Path:
        return self.home / "superlink.db"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    def uploads(self, study_id: str) -> Path:
        """Where the sites' tables of a study lie."""
        return self.root / "uploads" / study_id

    def table(self, study_id: str, site: str) -> Path:
        """Where a site's table of a study lies."""
        return table_path(self.uploads(study_id), site)

    def findings(self, study_id: str) -> Path:
        """What was found of each site's release, so that results that are made again need not look
        at it again."""
        return self.root / "findings" / study_id

    @property
    def studies(self) -> Path:
        """Where results are made."""
        return self.root / "studies"

    def results(self, study_id: str) -> Path:
        """Where the results of a finished study lie."""
        return self.studies / study_id

    def make(self) -> None:
        """Create the directories, closed to everybody else."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.tls, self.run, self.home, self.logs):
            path.mkdir(mode=0o700, exist_ok=True)

    def check(self) -> None:
        """Unix socket paths are at most 107 bytes long.

        Raises:
            CoordinatorError: the directory's path is too long.
        """
        check_path(self.superlink_socket, "the coordinator's directory", CoordinatorError)


def table_path(uploads: Path, site: str) -> Path:
    """A site's table in a study's folder of them."""
    return uploads / f"{site}.arrow"
