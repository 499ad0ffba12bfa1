"""What an answer says that tables hold, of durations: by the study's own estimands, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.support import made

from penstock.enquiry.holdings import Holding, Holdings
from penstock.enquiry.reply import answer_questions
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema

SCHEMA = Schema(
    (
        Column("time", "duration", event="ill", lower=0.0, upper=10.0, decimals=1),
        Column("ill", "event"),
        Column("rx", "binary", levels=("0", "1")),
        Column("died", "binary", levels=("0", "1")),
    )
)
DECLARED = (
    Estimand("rx", "cox", "time", "rx"),
    Estimand("ill-by-5", "cumulative-incidence", "time", at=5.0, competing="died"),
)
HELD = {"mark": "held", "text": "Held.", "sites": []}


def hold() -> Holdings:
    """Three sites of a study whose report says that its hazard ratio is held."""
    rng = np.random.default_rng(1)

    def draw() -> Coded:
        rx = (rng.random(400) < 0.5).astype(np.float64)
        time = rng.exponential(6 * np.exp(-0.5 * rx))
        kind = np.where(time < 10, rng.choice([0, 1, 2], 400), 0)
        return {
            "time": np.minimum(time, 10.0).round(1),
            "ill": (kind == 1).astype(np.float64),
            "rx": rx,
            "died": (kind == 2).astype(np.float64),
        }

    sites = {
        name: Holding(tuple(draw() for _ in range(3)), tuple(draw() for _ in range(3)))
        for name in made.SITES
    }
    mechanism = replace(made.MECHANISMS["maf"], copies=3, refits=3)
    study = made.study(mechanism, schema=SCHEMA, estimands=DECLARED)
    told = [{"name": "rx", "held": HELD}, {"name": "ill-by-5", "held": None}]
    return Holdings(study, {"estimands": told, "effects": [], "holds": []}, sites)


HOLDINGS = hold()


def test_robust_errors_change_an_interval_and_no_mark() -> None:
    plain, robust = answer_questions(HOLDINGS, ["rx", "robust: Surv(time, ill) ~ rx"])
    assert (plain["declared"], robust["declared"]) == ("rx", None)
    assert plain["held"] == robust["held"] == HELD
    assert robust["adjusted"] == "not adjusted; robust errors"
    assert robust["formula"] == "time ~ rx with robust errors"
    for one, other in zip(plain["sites"], robust["sites"], strict=True):
        assert one["coefficient"]["estimate"] == other["coefficient"]["estimate"]
        assert one["variance"] != other["variance"]


def test_whether_tables_hold_what_competes_nobody_knows_declared_or_not() -> None:
    asked = [
        "ill-by-5",
        "incidence(time, died, 5)",
        "incidence(time, died, 3)",
        "survival(time, 3)",
    ]
    declared, same, other, plain = answer_questions(HOLDINGS, asked)
    assert same["declared"] == declared["declared"] == "ill-by-5"
    assert same["random"] == declared["random"]
    for told in (declared, other):
        assert told["mark"] == "unresolved"
        assert told["held"]["text"] in told["sentence"]
        assert [site["mark"] for site in told["held"]["sites"]] == ["unresolved"] * 3
    assert other["axis_label"] == (
        "Cumulative incidence of ill by 3, with died as a competing event"
    )
    assert 0 < other["random"]["value"]["estimate"] < 1
    assert plain["mark"] is None
