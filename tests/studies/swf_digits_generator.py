"""DPSWgen: a generator trained by the sliced Wasserstein distance to noisy projections of rows.

The baseline of Sebag et al. 2025 (after Rakotomamonjy & Ralaivola 2021), with its network (their
appendix C.5). What it learns from rows at each step is what DPSWflow-r learns too: a fresh batch,
each row on N stacked orthonormal directions, with Gaussian noise. So it costs the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tests.studies.swf_digits_methods import Resampled
from torch import Tensor, nn

from penstock.privacy.events import Event
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]


class Generator(nn.Module):
    """d standard Gaussians to a row."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU()),
            *(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, d)),
        )

    def forward(self, z: Tensor) -> Tensor:
        """(m, d) to (m, d)."""
        made: Tensor = self.layers(z)
        return made


@dataclass(frozen=True, slots=True)
class Generated:
    """DPSWgen.

    Args:
        steps: of Adam, each on a fresh batch without replacement; batch: rows in it.
        bases: orthonormal bases of directions drawn at each step; rate: of Adam, to 0 by a cosine.
    """

    steps: int
    batch: int
    bases: int
    rate: float

    def _seen(self) -> Resampled:
        """The flow that would see what this learns from; its step sizes do not count."""
        return Resampled(self.steps, self.batch, self.bases, step=1.0, last=1.0)

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What a training on n rows costs, sigma relative to a row's diameter."""
        return self._seen().events(n, d, sigma)

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """``count`` rows of a generator that minimises the smoothed sliced W2.

        Generated projections get noise as well as the rows', so that the latter's blur is not
        learnt; it is free.
        """
        d, size = rows.shape[1], min(self.batch, len(rows))
        torch.manual_seed(int(noise.generator().integers(2**31)))
        generator = Generator(d)
        optimiser = torch.optim.Adam(generator.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for goal in self._seen().goals(rows, sigma, noise):
            theta = torch.as_tensor(goal.theta, dtype=torch.float32)
            levels = np.broadcast_to(np.linspace(0, 1, size), (theta.shape[1], size))
            target = torch.as_tensor(goal.quantiles(levels), dtype=torch.float32)
            made = generator(torch.randn(size, d)) @ theta
            made = made + goal.smoothing * torch.randn_like(made)
            loss = (made.T.sort(dim=1).values - target).square().mean().sqrt()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
        generator.eval()
        with torch.no_grad():
            drawn: Array = generator(torch.randn(count, d)).double().numpy()
        return drawn
