"""Questions as analysts write them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import made

from penstock.base.errors import InvalidInput
from penstock.enquiry.shorthand import find_alike, find_declared, read_question
from penstock.mechanisms import Trajectory
from penstock.schema import Column, Schema

YEARS, DIED = Column("years", "duration", upper=9, event="died"), Column("died", "event")
STUDY = made.study(made.MECHANISMS["maf"])


def asked(text: str):
    return [(e.model, e.term, e.level, e.adjust) for e in read_question(text, STUDY)]


def test_each_coefficient_is_asked_for():
    found = read_question("chol ~ smoker + ward", STUDY)
    assert {e.model for e in found} == {"ols"}
    assert {e.term for e in found} == {"smoker", "ward"}
    levels = STUDY.schema["ward"].levels[1:]
    assert tuple(e.level for e in found if e.term == "ward") == (
        levels if STUDY.schema["ward"].kind == "categorical" else (None,)
    )


def test_a_product_is_asked_for_and_its_columns_are_not():
    found = read_question("chol ~ smoker * falls", STUDY)
    assert [e.term for e in found] == ["smoker:falls"]
    assert {*found[0].covariates} == {"smoker", "falls"}


def test_units_strata_models_and_subgroups():
    (one,) = read_question("ols: chol ~ I(falls/10) + strata(ward) where smoker == 'yes'", STUDY)
    assert (one.per, one.strata, one.where) == (10.0, ("ward",), "smoker == 'yes'")


def test_functions_of_a_column():
    assert asked("mean(chol)") == [("mean", "chol", None, ())]
    assert read_question("median(chol)", STUDY)[0].probability == 0.5
    (share,) = read_question("share(chol > 6)", STUDY)
    assert (share.model, share.threshold, share.direction) == ("share", 6.0, "above")


def test_further_functions_of_columns():
    schema = Schema(
        (*STUDY.schema.columns, YEARS, DIED),
        person="patient",
        max_rows_per_person=2,
    )
    study = made.study(made.MECHANISMS["maf"], schema=schema, estimands=())
    (one,) = read_question("rmst(years, 5)", study)
    assert (one.model, one.outcome, one.until, one.at) == ("rmst", "years", 5.0, None)
    (one,) = read_question("correlation(chol, sbp)", study)
    assert (one.model, one.outcome, one.term) == ("correlation", "chol", "sbp")


def test_times_stand_behind_a_question():
    """Of a study that follows persons; a level may have the word in it."""
    visit, sbp, stage = (
        STUDY.schema["visit"],
        STUDY.schema["sbp"],
        Column("stage", "ordered", levels=("I", "look at me")),
    )
    schema = Schema((visit, sbp, stage), person="patient", max_rows_per_person=3)
    study = made.study(Trajectory("visit"), schema=schema, estimands=())

    def times(text):
        return [(e.model, e.at, e.until) for e in read_question(text, study)]

    assert times("mean(sbp) at 2") == [("mean", 2.0, None)]
    assert times("change(sbp) at 0 until 3 where stage == 'I'") == [("change", 0.0, 3.0)]
    assert times("share(stage == 'look at me') at 1") == [("share", 1.0, None)]
    assert times("share(stage == 'look at me')") == [("share", None, None)]
    assert times("sbp ~ stage at 1") == [("ols", 1.0, None)]
    (one,) = read_question("mixed: sbp ~ visit + stage", study)
    assert (one.model, one.term, one.adjust) == ("mixed", "visit", ("stage",))
    (one,) = read_question("transition(stage, 'look at me', I) at 0 until 1", study)
    assert (one.level, one.outcome_level) == ("look at me", "I")


def test_a_survival_has_one_landmark():
    schema = Schema((STUDY.schema["visit"], YEARS, DIED), person="patient", max_rows_per_person=3)
    study = made.study(Trajectory("visit"), schema=schema, estimands=())
    with pytest.raises(InvalidInput, match="one landmark at most"):
        read_question("survival(years, 5) at 1 until 2", study)


def test_nobody_is_followed_where_rows_are_released():
    with pytest.raises(InvalidInput, match="maf does not follow"):
        read_question("mean(sbp) at 2", STUDY)


def test_what_is_declared_is_found_in_any_order_and_by_its_name():
    own = STUDY.estimands[0]
    assert read_question(own.name, STUDY) == (own,)
    turned = replace(own, name="other", adjust=tuple(reversed(own.adjust)))
    assert find_declared(turned, STUDY.estimands) == own
    assert find_declared(replace(turned, where="falls >= 1"), STUDY.estimands) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("chol ~ smokers", "is not"),
        ("mean(chool)", "Did you mean 'chol'"),
        ("probit: smoker ~ chol", "model"),
        ("chol ~ ward[nowhere]", "must be a level"),
        ("chol", "cannot be asked"),
        ("quantile(chol)", "quantile"),
        ("quantile(chol, high)", "number"),
        ("chol ~ 1", "cannot be asked"),
        ("share(chol)", "share"),
        ("corr(chol, ward)", "function.*Known: share, mean, .*correlation"),
        ("meen(chol)", "function.*Did you mean 'mean'"),
        ("mean: chol ~ smoker", r"model.*Write mean\(column\)"),
        ("quantile: chol ~ smoker", r"Write quantile\(column, number\)"),
        ("share: chol ~ smoker", r"Write share\(column > 140\)"),
        ("count: smoker ~ ward", "A count is asked by the name of an estimand"),
        ("chol ~ I(falls/10) * smoker", r"I\(column/number\) is a term by itself"),
        ("chol ~ (falls + smoker", "term: .*A bracket is not closed"),
        ("chol ~ falls)", "term: .*A bracket is not closed, or not opened"),
        ("chol ~ (falls:smoker)", "without brackets"),
        ("chol ~ falls +", r"formula: .*either side of each '\+'"),
        ("chol ~ ", "formula: .*Name a column"),
        ("share(falls>=6)", "share: .*Compare by > or < alone"),
        ("mean(ward)", r"mean: .*Write share\(ward == '=c'\)"),
        ("cumulative-incidence: chol ~ ward", r"Write incidence\(duration, competing, number\)"),
    ],
)
def test_what_cannot_be_asked_is_said(text, what):
    with pytest.raises(InvalidInput, match=what):
        read_question(text, STUDY)


def test_durations_are_asked_as_in_r():
    timed = Schema(
        (
            Column("time", "duration", event="status", lower=0.0, upper=10.0, decimals=1),
            Column("status", "event"),
            Column("rx", "binary", levels=("0", "1")),
        )
    )
    study = made.study(made.MECHANISMS["maf"], schema=timed, estimands=())
    for text in ("Surv(time, status) ~ rx", "time ~ rx", "coxph: Surv(time) ~ rx"):
        (one,) = read_question(text, study)
        assert (one.model, one.outcome, one.term) == ("cox", "time", "rx")
    (one,) = read_question("incidence(time, rx, 5)", study)
    assert (one.model, one.competing, one.at) == ("cumulative-incidence", "rx", 5.0)
    for text in ("incidence(time, 5)", "incidence(time, status, 5)", "incidence(time, rrx, 5)"):
        with pytest.raises(InvalidInput):
            read_question(text, study)
    (one,) = read_question("survival(time, 5)", study)
    assert (one.model, one.at) == ("survival", 5.0)
    with pytest.raises(InvalidInput, match=r"Surv\(time, status\)"):
        read_question("Surv(time, rx) ~ rx", study)
    with pytest.raises(InvalidInput, match="A weibull is asked by the name of an estimand"):
        read_question("weibull: Surv(time, status) ~ rx", study)
    with pytest.raises(InvalidInput, match=r"Write share\(status == '1'\)"):
        read_question("mean(status)", study)
    (one,) = read_question("share(status == '1')", study)
    assert one.outcome_level == "1"
    for text in ("robust: Surv(time, status) ~ rx", "robust: cox: time ~ rx"):
        (one,) = read_question(text, study)
        assert (one.model, one.errors) == ("cox", "robust")
    for text in ("robust: rx ~ time", "robust: survival(time, 5)"):
        with pytest.raises(InvalidInput, match=r"errors|is of kind"):
            read_question(text, study)
    own = replace(one, name="own", errors="model")
    asked = made.study(made.MECHANISMS["maf"], schema=timed, estimands=(own,))
    (one,) = read_question("robust: time ~ rx", asked)
    assert find_declared(one, asked.estimands) is None
    assert find_alike(one, asked.estimands) == own
