"""Laws of the masked autoregressive flow: an inverse, a Jacobian, a triangle."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import InvalidInput
from penstock.models.architecture import Architecture
from penstock.models.maf import BOX, Block, Flow

ARCHITECTURES = [
    Architecture(1),
    Architecture(2, flows=1, hidden=(3,)),
    Architecture(5, flows=3, hidden=(16, 24)),
    Architecture(6, activation="relu"),
    Architecture(20, flows=2, hidden=(7,)),
]


def perturbed(arch: Architecture, size: float = 0.2, dtype: torch.dtype = torch.float64) -> Flow:
    """A flow whose active weights are all random: nothing is zero by construction."""
    flow = Flow(arch, dtype=dtype)
    generator = torch.Generator().manual_seed(7)
    weights = size * torch.randn(len(flow.active()), dtype=dtype, generator=generator)
    flow.set_flat(weights * flow.active())
    return flow


def rows(n: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(11))


def gaussian_log_density(x: Tensor, sd: float) -> Tensor:
    return (-0.5 * (x / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi))).sum(dim=1)


def first_latent(block: Block, x: Tensor) -> Tensor:
    return block.to_latent(x)[0][0]


def jacobian_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """∂function(x)/∂x, (d, d), one backward pass per output; ``function`` takes (1, d)."""
    x = x[None].clone().requires_grad_()
    return torch.stack([torch.autograd.grad(y, x, retain_graph=True)[0][0] for y in function(x)])


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_untrained_flow_is_the_standard_gaussian(arch: Architecture) -> None:
    x = rows(50, arch.d)
    assert torch.equal(Flow(arch, dtype=torch.float64).to_latent(x), x)
    expected = gaussian_log_density(x, 1.0)
    assert torch.allclose(Flow(arch, dtype=torch.float64).log_prob(x), expected)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_from_latent_inverts_to_latent(arch: Architecture) -> None:
    flow, x = perturbed(arch), rows(200, arch.d)
    z = flow.to_latent(x)
    assert not torch.allclose(z, x, atol=1e-2)
    assert torch.allclose(flow.from_latent(z), x, atol=1e-9)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_inverse_holds_in_single_precision(arch: Architecture) -> None:
    flow, x = perturbed(arch, 0.1, torch.float32), rows(200, arch.d, torch.float32)
    assert torch.allclose(flow.from_latent(flow.to_latent(x)), x, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_log_determinant_agrees_with_autodiff(arch: Architecture) -> None:
    flow = perturbed(arch)
    for x in rows(4, arch.d):
        jacobian = jacobian_of(lambda v: flow.to_latent(v)[0], x)
        log_scale = flow.trace(x[None])[1][0]
        assert torch.allclose(torch.linalg.slogdet(jacobian)[1], -log_scale, atol=1e-10)


def test_each_block_is_triangular_in_its_own_order() -> None:
    flow = perturbed(Architecture(6, flows=3, hidden=(16, 16)))
    orders = set()
    for block in flow.blocks:
        x = rows(1, 6)[0]
        jacobian = jacobian_of(partial(first_latent, block), x)
        ordered = jacobian[block.order][:, block.order]
        assert torch.equal(torch.triu(ordered, 1), torch.zeros(6, 6, dtype=torch.float64))
        assert (torch.tril(ordered).abs() > 0).sum() == 21  # and nothing below is missing
        orders.add(tuple(block.order))
    assert len(orders) > 1


@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a.d <= 2], ids=str)
def test_density_integrates_to_one(arch: Architecture) -> None:
    # E over x ~ q of p(x)/q(x) is 1 for any q that covers p; here q = N(0, 1.5² I).
    flow = perturbed(arch)
    x = 1.5 * rows(200_000, arch.d)
    q = gaussian_log_density(x, 1.5)
    weights = torch.exp(flow.log_prob(x) - q)
    # |z| > 5.6: a false alarm of 2e-8 per case, were the seed not fixed.
    assert abs(weights.mean() - 1) < 5.6 * weights.std() / np.sqrt(len(weights))


@pytest.mark.parametrize("size", [0.2, 1e3, 1e30])
def test_everything_is_finite_on_hostile_input(size: float) -> None:
    flow = perturbed(Architecture(4), size, torch.float32)
    bad = torch.tensor([[np.nan] * 4, [np.inf] * 4, [-np.inf] * 4, [1e38] * 4, [0.0] * 4])
    out = flow.from_latent(bad)
    assert torch.isfinite(out).all()
    assert out.abs().max() <= BOX
    if size < 1:
        assert torch.isfinite(flow.to_latent(bad)).all()
        assert torch.isfinite(flow.log_prob(bad)).all()


def test_same_architecture_same_flow() -> None:
    a, b = Flow(Architecture(5, seed=3)), Flow(Architecture(5, seed=3))
    assert torch.equal(a.get_flat(), b.get_flat())
    assert [x.order for x in a.blocks] == [x.order for x in b.blocks]
    assert not torch.equal(a.get_flat(), Flow(Architecture(5, seed=4)).get_flat())


def test_masked_weights_stay_zero() -> None:
    flow = Flow(Architecture(5))
    assert torch.equal(flow.get_flat()[~flow.active()], torch.zeros(int((~flow.active()).sum())))


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
    ],
    ids=str,
)
def test_impossible_architectures_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Architecture(**fields)  # type: ignore[arg-type]
