"""One answer of each site: the numbers of all declared questions, and no table."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.mechanisms import Scoring
from penstock.mechanisms.released import ANSWER, SITES
from penstock.mechanisms.scoring.divisible import list_apart
from penstock.questions.estimands import Estimand
from penstock.schema import Coded
from penstock_server.mechanisms.answered import check_apart, check_sites, name_release
from penstock_server.mechanisms.protocol import MechanismKind, Results

_OF_SUMS = [
    "A quantile is known as well as the bin that it lies in; where many rows have one value its "
    "interval is wider than it need be. Of survival nothing is known within an interval of time.",
    "A count is of rows whose values are known, among those that the site has; no interval of a "
    "count says anything of other persons.",
]

_HOW_JOINTLY = (
    "What the study declares was asked of all sites' rows together (scoring): the columns were "
    "counted with noise, of which site a row is among them, and then, in a few rounds, rows said "
    "in which direction the coefficients at hand fit badly, and how often values lie where; each "
    "person's part in all of these sums was cut to a bound."
)
_HOW_APART = (
    "One round more had a block for each site: what is left of its rows' scores at the effects of "
    "all sites, of which its own effects follow in one step. A person is in one block, which has "
    "the noise of the whole sum."
)
_LEFT_JOINTLY = (
    "What was made of the sums: the answers to the declared questions and their covariance, of "
    "which the mechanism's noise is told apart. There is no synthetic table, and another question "
    "costs privacy again."
)


class ScoringKind(MechanismKind[Scoring]):
    """Noisy scores' answers to what the study asks."""

    words = name_release(
        "Answers",
        "Pull the sites' coefficients and pool those that are asked for again: the same "
        "answers give the same numbers.",
    )

    def check(self, parts: Mapping[str, Coded]) -> None:
        check_apart(parts[ANSWER])
        if SITES in parts:
            check_sites(parts[SITES])

    @property
    def _described(self) -> bool:
        """Whether the study asks what no regression answers."""
        return not all(e.regression.compares for e in self.study.estimands)

    def load_results(self) -> Results:
        from penstock_server.mechanisms.scoring.results import ScoringResults

        return ScoringResults(self.study, self.used)

    def explain(self) -> list[str]:
        comparing = any(e.regression.compares for e in self.study.estimands)
        if self.joint:
            asked = self.study.asked
            apart = list_apart(asked.schema, asked.estimands, asked.apart_by)
            return [_HOW_JOINTLY, *([_HOW_APART] if apart else []), _LEFT_JOINTLY]
        how = [
            "Each site answered the declared questions itself (scoring): it counted the columns "
            "that they name with noise, and then asked its rows, in a few rounds, in which "
            "direction the coefficients at hand fit badly; each person's part in all of these sums "
            "was cut to a bound.",
        ]
        sums = [
            "Means, shares, quantiles, survival, counts, rates and tables are of noisy sums of "
            "their own: of values within the public bounds, and of rows by level, by value and by "
            "time.",
        ]
        return [
            *(how if comparing else []),
            *(sums if self._described else []),
            "What left a site: the answers to the declared questions and their covariance, "
            "of which the mechanism's noise is told apart. There is no synthetic table, and "
            "another question costs privacy again.",
        ]

    def name_fit(self, estimand: Estimand, model: str) -> str:
        by = "scores" if estimand.regression.compares else "sums"
        where = "of all sites" if self.joint else "at the sites"
        return f"{model}, by noisy {by} {where}"

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        answered = "All sites together" if self.joint else "Each site"
        return [
            f"No table was released. {answered} answered the declared questions with numbers "
            "and their covariance; nothing else can be computed from them.",
            f"Intervals{'' if self.joint else ' of sites'} include sampling error, with the "
            "dispersion that was counted, and the noise that the privacy mechanism added. "
            "A person's several rows count as if they were several persons'.",
            "A covariance is itself computed from noisy numbers. It holds a guess of what cutting "
            "persons' parts to a bound loses, not more: where a column has long tails, an answer "
            "may be off by more than its interval says. Answers that hang on few persons are "
            "marked attenuated, or not held; what goes together with such a column may be off, "
            "too, and is not marked for that. An estimand of fewer "
            "columns than another one of the same outcome, or of a subgroup, follows from the "
            "larger regression by what was released of the columns.",
            *(_OF_SUMS if self._described else []),
        ], []
