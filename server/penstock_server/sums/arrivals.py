"""Who is there for the sums of a study: introductions, until all or enough have come."""

from __future__ import annotations

from penstock.aggregation.adverts import Introduction, read_introduction, write_meeting
from penstock.aggregation.roster import Roster
from penstock.base.errors import PenstockError, SumSpoiled, UploadRejected


class Arrivals:
    """Collects introductions. All of its state follows from the messages that it took.

    Attributes:
        faults: what was wrong with a site's message, by site.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._present: dict[str, Introduction] = {}
        self.faults: dict[str, PenstockError] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """Whose introduction has not come."""
        return self._roster.sort(set(self._roster.sites) - set(self._present))

    def take_introduction(self, sender: str, data: bytes) -> bool:
        """Whether it is an introduction of the sender; the first one stays."""
        try:
            found = read_introduction(data, self._roster)
            if found.site != sender:
                raise UploadRejected("an introduction of another site", value=found.site)
        except PenstockError as error:
            self.faults[sender] = error
            return False
        self._present.setdefault(sender, found)
        return True

    def write_meeting(self) -> bytes:
        """What goes to every site that is present. The caller keeps it: all get the same one.

        Raises:
            SumSpoiled: fewer than S - t are present.
        """
        if not len(self._present) >= self._roster.quorum:
            raise SumSpoiled(
                "too few sites for the sums of this study",
                value=len(self._present),
                bound=f"at least {self._roster.quorum}",
                remedy=f"wait for {', '.join(self.missing)}",
            )
        present = self._roster.sort(set(self._present))
        return write_meeting([self._present[site].data for site in present])
