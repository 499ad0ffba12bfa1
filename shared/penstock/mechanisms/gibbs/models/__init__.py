"""How a chain poses each model of a study, in one closed registry."""

from __future__ import annotations

from penstock.mechanisms.gibbs.models.linear import LinearPosing, MeanPosing
from penstock.mechanisms.gibbs.models.logistic import LogisticPosing
from penstock.mechanisms.gibbs.models.poisson import PoissonPosing
from penstock.mechanisms.gibbs.models.survival import BASELINES, PiecewisePosing
from penstock.mechanisms.gibbs.posing import Posing
from penstock.questions.models import MODELS
from penstock.questions.models.registry import ModelRegistry

__all__ = ["BASELINES", "POSINGS"]

POSINGS: ModelRegistry[Posing] = ModelRegistry(
    (LinearPosing(), LogisticPosing(), PiecewisePosing(), PoissonPosing(), MeanPosing()),
    MODELS.names,
)
"""One for each model that a study may name; a survival model's other baselines are chosen by
:meth:`penstock.mechanisms.gibbs.posing.Posing.with_baseline`."""
