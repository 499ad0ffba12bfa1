"""One answer of each site: coefficients with their covariance, and no table."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.mechanisms import Gibbs
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.released import ANSWER
from penstock.questions.estimands import Estimand
from penstock.schema import Coded
from penstock_server.mechanisms.answered import check_answer, name_release
from penstock_server.mechanisms.protocol import MechanismKind, Results


class GibbsKind(MechanismKind[Gibbs]):
    """A Langevin chain's answer to the one question."""

    words = name_release(
        "Answer",
        "Pull the sites' coefficients and pool the last term again: the same answers "
        "give the same numbers.",
    )

    def check(self, parts: Mapping[str, Coded]) -> None:
        check_answer(parts[ANSWER])

    def load_results(self) -> Results:
        from penstock_server.mechanisms.gibbs.results import GibbsResults

        return GibbsResults(self.study, self.used)

    def explain(self) -> list[str]:
        kind = "with" if self.used.dynamics == "underdamped" else "without"
        if self.joint:
            return [
                "The one question was asked of all sites' rows together (gibbs): downhill on the "
                f"model's fit to them, in few steps with noise (a Langevin chain, {kind} "
                "momentum). In each step all sites added up what their rows pull at the "
                "coefficients, each person's pull cut to a bound.",
                "What was made of the sums: the model's coefficients, those of sites among them, "
                "and their covariance. There is no synthetic table, and another question costs "
                "privacy again.",
            ]
        return [
            "Each site answered the one question itself (gibbs): it walked downhill on the "
            "model's fit to its rows, in few steps with noise (a Langevin chain, "
            f"{kind} momentum), each person's pull cut to a bound.",
            "What left a site: the model's coefficients and their covariance. There is no "
            "synthetic table, and another question costs privacy again.",
        ]

    def name_fit(self, estimand: Estimand, model: str) -> str:
        posing = POSINGS.of(estimand.model).with_baseline(self.used.baseline)
        return f"{posing.title} {'of all sites' if self.joint else 'at the sites'}"

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        answered = "All sites together" if self.joint else "Each site"
        of_sites, released = ("", "was") if self.joint else (" of sites", "the site")
        return [
            f"No table was released. {answered} answered this one question with its coefficients "
            "and their covariance; nothing else can be computed from them.",
            f"Intervals{of_sites} include sampling error and the noise that the privacy mechanism "
            f"added, both in the covariance that {released} released; they cannot be told apart "
            "here.",
            "The covariance is itself computed from noisy numbers. It does not include bias: "
            "persons far from the rest, or with residuals far from 0, count for less than their "
            "full weight, and of a survival model follow-up may end early. Where a column loses "
            "much of its spread by that, its answer is marked attenuated, or not held; an effect "
            "that is no straight line, and is told as it is among most persons, is not marked.",
        ], []
