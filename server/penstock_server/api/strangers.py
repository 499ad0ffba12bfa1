"""Wrong tokens: counted by address, answered ever more rarely, and told of.

A token has 256 bits: nobody guesses one, however many are tried. What is limited is what trying
costs the coordinator, and what must not happen is that nobody notices. Only answers to *wrong*
tokens are limited, so that a right one always opens at once, whoever else sits behind its address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base.errors import PenstockError
from penstock_server.access.access_chain import AccessLog
from penstock_server.api.addresses import find_party

log = logging.getLogger("penstock.api")

FIRST_SECONDS, MOST_SECONDS = 1.0, 900.0
"""The first wait, doubled each time that it is over and one more wrong token comes; the longest."""
FORGET_SECONDS = 3600.0
"""An address without a wrong token for so long begins anew."""
ADDRESSES = 10_000
"""So many are remembered; beyond, the one that was quiet longest is forgotten."""
TALLY_SECONDS = 60.0
"""What came within is one record of the access log, whatever came."""
NAMED = 20
"""Addresses of a tally that are named; the others are counted."""


@dataclass(slots=True)
class _Address:
    wrong: int = 0
    waits: int = 0
    until: float = 0.0
    last: float = 0.0


class Strangers:
    """The wrong tokens of each address; safe to use from several threads.

    Args:
        free: wrong tokens of an address that are simply refused.
        stamp: the time as records have it; ``clock`` the seconds that waits are measured in.
    """

    def __init__(
        self,
        free: int,
        access: AccessLog,
        stamp: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = free
        self._access = access
        self._stamp = stamp
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Address] = OrderedDict()
        self._tally: Counter[str] = Counter()
        self._accounts: Counter[str] = Counter()
        self._uncounted = 0
        self._since = ""

    def count_wrong(self, host: str, account: str = "") -> float:
        """Count a wrong token; how many seconds its address is told to wait, 0 for none.

        Args:
            account: whose token it once was, before it expired or was revoked.
        """
        address, moment = find_party(host), self._clock()
        with self._lock:
            self._since = self._since or self._stamp()
            if address in self._tally or len(self._tally) < ADDRESSES:
                self._tally[address] += 1
            else:
                self._uncounted += 1
            if account:
                self._accounts[account] += 1
            known = self._known.pop(address, None)
            if known is None or moment - known.last > FORGET_SECONDS:
                known = _Address()
            self._known[address] = known
            if len(self._known) > ADDRESSES:
                self._known.popitem(last=False)
            known.wrong += 1
            known.last = moment
            if known.wrong > self._free and moment >= known.until:
                known.until = moment + min(FIRST_SECONDS * 2.0**known.waits, MOST_SECONDS)
                known.waits = min(known.waits + 1, 30)
            return max(known.until - moment, 0.0)

    def write_tally(self) -> None:
        """Write what came since the last time into the access log, in one record.

        What cannot be written is kept, and written with the next.
        """
        with self._lock:
            tally, uncounted, since = self._tally, self._uncounted, self._since
            self._tally, self._uncounted, self._since = Counter(), 0, ""
            accounts, self._accounts = self._accounts, Counter()
        count = tally.total() + uncounted
        if not count:
            return
        named = tally.most_common(NAMED)
        log.warning("%d wrong tokens, from %d addresses or more", count, len(tally))
        try:
            self._access.write(
                "wrong-tokens",
                since=since,
                until=self._stamp(),
                count=count,
                addresses=[{"address": a, "count": n} for a, n in named],
                others=len(tally) - len(named),
                ended=[{"account": a, "count": n} for a, n in accounts.most_common(NAMED)],
            )
        except (PenstockError, OSError) as error:
            log.error("wrong tokens cannot be recorded: %s", type(error).__name__)
            with self._lock:
                self._tally += tally
                self._accounts += accounts
                self._uncounted += uncounted
                self._since = since
