"""Who makes a study's results: one process at a time, by a lease in the store.

A study that waits for no site any more is *pooling* (:class:`penstock.wire.messages.StudyState`),
and has a row here until it has ended. Whoever makes its results holds the row's lease, under a name
that nobody had before, and renews it. What holds, whatever is killed, and when:

- The study is ended by the holder alone, in the transaction that finds it to be the holder. A
  lease that has run out may be taken by another, and then the first can change nothing any more.
- A try that ends without results or reason (its process was killed, or nobody renews the lease)
  counts as a crash, and the third ends the study. A try that is given back counts as nothing.
- A cancellation ends the study at any time. Its holder finds out when it renews.

All times are the coordinator's clock, as text that sorts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.wire.messages import StudyState
from penstock_server.store.clock import Clock
from penstock_server.store.database import Transaction
from penstock_server.store.sql_tables import pooling_table
from penstock_server.store.store import Store

LEASE_SECONDS = 15.0
MOST_CRASHES = 3
WAITS = (5.0, 60.0)
"""Seconds before the second and the third try: what else took the memory may be gone by then."""
VANISHED = "whoever pooled it was killed, or its machine stopped"
AGAIN = (
    "what the sites delivered is kept, and nothing is charged again: once this is mended, whoever "
    "runs the coordinator can run `penstock server pool {study}`"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to end a study, for a while.

    Attributes:
        holder: a name that no other lease has.
        since: when the last answer came: the study's end, as its report has it.
        crashes: tries that ended without results or reason before this one.
    """

    study_id: str
    holder: str
    since: str
    sites: int
    crashes: int


@dataclass(frozen=True, slots=True)
class Pooling:
    """How far a study's results are.

    Attributes:
        sites: that have delivered; ``done`` of them are pooled.
        trouble: what kept the last try from its end; empty if nothing has.
        held: whether anybody is at it, as far as the store knows.
    """

    sites: int
    done: int
    crashes: int
    trouble: str
    held: bool


