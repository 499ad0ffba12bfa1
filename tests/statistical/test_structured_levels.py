"""A regression of levels is in structured tables: what a study asks of them comes back.

Levels in order are a latent logistic variable's, and others those of whichever utility is largest,
of which one is no logit's: no laws of the mechanism's. Covariates are skewed and go together. Seeds
are fixed: no alarm is by chance. Without a model of their own, levels are in the copula with all
other columns, and their coefficients come back weakened.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.inference.combine import combine
from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured import declared
from penstock.mechanisms.structured import plan as plans
from penstock.mechanisms.structured import run as structured
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, COPIES, EXACT = 4000, 40, 3000.0
SCHEMA = Schema(
    (
        Column("crp", "continuous", lower=0.1, upper=300, decimals=1, scale="log"),
        Column("age", "integer", lower=18, upper=100),
        Column("arm", "binary"),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("rankin", "ordered", levels=tuple("0123456"), nullable=True),
        Column("pain", "ordered", levels=("none", "some", "much")),
        Column("left", "categorical", levels=("home", "ward", "died", "moved"), nullable=True),
    )
)
ORDERED = (
    Estimand("rankin-arm", "ordinal", "rankin", "arm", adjust=("age", "crp")),
    Estimand("rankin-crp", "ordinal", "rankin", "crp", adjust=("age", "arm")),
    Estimand("rankin-age", "ordinal", "rankin", "age", adjust=("arm", "crp")),
    Estimand("pain-age", "ordinal", "pain", "age", adjust=("rankin", "ward")),
    Estimand("pain-c", "ordinal", "pain", "ward", adjust=("age", "rankin"), level="c"),
    Estimand("pain-rankin", "ordinal", "pain", "rankin", adjust=("age", "ward")),
)
CONTRASTED = (
    Estimand("ward-age", "multinomial", "left", "age", adjust=("arm",), outcome_level="ward"),
    Estimand("died-age", "multinomial", "left", "age", adjust=("arm",), outcome_level="died"),
    Estimand("died-arm", "multinomial", "left", "arm", adjust=("age", "crp"), outcome_level="died"),
    Estimand("ward-crp", "multinomial", "left", "crp", adjust=("age", "arm"), outcome_level="ward"),
)


def covariates(rng: np.random.Generator) -> Coded:
    a = rng.standard_normal(N)
    b = 0.5 * a + np.sqrt(0.75) * rng.standard_normal(N)
    return {
        "crp": np.exp(1.2 + 0.4 * b + 0.9 * rng.standard_normal(N)).round(1).clip(0.1, 300),
        "age": np.rint(58 + 12 * a - 3 * (a > 1)).clip(18, 100),
        "arm": (rng.random(N) < 0.5) * 1.0,
        "ward": rng.choice(3, N, p=[0.5, 0.3, 0.2]) * 1.0,
    }


def cohort(seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    rows = covariates(rng)
    far = np.minimum(rows["crp"], 60)
    latent = 0.06 * (rows["age"] - 58) - 0.7 * rows["arm"] + 0.04 * far
    rankin = np.searchsorted([-1.6, -0.5, 0.3, 0.9, 1.7, 2.6], latent + rng.logistic(size=N)) * 1.0
    latent = 0.35 * rankin + 0.02 * (rows["age"] - 58) + 0.8 * (rows["ward"] == 2)
    pain = np.searchsorted([0.2, 2.0], latent + rng.logistic(size=N)) * 1.0
    gone = rng.random(N) < 0.1
    return contrasted(rows | {"rankin": np.where(gone, np.nan, rankin), "pain": pain}, rng)


def contrasted(rows: Coded, rng: np.random.Generator) -> Coded:
    """By whichever of four utilities is largest; that of one has another spread than a logit's."""
    age, far = rows["age"] - 58, np.minimum(rows["crp"], 60)
    utilities = np.column_stack(
        [0 * age, 0.03 * age - 0.5, 0.06 * age - 0.8 * rows["arm"] - 1, 0.05 * far - 1.5]
    )
    error = rng.gumbel(size=utilities.shape)
    error[:, 3] = rng.normal(0.5, 1.5, N)
    left = (utilities + error).argmax(axis=1) * 1.0
    return rows | {"left": np.where(rng.random(N) < 0.05, np.nan, left)}


def tables(real: Coded, asked: Sequence[Estimand], seed: int, epsilon: float) -> list[Coded]:
    encoding, settings = Encoding(SCHEMA), Structured(COPIES, 0)
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(settings, SCHEMA, N, PrivacyRequest(epsilon, 1e-5), tuple(asked))
    given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
    return [dict(part.columns) for part in release(settings, planned, *given)]


def errors(real: Coded, asked: Sequence[Estimand], seed: int, epsilon: float) -> np.ndarray:
    """Of each estimand, how many standard errors the copies' coefficient is from the cohort's."""
    copies, found = tables(real, asked, seed, epsilon), []
    for one in asked:
        [own, ours] = (combine([estimate(t, SCHEMA, one) for t in of]) for of in ([real], copies))
        found.append((ours.estimate - own.estimate) / own.within**0.5)
    return np.array(found)


def far(found: np.ndarray) -> bool:
    """The mean of forty copies has a standard error of .16 itself."""
    return bool(np.sqrt((found**2).mean()) > 0.45 or np.abs(found).max() > 1.2)


BOTH = pytest.mark.parametrize("asked", [ORDERED, CONTRASTED], ids=["ordered", "contrasted"])


@BOTH
def test_without_noise_coefficients_are_the_cohorts(asked: Sequence[Estimand]) -> None:
    assert not far(errors(cohort(0), asked, 0, EXACT))


@BOTH
def test_with_noise_coefficients_are_near_the_cohorts(asked: Sequence[Estimand]) -> None:
    """A site of 4 000 at ε = 3: the noise is about as large as sampling."""
    found = [errors(cohort(seed), asked, seed, 3.0) for seed in (1, 2)]
    assert np.sqrt(np.mean(np.square(found))) < 1.8
    assert np.abs(found).max() < 5


@BOTH
def test_levels_in_the_copula_are_seen(asked: Sequence[Estimand]) -> None:
    drawn = patch.object(declared, "_KINDS", ("continuous", "integer", "binary"))
    with drawn, patch.object(plans, "counts_pairs", lambda *_: False):
        assert far(errors(cohort(0), asked, 0, EXACT))


@BOTH
@pytest.mark.parametrize("by", [0.0, 2.0])
def test_levels_with_other_coefficients_are_seen(by: float, asked: Sequence[Estimand]) -> None:
    match = structured.match_outcome
    with patch.object(structured, "match_outcome", lambda *given: by * match(*given)):
        assert far(errors(cohort(0), asked, 0, EXACT))


def test_with_noise_levels_are_as_frequent_as_in_the_cohort() -> None:
    real = cohort(1)
    for table in tables(real, (*ORDERED, *CONTRASTED), 1, 3.0)[:5]:
        assert abs(np.isnan(table["rankin"]).mean() - 0.1) < 0.04
        for name in ("rankin", "pain", "left"):
            for level in range(len(SCHEMA[name].levels)):
                assert abs((table[name] == level).mean() - (real[name] == level).mean()) < 0.04
