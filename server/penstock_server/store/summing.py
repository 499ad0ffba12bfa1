"""How far the sums of many sites are: stages, what sites said, and sums that are over.

A study that is one release has a row here from its submission on. What belongs to one round is
kept until its sum is known; of a round that is over, only the sum and whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from penstock.wire.messages import StudyState
from penstock_server.store.database import Database, Transaction
from penstock_server.store.round_sums import RoundSum
from penstock_server.store.sql_tables import (
    round_sum_table,
    step_table,
    study_table,
    summation_table,
)

Stage = Literal["introduce", "advertise", "open", "reveal", "done"]
"""What is waited for: introductions, adverts, masked vectors, shares; or nothing any more."""


@dataclass(frozen=True, slots=True)
class SummationRow:
    """How far a study is.

    Attributes:
        rounds: how many there are; round: which is open, from 0 on.
        since: when the stage began.
    """

    study_id: str
    rounds: int
    round: int
    stage: Stage
    since: str


class Summing:
    """The sums of a store's studies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, c: Transaction, study_id: str, rounds: int, moment: str) -> None:
        """A new study of one release."""
        c.execute(
            summation_table.insert().values(
                study_id=study_id, rounds=rounds, round=0, stage="introduce", since=moment
            )
        )

    def going_on(self) -> list[SummationRow]:
        """Those of open studies."""
        t = summation_table
        joined = sa.join(t, study_table, t.c.study_id == study_table.c.id)
        query = sa.select(t).select_from(joined)
        return self._select(query.where(study_table.c.state == str(StudyState.OPEN)))

    def find(self, study_id: str) -> SummationRow | None:
        """How far a study is; None if its sites make releases of their own."""
        t = summation_table
        found = self._select(sa.select(t).where(t.c.study_id == study_id))
        return found[0] if found else None

    def _select(self, query: sa.Select[tuple[object, ...]]) -> list[SummationRow]:
        with self._database.reading() as c:
            rows = c.execute(query).mappings().all()
        return [
            SummationRow(r["study_id"], r["rounds"], r["round"], r["stage"], r["since"])
            for r in rows
        ]

    def turn(self, c: Transaction, study_id: str, number: int, stage: Stage, moment: str) -> None:
        """Begin a stage of a round."""
        t = summation_table
        values = {"round": number, "stage": stage, "since": moment}
        c.execute(t.update().where(t.c.study_id == study_id).values(**values))

    def keep(
        self, c: Transaction, study_id: str, number: int, verb: str, site: str, data: bytes
    ) -> None:
        """What a site said, or (of site "") what was decided; the first one stays."""
        t = step_table.c
        key = {"study_id": study_id, "round": number, "verb": verb, "site": site}
        same = (getattr(t, name) == value for name, value in key.items())
        if c.execute(sa.select(t.round).where(*same)).first() is None:
            c.execute(step_table.insert().values(**key, data=data))

    def said(self, study_id: str, number: int) -> dict[tuple[str, str], bytes]:
        """What is kept of a round, by verb and site."""
        t = step_table.c
        query = sa.select(t.verb, t.site, t.data).where(t.study_id == study_id, t.round == number)
        with self._database.reading() as c:
            rows = c.execute(query).mappings().all()
        return {(r["verb"], r["site"]): bytes(r["data"]) for r in rows}

    def drop(self, c: Transaction, study_id: str, number: int | None = None) -> None:
        """Forget what was said in a round; in all of them."""
        t = step_table.c
        of = () if number is None else (t.round == number,)
        c.execute(step_table.delete().where(t.study_id == study_id, *of))

    def add_sum(self, c: Transaction, study_id: str, number: int, found: RoundSum) -> None:
        """The sum of a round that is over."""
        c.execute(
            round_sum_table.insert().values(
                study_id=study_id,
                round=number,
                survivors=json.dumps(found.survivors),
                data=found.data,
            )
        )

    def sums(self, study_id: str) -> Sequence[RoundSum]:
        """Those of the rounds that are over."""
        t = round_sum_table
        query = sa.select(t).where(t.c.study_id == study_id).order_by(t.c.round)
        with self._database.reading() as c:
            rows = c.execute(query).mappings().all()
        return [RoundSum(tuple(json.loads(r["survivors"])), bytes(r["data"])) for r in rows]
