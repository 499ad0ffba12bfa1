"""No result is read without a record of it in the access log."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from penstock.base.errors import CoordinatorError, PenstockError
from penstock_server.access.access_chain import AccessLog, Visitor
from penstock_server.api.auth import Answer

AGAIN_SECONDS = 600.0
"""The same read again within this time is part of the first: a download that goes on."""
REMEMBERED = 10_000


class Reads:
    """The reads of results; safe to use from several threads."""

    def __init__(self, access: AccessLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[Visitor, str, str, str], float] = OrderedDict()

    def trace(self, visitor: Visitor, study: str, what: str, copies: str) -> None:
        """Record a read before it happens.

        Raises:
            Answer: 503, it cannot be recorded; then nothing is shown.
        """
        read, moment = (visitor, study, what, copies), self._clock()
        with self._lock:
            before = self._recent.get(read)
        if before is not None and moment - before < AGAIN_SECONDS:
            return
        try:
            self._access.write("read", study=study, what=what, copies=copies, **visitor.fields)
        except (PenstockError, OSError):
            error = CoordinatorError(
                "this cannot be recorded, so it is not shown",
                remedy="ask who runs the coordinator: `penstock server doctor` says why",
            )
            raise Answer(503, error, {"Retry-After": "60"}) from None
        with self._lock:
            self._recent.pop(read, None)
            self._recent[read] = moment
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)
