"""How far inside C an engine clips a person, so that its float64 sum has sensitivity C itself."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from penstock.mechanisms.flow.architecture import Architecture, active
from penstock.privacy.sensitivity import float_room

AT_ONCE = 16
"""Persons that an engine adds up in one go, at least, and ..."""

_MOST_AT_ONCE = 1 << 17
"""... at most; so that a sum's depth is that of one go, and the number of goes."""

_STEPS = 32
"""Roundings of a person's norm and factor beside those of the sum of squares, and to spare."""


def inner_clip(clip: float, arch: Architecture, persons: int) -> float:
    """C(1 - s), with s of :func:`penstock.privacy.sensitivity.float_room`; alike for all engines.

    A person's squared norm is a sum over at most all parameters, in float64, whatever the precision
    of the gradients themselves; these are what they are, functions of that person's rows alone.

    s is 3e-9 for 100 persons, 3e-6 for 10⁵, 4e-5 for a million.

    Args:
        clip: C; ``inf`` stays so: nothing is claimed of it.
        persons: of the frame, whether they take part or not.
    """
    if math.isinf(clip):
        return clip
    depth = _MOST_AT_ONCE + persons // AT_ONCE
    return clip * (1 - float_room(persons, depth, _parameters(arch) + _STEPS))


@cache
def _parameters(arch: Architecture) -> int:
    return int(np.size(active(arch)))
