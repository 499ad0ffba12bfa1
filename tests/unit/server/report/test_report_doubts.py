"""What a report says of answers that hang on few persons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support import made
from tests.unit.server.report.test_report import SITES, Page, built, inputs

from penstock.base.errors import UploadRejected
from penstock.inference.doubts import Doubts, mark_doubt, pool_doubts
from penstock.inference.slopes import Held, Mark, Slope
from penstock.mechanisms import Gibbs, Scoring
from penstock.mechanisms.released import ANSWER, DOUBT
from penstock_server.mechanisms.doubted import describe_doubts
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import ReportInputs, complete_report
from penstock_server.report.html import render


def doubted(*shares: float) -> ReportInputs:
    """Each site's share of the first estimand, in a study of answers."""
    given = inputs()
    sites = tuple(
        replace(site, summaries=(Doubts({"hr": share}),))
        for site, share in zip(given.sites, shares, strict=True)
    )
    # Of the third one nobody doubts anything; the second one's outcome is a duration's event.
    hazard, _, other = given.study.estimands
    asked = replace(given.study, mechanism=Scoring(), estimands=(hazard, other))
    return replace(given, study=asked, sites=sites)


@pytest.mark.parametrize(
    ("share", "mark", "word"),
    [
        (
            0.1,
            Mark.HELD,
            "Held: of all that rows tell of it, or of a number beside it, 10%",
        ),
        (
            0.4,
            Mark.ATTENUATED,
            "Attenuated: of all that rows tell of it, or of a number beside it, 40%",
        ),
        (
            0.8,
            Mark.UNSUPPORTED,
            "Not held: of all that rows tell of it, or of a number beside it, 80%",
        ),
    ],
)
def test_a_doubt_stands_beside_the_estimate(share: float, mark: Mark, word: str) -> None:
    report = built(doubted(*[share] * 5))
    hazard, other = report["estimands"]
    assert hazard["held"]["mark"] == mark
    assert word in hazard["held"]["text"]
    assert [s["site"] for s in hazard["held"]["sites"]] == list(SITES)
    assert other["held"] is None
    assert word in Page(render(report)).text
    assert (hazard["held"]["text"] in hazard["sentence"]) == (mark is not Mark.HELD)
    assert ("No answer from these answers" in hazard["sentence"]) == (mark is Mark.UNSUPPORTED)
    warned = [w for w in report["warnings"] if w["code"] in ("few-persons", "not-held")]
    assert [w["code"] for w in warned] == ["few-persons"] * (mark is not Mark.HELD)
    assert all(w["sites"] == list(SITES) and "hr" in w["text"] for w in warned)
    complete_report(report)
    described: Any = describe_doubts(report)
    assert described["held"]["estimands"][0]["mark"] == mark


def tables(share: float, slope: float | None = None) -> ReportInputs:
    """Of tables: with planted runs of which so much came back, if there are any."""
    given = inputs()
    whole = Slope(1.0, 0.01, 0.0, 0.01, 8.0, 18)
    own = {"or": whole, "diff": whole, "hr": replace(whole, slope=slope or 0.0)}
    planted = () if slope is None else (Held(own, {}),)
    sites = [replace(s, summaries=(Doubts({"hr": share}), *planted)) for s in given.sites]
    return replace(given, sites=tuple(sites))


@pytest.mark.parametrize(
    ("share", "slope", "mark", "codes"),
    [
        (0.1, None, None, []),
        (0.4, None, Mark.ATTENUATED, ["few-persons"]),
        (0.8, None, Mark.UNSUPPORTED, ["few-persons"]),
        (0.1, 1.0, Mark.HELD, []),
        (0.1, 0.2, Mark.UNSUPPORTED, ["not-held"]),
        (0.4, 1.0, Mark.ATTENUATED, ["few-persons"]),
        (0.4, 0.2, Mark.UNSUPPORTED, ["not-held", "few-persons"]),
        (0.8, 0.7, Mark.UNSUPPORTED, ["few-persons"]),
    ],
)
def test_of_tables_the_graver_mark_of_both_stands(
    share: float, slope: float | None, mark: Mark | None, codes: list[str]
) -> None:
    report = built(tables(share, slope))
    hazard = report["estimands"][0]
    if mark is None:  # nobody knows whether they hold it
        assert hazard["held"] is None
    else:
        assert hazard["held"]["mark"] == mark
        assert {s["mark"] for s in hazard["held"]["sites"]} == {mark}
        assert hazard["held"]["doubt"] == pytest.approx(share)
        assert hazard["held"]["slope"] == (None if slope is None else pytest.approx(slope))
        assert ("No answer from these tables" in hazard["sentence"]) == (mark is Mark.UNSUPPORTED)
        assert (f"{share:.0%} hangs on few persons" in hazard["held"]["text"]) == (share > 0.3)
    assert [w["code"] for w in report["warnings"]] == codes
    assert "hangs on few" in Page(render(report)).text or share < 0.3


def test_a_report_of_before_tells_of_nobody_what_it_hangs_on() -> None:
    report = built(tables(0.1, 1.0))
    held = report["estimands"][0]["held"]
    for part in (held, *held["sites"]):
        del part["doubt"]
    completed = complete_report({**report, "format_version": "1.6"})
    found: Any = completed["estimands"]
    assert found[0]["held"]["doubt"] is None
    assert {site["doubt"] for site in found[0]["held"]["sites"]} == {None}
    render(completed)


def test_sites_count_as_much_as_in_what_is_pooled() -> None:
    shares = {"a": 0.9, "b": 0.1}
    assert pool_doubts(shares, {"a": 1.0, "b": 3.0}) == pytest.approx(0.3)
    assert pool_doubts(shares, {}) == pytest.approx(0.5)
    text = built(doubted(0.8, 0.8, 0.1, 0.1, 0.4))["estimands"][0]["held"]["text"]
    assert "attenuated at e; not held at a, b" in text


def test_what_is_no_number_is_no_answer() -> None:
    assert mark_doubt(float("nan")) is Mark.UNSUPPORTED


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("mechanism", [Gibbs(), Scoring()])
def test_a_share_beyond_0_and_1_is_refused(mechanism: Gibbs | Scoring, wrong: float) -> None:
    study = made.study(mechanism)
    [part] = made.parts(study)
    kind_of(study).check({ANSWER: dict(part.columns)})
    columns = dict(part.columns)
    columns[DOUBT] = np.append(columns[DOUBT][:-1], wrong)
    with pytest.raises(UploadRejected, match="doubts"):
        kind_of(study).check({ANSWER: columns})


@pytest.mark.parametrize("mechanism", [Gibbs(), Scoring()])
def test_an_answer_that_tells_none_has_no_mark(mechanism: Gibbs | Scoring, tmp_path: Path) -> None:
    """As those of an older version are read."""
    study = made.study(mechanism)
    upload = made.read(study, made.table(study), tmp_path)
    results = kind_of(study).load_results()
    [told] = results.summarise(upload)
    assert isinstance(told, Doubts)
    assert told.estimands == {}
    results.export(lambda: iter([upload]), tmp_path, "all")
    pulled = pd.read_csv(tmp_path / "coefficients.csv")
    assert pulled["doubt"].isna().all()
    assert pulled["mark"].isna().all()
    assert "null" in (tmp_path / "coefficients.json").read_text()
