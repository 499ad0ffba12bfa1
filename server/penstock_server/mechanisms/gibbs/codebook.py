"""What the files of an answer mean that an analyst pulls, and how answers combine."""

from __future__ import annotations

from typing import Any

from penstock.mechanisms import Gibbs
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.study.study import Study
from penstock_server.mechanisms.doubted import describe_doubts
from penstock_server.mechanisms.writing import SITE, describe_column

Json = dict[str, Any]

ANSWER = (
    "No table was released: each site answered one question. Each site's covariance contains the "
    "sampling error and the noise of the private mechanism. Pool the last term of the sites, "
    "weighing by its variance; the report does so. Other terms adjust: pool them only with the "
    "same care. Another question needs another study, and costs privacy again."
)

ANSWER_OF_ALL = (
    "No table was released: all sites together answered one question, in one release. The "
    "covariance contains the sampling error and the noise of the private mechanism. There is "
    "nothing to pool: the last term is the report's answer. Other terms adjust, those of sites "
    "among them. Another question needs another study, and costs privacy again."
)


def describe_answer(study: Study, mechanism: Gibbs, report: Json) -> Json:
    """What the columns of the coefficients mean, and how answers combine."""
    return {
        "study": study.name,
        "synthetic": False,
        "columns": _answer_columns(study, mechanism),
        "files": {
            "coefficients.csv": "one row for each site and term",
            "coefficients.json": "the same, each site's covariance as a matrix",
        },
        "combining": ANSWER_OF_ALL if study.aggregation.joint else ANSWER,
        "sites": report["sites"],
        **describe_doubts(report),
    }


def _answer_columns(study: Study, mechanism: Gibbs) -> list[Json]:
    estimand = study.estimands[0]
    terms = answer_terms(study.schema, estimand, mechanism)
    of_model = f"of the {estimand.model} model, coefficient scale"
    last = f"the last one, {terms[-1]}, is the question"
    if estimand.per != 1:
        last += f", per {estimand.per:g} units"
    joint = study.aggregation.joint
    whose = "all sites: they answered together" if joint else "site that answered"
    return [
        describe_column(SITE, "categorical", whose),
        describe_column("term", "categorical", f"coefficient; {last}"),
        describe_column("estimate", "continuous", of_model),
        describe_column("doubt", "continuous", "share of what rows tell of it that hangs on few"),
        describe_column("mark", "categorical", "held, attenuated or unsupported, by that"),
        describe_column("se", "continuous", "standard error: square root of the variance"),
        *(
            describe_column(f"cov_{i + 1}", "continuous", f"covariance with {term}")
            for i, term in enumerate(terms)
        ),
    ]
