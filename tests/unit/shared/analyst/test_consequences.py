"""What a study costs and brings, in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.support import made

from penstock.analyst import consequences
from penstock.mechanisms import Maf, Structured
from penstock.privacy.request import PrivacyRequest


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "maf",
            ["with about as many rows", "at most 2 rows for each person", "2 refits", "pooled.csv"],
        ),
        ("sliced-wasserstein", ["2 synthetic tables", "without refits, intervals lack"]),
        (
            "trajectory",
            ["6 particles at each of 3 time points of visit", "5 paths at 9 times",
             "not persons' histories", "paths, particles and couplings"],
        ),
        ("gibbs", ["5 coefficients with covariance, and no table: (intercept), sbp",
                   "coefficients.csv"]),
    ],
)  # fmt: skip
def test_what_comes_back_is_said(name, words):
    study = made.study(made.MECHANISMS[name])
    said = " ".join(consequences.describe_returned(study))
    for word in words:
        assert word in said
    assert "ε = 2 at δ = 1e-05 per person (formal)" in consequences.describe_cost(study)
    assert ("costs again" in consequences.describe_cost(study)) == (name == "gibbs")


def test_what_nothing_marks_or_declares_is_said():
    """Whoever leaves the question, or the planted runs, out, learns here what that costs."""
    one = Structured(copies=1, refits=0, planted=0)
    marked = " ".join(consequences.describe_returned(made.study(replace(one, planted=3))))
    assert "and 3 runs that show what the tables hold of" in marked
    assert "nothing will show" not in marked
    unmarked = " ".join(consequences.describe_returned(made.study(one)))
    assert "planted = 0: nothing will show what the tables hold" in unmarked
    asked = " ".join(consequences.describe_returned(made.study(one, estimands=())))
    assert "without an estimand the tables hold each column" in asked
    assert "nothing will show" not in asked


def test_an_empirical_study_costs_everything():
    study = made.study(Maf(), privacy=PrivacyRequest(math.inf, 1e-5, "empirical"))
    assert "ε = ∞" in consequences.describe_cost(study)
