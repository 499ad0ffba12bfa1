"""Whether rows are those of a plan's frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.protocol import Plan
from penstock.privacy.measurements import Exchange
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def check_shapes(
    plan: Plan, encoding: Encoding, rows: Array, present: Bools, noise: NoiseSource
) -> None:
    """Rows (n, k, d) and presence (n, k) of the plan's frame; of many sites' each has its part.

    Raises:
        InvalidInput: other shapes.
    """
    own = min(len(rows), plan.persons) if isinstance(noise, Exchange) else plan.persons
    shape = (own, plan.rows, encoding.d)
    # Shapes are public: n is the frame's, k and d the schema's.
    if rows.shape != shape or present.shape != shape[:2]:
        problem = Problem("rows", "not of the plan's shape", None, str(rows.shape), str(shape))
        raise InvalidInput("run", [problem])
