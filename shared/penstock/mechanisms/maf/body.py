"""A masked autoregressive flow as the body of a table's fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.mechanisms.flow import training
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.training import Training
from penstock.mechanisms.memory import NUMBER
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.tables.stages import Begun, Transport
from penstock.privacy.events import Event
from penstock.privacy.noise.sources import NoiseSource


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """A masked autoregressive flow, trained on noisy gradients."""

    arch: Architecture
    training: Training

    @property
    def steps(self) -> int:
        return self.training.steps

    def event(self) -> Event:
        return self.training.event()

    def fit(
        self,
        begun: Sequence[Begun],
        noises: Sequence[NoiseSource],
        progress: Progress | None,
        device: str,
        threads: int,
    ) -> Sequence[Transport]:
        """A flow of each table; on a GPU they are trained as one."""
        from penstock.mechanisms.flow.engine import make_flow

        own = max(1, threads // len(begun))
        flows = [make_flow(self.arch, device, threads=own) for _ in begun]
        inside, present = [b.inside for b in begun], [b.present for b in begun]
        if len(begun) == 1:
            training.fit(flows[0], inside[0], present[0], self.training, noises[0], progress)
        else:
            plans = [self.training] * len(begun)
            training.fit_many(flows, inside, present, plans, noises, progress, threads)
        return flows

    def memory(self, places: int) -> tuple[int, int]:
        """Bytes of a model, and of its training: weights alone, since rows come in parts."""
        weights = _weights(self.arch)
        return NUMBER * 4 * weights, NUMBER * 24 * weights


def _weights(arch: Architecture) -> int:
    """Parameters of a flow, masked ones too."""
    widths = (arch.d, *arch.hidden)
    inner = sum((below + 1) * own for below, own in pairwise(widths))
    return arch.flows * (inner + 2 * arch.d * (arch.hidden[-1] + arch.d + 1))
