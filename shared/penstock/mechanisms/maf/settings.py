"""Settings of ``maf``: a masked autoregressive flow, and latent noise injection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.checks import Checks, shown
from penstock.base.errors import Problem
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

SAMPLINGS = ("full", "poisson")


@dataclass(frozen=True, slots=True)
class Maf:
    """A synthetic table from a masked autoregressive flow that was trained privately.

    Attributes:
        copies: synthetic data sets per site, 1 to 100.
        refits: how often a site repeats its whole private procedure on the rows of its copies, in
            turn, 0 to 100, to show the mechanism's own noise; free of budget. 0: intervals lack it;
            from 30 on they hold what they say (``make reproduce NAME=combining``).
        w: share of the latent that is the person's own, 0 <= w < 1; 0 samples the flow.
        latent_clip: radius to which latents are clipped where w > 0.
        steps: training steps, 1 to 10000.
        sampling, rate: ``full`` batches (rate 1), or ``poisson`` with rate 0 < q <= 1.
        flows, hidden: layers of the flow, and the width of their hidden layers.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "maf"
    copies: int = 10
    w: float = 0.0
    latent_clip: float = 3.0
    steps: int = 300
    sampling: str = "full"
    rate: float = 1.0
    flows: int = 2
    hidden: tuple[int, ...] = (32,)
    refits: int = 40

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.whole("copies", self.copies, 1, 100)
        check.whole("refits", self.refits, 0, 100)
        clip = check.number(
            "latent_clip", self.latent_clip, "above 0, at most 100", above=0, most=100
        )
        rate = check.number("rate", self.rate, "above 0, at most 1", above=0, most=1)
        w = check.number("w", self.w, "0 <= w < 1", least=0, below=1)
        check.keep(self, w=w, latent_clip=clip, rate=rate)
        check.whole("steps", self.steps, 1, 10_000)
        check.choice("sampling", self.sampling, SAMPLINGS)
        if self.sampling == "full" and rate is not None and rate != 1:
            check.add(
                "rate",
                "is not 1 although every step uses all rows",
                value=shown(rate),
                remedy="Set sampling = 'poisson', or rate = 1",
            )
        check.whole("flows", self.flows, 1, 32)
        for width in check.sequence("hidden", self.hidden, 1, 4) or ():
            check.whole("hidden", width, 1, 1024)
        check.done()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do: nothing."""
        return []
