"""A negative binomial model has no chain: its dispersion is one more parameter, of which a person's
part in the likelihood has no bound that a chain could be charged by."""

from __future__ import annotations

from penstock.mechanisms.gibbs.models.poisson import PoissonPosing
from penstock.questions.models.negative_binomial import NEGATIVE_BINOMIAL


class NegativeBinomialPosing(PoissonPosing):
    """Bounds on its rows are those of a Poisson model's; no plan is made of it."""

    model = NEGATIVE_BINOMIAL
    title = f"{NEGATIVE_BINOMIAL.title}, fitted"
    refused = "has no chain: its dispersion would be estimated beside the coefficients"
