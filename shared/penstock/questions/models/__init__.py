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

Models of persons over time are a registry of their own: they are asked of what a mechanism that
follows persons releases, and fitted by :mod:`penstock.questions.persons`.

===============  ====================  ==============  =============================================
model            outcome               scale           estimate
===============  ====================  ==============  =============================================
`quantile`       number                as it is        of persons at a time
`share`          number                logit           of persons above, or below, a threshold
`change`         number                as it is        mean change of a person between two times
`change-sd`      number                log             its standard deviation
`correlation`    number                Fisher's z      over persons: of two times, or two columns
`transition`     levels                logit           probability of a level, given one before
`mixed`          number                as it is        slope over time, by a random-intercept model
===============  ====================  ==============  =============================================

A quantile and a share of which no time is said are of a table's rows, and of any mechanism; a share
of levels is that of one of them; a correlation of two columns may be of rows, too. So is
`survival`, of a duration with its event: Kaplan and Meier's share without the event at a time, on
the scale of the logit.

`rmst` is the area under that curve until a bound, which tables alone answer; as they do
`cumulative-incidence`, Aalen and Johansen's share with the event by a time where another event may
end the follow-up, on the scale of the logit.

Three are of rows alone: a `count` of those with a level, an event or a value beyond a threshold,
of which sites are added up; a `rate`, events per time, on the scale of the logarithm; and one cell
of a `table` of two or three columns with levels, its share of all rows, on that of the logit.

Of rows alone, too, and of tables, are contrasts by a term, adjusted as regressions are: a
`risk-difference` and a `risk-ratio` of a 0/1 column or an event, standardised over the rows;
and accelerated failure times of a duration, `weibull` and `log-normal`, by the ratio of times.

A further model is an object here; its fit to a table, ``penstock.questions.fits``; and how
a chain poses it, ``penstock.mechanisms.gibbs.models``. Each of the three registries is complete, or
cannot be imported; so are those of models over time, and their fits.
"""

from __future__ import annotations

from penstock.questions.models.comparisons import (
    LOG_NORMAL,
    RISK_DIFFERENCE,
    RISK_RATIO,
    WEIBULL,
)
from penstock.questions.models.cox import COX
from penstock.questions.models.linear import LINEAR
from penstock.questions.models.logistic import LOGISTIC
from penstock.questions.models.longitudinal import (
    CHANGE,
    CHANGE_SD,
    CORRELATION,
    COUNT,
    CUMULATIVE_INCIDENCE,
    MIXED,
    QUANTILE,
    RATE,
    RMST,
    SHARE,
    SURVIVAL,
    TABLE,
    TRANSITION,
    LongitudinalModel,
)
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

LONGITUDINAL: ModelRegistry[LongitudinalModel] = ModelRegistry(
    (QUANTILE, SHARE, CHANGE, CHANGE_SD, CORRELATION, TRANSITION, MIXED)
)
"""Those of persons over time."""

DESCRIPTIVE: ModelRegistry[LongitudinalModel] = ModelRegistry(
    (
        SURVIVAL,
        RMST,
        CUMULATIVE_INCIDENCE,
        COUNT,
        RATE,
        TABLE,
        RISK_DIFFERENCE,
        RISK_RATIO,
        WEIBULL,
        LOG_NORMAL,
    )
)
"""Those of rows alone."""

EVERY: ModelRegistry[Model] = ModelRegistry((*MODELS, *LONGITUDINAL, *DESCRIPTIVE))
"""All that a study may name."""
