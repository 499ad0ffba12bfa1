"""The coordinator's durable state, in SQL: SQLite by default, PostgreSQL by URL.

Every change is one transaction. Messages to sites go through ``outbox``, what comes back through
``inbox``; a reply is put into the inbox in the same transaction that removes its message, so that
a crash anywhere costs a repeated call, never a lost or doubled reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from penstock.base.errors import CoordinatorError
from penstock.wire.messages import SiteState, StudyState

SCHEMA_VERSION = 4
UPGRADED = (2, 3)
"""Formats that are brought up to date in place."""
BATCH = 1000
GOING_ON = tuple(str(state) for state in StudyState if not state.final)
metadata = sa.MetaData()
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts INTEGER keys only

settings_table = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
site_table = sa.Table(
    "site",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("federation", sa.String, nullable=False),
    sa.Column("gate_key", sa.String(64), nullable=False),
    sa.Column("persons", sa.Integer, nullable=False),
    sa.Column("join_record", sa.Text, nullable=False),
    sa.Column("enrolled", sa.String, nullable=False),
    # When it was last heard of, and what it said of itself then.
    sa.Column("seen", sa.String, nullable=False, default=""),
    sa.Column("said", sa.Text, nullable=False, default="{}"),
    # The manifest with the highest ledger position: proof of it, to be shown to the site.
    sa.Column("newest_seq", sa.BigInteger, nullable=False, default=0),
    sa.Column("newest_manifest", sa.LargeBinary, nullable=False, default=b""),
)
ledger_seen_table = sa.Table(
    "ledger_seen",
    metadata,
    # Positions that a site's manifests have shown: one head per position, or the ledger forked.
    sa.Column("site", sa.String(63), sa.ForeignKey("site.name"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("head", sa.String(64), nullable=False),
)
study_table = sa.Table(
    "study",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("signed", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.String, nullable=False, index=True),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("deadline", sa.String, nullable=False),
    sa.Column("finished", sa.String, nullable=False, default=""),
    sa.Column("note", sa.Text, nullable=False, default=""),
    # The account that handed it in; empty from the coordinator's own machine, and before format 3.
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("signer", sa.String(64), nullable=False, server_default=""),
)
study_reader_table = sa.Table(
    "study_reader",
    metadata,
    # Accounts that the signed study lets read it, besides its owner's.
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("account", sa.String(64), primary_key=True),
)
account_key_table = sa.Table(
    "account_key",
    metadata,
    # The signing keys of accounts, as they are now: a key is bound to one account.
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("account", sa.String(64), nullable=False, index=True),
    sa.Column("added", sa.String, nullable=False),
)
access_table = sa.Table(
    "access",
    metadata,
    # The chain of penstock_server.access.accesslog.
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("signature", sa.String(128), nullable=False),
)
study_site_table = sa.Table(
    "study_site",
    metadata,
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("site", sa.String(63), sa.ForeignKey("site.name"), primary_key=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("code", sa.String, nullable=False, default=""),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("request_id", sa.String(64), nullable=False, default=""),
    sa.Column("step", sa.Integer, nullable=False, default=0),
    sa.Column("steps", sa.Integer, nullable=False, default=0),
    sa.Column("updated", sa.String, nullable=False),
    # The last ledger position seen from the site before the study was invited there.
    sa.Column("ledger_floor", sa.BigInteger, nullable=False, default=0),
    sa.Column("manifest", sa.LargeBinary, nullable=True),
)
pooling_table = sa.Table(
    "pooling",
    metadata,
    # The studies whose results are to be made, and who makes them: penstock_server.store.leases.
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("since", sa.String, nullable=False),
    # How many sites have delivered, and how many of them are pooled so far.
    sa.Column("sites", sa.Integer, nullable=False),
    sa.Column("done", sa.Integer, nullable=False, default=0),
    # Who has the lease, empty if nobody has, and until when.
    sa.Column("holder", sa.String(64), nullable=False, default=""),
    sa.Column("until", sa.String, nullable=False, default=""),
    # Nobody takes it before.
    sa.Column("due", sa.String, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False, default=0),
    # What kept the last try from its end, for people.
    sa.Column("trouble", sa.Text, nullable=False, default=""),
)
outbox_table = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", _SERIAL, primary_key=True, autoincrement=True),
    sa.Column("study_id", sa.String(64), nullable=False, index=True),
    sa.Column("site", sa.String(63), nullable=False),
    sa.Column("verb", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("due", sa.String, nullable=False, index=True),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sqlite_autoincrement=True,  # an id is never used twice, or a reply might answer two messages
)
inbox_table = sa.Table(
    "inbox",
    metadata,
    sa.Column("id", _SERIAL, primary_key=True, autoincrement=False),  # of the message it answers
    sa.Column("study_id", sa.String(64), nullable=False),
    sa.Column("site", sa.String(63), nullable=False),
    sa.Column("verb", sa.String, nullable=False),
    sa.Column("reply", sa.Text, nullable=False),
    sa.Column("manifest", sa.LargeBinary, nullable=True),
)


@dataclass(frozen=True, slots=True)
class Site:
    """An enrolled site."""

    name: str
    federation: str
    gate_key: str
    persons: int
    join: dict[str, Any]
    seen: str = ""
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study's life."""

    id: str
    name: str
    signed: bytes
    state: StudyState
    created: str
    deadline: str
    finished: str
    note: str
    owner: str = ""
    signer: str = ""


