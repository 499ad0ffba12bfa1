"""The engines that a law of flows has to hold for."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.mechanisms.flow.architecture import Architecture, active
from penstock.mechanisms.flow.engine import Flow, make_flow, why_no_kernel

_NONE = why_no_kernel()
KERNEL = pytest.param("kernel", marks=pytest.mark.skipif(_NONE is not None, reason=str(_NONE)))
BACKENDS = ["torch", KERNEL]


def perturbed(
    arch: Architecture, backend: str = "torch", precision: str = "double", size: float = 0.2
) -> Flow:
    """A flow whose active weights are all random: nothing is zero by construction."""
    flow = make_flow(arch, backend=backend, precision=precision)
    there = active(arch)
    flow.set_flat(size * np.random.default_rng(7).standard_normal(len(there)) * there)
    return flow


def gaussian_rows(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(11).standard_normal(shape)
