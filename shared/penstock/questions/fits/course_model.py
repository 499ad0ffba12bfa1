"""What a model of persons over time must do with them: be fitted, and bound its variance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import Array, Fit
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.schema import Schema


class CourseModel(ABC):
    """A model as it is fitted to persons of a site's table, which is hostile.

    A person is one observation, whatever rows it has: variances are over persons.
    """

    model: ClassVar[LongitudinalModel]

    @property
    def name(self) -> str:
        return self.model.name

    @abstractmethod
    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        """The estimate on the model's scale, and its variance.

        :attr:`penstock.questions.models.longitudinal.LongitudinalModel.link` names the scale.

        Args:
            values: (n,) each, complete: of persons at the times that are named, in order; of a pair
                the outcome, then the term; of a model of all times the outcome, the time, the
                design (n, p) as :func:`penstock.questions.estimation.make_design` has it, of which
                the time is the last column, and whose row it is; of a duration that, then its
                event. Of a model of totals not complete: NaN in rows that the estimand is not of.

        Raises:
            Degenerate: they do not identify the estimand.
        """

    @abstractmethod
    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """A public lower bound for the variance of an estimate from a table of ``rows`` rows; see
        :func:`penstock.inference.floor.variance_floor`."""