Within = Callable[[sa.Connection], None]
"""Something that is done, or refused, in the same transaction as a change."""


def nothing(_: sa.Connection) -> None:
    """Nothing more than the change itself."""


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


@dataclass(frozen=True, slots=True)
class Message:
    """Something to be sent to a site; idempotent there."""

    id: int
    study_id: str
    site: str
    verb: str
    body: bytes
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. ``ok`` is false for a refusal, whose code and public detail are given.

    A collected table is not here: it was streamed to a file
    (:mod:`penstock_server.intake.uploads`).
    """

    ok: bool
    code: str = ""
    detail: str = ""
    request_id: str = ""
    state: str = ""
    step: int = 0
    steps: int = 0
    manifest: bytes | None = None


class Store:
    """The tables, by URL."""

    def __init__(self, url: str) -> None:
        try:
            self._engine = sa.create_engine(url)
        except (SQLAlchemyError, ImportError) as error:
            # Not the URL itself: it may hold a password.
            raise CoordinatorError(
                "the store's URL cannot be used",
                value=type(error).__name__,
                remedy="use postgresql://USER@HOST/DATABASE, and install psycopg",
            ) from None
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _durable_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        self._writer = self._engine.execution_options(penstock_write=True)

    @staticmethod
    def create(url: str) -> Store:
        """Make the tables in an empty database.

        Raises:
            CoordinatorError: a coordinator lives there already, or it cannot be reached.
        """
        store = Store(url)
        with store._translating():
            if sa.inspect(store._engine).has_table("settings"):
                shown = store._engine.url.render_as_string(hide_password=True)
                raise CoordinatorError("a coordinator's store exists already", value=shown)
            metadata.create_all(store._engine)
            store.set("schema", SCHEMA_VERSION)
        return store

    def check(self, *, upgrade: bool = True) -> None:
        """Bring a store of a format before up to date, and refuse any other.

        Args:
            upgrade: False only looks.

        Raises:
            CoordinatorError: none there, or another format.
        """
        with self._translating():
            if not sa.inspect(self._engine).has_table("settings"):
                raise CoordinatorError("no coordinator here", remedy="run `penstock server init`")
        found = self.get("schema")
        if found in UPGRADED:
            if not upgrade:
                raise CoordinatorError(
                    "the store has the format of the version before",
                    value=found,
                    bound=SCHEMA_VERSION,
                    remedy="back it up; `penstock server start` brings it up to date",
                )
            self._upgrade()
        elif found != SCHEMA_VERSION:
            raise CoordinatorError(
                "the store has another format", value=found, bound=SCHEMA_VERSION
            )

    def _upgrade(self) -> None:
        with self.begin() as c:
            self.lock(c)
            found = _setting(c, "schema")
            if found == SCHEMA_VERSION:
                return  # another process was faster
            if found == 2:
                self._add_owners(c)
            # What had all answers, but no results yet, goes on as an open study.
            pooling_table.create(c, checkfirst=True)
            _set(c, "schema", SCHEMA_VERSION)

    def _add_owners(self, c: sa.Connection) -> None:
        """From format 2: who handed a study in is not known, but who signed it is."""
        for column in ("owner", "signer"):
            c.exec_driver_sql(
                f"ALTER TABLE study ADD COLUMN {column} VARCHAR(64) NOT NULL DEFAULT ''"
            )
        for table in (study_reader_table, account_key_table, access_table):
            table.create(c, checkfirst=True)
        for row in c.execute(sa.select(study_table.c.id)).mappings().all():
            mine = study_table.c.id == row["id"]
            signed: Any = c.execute(sa.select(study_table.c.signed).where(mine)).scalar()
            signer = json.loads(bytes(signed))["signer"]  # it was verified when it came
            c.execute(study_table.update().where(mine).values(signer=signer))

    def lock(self, c: sa.Connection) -> None:
        """Keep every other process that asks for this from writing until the transaction ends."""
        # On SQLite every writing transaction excludes the others already.
        one = sa.select(settings_table).where(settings_table.c.name == "schema")
        c.execute(one.with_for_update())

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            # SQLAlchemy's text holds statements and their values; the driver's own text is enough.
            raise CoordinatorError(
                "the coordinator's store cannot be used", value=str(error.orig).split("\n")[0]
            ) from None

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """One writing transaction."""
        with self._translating(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One reading transaction; writers are not kept waiting."""
        with self._translating(), self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    # -- settings ------------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        with self.begin() as c:
            _set(c, name, value)

    def get(self, name: str) -> Any:
        with self.reading() as c:
            return _setting(c, name)

    # -- sites ---------------------------------------------------------------------------------

    def add_site(self, join: dict[str, Any], now: str, within: Within = nothing) -> None:
        """Enrol a site, or its new public n; its key stays.

        Args:
            within: done in the same transaction.

        Raises:
            CoordinatorError: a site of this name is enrolled with another key.
        """
        name = join["site"]
        known = self.sites().get(name)
        if known is not None and known.gate_key != join["gate_key"]:
            raise CoordinatorError(
                "a site of this name is enrolled with another key",
                value=name,
                remedy="compare fingerprints with the site before anything else",
            )
        values = {
            "federation": join["federation"],
            "gate_key": join["gate_key"],
            "persons": join["persons"],
            "join_record": json.dumps(join),
        }
        with self.begin() as c:
            within(c)
            if known is None:
                c.execute(site_table.insert().values(name=name, enrolled=now, **values))
            else:
                c.execute(site_table.update().where(site_table.c.name == name).values(**values))

    def sites(self) -> dict[str, Site]:
        with self.reading() as c:
            rows = c.execute(sa.select(site_table).order_by(site_table.c.name)).mappings().all()
        return {
            r["name"]: Site(
                r["name"],
                r["federation"],
                r["gate_key"],
                r["persons"],
                json.loads(r["join_record"]),
                r["seen"],
                json.loads(r["said"]),
            )
            for r in rows
        }

    def ledger_seen(self, site: str) -> dict[int, str]:
        """Heads that a site's manifests have shown, by position."""
        query = sa.select(ledger_seen_table).where(ledger_seen_table.c.site == site)
        with self.reading() as c:
            return {r["seq"]: r["head"] for r in c.execute(query).mappings().all()}

    def see_ledger(
        self, c: sa.Connection, site: str, seq: int, head: str, manifest: bytes = b""
    ) -> None:
        """Remember a position; it was checked against :meth:`ledger_seen` before."""
        known = ledger_seen_table.c.site == site, ledger_seen_table.c.seq == seq
        if c.execute(sa.select(ledger_seen_table).where(*known)).first() is None:
            c.execute(ledger_seen_table.insert().values(site=site, seq=seq, head=head))
        newest = site_table.c.name == site, site_table.c.newest_seq < seq
        values = {"newest_seq": seq, "newest_manifest": manifest}
        c.execute(site_table.update().where(*newest).values(**values))

    def newest_manifest(self, site: str) -> bytes:
        """The manifest of a site with the highest ledger position; empty before the first."""
        query = sa.select(site_table.c.newest_manifest).where(site_table.c.name == site)
        with self.reading() as c:
            return bytes(c.execute(query).scalar() or b"")

    def saw_site(self, site: str, moment: str, said: dict[str, Any]) -> None:
        with self.begin() as c:
            values = {"seen": moment, "said": json.dumps(said)}
            c.execute(site_table.update().where(site_table.c.name == site).values(**values))

    # -- studies -------------------------------------------------------------------------------

    def add_study(
        self,
        study: StudyRow,
        sites: Sequence[str],
        *,
        readers: Sequence[str] = (),
        within: Within = nothing,
    ) -> bool:
        """Store a new study with its invitations; False if it is there already.

        Args:
            readers: accounts that may read it besides its owner.
            within: done in the same transaction, before anything else.
        """
        try:
            with self.begin() as c:
                within(c)
                c.execute(
                    study_table.insert().values(
                        id=study.id,
                        name=study.name,
                        signed=study.signed,
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
                    last = sa.select(sa.func.max(ledger_seen_table.c.seq))
                    seen = c.execute(last.where(ledger_seen_table.c.site == site)).scalar()
                    c.execute(
                        study_site_table.insert().values(
                            study_id=study.id,
                            site=site,
                            state=str(SiteState.INVITED),
                            updated=study.created,
                            ledger_floor=seen or 0,
                        )
                    )
                    self.send(c, study.id, site, "submit", study.signed, study.created)
        except CoordinatorError as error:
            if self.study(study.id) is not None:
                return False
            raise error
        return True

    def study(self, study_id: str) -> StudyRow | None:
        found = self.studies(study_table.c.id == study_id)
        return found[0] if found else None

    def studies(self, *where: sa.ColumnElement[bool]) -> list[StudyRow]:
        query = sa.select(study_table).where(*where).order_by(study_table.c.created)
        with self.reading() as c:
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

    def studies_for(self, account: str, study_id: str | None = None) -> list[StudyRow]:
        """What an account may read, oldest first; or of that, the study of this id.

        That is what it has handed in, and what names it as a reader. A study without an owner is
        its signer's: the account's to which its key is bound now.
        """
        t, keys, named = study_table.c, account_key_table.c, study_reader_table.c
        signed = sa.select(keys.key).where(keys.account == account)
        reads = sa.select(named.study_id).where(named.account == account)
        own = sa.or_(t.owner == account, sa.and_(t.owner == "", t.signer.in_(signed)))
        exact = () if study_id is None else (t.id == study_id,)
        return self.studies(sa.or_(own, t.id.in_(reads)), *exact)

    def count_open(self, c: sa.Connection, owner: str | None = None) -> int:
        """How many studies have not ended: of all, or of one account."""
        query = sa.select(sa.func.count()).select_from(study_table)
        query = query.where(study_table.c.state.in_(GOING_ON))
        if owner is not None:
            query = query.where(study_table.c.owner == owner)
        return int(c.execute(query).scalar_one())

    def studies_in(self, state: StudyState) -> list[StudyRow]:
        """The studies of one state, oldest first."""
        return self.studies(study_table.c.state == str(state))

    def ending_studies(self, now: str) -> list[StudyRow]:
        """Open studies whose deadline has come, or that wait for no site any more."""
        t = study_site_table.c
        waits = [str(s) for s in SiteState if not s.final]
        waiting = sa.select(t.site).where(t.study_id == study_table.c.id, t.state.in_(waits))
        over = sa.or_(study_table.c.deadline <= now, ~waiting.exists())
        return self.studies(study_table.c.state == str(StudyState.OPEN), over)

    def lock_study(self, c: sa.Connection, study_id: str) -> StudyState | None:
        """The state of a study, which nobody else can change until the transaction ends."""
        # On SQLite every writing transaction excludes the others already.
        query = sa.select(study_table.c.state).where(study_table.c.id == study_id)
        state = c.execute(query.with_for_update()).scalar()
        return None if state is None else StudyState(state)

    def end_study(
        self, c: sa.Connection, study_id: str, state: StudyState, now: str, note: str = ""
    ) -> None:
        """Close a study; nothing more is sent for it but cancellations, and nobody pools it."""
        self.turn_study(c, study_id, state, now, note)
        c.execute(pooling_table.delete().where(pooling_table.c.study_id == study_id))

    def turn_study(
        self, c: sa.Connection, study_id: str, state: StudyState, finished: str, note: str = ""
    ) -> None:
        """Give a study that asks no site any more another state."""
        c.execute(
            study_table.update()
            .where(study_table.c.id == study_id)
            .values(state=str(state), finished=finished, note=note)
        )
        c.execute(
            outbox_table.delete().where(
                outbox_table.c.study_id == study_id, outbox_table.c.verb != "cancel"
            )
        )

    def parts(self, study_id: str) -> list[SiteRow]:
        """Every site's part in a study, by name."""
        query = sa.select(study_site_table).where(study_site_table.c.study_id == study_id)
        with self.reading() as c:
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

    def update_part(self, c: sa.Connection, study_id: str, site: str, **values: Any) -> None:
        c.execute(
            study_site_table.update()
            .where(study_site_table.c.study_id == study_id, study_site_table.c.site == site)
            .values(**values)
        )

    # -- messages ------------------------------------------------------------------------------

    def send(
        self, c: sa.Connection, study_id: str, site: str, verb: str, body: bytes, due: str
    ) -> None:
        """Queue a message, to be sent not before ``due``."""
        c.execute(
            outbox_table.insert().values(
                study_id=study_id, site=site, verb=verb, body=body, due=due
            )
        )

    def due(self, now: str, sites: Collection[str] | None = None) -> list[Message]:
        """Messages to be sent now (to any of ``sites``), oldest first; at most :data:`BATCH`."""
        query = sa.select(outbox_table).where(outbox_table.c.due <= now)
        if sites is not None:
            query = query.where(outbox_table.c.site.in_(sites))
        with self.reading() as c:
            rows = c.execute(query.order_by(outbox_table.c.id).limit(BATCH)).mappings().all()
        return [
            Message(r["id"], r["study_id"], r["site"], r["verb"], bytes(r["body"]), r["attempts"])
            for r in rows
        ]

    def postpone(self, message: Message, due: str) -> None:
        """Nobody answered; try again later."""
        with self.begin() as c:
            c.execute(
                outbox_table.update()
                .where(outbox_table.c.id == message.id)
                .values(due=due, attempts=message.attempts + 1)
            )

    def receive(self, replies: Sequence[tuple[Message, Reply]]) -> None:
        """Swap messages for their replies, in one transaction; a second reply is dropped."""
        if not replies:
            return
        with self.begin() as c:
            for message, reply in replies:
                gone = c.execute(outbox_table.delete().where(outbox_table.c.id == message.id))
                if gone.rowcount:
                    c.execute(inbox_table.insert().values(**_inbox_row(message, reply)))

    def inbox(self) -> list[tuple[int, str, str, str, Reply]]:
        """(id, study, site, verb, reply) not handled yet, in order."""
        with self.reading() as c:
            rows = c.execute(sa.select(inbox_table).order_by(inbox_table.c.id)).mappings().all()
        return [
            (
                r["id"],
                r["study_id"],
                r["site"],
                r["verb"],
                Reply(
                    **json.loads(r["reply"]),
                    manifest=None if r["manifest"] is None else bytes(r["manifest"]),
                ),
            )
            for r in rows
        ]

    def handled(self, c: sa.Connection, inbox_id: int) -> None:
        c.execute(inbox_table.delete().where(inbox_table.c.id == inbox_id))


def _set(c: sa.Connection, name: str, value: Any) -> None:
    c.execute(settings_table.delete().where(settings_table.c.name == name))
    c.execute(settings_table.insert().values(name=name, value=json.dumps(value)))


def _setting(c: sa.Connection, name: str) -> Any:
    query = sa.select(settings_table.c.value).where(settings_table.c.name == name)
    found = c.execute(query).scalar()
    return None if found is None else json.loads(found)


def _inbox_row(message: Message, reply: Reply) -> dict[str, Any]:
    plain = {
        name: getattr(reply, name)
        for name in ("ok", "code", "detail", "request_id", "state", "step", "steps")
    }
    return {
        "id": message.id,
        "study_id": message.study_id,
        "site": message.site,
        "verb": message.verb,
        "reply": json.dumps(plain),
        "manifest": reply.manifest,
    }


def _durable_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin a transaction at the first write only: what was read before it could
    # have changed. SQLAlchemy's "begin" says when instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("penstock_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def sqlite_url(folder: Path) -> str:
    """The default store of a coordinator's directory."""
    return f"sqlite:///{folder / 'coordinator.db'}"
