"""How packets reach sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Carrier(Protocol):
    """Carries packets to sites and their answers back; at most one packet a site is on its way.

    A packet is a serialized ``Batch`` of calls, its answer serialized ``Answers``. Nothing is
    promised: a packet or an answer may be lost, or come twice; every call is idempotent.
    """

    def ready(self) -> set[str]:
        """The sites that are connected, and have no packet on its way."""

    def send(self, packets: Mapping[str, bytes]) -> None:
        """Hand packets over, by site; the answers come by :meth:`receive`."""

    def receive(self) -> list[tuple[str, bytes | str]]:
        """What came since the last call: (site, answer).

        For a packet that was not answered, a code of :mod:`penstock.wire.messages` in its place,
        or an empty text where it was just lost.
        """
