"""Which mechanisms a coordinator knows: a closed list, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.study.study import Study
from penstock_server.mechanisms.gibbs.kind import GibbsKind
from penstock_server.mechanisms.maf import MafKind
from penstock_server.mechanisms.protocol import MechanismKind, ReleaseWords
from penstock_server.mechanisms.scoring.kind import ScoringKind
from penstock_server.mechanisms.sliced_wasserstein import SlicedWassersteinKind
from penstock_server.mechanisms.structured import StructuredKind
from penstock_server.mechanisms.trajectory.kind import TrajectoryKind

KINDS: Mapping[str, type[MechanismKind[Any]]] = MappingProxyType(
    {
        Structured.name: StructuredKind,
        Maf.name: MafKind,
        SlicedWasserstein.name: SlicedWassersteinKind,
        Trajectory.name: TrajectoryKind,
        Gibbs.name: GibbsKind,
        Scoring.name: ScoringKind,
    }
)

if tuple(KINDS) != MECHANISMS.names:
    raise ImportError(f"the coordinator knows {tuple(KINDS)}, and sites know {MECHANISMS.names}")


def kind_of(study: Study) -> MechanismKind[Any]:
    """The coordinator's half of a study's mechanism."""
    return KINDS[study.mechanism.name](study, study.mechanism)


def words_of(name: str) -> ReleaseWords:
    """How a mechanism's releases are spoken of: of a kept report its name is all there is."""
    return KINDS[name].words
