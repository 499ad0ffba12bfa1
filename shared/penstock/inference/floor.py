"""How little variance any table of n rows can have: hostile uploads must not buy weight."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.questions.fits import COURSE_MODELS, TABLE_MODELS
from penstock.questions.fits.table_model import TableModel
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.registry import ModelRegistry
from penstock.schema import Schema


def variance_floor(
    schema: Schema,
    estimand: Estimand,
    rows: int,
    models: ModelRegistry[TableModel] = TABLE_MODELS,
) -> float:
    r"""A public lower bound for the model-based variance of an estimate from ``rows`` rows.

    Let the term lie in [lower, upper], and r = (upper − lower) / per be its range in the units of
    the estimate: at most one unit between two levels of a binary or categorical term, levels − 1
    for an ordered one. Around its middle, and so around any (weighted) mean that fits better, the
    term's squared deviation is at most r²/4 (Popoviciu). Adjustment only takes information away.
    What follows for the variance is each model's to say
    (:meth:`penstock.questions.fits.table_model.TableModel.least_variance`, and of persons over time
    :meth:`penstock.questions.fits.course_model.CourseModel.least_variance`).

    Args:
        schema: the study's; its bounds are public.
        estimand: of the study.
        rows: n, of the table; at most what the public n allows.
        models: how each model is fitted, but for those of persons over time.

    Returns:
        The bound, in squared units of the estimate; 0 of an outcome that is kept to no grid.

    Raises:
        PenstockError: an unknown model.

    Source: Popoviciu 1935.
    """
    if isinstance(estimand.regression, LongitudinalModel):
        return COURSE_MODELS.of(estimand.model).least_variance(schema, estimand, rows)
    return models.of(estimand.model).least_variance(schema, estimand, rows)
