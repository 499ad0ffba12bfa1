"""What the files of answers mean that an analyst pulls, and how answers combine."""

from __future__ import annotations

from penstock.study.study import Study
from penstock_server.mechanisms.doubted import describe_doubts
from penstock_server.mechanisms.protocol import Json
from penstock_server.mechanisms.writing import SITE, describe_column

_ANSWERS = (
    "No table was released: each site answered the declared questions. Each site's covariance "
    "contains the sampling error and the noise of the private mechanism. Pool a coefficient that "
    "is asked for over the sites, weighing by its variance; the report does so, per the "
    "estimand's units. Other terms adjust: they were asked for less, and have more noise. Between "
    "two regressions no covariance is told. Counts are of the site's own rows, and their errors of "
    "noise alone: add them up, and their variances. Another question needs another study, and "
    "costs privacy again."
)

_ANSWER_OF_ALL = (
    "No table was released: all sites together answered the declared questions, in one release, "
    "regressions within sites. The covariance contains the sampling error and the noise of the "
    "private mechanism. There is nothing to pool: a coefficient that is asked for, per the "
    "estimand's units, is the report's answer. Other terms adjust: they were asked for less, and "
    "have more noise. Between two regressions no covariance is told. Counts are of the rows of all "
    "sites, and their errors of noise alone. Another question needs another study, and costs "
    "privacy again."
)


def describe_answers(study: Study, report: Json) -> Json:
    """What the columns of the coefficients mean, and how answers combine."""
    joint = study.aggregation.joint
    whose = "all sites: they answered together" if joint else "site that answered"
    return {
        "study": study.name,
        "synthetic": False,
        "columns": [
            describe_column(SITE, "categorical", whose),
            describe_column("model", "categorical", "of the regression"),
            describe_column("formula", "categorical", "the regression; strata and subgroup too"),
            describe_column(
                "term",
                "categorical",
                "coefficient, per one unit of the column; beside a product, in the middle of the "
                "other column; or the column that is described, and how",
            ),
            describe_column("estimand", "categorical", "what asks for it, by name"),
            describe_column(
                "estimate",
                "continuous",
                "coefficient scale; of a share and of survival the logit, of a rate the logarithm; "
                "a count as it is",
            ),
            describe_column(
                "doubt", "continuous", "share of what rows tell of it that hangs on few"
            ),
            describe_column("mark", "categorical", "held, attenuated or unsupported, by that"),
            describe_column("se", "continuous", "standard error: square root of the variance"),
            describe_column("se_noise", "continuous", "the mechanism's part of it"),
        ],
        "files": {
            "coefficients.csv": "one row for each regression or column, and term"
            if joint
            else "one row for each site, regression or column, and term",
            "coefficients.json": "the same, each covariance as a matrix",
        },
        "combining": _ANSWER_OF_ALL if joint else _ANSWERS,
        "sites": report["sites"],
        **describe_doubts(report),
    }
