"""How a study ends by itself: at its deadline, or when it waits for no site any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.wire.messages import SiteState, StudyState
from penstock_server.store.clock import Clock
from penstock_server.store.leases import Leases
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.store import Store
from penstock_server.studies.site_parts import Parts, count_delivered

log = logging.getLogger("penstock.coordinator")


class Closing:
    """Ends what is over, with results to be made where there is a quorum."""

    def __init__(self, store: Store, leases: Leases, clock: Clock) -> None:
        self._store, self._leases, self._clock = store, leases, clock
        self._parts = Parts(store, clock)

    def close_due(self) -> None:
        """End the studies whose deadline has come, or that need no more answers."""
        moment = self._clock.stamp()
        for row in self._store.studies.ending(moment):
            parts = self._store.studies.parts(row.id)
            if moment >= row.deadline:
                parts = [self._time_out(p) for p in parts]
            if all(p.state.final for p in parts):
                self._close(row, parts, moment)

    def _time_out(self, part: SiteRow) -> SiteRow:
        if part.state.final:
            return part
        answered = part.state is not SiteState.INVITED or part.code
        code = "no-answer" if answered else "unreachable"
        with self._store.begin() as c:
            # Cancelled by another process in the meantime: that stands.
            if self._store.studies.lock(c, part.study_id) is StudyState.OPEN:
                self._parts.turn(c, part, SiteState.TIMED_OUT, code)
        return replace(part, state=SiteState.TIMED_OUT, code=code)

    def _close(self, row: StudyRow, parts: list[SiteRow], moment: str) -> None:
        """Let results be made where there is a quorum; else the study has failed."""
        delivered, why = count_delivered(parts), self.explain_lack(row, parts)
        with self._store.begin() as c:
            # Cancelled by another process in the meantime: that stands.
            if self._store.studies.lock(c, row.id) is not StudyState.OPEN:
                return
            if why:
                self._store.studies.end(c, row.id, StudyState.FAILED, moment, why)
            else:
                self._leases.open(c, row.id, moment, delivered)
        last = why or f"{delivered} of {len(parts)} sites delivered; its results are next"
        log.info("study %s: %s", row.name, last)

    def explain_lack(self, row: StudyRow, parts: Sequence[SiteRow]) -> str:
        """Why a study has no results, whatever comes of the sites' answers; empty if it has.

        One release of all sites is made of its sums, whoever has said so since.
        """
        summed = self._store.summing.find(row.id)
        if summed is not None:
            if summed.stage == "done":
                return ""
            return f"the sums of all sites ended in round {summed.round + 1} of {summed.rounds}"
        quorum, delivered = row.signed.study.quorum, count_delivered(parts)
        if delivered >= quorum:
            return ""
        return f"{delivered} of {len(parts)} sites delivered; the quorum is {quorum}"
