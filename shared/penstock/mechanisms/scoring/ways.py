"""The tally of each way in which a description is answered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.mechanisms.scoring.crossings import TableTally
from penstock.mechanisms.scoring.cumulatives import DistributionTally
from penstock.mechanisms.scoring.descriptions import Description, Way
from penstock.mechanisms.scoring.lifetimes import EventTally, SurvivalTally
from penstock.mechanisms.scoring.person_times import RateTally
from penstock.mechanisms.scoring.tallies import LevelTally, MeanTally, Tally

_TALLIES: Mapping[Way, type[Tally]] = MappingProxyType(
    {
        Way.MEAN: MeanTally,
        Way.LEVELS: LevelTally,
        Way.DISTRIBUTION: DistributionTally,
        Way.SURVIVAL: SurvivalTally,
        Way.EVENTS: EventTally,
        Way.RATE: RateTally,
        Way.TABLE: TableTally,
    }
)


def make_tally(description: Description) -> Tally:
    """What is added up of rows for a description, and how it is read."""
    return _TALLIES[description.way](description)
