r"""Who takes part in one release of many sites, and whose noise counts.

Of S sites at most t may drop out and at most c may collude with whoever sees the sums. Each adds
noise of variance σ²Δ²/(S - t - c), so that at least σ²Δ² of a sum's noise is unknown to them. With
all sites there the sum has S/(S - t - c) times as much: its sd is √(S/(S - t - c)) times that which
ε asks for, the price of not having to trust t + c of the others.

With *local* noise each site adds all of σ²Δ² itself: what it says is private before it is masked,
whoever the others are, and is charged as a release of its own. What others add, and all that is
done with the sum, is post-processing; the masks hide a site's part, and no ε rests on them. In each
round a gate answers one question, whose sensitivity no sum before can raise, so that a coordinator
who tells one site other sums gains nothing (adaptive composition). The sum has S times the
variance: its sd is √S times that of one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.checks import Checks
from penstock.base.errors import InvalidInput
from penstock.mechanisms.protocol import Asked, S
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian, Event
from penstock.privacy.thresholds import count_sites
from penstock.questions.estimands import Estimand
from penstock.schema import Column

SITE = "site"
"""The column that says of which site a row is: each regression has strata of it."""

ALL_SITES = "all sites"
"""Whose one release of all sites is; no site is called so, since it is no name of one."""

SHARED, LOCAL = "shared", "local"
NOISES = (SHARED, LOCAL)
"""Whose noise hides a site's part: all sites' together, or its own alone."""

MAX_SITES = 100
"""As many as a column has levels: each row of a joint release says of which site it is."""

_ROUNDED_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Consortium:
    """The sites of one release, all of them public facts of a signed study.

    Args:
        sites: names, in order; persons: of each, the frame that it declared.
        dropouts: t; colluders: c; noise: "shared" or "local".
        heterogeneity: whether rows are asked how far regressions differ between sites, where a
            mechanism can ask that.

    Raises:
        InvalidInput: with every problem.

    Example:
        >>> four = Consortium(("a", "b", "c", "d"), (500, 800, 400, 900), dropouts=1, colluders=1)
        >>> four.honest, round(four.swell, 2)
        (2, 1.41)
        >>> replace(four, colluders=0, noise="local").swell < 2.0001
        True
    """

    sites: tuple[str, ...]
    persons: tuple[int, ...]
    dropouts: int = 0
    colluders: int = 0
    noise: str = SHARED
    heterogeneity: bool = True

    def __post_init__(self) -> None:
        check = Checks("consortium")
        count = len(self.sites)
        check.distinct("sites", self.sites)
        check.whole("sites", count, 2, MAX_SITES)
        check.choice("noise", self.noise, NOISES)
        if len(self.persons) != count:
            check.add(
                "persons", "is not of every site", value=str(len(self.persons)), bound=str(count)
            )
        for persons in self.persons:
            check.whole("persons", persons, 1, 10**9)
        check.whole("dropouts", self.dropouts, 0, count)
        check.whole("colluders", self.colluders, 0, count)
        if not check.problems and count < (least := count_sites(self.dropouts, self.colluders)):
            check.add(
                "sites",
                f"too few for {self.dropouts} that drop out and {self.colluders} that collude",
                value=str(count),
                bound=f"at least {least}",
                remedy="Allow for fewer drop-outs or colluders, or ask more sites",
            )
        check.done()

    @property
    def total(self) -> int:
        """Persons in all frames together: public n."""
        return sum(self.persons)

    @property
    def honest(self) -> int:
        """S - t - c, how many sites' noise counts; of local noise a site's own alone: 1."""
        if self.noise == LOCAL:
            return 1
        return len(self.sites) - self.dropouts - self.colluders

    @property
    def guarantee(self) -> str:
        """The class that reports show of a formal release: whether it rests on other sites."""
        return "formal" if self.noise == LOCAL else "formal (distributed)"

    @property
    def swell(self) -> float:
        """√(S/h), rounded up, h = :attr:`honest`: a sum's noise over that of one place, in sds."""
        return math.sqrt(len(self.sites) / self.honest) * _ROUNDED_UP

    def charge(self, asked: Sequence[Event], carried: Sequence[Event]) -> tuple[Event, ...]:
        """What each site is charged for its part in sums.

        Relation: zero-out with public n. Shared noise is charged as a :class:`DistributedGaussian`;
        local noise as the :class:`DiscreteGaussian` that it is (Canonne, Kamath & Steinke 2020, Thm
        14), of at least the asked σ: :attr:`swell` is rounded up.

        Args:
            asked: events of one place that has all rows, with noise as ε asks for it.
            carried: the same with the noise of all sites.

        Raises:
            InvalidInput: a release that is no sum of whole numbers.
        """
        return tuple(self._share(*pair) for pair in zip(asked, carried, strict=True))

    def _share(self, asked: Event, carried: Event) -> DistributedGaussian | DiscreteGaussian:
        if not (isinstance(asked, DiscreteGaussian) and isinstance(carried, DiscreteGaussian)):
            check = Checks("mechanism")
            check.add("name", "asks for more than sums of whole numbers", value=asked.kind)
            raise InvalidInput("mechanism", check.problems)
        own = carried.grid_sd / math.sqrt(len(self.sites))
        if self.noise == LOCAL:
            return replace(asked, grid_sd=own)
        return DistributedGaussian(
            asked.noise_multiplier,
            len(self.sites),
            self.dropouts,
            self.colluders,
            asked.count,
            asked.label,
            asked.sensitivity,
            own,
            asked.size,
        )

    def join(self, asked: Asked[S], *, told: bool = True, strata: bool = True) -> Asked[S]:
        """The same questions of the rows of all sites, each within sites.

        Args:
            told: whether rows say of which site they are. If not, nothing is added, and nothing
                can be within sites.
            strata: whether regressions have strata of sites; if not, they adjust for them.

        Raises:
            InvalidInput: a column has the name that says of which site a row is.
        """
        if SITE in asked.schema.names:
            check = Checks("schema")
            check.add(SITE, "is what says of which site a row is", remedy="Give it another name")
            raise InvalidInput("schema", check.problems)
        if not told:
            return asked
        column = Column(SITE, "categorical", levels=self.sites, label="Site", varies=False)
        schema = replace(asked.schema, columns=(*asked.schema.columns, column))
        return replace(
            asked,
            schema=schema,
            estimands=tuple(ask_within(each, strata=strata) for each in asked.estimands),
            apart_by=SITE if self.heterogeneity else "",
        )


def ask_within(estimand: Estimand, *, strata: bool) -> Estimand:
    """A regression within sites; what has no regression is of all rows.

    Args:
        strata: as :meth:`Consortium.join` has it.
    """
    if not estimand.regression.contrasts:
        return estimand
    if not strata:
        return replace(estimand, adjust=(*estimand.adjust, SITE))
    return replace(estimand, strata=(*estimand.strata, SITE))
