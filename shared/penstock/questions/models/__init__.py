"""The models that a study may name, in one closed registry.

===================  ========================  ========  ====================================
model                outcome                   scale     estimate
===================  ========================  ========  ====================================
`ols`                number                    as it is  difference of means
`logistic`           0/1                       log       odds ratio
`cox`                duration with its event   log       hazard ratio
`poisson`            count                     log       rate ratio
`negative-binomial`  overdispersed count       log       rate ratio
`ordinal`            levels in order           log       common odds ratio: of any higher level
`multinomial`        levels without one        log       relative risk ratio: of one, against
                                                         the first
`mean`               number or 0/1             as it is  mean; of a 0/1 column the share of 1
===================  ========================  ========  ====================================

A further model is an object here; its fit to a table, ``penstock.questions.fits``; and how
a chain poses it, ``penstock.mechanisms.gibbs.models``. Each of the three registries is complete, or
cannot be imported.
"""

from __future__ import annotations

from penstock.questions.models.cox import COX
from penstock.questions.models.linear import LINEAR
from penstock.questions.models.logistic import LOGISTIC
from penstock.questions.models.mean import MEAN
from penstock.questions.models.model import Model
from penstock.questions.models.multinomial import MULTINOMIAL
from penstock.questions.models.negative_binomial import NEGATIVE_BINOMIAL
from penstock.questions.models.ordinal import ORDINAL
from penstock.questions.models.poisson import POISSON
from penstock.questions.models.registry import ModelRegistry

MODELS: ModelRegistry[Model] = ModelRegistry(
    (LINEAR, LOGISTIC, COX, POISSON, NEGATIVE_BINOMIAL, ORDINAL, MULTINOMIAL, MEAN)
)
"""In the order in which people are told of them."""
