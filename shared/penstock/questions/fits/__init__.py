"""How each model of a study is fitted to a table, or to persons over time, in closed registries."""

from __future__ import annotations

from penstock.questions.fits.competing_risks import IncidenceCourse
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.cox import CoxTable
from penstock.questions.fits.failure_times import LogNormalCourse, WeibullCourse
from penstock.questions.fits.kaplan_meier import SurvivalCourse
from penstock.questions.fits.linear import LinearTable
from penstock.questions.fits.logistic import LogisticTable
from penstock.questions.fits.mean import MeanTable
from penstock.questions.fits.multinomial import MultinomialTable
from penstock.questions.fits.negative_binomial import NegativeBinomialTable
from penstock.questions.fits.newton import KnownMaxima
from penstock.questions.fits.ordinal import OrdinalTable
from penstock.questions.fits.over_time import (
    ChangeCourse,
    ChangeSdCourse,
    CorrelationCourse,
    QuantileCourse,
    ShareCourse,
    TransitionCourse,
)
from penstock.questions.fits.person_time import RateCourse
from penstock.questions.fits.poisson import PoissonTable
from penstock.questions.fits.random_intercept import MixedCourse
from penstock.questions.fits.restricted_mean import RestrictedMeanCourse
from penstock.questions.fits.row_counts import CountCourse, TableCourse
from penstock.questions.fits.standardised import RiskDifferenceCourse, RiskRatioCourse
from penstock.questions.fits.table_model import TableModel
from penstock.questions.models import DESCRIPTIVE, LONGITUDINAL, MODELS
from penstock.questions.models.registry import ModelRegistry

TABLE_MODELS: ModelRegistry[TableModel] = ModelRegistry(
    (
        LinearTable(),
        LogisticTable(),
        CoxTable(),
        PoissonTable(),
        NegativeBinomialTable(),
        OrdinalTable(),
        MultinomialTable(),
        MeanTable(),
    ),
    MODELS.names,
)
"""One for each model that a study may name."""


def remember_fits(known: KnownMaxima) -> ModelRegistry[TableModel]:
    """The same, where a Cox regression is fitted once for all its coefficients."""
    remembering = CoxTable(known)
    return ModelRegistry(
        (remembering if one.name == remembering.name else one for one in TABLE_MODELS),
        MODELS.names,
    )


COURSE_MODELS: ModelRegistry[CourseModel] = ModelRegistry(
    (
        QuantileCourse(),
        ShareCourse(),
        ChangeCourse(),
        ChangeSdCourse(),
        CorrelationCourse(),
        TransitionCourse(),
        MixedCourse(),
        SurvivalCourse(),
        RestrictedMeanCourse(),
        IncidenceCourse(),
        CountCourse(),
        RateCourse(),
        TableCourse(),
        RiskDifferenceCourse(),
        RiskRatioCourse(),
        WeibullCourse(),
        LogNormalCourse(),
    ),
    (*LONGITUDINAL.names, *DESCRIPTIVE.names),
)
"""One for each model of persons over time, and of rows that is no regression."""
