"""Of a study of both: what a report of one half shows of the other."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from tests.support.concluded import add_up_answers
from tests.unit.server.report.test_report_jointly import Report, make, named

from penstock_server.report.composition import report_schema
from penstock_server.report.html import render
from penstock_server.report.sections.beside import tell_beside

NAMED: dict[str, Any] = {
    "study": "ab" * 32,
    "state": "finished",
    "epsilon": {"site": 0.686, "global": 0.687},
}


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Report:
    report, _ = make(add_up_answers(), tmp_path_factory.mktemp("answers"))
    return report


def test_both_halves_stand_side_by_side_each_under_its_own_name(joint: Report) -> None:
    """The other half here has the first estimand alone, twice as large."""
    first = joint["estimands"][0]
    value = {key: 2 * number for key, number in first["random"]["value"].items()}
    spread = {"i2": 0.25, "tau2": 0.1, "q": 4.0, "df": 3, "p": 0.26}
    pooled = {**first, "random": {**first["random"], "value": value, "k": 4}}
    own = {"estimands": [{**pooled, "heterogeneity": spread}]}
    told = tell_beside("global", 1.0, joint, own, NAMED)
    shown = {**joint, "beside": told}
    jsonschema.Draft202012Validator(report_schema()).validate(shown)
    assert [row["estimand"] for row in told["answers"]] == list(named(joint))
    row = told["answers"][0]
    assert row["site"] == {**value, "k": 4}
    assert row["global"] == {**first["random"]["value"], "k": 1}
    assert row["heterogeneity"] == spread
    assert all(other["site"] is None for other in told["answers"][1:])
    # From the other side the same columns.
    turned = tell_beside("site", 1.0, own, joint, NAMED)
    assert turned["answers"][0] == row
    page = render(shown)
    assert "do not pool them" in page
    assert "4 sites" in page
    assert "abababababab" in page


def test_a_report_says_where_the_other_half_stands(joint: Report) -> None:
    told = tell_beside("global", 1.0, joint, None, {**NAMED, "state": "open"})
    assert all(row["site"] is None and row["global"] is not None for row in told["answers"])
    page = render({**joint, "beside": told})
    assert "pull this report again" in page
    assert "do not pool them" not in render(joint)
