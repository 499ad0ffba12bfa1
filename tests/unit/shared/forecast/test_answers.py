"""A forecast of answers: no table, so that what is released is compared with the rows' own fit."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.support import made

from penstock.forecast.expected import forecast
from penstock.mechanisms import Scoring

RUNS = 6


def test_all_estimands_of_an_answer_are_forecast_and_more_persons_are_less_noise() -> None:
    study = made.study(Scoring())
    second = replace(made.QUESTION, name="pressure", term="sbp", adjust=("smoker", "ward"))
    study = replace(study, estimands=(made.QUESTION, second))
    found = forecast(study, {"north": 400, "south": 4000}, runs=RUNS)
    small, large = (found.sites[name].expected for name in ("north", "south"))
    for name in ("falls", "pressure"):
        assert small[name].failed == large[name].failed == 0
        assert 0 < large[name].privacy < small[name].privacy < math.inf
        assert large[name].noise == large[name].privacy  # nobody draws a table
        assert found.pooled[name].total < large[name].total
