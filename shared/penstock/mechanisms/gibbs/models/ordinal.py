"""A proportional odds model has no chain: its cutpoints are further parameters that must stay in
order, and a likelihood with them has no one linear predictor that a chain could be charged by."""

from __future__ import annotations

from penstock.mechanisms.gibbs.models.logistic import LogisticPosing
from penstock.questions.models.ordinal import ORDINAL


class OrdinalPosing(LogisticPosing):
    """Bounds on its rows are those of a logistic model's; no plan is made of it."""

    model = ORDINAL
    title = f"{ORDINAL.title}, fitted"
    refused = "has no chain: its cutpoints would be estimated beside the coefficients"
