"""The peers of `make bench NAME=maf`: zuko, nflows and Opacus, each at its best as far as we know.

- **zuko**: its MAF with one hidden layer.
- **nflows**: its MAF without residual blocks and with none of the further hidden layers, which is
  the same network.
- **Opacus** refuses modules with buffers, and zuko keeps its masks in buffers. So it gets our own
  architecture, number for number, as plain modules whose masked layer is registered with it: a
  sampler of gradients, and one of gradient norms, which its ghost clipping needs. Its step is timed
  without its data loader, which would cost it more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from tests.benchmarks.flow import CLIP, FLOWS, HIDDEN, RATE, SIGMA, architecture
from torch import Tensor, nn
from torch.nn import functional

from penstock.mechanisms.flow.architecture import Architecture, starting_blocks
from penstock.privacy.noise.sources import SecureNoise, add_gaussian, poisson_sample


@dataclass(frozen=True, slots=True)
class Peer:
    """A library's MAF: how it is made (d, hidden, activation), its log density, its inverse.

    ``rates`` are, by activation, the learning rates at which it reached the best likelihood of
    fresh rows, of .001, .002, .003 and .005, tried beforehand.
    """

    make: Callable[[int, int, str], nn.Module]
    log_prob: Callable[[nn.Module, Tensor], Tensor]
    inverse: Callable[[nn.Module, Tensor], Tensor]
    rates: Mapping[str, float]


def _zuko(d: int, hidden: int, activation: str) -> nn.Module:
    import zuko

    kind = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    torch.manual_seed(0)
    return zuko.flows.MAF(
        d, 0, transforms=FLOWS, randperm=True, hidden_features=(hidden,), activation=kind
    )


def _nflows(d: int, hidden: int, activation: str) -> nn.Module:
    from nflows.flows.autoregressive import MaskedAutoregressiveFlow

    kind = {"relu": functional.relu, "tanh": torch.tanh}[activation]
    torch.manual_seed(0)
    return MaskedAutoregressiveFlow(
        d,
        hidden,
        FLOWS,
        num_blocks_per_layer=0,  # beyond the first hidden layer
        use_residual_blocks=False,
        use_random_permutations=True,
        activation=kind,
    )


PEERS = {
    "zuko": Peer(
        _zuko,
        lambda flow, x: flow().log_prob(x),
        lambda flow, z: flow().transform.inv(z),
        {"tanh": 5e-3, "relu": 2e-3},
    ),
    "nflows": Peer(
        _nflows,
        lambda flow, x: flow.log_prob(x),
        lambda flow, z: flow._transform.inverse(z)[0],
        {"tanh": 5e-3, "relu": 3e-3},
    ),
}


def fit(
    peer: Peer,
    x: np.ndarray,
    batch: int,
    epochs: int,
    hidden: int = HIDDEN,
    activation: str = "tanh",
) -> nn.Module:
    """Adam with a cosine schedule on shuffled minibatches; the schedule is ours too."""
    flow = peer.make(x.shape[1], hidden, activation)
    rows = torch.as_tensor(x, dtype=torch.float32)
    optimiser = torch.optim.Adam(flow.parameters(), lr=peer.rates[activation])
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for at in range(0, len(x), batch):
            loss = -peer.log_prob(flow, rows[order[at : at + batch]]).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return flow


def samples(peer: Peer, flow: nn.Module, z: Tensor) -> Tensor:
    with torch.no_grad():
        return peer.inverse(flow, z)


def mean_log_prob(peer: Peer, flow: nn.Module, x: np.ndarray) -> float:
    with torch.no_grad():
        return float(peer.log_prob(flow, torch.as_tensor(x, dtype=torch.float32)).mean())


class MaskedLinear(nn.Linear):
    """``a @ (weight * mask).T + bias``; the mask is no buffer, since Opacus refuses those."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, mask: np.ndarray) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.mask = torch.as_tensor(mask, dtype=torch.float32)
        with torch.no_grad():
            self.weight.copy_(torch.as_tensor(weight))
            self.bias.copy_(torch.as_tensor(bias))

    def forward(self, a: Tensor) -> Tensor:
        return functional.linear(a, self.weight * self.mask, self.bias)


