"""Durable jobs: one per request id, in the same database as the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.wire.messages import JobState
from penstock_client.ledger.sqlite_file import Database

SILENT = "rejected-silently"
"""A steward's no that the network is not told: it never leaves the gate."""

UNBEGUN = (JobState.AWAITING, JobState.QUEUED, JobState.REJECTED)
"""No run of such a job began, whatever the ledger holds of it: it is charged with another half."""


@dataclass(frozen=True, slots=True)
class Job:
    """A study at this site, from its submission to its release or its end: as it truly stands.

    What the network is told of it is a :class:`~penstock_client.gate.outside.PublicJob`. Of a
    cancelled job, ``updated`` is when its signer's wish came.
    """

    request_id: str
    study_id: str
    signed: bytes
    lineage: str
    version: int
    state: JobState
    code: str
    submitted: str
    updated: str


_NOTES = (
    "CREATE TABLE IF NOT EXISTS job_note (request_id TEXT PRIMARY KEY, note TEXT NOT NULL) STRICT"
)
_COLUMNS = "request_id, study_id, signed, lineage, version, state, code, submitted, updated"


class Jobs:
    """The job table; ``place`` keeps the order of submission."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, request_id: str) -> Job | None:
        found = self._select("WHERE request_id = ?", request_id)
        return found[0] if found else None

    def of_study(self, study_id: str) -> list[Job]:
        return self._select("WHERE study_id = ? ORDER BY place", study_id)

    def all(self) -> list[Job]:
        return self._select("ORDER BY place")

    def in_state(self, state: JobState) -> list[Job]:
        """Jobs in this state, oldest first."""
        return self._select("WHERE state = ? ORDER BY place", str(state))

    def add(self, job: Job) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                f"INSERT INTO job ({_COLUMNS}, place) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "
                "(SELECT COALESCE(MAX(place), 0) + 1 FROM job))",
                (
                    job.request_id,
                    job.study_id,
                    job.signed,
                    job.lineage,
                    job.version,
                    str(job.state),
                    job.code,
                    job.submitted,
                    job.updated,
                ),
            )

    def move(self, request_id: str, state: JobState, now: str, code: str = "") -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE job SET state = ?, code = ?, updated = ? WHERE request_id = ?",
                (str(state), code, now, request_id),
            )

    def note(self, request_id: str, note: str) -> None:
        """Keep for the steward how a run ended."""
        with self._database.transaction() as connection:
            connection.execute(_NOTES)  # a file of before has none
            connection.execute(
                "INSERT INTO job_note (request_id, note) VALUES (?, ?) "
                "ON CONFLICT (request_id) DO UPDATE SET note = excluded.note",
                (request_id, note),
            )

    def notes(self) -> dict[str, str]:
        """How runs ended, by request: for the steward alone, since it may depend on rows.

        No part of a :class:`Job`: what the network asks for is read without it, so that not even
        the time of an answer tells whether there is one.
        """
        there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'job_note'"
        if not self._database.query(there):
            return {}
        rows = self._database.query("SELECT request_id, note FROM job_note")
        return {str(request_id): str(note) for request_id, note in rows}

    def _select(self, where: str, *values: object) -> list[Job]:
        rows = self._database.query(f"SELECT {_COLUMNS} FROM job {where}", *values)
        return [
            Job(
                request_id=str(r[0]),
                study_id=str(r[1]),
                signed=r[2],
                lineage=str(r[3]),
                version=int(str(r[4])),
                state=JobState(str(r[5])),
                code=str(r[6]),
                submitted=str(r[7]),
                updated=str(r[8]),
            )
            for r in rows
        ]
