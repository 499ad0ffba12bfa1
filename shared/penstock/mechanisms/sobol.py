"""Points that fill a cube evenly, which a release is drawn through: Sobol's sequence, scrambled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draw_sobol(width: int, power: int, rng: np.random.Generator | int) -> NDArray[np.float64]:
    """(2^power, width) points in [0, 1), of Sobol's sequence scrambled as by Owen (1998).

    Whole nets alone are even in all directions, so there is no other number of points. Nothing
    here depends on rows.

    Args:
        rng: what scrambles them, or its seed.
    """
    # It takes .4 s to load, and a site that only adds to sums of many sites draws no point.
    from scipy.stats import qmc

    # Not ``rng=``, which scrambles otherwise by the same whole number.
    return np.asarray(qmc.Sobol(width, seed=rng).random_base2(power))
