"""Laws of the masked autoregressive flow: an inverse, a Jacobian, a triangle; on every engine."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.engines import BACKENDS, gaussian_rows, perturbed
from torch import Tensor

from penstock.base.errors import InvalidInput
from penstock.mechanisms.flow import engine
from penstock.mechanisms.flow.architecture import (
    Architecture,
    active,
    project,
    starting_blocks,
    starting_parameters,
    weights,
)
from penstock.mechanisms.flow.engine import make_flow
from penstock.mechanisms.flow.reference import BOX, Block, TorchFlow

Array = NDArray[np.float64]

ARCHITECTURES = [
    Architecture(1),
    Architecture(2, flows=1, hidden=(3,)),
    Architecture(5, flows=3, hidden=(16, 24)),
    Architecture(6, activation="relu"),
    Architecture(6, hidden=(12, 8), linear=False),
    Architecture(20, flows=2, hidden=(7,)),
]

on_every_engine = pytest.mark.parametrize("backend", BACKENDS)


def on_torch(arch: Architecture) -> TorchFlow:
    flow = perturbed(arch)
    if not isinstance(flow, TorchFlow):
        raise TypeError("asked for torch")
    return flow


def gaussian_log_density(x: Array, sd: float) -> Array:
    density: Array = (-0.5 * (x / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi))).sum(axis=1)
    return density


def first_latent(block: Block, x: Tensor) -> Tensor:
    return block.to_latent(x[None])[0][0, 0]


def jacobian_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """∂function(x)/∂x, (d, d), one backward pass per output; ``function`` takes (1, d)."""
    x = x[None].clone().requires_grad_()
    return torch.stack([torch.autograd.grad(y, x, retain_graph=True)[0][0] for y in function(x)])


@on_every_engine
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_untrained_flow_is_the_standard_gaussian(arch: Architecture, backend: str) -> None:
    x = gaussian_rows(50, arch.d)
    flow = make_flow(arch, backend=backend, precision="double")
    np.testing.assert_array_equal(flow.to_latent(x), x)
    np.testing.assert_allclose(flow.log_prob(x), gaussian_log_density(x, 1.0), rtol=1e-12)


@on_every_engine
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_from_latent_inverts_to_latent(arch: Architecture, backend: str) -> None:
    flow, x = perturbed(arch, backend), gaussian_rows(200, arch.d)
    z = flow.to_latent(x)
    assert not np.allclose(z, x, atol=1e-2)
    np.testing.assert_allclose(flow.from_latent(z), x, rtol=0, atol=1e-9)


@on_every_engine
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_inverse_holds_in_single_precision(arch: Architecture, backend: str) -> None:
    flow, x = perturbed(arch, backend, "single", 0.1), gaussian_rows(200, arch.d)
    np.testing.assert_allclose(flow.from_latent(flow.to_latent(x)), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_log_determinant_agrees_with_autodiff(arch: Architecture) -> None:
    flow = on_torch(arch)
    for x in torch.as_tensor(gaussian_rows(4, arch.d)):
        jacobian = jacobian_of(lambda v: flow.joint.trace(v[None])[0][0, 0], x)
        log_scale = flow.joint.trace(x[None, None])[1][0, 0]
        assert torch.allclose(torch.linalg.slogdet(jacobian)[1], -log_scale, atol=1e-10)


@pytest.mark.parametrize("linear", [True, False])
def test_each_block_is_triangular_in_its_own_order(linear: bool) -> None:
    flow = on_torch(Architecture(6, flows=3, hidden=(16, 16), linear=linear))
    orders = set()
    for block in flow.joint.blocks:
        x = torch.as_tensor(gaussian_rows(6))
        jacobian = jacobian_of(partial(first_latent, block), x)
        ordered = jacobian[block.order][:, block.order]
        assert torch.equal(torch.triu(ordered, 1), torch.zeros(6, 6, dtype=torch.float64))
        assert (torch.tril(ordered).abs() > 0).sum() == 21  # and nothing below is missing
        orders.add(tuple(block.order))
    assert len(orders) > 1


def test_without_hidden_units_only_the_linear_path_moves_means() -> None:
    for linear in (True, False):
        arch = Architecture(3, flows=1, hidden=(4,), linear=linear)
        vector = np.zeros(len(active(arch)))
        weights(arch, vector)[-1][..., 4:] = 0.5
        flow = make_flow(arch, backend="torch", precision="double")
        flow.set_flat(vector * active(arch))
        x = gaussian_rows(5, 3)
        assert np.array_equal(flow.to_latent(x), x) is not linear


@on_every_engine
@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a.d <= 2], ids=str)
def test_density_integrates_to_one(arch: Architecture, backend: str) -> None:
    # E over x ~ q of p(x)/q(x) is 1 for any q that covers p; here q = N(0, 1.5² I).
    flow = perturbed(arch, backend)
    x = 1.5 * gaussian_rows(200_000, arch.d)
    ratios = np.exp(flow.log_prob(x) - gaussian_log_density(x, 1.5))
    # |z| > 5.6: a false alarm of 2e-8 per case, were the seed not fixed.
    assert abs(ratios.mean() - 1) < 5.6 * ratios.std() / np.sqrt(len(ratios))


@on_every_engine
@pytest.mark.parametrize("size", [0.2, 1e3, 1e30])
def test_everything_is_finite_on_hostile_input(size: float, backend: str) -> None:
    flow = perturbed(Architecture(4), backend, "single", size)
    bad = np.array([[np.nan] * 4, [np.inf] * 4, [-np.inf] * 4, [1e38] * 4, [1e300] * 4, [0.0] * 4])
    out = flow.from_latent(bad)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= BOX
    if size < 1:
        assert np.isfinite(flow.to_latent(bad)).all()
        assert np.isfinite(flow.log_prob(bad)).all()


@on_every_engine
def test_same_architecture_same_flow(backend: str) -> None:
    a, b, other = (make_flow(Architecture(5, seed=s), backend=backend) for s in (3, 3, 4))
    np.testing.assert_array_equal(a.get_flat(), b.get_flat())
    orders = [[x.order for x in starting_blocks(f.arch)] for f in (a, b)]
    assert orders[0] == orders[1]
    assert not np.array_equal(a.get_flat(), other.get_flat())


@on_every_engine
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_flat_parameters_are_what_the_architecture_says(arch: Architecture, backend: str) -> None:
    flow = make_flow(arch, backend=backend, precision="double")
    np.testing.assert_array_equal(flow.get_flat(), starting_parameters(arch))
    assert not flow.get_flat()[~active(arch)].any()
    again = perturbed(arch, backend).get_flat()
    flow.set_flat(again)
    np.testing.assert_array_equal(flow.get_flat(), again)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_weights_are_views_of_the_flat_parameters(arch: Architecture) -> None:
    vector = starting_parameters(arch)
    views = weights(arch, vector)
    for i, block in enumerate(starting_blocks(arch)):
        for view, layer in zip(views, block.layers, strict=True):
            np.testing.assert_array_equal(view[i], layer.weight)
    for view in views:
        view[:] = 0
    biases = sum(len(y.bias) for y in starting_blocks(arch)[0].layers)
    assert np.count_nonzero(vector) <= arch.flows * biases


# -- spectral bound ----------------------------------------------------------------------------


def largest(arch: Architecture, vector: Array) -> float:
    """The largest singular value of any weight matrix."""
    values = [np.linalg.svd(w, compute_uv=False) for w in weights(arch, vector)]
    return float(max(v.max() for v in values))


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_projection_reaches_the_spectral_bound_and_no_further(arch: Architecture) -> None:
    bound = 0.3
    bounded = Architecture(arch.d, arch.flows, arch.hidden, arch.activation, 0, arch.linear, bound)
    assert largest(bounded, starting_parameters(bounded)) <= bound * (1 + 1e-12)
    there = active(arch)
    for size in (1e-4, 1e3):
        vector = size * np.random.default_rng(3).standard_normal(len(there)) * there
        free = vector.copy()
        project(arch, free)
        np.testing.assert_array_equal(free, vector)  # no bound, no change
        project(bounded, free)
        for before, after in zip(weights(arch, vector), weights(arch, free), strict=True):
            was = np.linalg.svd(before, compute_uv=False)[:, 0]
            now = np.linalg.svd(after, compute_uv=False)[:, 0]
            np.testing.assert_allclose(now, np.minimum(was, bound), rtol=1e-12)
        assert not free[~there].any()


def test_the_spectral_bound_bounds_a_blocks_lipschitz_constant() -> None:
    """Two hidden layers are B²-Lipschitz; beside them, columns reach the outputs directly."""
    bound = 0.8
    arch = Architecture(5, flows=1, hidden=(16, 16), spectral=bound)
    there = active(arch)
    vector = 5 * np.random.default_rng(3).standard_normal(len(there)) * there
    project(arch, vector)
    flow = make_flow(arch, backend="torch", precision="double")
    flow.set_flat(vector)
    assert isinstance(flow, TorchFlow)
    block, slopes = flow.joint.blocks[0], []

    def outputs(x: Tensor) -> Tensor:
        passes: list[Any] = []
        block.to_latent(x[None], passes)
        return block.layers[-1](passes[0].inputs[-1])[0, 0]

    for x in torch.as_tensor(gaussian_rows(20, 5)):
        slopes.append(float(torch.linalg.matrix_norm(jacobian_of(outputs, x), 2)))
    assert 0.1 * bound < max(slopes) <= bound * math.hypot(1, bound**2)


# -- which engine ------------------------------------------------------------------------------


@pytest.mark.skipif(engine.why_no_kernel() is not None, reason=str(engine.why_no_kernel()))
def test_with_the_kernel_nobody_waits_for_torch() -> None:
    code = (
        "import sys, penstock.mechanisms.tables.run\n"
        "from penstock.mechanisms.flow.engine import make_flow\n"
        "from penstock.mechanisms.flow.architecture import Architecture\n"
        "make_flow(Architecture(2))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_kernel_is_told_once_and_refused_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why = "no compiler was found (of this test)"
    monkeypatch.setattr(engine, "why_no_kernel", lambda device="cpu": why)
    for _ in range(2):
        assert isinstance(make_flow(Architecture(2)), TorchFlow)
    assert [r.message for r in caplog.records if why in r.message] == [
        f"flows run on torch, which is slower: {why}"
    ]
    with pytest.raises(InvalidInput, match="kernel"):
        make_flow(Architecture(2), backend="kernel")


def test_the_kernel_runs_on_a_cpu_only() -> None:
    assert "cuda" in str(engine.why_no_kernel("cuda"))
    with pytest.raises(InvalidInput):
        make_flow(Architecture(2), "cuda", "kernel")


@pytest.mark.parametrize("fields", [{"backend": "jax"}, {"precision": "half"}], ids=str)
def test_unknown_engines_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        make_flow(Architecture(2), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"d": 0},
        {"d": True},
        {"d": 2.0},
        {"d": 3, "flows": 0},
        {"d": 3, "hidden": ()},
        {"d": 3, "hidden": (0,)},
        {"d": 3, "activation": "gelu"},
        {"d": 3, "spectral": 0.0},
        {"d": 3, "spectral": math.nan},
        {"d": 3, "spectral": math.inf},
    ],
    ids=str,
)
def test_impossible_architectures_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Architecture(**fields)  # type: ignore[arg-type]
