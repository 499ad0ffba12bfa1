"""``gibbs`` as the rest of the package knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.mechanisms.gibbs.settings import Gibbs, answer_terms
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.released import ANSWER, Kind, PartShape, Shape, answer_schema
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.gibbs.plan import Plan, WholePlan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding

_NOTES = {
    "dynamics": "overdamped | underdamped",
    "steps": "of a plain chain",
    "ridge": "penalty per person; above 0",
    "bound": "norm beyond which a row's covariates lose weight",
    "baseline": "of a survival model: piecewise | weibull",
    "pieces": "intervals of a piecewise baseline",
}


class _Mechanism(Mechanism[Gibbs, "Plan"]):
    """A chain is rehearsed whole: it has neither copies nor refits, and its plan depends on its
    length."""

    settings = Gibbs
    head = "releases one question's coefficients, and no table: exactly one estimand."
    notes = _NOTES
    leaves = "no rows: the coefficients of one regression"
    product = "one question's coefficients"
    answers = True
    summed = True
    stratifies = False

    def plan(self, asked: Asked[Gibbs], persons: int) -> Plan:
        from penstock.mechanisms.gibbs.plan import plan

        return plan(asked.settings, asked.schema, persons, asked.privacy, asked.estimands)

    def plan_sums(self, asked: Asked[Gibbs], persons: int) -> WholePlan:
        from penstock.mechanisms.gibbs.plan import plan_whole

        return plan_whole(asked.settings, asked.schema, persons, asked.privacy, asked.estimands)

    def instead_of_sums(self, settings: Gibbs) -> str:
        """Every step is a round of all sites: a preconditioned chain needs few."""
        return "" if settings.steps is None else "Leave out 'steps': a chain then has sixteen"

    def require_worth(self, asked: Asked[Gibbs], plan: Plan) -> None:
        """Refuse an answer that :mod:`penstock.mechanisms.gibbs.worth` plans to be noise."""
        from penstock.mechanisms.gibbs.worth import require_worth

        require_worth(plan, asked)

    def memory(
        self, plan: Plan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        from penstock.mechanisms.gibbs.memory import release_memory

        return release_memory(plan, schema, dictionary or schema, threads)

    def shape(self, asked: Asked[Gibbs], persons: int) -> Shape:
        terms = len(_terms(asked))
        return Shape((PartShape(ANSWER, Kind.ONCE, answer_schema(terms), terms),))

    def counts_rows(self, asked: Asked[Gibbs]) -> bool:
        """An answer has no tables."""
        return False

    def run(
        self,
        plan: Plan,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        *,
        progress: Progress | None = None,
        device: str = "cpu",
        threads: int = 1,
        public: tuple[Array, Bools] | None = None,
    ) -> Iterator[Part]:
        from penstock.mechanisms.gibbs import run

        yield from run.run(plan, encoding, rows, present, noise, progress, device, threads)

    def returned(self, asked: Asked[Gibbs]) -> list[str]:
        terms = _terms(asked)
        count = f"{len(terms)} coefficient{'' if len(terms) == 1 else 's'}"
        return [
            f"comes back: {count} with covariance, and no table: {', '.join(terms)}",
            "pull writes coefficients.csv and coefficients.json",
        ]


def _terms(asked: Asked[Gibbs]) -> tuple[str, ...]:
    return answer_terms(asked.schema, asked.estimands[0], asked.settings)


GIBBS = _Mechanism()