class Leases:
    """The pooling studies of a store.

    Args:
        seconds: for how long a lease holds that is not renewed.
        waits: seconds before each further try; the last one repeats.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        seconds: float = LEASE_SECONDS,
        waits: tuple[float, ...] = WAITS,
    ) -> None:
        self._store, self._clock = store, clock
        self._seconds, self._waits = seconds, waits

    # -- beginning -----------------------------------------------------------------------------

    def open(self, c: Transaction, study_id: str, since: str, sites: int) -> None:
        """Let a study's results be made, within a transaction that has locked the study."""
        self._store.studies.stop_asking(c, study_id, StudyState.POOLING, "")
        c.execute(
            pooling_table.insert().values(study_id=study_id, since=since, sites=sites, due=since)
        )

    def read_pooling(self, study_id: str) -> Pooling | None:
        """How far a study's results are; None if it is not pooling."""
        query = sa.select(pooling_table).where(pooling_table.c.study_id == study_id)
        with self._store.reading() as c:
            row = c.execute(query).mappings().first()
        if row is None:
            return None
        held = bool(row["holder"]) and row["until"] > self._clock.stamp()
        return Pooling(row["sites"], row["done"], row["crashes"], row["trouble"], held)

    def holders(self) -> set[str]:
        """Of all leases, also of those that have run out."""
        t = pooling_table.c
        with self._store.reading() as c:
            return set(c.execute(sa.select(t.holder).where(t.holder != "")).scalars())

    # -- holding -------------------------------------------------------------------------------

    def claim(self) -> Lease | None:
        """Take a study that nobody is at: one that has crashed less, then the oldest, first."""
        moment = self._clock.stamp()
        t = pooling_table.c
        free = sa.and_(t.due <= moment, sa.or_(t.holder == "", t.until <= moment))
        waiting = sa.select(t.study_id).where(free).order_by(t.crashes, t.since, t.study_id)
        with self._store.reading() as c:
            found: list[str] = list(c.execute(waiting).scalars())
        for study_id in found:
            with self._store.begin() as c:
                lease = self._take(c, study_id, free)
            if lease is not None:
                return lease
        return None

    def _take(self, c: Transaction, study_id: str, free: sa.ColumnElement[bool]) -> Lease | None:
        state = self._store.studies.lock(c, study_id)
        query = sa.select(pooling_table).where(pooling_table.c.study_id == study_id, free)
        row = c.execute(query).mappings().first()
        if row is None or state is not StudyState.POOLING:
            return None  # another was faster, or it was cancelled
        crashes = row["crashes"]
        if row["holder"]:
            crashes += 1
            if self._count_crash(c, study_id, crashes, VANISHED):
                return None
        holder = secrets.token_hex(16)
        values = {"holder": holder, "until": self._clock.stamp(self._seconds), "done": 0}
        self._update(c, study_id, **values)
        return Lease(study_id, holder, row["since"], row["sites"], crashes)

    def _count_crash(self, c: Transaction, study_id: str, crashes: int, why: str) -> bool:
        """Count a crash; whether it was the last."""
        self._update(c, study_id, crashes=crashes, trouble=why)
        if crashes < MOST_CRASHES:
            return False
        note = f"no results could be made: {MOST_CRASHES} tries broke off, the last because {why}; "
        note += AGAIN.format(study=study_id[:12])
        self._store.studies.end(c, study_id, StudyState.FAILED, self._clock.stamp(), note)
        return True

    def _update(self, c: Transaction, study_id: str, **values: object) -> None:
        mine = pooling_table.c.study_id == study_id
        c.execute(pooling_table.update().where(mine).values(**values))

    def _holds(self, c: Transaction, lease: Lease) -> bool:
        """Whether a lease still is one; then nobody else can take it in this transaction."""
        state = self._store.studies.lock(c, lease.study_id)
        t = pooling_table.c
        query = sa.select(t.holder).where(t.study_id == lease.study_id)
        return state is StudyState.POOLING and c.execute(query).scalar() == lease.holder

    def renew(self, lease: Lease, done: int) -> bool:
        """Hold a study for longer, of which ``done`` sites are pooled; False if it is lost.

        Also a lease that has run out is renewed, as long as nobody has taken it.
        """
        with self._store.begin() as c:
            held = self._holds(c, lease)
            if held:
                until = self._clock.stamp(self._seconds)
                self._update(c, lease.study_id, until=until, done=min(done, lease.sites))
        return held

    # -- ending --------------------------------------------------------------------------------

    def give_back(self, lease: Lease, *, trouble: str = "", wait: float = 0.0) -> None:
        """Let others have it, or oneself later; no crash.

        Args:
            trouble: what keeps the results from being made, for people.
            wait: seconds before anybody takes it.
        """
        with self._store.begin() as c:
            if self._holds(c, lease):
                values = {"holder": "", "until": "", "done": 0}
                due = self._clock.stamp(wait)
                self._update(c, lease.study_id, due=due, trouble=trouble, **values)

    def crash(self, lease: Lease, why: str) -> None:
        """A try broke off. After :data:`MOST_CRASHES` of them the study has failed.

        Args:
            why: how, to follow "because".
        """
        with self._store.begin() as c:
            if not self._holds(c, lease):
                return
            crashes = lease.crashes + 1
            if not self._count_crash(c, lease.study_id, crashes, why):
                wait = self._waits[min(crashes, len(self._waits)) - 1]
                values = {"holder": "", "until": "", "done": 0}
                self._update(c, lease.study_id, due=self._clock.stamp(wait), **values)

    def fail(self, lease: Lease, why: str) -> None:
        """End a study whose results cannot be made, and would not be by another try."""
        note = f"no results could be made: {why}; {AGAIN.format(study=lease.study_id[:12])}"
        with self._store.begin() as c:
            if self._holds(c, lease):
                self._store.studies.end(
                    c, lease.study_id, StudyState.FAILED, self._clock.stamp(), note
                )

    def finish(self, lease: Lease, place: Callable[[], None]) -> bool:
        """End a study with results; False if somebody else has it, and then nothing is placed.

        Args:
            place: puts the results where they belong, while nobody else can end the study. It may
                be called again if the transaction fails after it.
        """
        with self._store.begin() as c:
            held = self._holds(c, lease)
            if held:
                place()
                state = StudyState.FINISHED
                self._store.studies.end(c, lease.study_id, state, lease.since)
        return held
