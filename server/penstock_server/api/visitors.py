"""Who is connected: strangers may be many, and give way to the next; whom we know stays.

A connection begins as a stranger's, counted with its address. A signed call of an enrolled node, or
a token, makes it one of that name's. There is a bound on strangers of one address, on strangers,
on connections of one name, and on those of all names. At a bound the *oldest* of that group is
dropped and the newcomer stays: a crowd that only waits cannot keep anybody out, also not whoever
shares its address, since to be known takes a moment and to crowd somebody out takes thousands of
handshakes within that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

SCOPE = "penstock.visit"
PER_NAME = 32
"""A SuperNode has one to five connections, an analyst's client as many."""


class Visit:
    """One connection, from the moment at which it is accepted."""

    def __init__(self, visitors: Visitors, group: str, drop: Callable[[], object]) -> None:
        self.drop = drop
        self.group, self.known = group, False
        self._visitors = visitors
        self._loop = asyncio.get_running_loop()

    def know(self, name: str) -> None:
        """It is this name's; from any thread."""
        self._loop.call_soon_threadsafe(self._visitors.know, self, name)

    def leave(self) -> None:
        """It has ended."""
        self._visitors.leave(self)


class Visitors:
    """All connections, in groups, oldest first.

    Args:
        capacity: how many there may be at once; half of it for strangers.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 8:
            raise ValueError(f"capacity is {capacity}; at least 8")
        self.strangers = capacity // 2
        self.per_address = max(1, self.strangers // 4)
        self.named = capacity - self.strangers
        # Dictionaries as ordered sets.
        self._groups: dict[tuple[bool, str], dict[Visit, None]] = {}
        self._everybody: dict[bool, dict[Visit, None]] = {False: {}, True: {}}

    def __len__(self) -> int:
        return sum(len(visits) for visits in self._everybody.values())

    def enter(self, address: str, drop: Callable[[], object]) -> Visit:
        """A new connection from an address; ``drop`` ends it at once."""
        visit = Visit(self, address, drop)
        self._add(visit, self.per_address, self.strangers)
        return visit

    def know(self, visit: Visit, name: str) -> None:
        """Count a connection with its name from now on; one that has ended stays ended."""
        if visit not in self._everybody[visit.known] or (visit.known, visit.group) == (True, name):
            return
        self._remove(visit)
        visit.known, visit.group = True, name
        self._add(visit, PER_NAME, self.named)

    def leave(self, visit: Visit) -> None:
        """Forget a connection; again, and nothing happens."""
        if visit in self._everybody[visit.known]:
            self._remove(visit)

    def _add(self, visit: Visit, in_group: int, in_all: int) -> None:
        group = self._groups.setdefault((visit.known, visit.group), {})
        everybody = self._everybody[visit.known]
        group[visit] = everybody[visit] = None
        # Of names, whoever has most gives way; of strangers, whoever has waited longest.
        if len(group) > in_group:
            self._drop(next(iter(group)))
        elif len(everybody) > in_all and visit.known:
            largest = max((g for k, g in self._groups.items() if k[0]), key=len)
            self._drop(next(iter(largest)))
        elif len(everybody) > in_all:
            self._drop(next(iter(everybody)))

    def _drop(self, visit: Visit) -> None:
        self._remove(visit)
        visit.drop()

    def _remove(self, visit: Visit) -> None:
        key = (visit.known, visit.group)
        del self._everybody[visit.known][visit]
        del self._groups[key][visit]
        if not self._groups[key]:
            del self._groups[key]


def introduce(scope: MutableMapping[str, Any], name: str) -> None:
    """Whoever sent this request has proved to be ``name``; from any thread."""
    visit = scope.get(SCOPE)
    if isinstance(visit, Visit):
        visit.know(name)


def cut(scope: MutableMapping[str, Any]) -> None:
    """End the connection of a request at once."""
    visit = scope.get(SCOPE)
    if isinstance(visit, Visit):
        visit.drop()
