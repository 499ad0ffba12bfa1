"""What an answer's upload holds: coefficients, and their covariance."""

from __future__ import annotations

import numpy as np

from penstock.base.errors import UploadRejected
from penstock.mechanisms.released import ANSWER, ESTIMATE, TERM, answer_schema
from penstock.schema import LARGEST, Coded, Floats
from penstock_server.mechanisms.delivery import Upload

ASYMMETRY = 1e-9
"""How far a covariance may be from symmetric and from positive semidefinite, in correlations: the
rounding of the numbers that a site computes."""


def read_answer(upload: Upload) -> tuple[Floats, Floats]:
    """Coefficients (p,) and covariance (p, p)."""
    coded = upload.coded(ANSWER, answer_schema(len(upload.part(ANSWER))))
    return coded[ESTIMATE], _covariance(coded)


def check_answer(coded: Coded) -> None:
    """Terms in order, and a covariance that can be one.

    Raises:
        UploadRejected: naming the first thing that is not so.
    """
    terms = len(coded[TERM])
    if not np.array_equal(coded[TERM], np.arange(1, terms + 1)):
        raise UploadRejected("the answer's terms are not in order")
    covariance = _covariance(coded)
    # A number at the bound may have been larger: nothing is known of it.
    if not (np.abs(np.column_stack([coded[ESTIMATE], covariance])) < LARGEST).all():
        raise UploadRejected("the answer's numbers are beyond what can be released")
    variances = np.diagonal(covariance)
    if not (variances > 0).all():
        raise UploadRejected("the answer's variances are not all above 0")
    scale = np.sqrt(variances)
    with np.errstate(over="ignore"):
        correlations = covariance / scale[:, None] / scale
    if not (np.abs(correlations) <= 1 + ASYMMETRY).all():
        raise UploadRejected("the answer's covariance is not positive semidefinite")
    if not np.allclose(correlations, correlations.T, rtol=0, atol=ASYMMETRY):
        raise UploadRejected("the answer's covariance is not symmetric")
    if not np.linalg.eigvalsh(correlations).min() >= -ASYMMETRY * terms:
        raise UploadRejected("the answer's covariance is not positive semidefinite")


def _covariance(coded: Coded) -> Floats:
    """The matrix behind the columns of an answer."""
    return np.column_stack([v for name, v in coded.items() if name not in (TERM, ESTIMATE)])
