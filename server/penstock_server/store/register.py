"""The studies, each site's part in them, and who may read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.base.errors import CoordinatorError
from penstock.wire.messages import SiteState, StudyState
from penstock.wire.signed import SignedStudy, read_stored_study
from penstock_server.store.database import Database, Transaction, Within, do_nothing
from penstock_server.store.mailbox import Mailbox
from penstock_server.store.sites import Sites
from penstock_server.store.sql_tables import (
    account_key_table,
    pooling_table,
    study_reader_table,
    study_site_table,
    study_table,
)

GOING_ON = tuple(str(state) for state in StudyState if not state.final)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study's life.

    Attributes:
        data: the signed study, as it came.
    """

    id: str
    name: str
    data: bytes
    state: StudyState
    created: str
    deadline: str
    finished: str
    note: str
    owner: str = ""
    signer: str = ""

    @property
    def signed(self) -> SignedStudy:
        """What was signed, as an object.

        Raises:
            PenstockError: this version cannot read it.
        """
        return read_stored_study(self.data)


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One site's part in one study."""

    study_id: str
    site: str
    state: SiteState
    code: str
    detail: str
    request_id: str
    step: int
    steps: int
    manifest: bytes | None
    ledger_floor: int = 0


class Register:
    """The studies of a store."""

    def __init__(self, database: Database, sites: Sites, mailbox: Mailbox) -> None:
        self._database, self._sites, self._mailbox = database, sites, mailbox

    def add(
        self,
        study: StudyRow,
        sites: Sequence[str],
        *,
        readers: Sequence[str] = (),
        within: Within = do_nothing,
        after: Within = do_nothing,
    ) -> bool:
        """Store a new study with its invitations; False if it is there already.

        Args:
            readers: accounts that may read it besides its owner.
            within, after: done in the same transaction, before anything else and last.
        """
        try:
            with self._database.begin() as c:
                within(c)
                c.execute(
                    study_table.insert().values(
                        id=study.id,
                        name=study.name,
                        signed=study.data,
                        state=str(study.state),
                        created=study.created,
                        deadline=study.deadline,
                        owner=study.owner,
                        signer=study.signer,
                    )
                )
                for account in readers:
                    c.execute(
                        study_reader_table.insert().values(study_id=study.id, account=account)
                    )
                for site in sites:
                    self._invite(c, study, site)
                after(c)
        except CoordinatorError as error:
            if self.find(study.id) is not None:
                return False
            raise error
        return True

    def _invite(self, c: Transaction, study: StudyRow, site: str) -> None:
        c.execute(
            study_site_table.insert().values(
                study_id=study.id,
                site=site,
                state=str(SiteState.INVITED),
                updated=study.created,
                ledger_floor=self._sites.newest_position(c, site),
            )
        )
        self._mailbox.send(c, study.id, site, "submit", study.data, study.created)

    # -- finding -------------------------------------------------------------------------------

    def find(self, study_id: str) -> StudyRow | None:
        """The study of this id."""
        found = self._select(study_table.c.id == study_id)
        return found[0] if found else None

    def all(self) -> list[StudyRow]:
        """Every study, oldest first."""
        return self._select()

    def readable_by(self, account: str, study_id: str | None = None) -> list[StudyRow]:
        """What an account may read, oldest first; or of that, the study of this id.

        That is what it has handed in, and what names it as a reader. A study without an owner is
        its signer's: the account's to which its key is bound now.
        """
        t, keys, named = study_table.c, account_key_table.c, study_reader_table.c
        signed = sa.select(keys.key).where(keys.account == account)
        reads = sa.select(named.study_id).where(named.account == account)
        own = sa.or_(t.owner == account, sa.and_(t.owner == "", t.signer.in_(signed)))
        exact = () if study_id is None else (t.id == study_id,)
        return self._select(sa.or_(own, t.id.in_(reads)), *exact)

    def in_state(self, state: StudyState) -> list[StudyRow]:
        """The studies of one state, oldest first."""
        return self._select(study_table.c.state == str(state))

    def ending(self, now: str) -> list[StudyRow]:
        """Open studies whose deadline has come, or that wait for no site any more."""
        t = study_site_table.c
        waits = [str(s) for s in SiteState if not s.final]
        waiting = sa.select(t.site).where(t.study_id == study_table.c.id, t.state.in_(waits))
        over = sa.or_(study_table.c.deadline <= now, ~waiting.exists())
        return self._select(study_table.c.state == str(StudyState.OPEN), over)

    def _select(self, *where: sa.ColumnElement[bool]) -> list[StudyRow]:
        query = sa.select(study_table).where(*where).order_by(study_table.c.created)
        with self._database.reading() as c:
            rows = c.execute(query).mappings().all()
        return [
            StudyRow(
                r["id"],
                r["name"],
                bytes(r["signed"]),
                StudyState(r["state"]),
                r["created"],
                r["deadline"],
                r["finished"],
                r["note"],
                r["owner"],
                r["signer"],
            )
            for r in rows
        ]

    def count_open(self, c: Transaction, owner: str | None = None) -> int:
        """How many studies have not ended: of all, or of one account."""
        query = sa.select(sa.func.count()).select_from(study_table)
        query = query.where(study_table.c.state.in_(GOING_ON))
        if owner is not None:
            query = query.where(study_table.c.owner == owner)
        return int(c.execute(query).scalar_one())

    # -- changing ------------------------------------------------------------------------------

    def lock(self, c: Transaction, study_id: str) -> StudyState | None:
        """The state of a study, which nobody else can change until the transaction ends."""
        # On SQLite every writing transaction excludes the others already.
        query = sa.select(study_table.c.state).where(study_table.c.id == study_id)
        state = c.execute(query.with_for_update()).scalar()
        return None if state is None else StudyState(state)

    def end(
        self, c: Transaction, study_id: str, state: StudyState, now: str, note: str = ""
    ) -> None:
        """Close a study; nothing more is sent for it but cancellations, and nobody pools it."""
        self.stop_asking(c, study_id, state, now, note)
        c.execute(pooling_table.delete().where(pooling_table.c.study_id == study_id))

    def stop_asking(
        self, c: Transaction, study_id: str, state: StudyState, finished: str, note: str = ""
    ) -> None:
        """Give a study that asks no site any more another state."""
        c.execute(
            study_table.update()
            .where(study_table.c.id == study_id)
            .values(state=str(state), finished=finished, note=note)
        )
        self._mailbox.withdraw(c, study_id)

    # -- the sites' parts ----------------------------------------------------------------------

    def parts(self, study_id: str) -> list[SiteRow]:
        """Every site's part in a study, by name."""
        query = sa.select(study_site_table).where(study_site_table.c.study_id == study_id)
        with self._database.reading() as c:
            rows = c.execute(query.order_by(study_site_table.c.site)).mappings().all()
        return [
            SiteRow(
                r["study_id"],
                r["site"],
                SiteState(r["state"]),
                r["code"],
                r["detail"],
                r["request_id"],
                r["step"],
                r["steps"],
                None if r["manifest"] is None else bytes(r["manifest"]),
                r["ledger_floor"],
            )
            for r in rows
        ]

    def part(self, study_id: str, site: str) -> SiteRow | None:
        """One site's part in a study."""
        return next((p for p in self.parts(study_id) if p.site == site), None)

    def update_part(self, c: Transaction, study_id: str, site: str, **values: object) -> None:
        c.execute(
            study_site_table.update()
            .where(study_site_table.c.study_id == study_id, study_site_table.c.site == site)
            .values(**values)
        )