class PlainMaf(nn.Module):
    """Our architecture and starting weights as modules; rows to their -log p up to a constant."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.d = arch.d
        self.blocks = nn.ModuleList(
            nn.ModuleList(MaskedLinear(y.weight, y.bias, y.mask) for y in block.layers)
            for block in starting_blocks(arch)
        )

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for *hidden, last in self.blocks:
            a = x
            for layer in hidden:
                a = torch.tanh(layer(a))
            mean, raw = last(torch.cat((a, x), dim=1)).split(self.d, dim=1)
            scale = 3.0 * torch.tanh(raw / 3.0)
            x = (x - mean) * torch.exp(-scale)
            total = total + scale.sum(dim=1)
        return total + 0.5 * x.square().sum(dim=1)


def _register() -> None:
    from opacus.grad_sample import register_grad_sampler, register_norm_sampler

    @register_grad_sampler(MaskedLinear)
    def _gradients(layer: MaskedLinear, seen: list[Tensor], g: Tensor) -> dict[Tensor, Tensor]:
        return {layer.weight: torch.einsum("no,ni->noi", g, seen[0]) * layer.mask, layer.bias: g}

    @register_norm_sampler(MaskedLinear)
    def _norms(layer: MaskedLinear, seen: list[Tensor], g: Tensor) -> dict[Tensor, Tensor]:
        g2 = g.square()
        weight = (g2 * (seen[0].square() @ layer.mask.T)).sum(dim=1).sqrt()
        return {layer.weight: weight, layer.bias: g2.sum(dim=1).sqrt()}


class _Given(nn.Module):
    """A criterion for Opacus's ghost clipping: the model has computed each row's loss already."""

    reduction = "mean"

    def forward(self, losses: Tensor, _: None) -> Tensor:
        return losses if self.reduction == "none" else losses.mean()


class OpacusFit:
    """DP-SGD by Opacus, with our secure noise in place of its own, which needs an old package.

    Args:
        x: (n, d) rows.
        mode: Opacus's ``grad_sample_mode``: ``hooks``, ``functorch`` or ``ghost``.
        rate: Poisson sampling rate, or None for all rows in each step.
    """

    def __init__(self, x: np.ndarray, mode: str, rate: float | None, hidden: int = HIDDEN) -> None:
        from opacus import PrivacyEngine

        _register()
        self.rows = torch.as_tensor(x, dtype=torch.float32)
        self.rate = rate
        self.noise = SecureNoise()
        model = PlainMaf(architecture(x.shape[1], hidden))
        active = [
            t
            for m in model.modules()
            if isinstance(m, MaskedLinear)
            for t in (m.mask.flatten() > 0, torch.ones(len(m.bias)) > 0)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its own noise is not secure: ours replaces it
            made = PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.Adam(model.parameters(), lr=RATE),
                criterion=_Given(),
                data_loader=torch.utils.data.DataLoader(
                    torch.utils.data.TensorDataset(self.rows),
                    batch_size=len(x) if rate is None else round(rate * len(x)),
                ),
                noise_multiplier=SIGMA,
                max_grad_norm=CLIP,
                poisson_sampling=False,
                grad_sample_mode=mode,
            )
        self.model, self.optimiser = made[0], made[1]
        self.criterion = made[2] if mode == "ghost" else _Given()
        self.optimiser.add_noise = partial(self._add_noise, torch.cat(active))

    def steps(self, count: int) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook")  # the rows need none
            for _ in range(count):
                self._step()

    def _step(self) -> None:
        x = self.rows
        if self.rate is not None:
            x = x[torch.as_tensor(poisson_sample(len(x), self.rate, self.noise))]
        self.optimiser.zero_grad(set_to_none=True)
        self.criterion(self.model(x), None).backward()
        self.optimiser.step()

    def _add_noise(self, active: Tensor) -> None:
        """One draw for all active parameters, as in our own step."""
        sd = self.optimiser.noise_multiplier * self.optimiser.max_grad_norm
        drawn = add_gaussian(np.zeros(int(active.sum())), sd, self.noise)
        full = torch.zeros(len(active))
        full[active] = torch.as_tensor(drawn, dtype=torch.float32)
        sizes = [p.numel() for p in self.optimiser.params]
        for p, part in zip(self.optimiser.params, full.split(sizes), strict=True):
            p.grad = p.summed_grad.view_as(p) + part.view_as(p)
