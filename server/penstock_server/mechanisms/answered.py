"""What an answer's upload holds: coefficients, and their covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.base.errors import UploadRejected
from penstock.mechanisms.released import (
    ADDED,
    ANSWER,
    COVARIANCE,
    DOUBT,
    ESTIMATE,
    NOISE,
    TERM,
    VARIANCE,
    answer_schema,
)
from penstock.schema import LARGEST, Coded, Floats
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Json, ReleaseWords

ASYMMETRY = 1e-9
"""How far a covariance may be from symmetric and from positive semidefinite, in correlations: the
rounding of the numbers that a site computes."""


def name_release(heading: str, reproduce: str) -> ReleaseWords:
    """The words for a release of coefficients and no table.

    Args:
        reproduce: how a reader comes to the report's numbers.
    """
    return ReleaseWords(
        released="coefficients",
        heading=heading,
        size=_tell_size,
        rows="",
        counts="",
        counts_by_site="",
        counts_copies=False,
        reproduce=reproduce,
    )


def _tell_size(site: Json) -> str:
    return f"{site['rows']} {'coefficient' if site['rows'] == 1 else 'coefficients'}"


def read_answer(upload: Upload) -> tuple[Floats, Floats]:
    """Coefficients (p,) and covariance (p, p)."""
    coded = upload.coded(ANSWER, answer_schema(len(upload.part(ANSWER))))
    return coded[ESTIMATE], _matrix(coded, COVARIANCE)


def read_apart(upload: Upload) -> tuple[Floats, Floats, Floats]:
    """Coefficients (p,), their covariance (p, p), and the mechanism's part of it."""
    coded = upload.coded(ANSWER, answer_schema(len(upload.part(ANSWER)), apart=True))
    return coded[ESTIMATE], _matrix(coded, COVARIANCE), _matrix(coded, NOISE)


def read_doubts(upload: Upload, *, apart: bool = False) -> Floats:
    """(p,) what share of what rows tell of each coefficient hangs on few persons; NaN: the site
    does not say."""
    return upload.coded(ANSWER, answer_schema(len(upload.part(ANSWER)), apart=apart))[DOUBT]


def name_doubts(terms: Sequence[str], doubts: Floats) -> Json:
    """The same by the coefficients' names, None where the site does not say."""
    known = [None if math.isnan(doubt) else doubt for doubt in doubts.tolist()]
    return dict(zip(terms, known, strict=True))


def check_answer(coded: Coded) -> None:
    """Terms in order, shares within 0 and 1, and a covariance that can be one.

    Raises:
        UploadRejected: naming the first thing that is not so.
    """
    terms = len(coded[TERM])
    if not np.array_equal(coded[TERM], np.arange(1, terms + 1)):
        raise UploadRejected("the answer's terms are not in order")
    # An older version tells none of them.
    doubts = coded[DOUBT]
    if not (((doubts >= 0) & (doubts <= 1)).all() or np.isnan(doubts).all()):
        raise UploadRejected("the answer's doubts are not all within 0 and 1")
    _check_covariance(coded[ESTIMATE], _matrix(coded, COVARIANCE))


def check_apart(coded: Coded) -> None:
    """The same, and of the covariance a part of the mechanism's own that is one, too, and no more
    than the whole.

    Raises:
        UploadRejected: naming the first thing that is not so.
    """
    check_answer(coded)
    whole, noise = _matrix(coded, COVARIANCE), _matrix(coded, NOISE)
    _check_covariance(coded[ESTIMATE], noise)
    if not (np.diagonal(noise) <= np.diagonal(whole) * (1 + ASYMMETRY)).all():
        raise UploadRejected("the answer's noise is larger than its variance")


def check_sites(coded: Coded) -> None:
    """What is told of sites apart: in order, finite, and of no variance the noise is more.

    Raises:
        UploadRejected: naming the first thing that is not so.
    """
    if not np.array_equal(coded[TERM], np.arange(1, len(coded[TERM]) + 1)):
        raise UploadRejected("what is told of sites is not in order")
    estimates, variance, noise = (coded[name] for name in (ESTIMATE, VARIANCE, ADDED))
    if not (np.abs(np.stack([estimates, variance, noise])) < LARGEST).all():
        raise UploadRejected("what is told of sites is beyond what can be released")
    if not ((variance > 0) & (noise >= 0) & (noise <= variance * (1 + ASYMMETRY))).all():
        raise UploadRejected("what is told of sites has no variance, or more noise than that")


def _check_covariance(estimates: Floats, covariance: Floats) -> None:
    # A number at the bound may have been larger: nothing is known of it.
    if not (np.abs(np.column_stack([estimates, covariance])) < LARGEST).all():
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
    if not np.linalg.eigvalsh(correlations).min() >= -ASYMMETRY * len(estimates):
        raise UploadRejected("the answer's covariance is not positive semidefinite")


def _matrix(coded: Coded, name: str) -> Floats:
    """The matrix behind the columns of an answer."""
    count = len(coded[TERM])
    return np.column_stack([coded[name.format(i + 1)] for i in range(count)])
