"""A multinomial model has no chain: each level has a linear predictor of its own."""

from __future__ import annotations

from penstock.mechanisms.gibbs.models.logistic import LogisticPosing
from penstock.questions.models.multinomial import MULTINOMIAL


class MultinomialPosing(LogisticPosing):
    """Bounds on its rows are those of a logistic model's; no plan is made of it."""

    model = MULTINOMIAL
    title = f"{MULTINOMIAL.title}, fitted"
    refused = "has no chain: each level has coefficients of its own"
