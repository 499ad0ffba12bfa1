"""Messages to sites, in the outbox, and what came back, in the inbox.

A reply is put into the inbox in the same transaction that removes its message, so that a crash
anywhere costs a repeated call, never a lost or doubled reply.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

import sqlalchemy as sa

from penstock.base.documents import Json
from penstock_server.store.database import Database, Transaction
from penstock_server.store.sql_tables import inbox_table, outbox_table

BATCH = 1000

StepVerb = Literal["introduce", "meet", "advertise", "open", "fetch", "reveal"]
"""A site's steps in the sums of many sites."""
Verb = Literal["submit", "poll", "collect", "cancel"] | StepVerb
"""What a message asks of a site."""
STEPS: tuple[StepVerb, ...] = get_args(StepVerb)


def is_step(verb: Verb) -> TypeGuard[StepVerb]:
    """Whether it is a step in sums."""
    return verb in STEPS


@dataclass(frozen=True, slots=True)
class Message:
    """Something to be sent to a site; idempotent there."""

    id: int
    study_id: str
    site: str
    verb: Verb
    body: bytes
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. ``ok`` is false for a refusal, whose code and public detail are given.

    A collected table is not here: it was streamed to a file
    (:mod:`penstock_server.intake.uploads`).

    Attributes:
        data: what came along: the manifest of a table, or what a site said in a step.
        step: of a step its round; wait: seconds after which it is to be asked again, where the
            site works on it.
    """

    ok: bool
    code: str = ""
    detail: str = ""
    request_id: str = ""
    state: str = ""
    step: int = 0
    steps: int = 0
    wait: float | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A reply in the inbox, under the id of the message that it answers."""

    id: int
    study_id: str
    site: str
    verb: Verb
    reply: Reply


class Mailbox:
    """The outbox and the inbox of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def send(
        self, c: Transaction, study_id: str, site: str, verb: Verb, body: bytes, due: str
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
        with self._database.reading() as c:
            rows = c.execute(query.order_by(outbox_table.c.id).limit(BATCH)).mappings().all()
        return [
            Message(r["id"], r["study_id"], r["site"], r["verb"], bytes(r["body"]), r["attempts"])
            for r in rows
        ]

    def postpone(self, message: Message, due: str) -> None:
        """Nobody answered; try again later."""
        with self._database.begin() as c:
            c.execute(
                outbox_table.update()
                .where(outbox_table.c.id == message.id)
                .values(due=due, attempts=message.attempts + 1)
            )

    def withdraw(self, c: Transaction, study_id: str) -> None:
        """Send nothing more for a study but cancellations."""
        c.execute(
            outbox_table.delete().where(
                outbox_table.c.study_id == study_id, outbox_table.c.verb != "cancel"
            )
        )

    def withdraw_steps(self, c: Transaction, study_id: str, site: str | None = None) -> None:
        """Send no step that was not answered yet; to one site, or to any."""
        t = outbox_table.c
        of = () if site is None else (t.site == site,)
        query = outbox_table.delete().where(t.study_id == study_id, t.verb.in_(STEPS), *of)
        c.execute(query)

    def hurry(self, c: Transaction, study_id: str, verb: Verb, now: str) -> None:
        """Send now what was to be sent to sites later."""
        t = outbox_table.c
        mine = (t.study_id == study_id, t.verb == verb, t.due > now)
        c.execute(outbox_table.update().where(*mine).values(due=now))

    def receive(self, replies: Sequence[tuple[Message, Reply]]) -> None:
        """Swap messages for their replies, in one transaction; a second reply is dropped."""
        if not replies:
            return
        with self._database.begin() as c:
            for message, reply in replies:
                gone = c.execute(outbox_table.delete().where(outbox_table.c.id == message.id))
                if gone.rowcount:
                    c.execute(inbox_table.insert().values(**_inbox_row(message, reply)))

    def inbox(self) -> list[Received]:
        """Replies that are not handled yet, in order."""
        with self._database.reading() as c:
            rows = c.execute(sa.select(inbox_table).order_by(inbox_table.c.id)).mappings().all()
        return [
            Received(
                r["id"],
                r["study_id"],
                r["site"],
                r["verb"],
                Reply(
                    **json.loads(r["reply"]),
                    data=None if r["manifest"] is None else bytes(r["manifest"]),
                ),
            )
            for r in rows
        ]

    def discard(self, c: Transaction, received_id: int) -> None:
        """Take a reply out of the inbox: it is handled in this transaction."""
        c.execute(inbox_table.delete().where(inbox_table.c.id == received_id))


def _inbox_row(message: Message, reply: Reply) -> Json:
    plain = {
        name: getattr(reply, name)
        for name in ("ok", "code", "detail", "request_id", "state", "step", "steps", "wait")
    }
    return {
        "id": message.id,
        "study_id": message.study_id,
        "site": message.site,
        "verb": message.verb,
        "reply": json.dumps(plain),
        "manifest": reply.data,
    }
