"""How a site makes its release: the settings of each mechanism, all public and fixed in advance.

====================  ==========================================  =========================
mechanism             what leaves a site                          mathematics
====================  ==========================================  =========================
`maf`                 synthetic tables                            `mechanisms.flow`
`sliced-wasserstein`  synthetic tables                            `mechanisms.sliced_wasserstein`
`structured`          synthetic tables                            `mechanisms.structured`
`trajectory`          particles, paths, and tables of snapshots   `mechanisms.trajectory`
`gibbs`               one question's coefficients                 `mechanisms.gibbs`
`scoring`             the declared questions' answers             `mechanisms.scoring`
====================  ==========================================  =========================

Each is one package behind :mod:`~penstock.mechanisms.protocol`, and a line in
:mod:`~penstock.mechanisms.registry`.
"""

from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.mechanisms.maf.settings import Maf
from penstock.mechanisms.protocol import Settings
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.scoring.settings import Scoring
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.structured.settings import Structured
from penstock.mechanisms.trajectory.settings import Trajectory

__all__ = [
    "MECHANISMS",
    "Gibbs",
    "Maf",
    "Scoring",
    "Settings",
    "SlicedWasserstein",
    "Structured",
    "Trajectory",
]
