"""Models that compare rows by a term, adjusted or not, by a number that tables alone answer.

Risks are standardised over those who are there; accelerated failure times are of a duration.
"""

from __future__ import annotations

from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.model import Measure

RISK_DIFFERENCE = LongitudinalModel(
    name="risk-difference",
    title="Risks standardised by a logistic model",
    outcomes=("binary", "event"),
    measure=Measure("risk difference", "RD", "lower risk", "higher risk"),
    in_outcome_units=False,
    least=0,
    most=0,
    adjusts=True,
    standardises=True,
    tables=True,
)
RISK_RATIO = LongitudinalModel(
    name="risk-ratio",
    title="Risks standardised by a logistic model",
    outcomes=("binary", "event"),
    measure=Measure("risk ratio", "RR", "lower risk", "higher risk"),
    in_outcome_units=False,
    ratio=True,
    least=0,
    most=0,
    adjusts=True,
    standardises=True,
    tables=True,
    link="log",
)
WEIBULL = LongitudinalModel(
    name="weibull",
    title="Weibull accelerated failure times",
    outcomes=("duration",),
    measure=Measure("time ratio", "TR", "shorter times", "longer times"),
    in_outcome_units=False,
    needs_event=True,
    ratio=True,
    least=0,
    most=0,
    adjusts=True,
    tables=True,
    link="log",
)
LOG_NORMAL = LongitudinalModel(
    name="log-normal",
    title="Log-normal accelerated failure times",
    outcomes=("duration",),
    measure=Measure("time ratio", "TR", "shorter times", "longer times"),
    in_outcome_units=False,
    needs_event=True,
    ratio=True,
    least=0,
    most=0,
    adjusts=True,
    tables=True,
    link="log",
)
