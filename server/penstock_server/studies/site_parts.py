"""The sites' parts in studies: what they can become, and how many have delivered."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.wire.messages import SiteState
from penstock_server.store.clock import Clock
from penstock_server.store.database import Transaction
from penstock_server.store.register import SiteRow
from penstock_server.store.store import Store


class Parts:
    """Changes the parts of a store's studies; each change carries its time."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def turn(
        self, c: Transaction, part: SiteRow, state: SiteState, code: str, **more: object
    ) -> None:
        """Give a part another state, and the code that says why."""
        self.update(c, part, state=str(state), code=code, **more)

    def update(self, c: Transaction, part: SiteRow, **values: object) -> None:
        """Remember more of a part."""
        moment = self._clock.stamp()
        self._store.studies.update_part(c, part.study_id, part.site, updated=moment, **values)


def count_delivered(parts: Sequence[SiteRow]) -> int:
    return sum(part.state is SiteState.DELIVERED for part in parts)
