"""The durable stores of a gate, behind one lock and one clock, and the facts that it reads anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.base.times import stamp_now
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.wire.messages import Code, JobState
from penstock.wire.signed import SignedStudy, read_signed_study, read_stored_study
from penstock_client.gate.admission import SiteFacts, refuse
from penstock_client.gate.facts import read_facts
from penstock_client.gate.jobs import UNBEGUN, Job, Jobs
from penstock_client.gate.outside import PublicView
from penstock_client.gate.recovery import Watch
from penstock_client.ledger.decisions import Decisions
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import State
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings

ROLLED_BACK: Code = "rolled-back"


class Stores:
    """Ledger, decisions and jobs of one site: verified when they are opened.

    Attributes:
        mechanisms: all there are; tests have others.
        lock: held by whoever decides on a job by what it reads here.
    """

    def __init__(
        self,
        paths: SitePaths,
        settings: SiteSettings,
        clock: Callable[[], str] = stamp_now,
        mechanisms: Registry = MECHANISMS,
    ) -> None:
        self.paths = paths
        self.settings = settings
        self.mechanisms = mechanisms
        self.key = paths.key()
        self.public_key = paths.gate_public()
        self.database = Database(paths.database)
        self.ledger = Ledger(self.database, self.key, clock)
        self.ledger.verify(self.public_key)
        self.decisions = Decisions(paths, self.key)
        self.decisions.verify(self.public_key)
        self.watch = Watch(paths, self.ledger, self.public_key)
        self.jobs = Jobs(self.database)
        self.lock = threading.Lock()
        self._clock = clock
        self._latest = ""

    def now(self) -> str:
        """The clock's time, never before the last record's, nor before what was said last."""
        self._latest = max(self._clock(), self.ledger.state().time, self._latest)
        return self._latest

    def facts(self) -> SiteFacts:
        """What decisions depend on, read anew: the steward may have changed it.

        Raises:
            Refused: not certified yet, or a file that the steward is just editing.
        """
        state, now = self.ledger.state(), self.now()
        return read_facts(self.paths, self.settings, state, now, self.mechanisms)

    def read_study(self, data: bytes) -> SignedStudy:
        """An untrusted signed study, of a mechanism that there is.

        Raises:
            PenstockError: malformed or not signed.
        """
        return read_signed_study(data, self.mechanisms)

    def read_job(self, job: Job) -> SignedStudy:
        """A job's study, which was verified when it came: read once in this process."""
        return read_stored_study(job.signed, self.mechanisms)

    def outside(self) -> PublicView:
        """What may be known outside, now."""
        cancelled = {j.request_id: j.updated for j in self.jobs.in_state(JobState.CANCELLED)}
        state = self.ledger.state()
        return PublicView(state, cancelled, self.now(), frozenset(self.list_unbegun(state)))

    def list_unbegun(self, state: State) -> Iterator[str]:
        """Requests that are charged with another half of their study, and have not begun."""
        for charge in state.charges.values():
            if charge.status == "reserved":
                job = self.jobs.get(charge.id)
                if job is None or job.state in UNBEGUN:
                    yield charge.id

    def job(self, request_id: str) -> Job:
        """A job that is known.

        Raises:
            Refused: unknown request.
        """
        job = self.jobs.get(request_id)
        if job is None:
            raise refuse("unknown-request")
        return job

    def release_folder(self, request_id: str) -> Path:
        """Where the release of a request is kept."""
        return self.paths.releases / request_id

    def refuse_if_stopped(self) -> None:
        """Nothing is decided on a ledger that was restored.

        Raises:
            Refused: it was.
        """
        if self.watch.stopped:
            raise refuse(ROLLED_BACK)
