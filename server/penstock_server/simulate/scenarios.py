"""What the demo simulates and asks: a closed list, one scenario for each mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.questions.estimands import Estimand
from penstock.schema import Schema
from penstock.study.planning import NOTHING, Planning
from penstock_server.simulate import cvd, patients


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated, what is asked of it, and by which mechanism.

    Attributes:
        simulate: the command that writes rows and truth; sites: its sites, the demo's first.
        known: what is known of the truth.
        expected: what an analyst expects of some of the sites; nothing where no forecast is made.
    """

    study: str
    title: str
    simulate: str
    sites: tuple[str, ...]
    known: str
    schema: Schema
    estimands: tuple[Estimand, ...]
    mechanism: Settings
    expected: Callable[[Sequence[str]], Planning]

    @property
    def planning(self) -> Planning:
        """What is expected of its sites."""
        return self.expected(self.sites)


def _hazard(mechanism: Settings) -> Scenario:
    """Does blood pressure raise the hazard of cardiovascular disease, after age and cholesterol?"""
    first = [c.name for c in cvd.DEMO_SITES]
    answers = MECHANISMS.of(mechanism).answers
    return Scenario(
        study="sbp-cvd",
        title="Systolic blood pressure and cardiovascular disease",
        simulate="cvd",
        sites=(*first, *(c.name for c in cvd.COHORTS if c.name not in first)),
        known="hazard ratio",
        schema=cvd.schema(),
        estimands=(cvd.estimand(),),
        mechanism=mechanism,
        # An answer in closed form has no tables that a forecast could be made with.
        expected=_expect_nothing if answers else _expect_cohorts,
    )


def _visits() -> Scenario:
    """What becomes of patients who are seen once a year, until they die or are lost?"""
    return Scenario(
        study="clinic-visits",
        title="Pressure, LDL and severity over five years",
        simulate="patients",
        sites=tuple(practice.name for practice in patients.PRACTICES),
        known="course",
        schema=patients.schema(),
        estimands=patients.estimands(),
        mechanism=patients.mechanism(),
        expected=_expect_nothing,
    )


def _expect_cohorts(sites: Sequence[str]) -> Planning:
    return cvd.planning([cvd.find(name) for name in sites])


def _expect_nothing(sites: Sequence[str]) -> Planning:
    return NOTHING


REFITS = 12
"""Fewer than studies have by default, so that the demo ends within three minutes on two cores: the
mechanism's variance is known to fewer degrees of freedom, and intervals are as much wider. Planted
runs are as many as by default: four sites' 48 tell the pooled slope to about ± .05."""

SCENARIOS: Mapping[str, Callable[[], Scenario]] = MappingProxyType(
    {
        Structured.name: lambda: _hazard(Structured(refits=REFITS)),
        Maf.name: lambda: _hazard(Maf(refits=REFITS)),
        SlicedWasserstein.name: lambda: _hazard(SlicedWasserstein(refits=REFITS)),
        Trajectory.name: _visits,
        Gibbs.name: lambda: _hazard(Gibbs()),
        Scoring.name: lambda: _hazard(Scoring()),
    }
)

if tuple(SCENARIOS) != MECHANISMS.names:
    raise ImportError(f"the demo knows {tuple(SCENARIOS)} of the mechanisms {MECHANISMS.names}")

DEFAULT = MECHANISMS.default.name
