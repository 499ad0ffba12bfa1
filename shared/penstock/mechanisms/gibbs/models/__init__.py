"""How a chain poses each model of a study, in one closed registry."""

from __future__ import annotations

from penstock.mechanisms.gibbs.models.linear import LinearPosing, MeanPosing
from penstock.mechanisms.gibbs.models.logistic import LogisticPosing
from penstock.mechanisms.gibbs.models.multinomial import MultinomialPosing
from penstock.mechanisms.gibbs.models.negative_binomial import NegativeBinomialPosing
from penstock.mechanisms.gibbs.models.ordinal import OrdinalPosing
from penstock.mechanisms.gibbs.models.poisson import PoissonPosing
from penstock.mechanisms.gibbs.models.survival import BASELINES, PiecewisePosing
from penstock.mechanisms.gibbs.posing import Posing
from penstock.questions.models import MODELS
from penstock.questions.models.registry import ModelRegistry

__all__ = ["BASELINES", "POSINGS"]

POSINGS: ModelRegistry[Posing] = ModelRegistry(
    (
        LinearPosing(),
        LogisticPosing(),
        PiecewisePosing(),
        PoissonPosing(),
        NegativeBinomialPosing(),
        OrdinalPosing(),
        MultinomialPosing(),
        MeanPosing(),
    ),
    MODELS.names,
)
"""One for each model that a study may name; a survival model's other baselines are chosen by
:meth:`penstock.mechanisms.gibbs.posing.Posing.with_baseline`."""
