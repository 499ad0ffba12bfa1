"""``maf`` as the rest of the package knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.mechanisms.maf.settings import Maf
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.protocol import Array, Asked, Attacked, Bools, Invertible
from penstock.mechanisms.tables.mechanism import TableMechanism
from penstock.mechanisms.tables.words import NOTES
from penstock.privacy.request import GUARANTEES
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.tables.plan import Plan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding

_NOTES = {
    **NOTES,
    "w": "0 samples the flow; above 0 injects latents, at a large cost",
    "latent_clip": "radius of the latents where w > 0",
    "steps": "training steps",
    "sampling": "full | poisson",
    "rate": "poisson: share of persons in a step",
    "flows": "layers of the flow",
    "hidden": "widths of the hidden layers",
}


class _Mechanism(TableMechanism[Maf]):
    settings = Maf
    notes = _NOTES
    attackable = True
    guarantees = GUARANTEES

    def plan(self, asked: Asked[Maf], persons: int) -> Plan:
        from penstock.mechanisms.maf.plan import plan

        return plan(asked.settings, asked.schema, persons, asked.privacy)

    def steps(self, settings: Maf) -> int:
        return settings.steps

    def attacked(self, plan: Plan) -> Attacked:
        def fit(
            encoding: Encoding,
            rows: Array,
            present: Bools,
            noise: NoiseSource,
            progress: Progress,
            device: str,
        ) -> Invertible:
            from penstock.mechanisms.tables import fitting

            return fitting.fit(plan, encoding, rows, present, noise, progress, device)

        return Attacked(plan.w, plan.latent_clip, plan.copies, plan.stages.body.steps, fit)

    def attack_memory(
        self, plan: Plan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        from penstock.mechanisms.tables.memory import attack_memory

        return attack_memory(plan, schema, dictionary or schema, threads)


MAF = _Mechanism()
