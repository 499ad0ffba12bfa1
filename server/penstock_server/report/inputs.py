"""What a report is made of: released values only, as the coordinator's store hands them over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.combine import SiteEstimate
from penstock.mechanisms.joint.plan import JointPlan
from penstock.study.study import Study
from penstock_server.analysis.site_effects import SiteEffects

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SiteRelease:
    """One site's release and its price, per person.

    Attributes:
        n_persons: public n, persons in the declared frame.
        rows: rows per copy, a noisy count of the site's; of an answer, its terms.
        copies: synthetic copies.
        guarantee: class of the guarantee: "formal", "public-flow" or "empirical".
        mechanism: name of the mechanism.
        epsilon_autodp: ε that the ledger charged (autodp), zero-out with public n; inf where there
            is none ("empirical").
        epsilon_pld: ε by dp-accounting's PLD for the same events and relation; None if not known.
        epsilon_replace_one: ε under replace-one, for comparison; None if not known.
        delta: δ of all of them, in [0, 1).
        relation: the neighbouring relation in words.
        insecure_seed: the noise came from a test seed: the release is not private at all.
        released_at: RFC 3339, UTC.
        gate_fingerprint: of the key that signed the release.
        ledger_seq: the ledger's sequence number at the release.
        summed: it is a part in sums of all sites: it has no rows of its own, 0 of them.
    """

    n_persons: int
    rows: int
    copies: int
    guarantee: str
    mechanism: str
    epsilon_autodp: float
    epsilon_pld: float | None
    epsilon_replace_one: float | None
    delta: float
    relation: str = "zero-out, public n"
    insecure_seed: bool = False
    released_at: str = ""
    gate_fingerprint: str = ""
    ledger_seq: int = 0
    summed: bool = False

    def __post_init__(self) -> None:
        problems = [
            Problem(name, "not a privacy loss", value=str(value), bound=">= 0, may be inf")
            for name in ("epsilon_autodp", "epsilon_pld", "epsilon_replace_one")
            if (value := getattr(self, name)) is not None and not value >= 0
        ]
        if not 0 <= self.delta < 1:
            problems.append(Problem("delta", "not a δ", value=str(self.delta), bound="[0, 1)"))
        for name, least in (("n_persons", 1), ("copies", 1), ("ledger_seq", 0)):
            if not getattr(self, name) >= least:
                value = str(getattr(self, name))
                problems.append(Problem(name, "out of range", value=value, bound=f">= {least}"))
        if self.rows != 0 if self.summed else not self.rows >= 1:
            bound = "0" if self.summed else ">= 1"
            problems.append(Problem("rows", "out of range", value=str(self.rows), bound=bound))
        if problems:
            raise InvalidInput("site release", problems)

    @property
    def formal(self) -> bool:
        """Whether a finite ε stands behind everything that left the site."""
        return (
            self.guarantee != "empirical"
            and math.isfinite(self.epsilon_autodp)
            and not self.insecure_seed
        )


@dataclass(frozen=True, slots=True)
class SiteInput:
    """One invited site: its state, its estimates by estimand, and its release if there is one.

    ``summaries`` are what sections of the report show of its release beside its estimates.
    """

    name: str
    state: str
    code: str = ""
    remedy: str = ""
    estimates: Mapping[str, SiteEstimate] = field(default_factory=dict)
    release: SiteRelease | None = None
    summaries: tuple[object, ...] = ()

    def summary(self, kind: type[T]) -> T | None:
        """Its summary of a type; None if its mechanism makes no such one."""
        return next((found for found in self.summaries if isinstance(found, kind)), None)


@dataclass(frozen=True, slots=True)
class JointRelease:
    """One release of all sites, and the sums that it was made of.

    Attributes:
        plan: what each site is charged, and for what.
        measured: its estimates and summaries, as those of one site whose rows are everybody's.
        survivors: of each round, in order, the sites whose parts are in its sum.
        numbers: how many there are in all sums.
        seed, digest: in hex: of what was drawn from the sums; SHA-256 of the release's file.
    """

    plan: JointPlan
    measured: SiteInput
    survivors: tuple[tuple[str, ...], ...]
    numbers: int
    seed: str
    digest: str

    def list_missed(self, site: str) -> list[int]:
        """The rounds, from 1, in whose sums a site's part is not."""
        return [i for i, names in enumerate(self.survivors, start=1) if site not in names]

    @property
    def effects(self) -> SiteEffects:
        """What it tells of each site by itself; of no estimand where it was not asked."""
        return self.measured.summary(SiteEffects) or SiteEffects({}, {})

    @property
    def lost(self) -> tuple[str, ...]:
        """The sites that are not in all sums of which answers were made. In which sites alone were
        told apart no answer has a part."""
        apart = {len(self.survivors) + 1 - back for back in self.effects.rounds.values()}
        sites = self.plan.consortium.sites
        return tuple(site for site in sites if {*self.list_missed(site)} - apart)


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """All that goes into a report.

    ``truth`` holds known true coefficients by estimand, on the scale of the estimates (per
    ``Estimand.per`` units), where the data are simulated. Times are RFC 3339, UTC. ``joint`` is
    there where all sites made one release; ``study`` is as that release answers it, then.
    """

    study: Study
    study_id: str
    state: str
    created: str
    finished: str
    sites: tuple[SiteInput, ...]
    truth: Mapping[str, float] | None = None
    joint: JointRelease | None = None

    @property
    def measured(self) -> list[SiteInput]:
        """What there are estimates of: each site that delivered, or one release of all sites."""
        return self.delivered if self.joint is None else [self.joint.measured]

    @property
    def delivered(self) -> list[SiteInput]:
        """The sites that have a release."""
        return [site for site in self.sites if site.release is not None]

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        problems = [
            Problem("sites", "named twice", value=name)
            for name in sorted({n for n in names if names.count(n) > 1})
        ]
        known = {estimand.name for estimand in self.study.estimands}
        for name, value in (self.truth or {}).items():
            if name not in known:
                problems.append(Problem("truth", "not an estimand of the study", value=name))
            if not math.isfinite(value):
                problems.append(Problem(f"truth.{name}", "not finite", value=str(value)))
        if problems:
            raise InvalidInput("report", problems)
