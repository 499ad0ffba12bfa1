"""What `analyse` says of a pulled study: the report's own numbers, and further answers."""

from __future__ import annotations

import json

import pytest
from tests.support.local import deliver, finish, hub
from typer.testing import CliRunner

import penstock
from penstock.base.errors import InvalidInput
from penstock.cli.analyse import app
from penstock.cli.study import pull_app
from penstock.enquiry.holdings import read_holdings
from penstock.enquiry.reply import answer_questions
from penstock.wire.signatures import generate_key
from penstock_server.results import production

ANALYST = generate_key()
TABLES = ("maf", "structured", "sliced-wasserstein", "trajectory")


@pytest.fixture(scope="module")
def pulled(tmp_path_factory):
    """Folders of pulled studies, by mechanism."""
    root = tmp_path_factory.mktemp("studies")
    coordinator, found = hub(root / "c"), {}
    for name in (*TABLES, "gibbs"):
        study_id = deliver(coordinator, ANALYST, name, name)
        finish(coordinator, study_id)
        found[name] = root / name
        production.pull_results(coordinator, study_id, found[name], copies="refits")
    return found


@pytest.mark.parametrize("name", TABLES)
def test_declared_estimands_have_the_reports_numbers(pulled, name):
    report = json.loads((pulled[name] / "report.json").read_text())
    told = answer_questions(read_holdings(pulled[name]), [])
    assert [each["declared"] for each in told] == [e["name"] for e in report["estimands"]]
    for each, own in zip(told, report["estimands"], strict=True):
        for key in ("coefficient", "value", "se", "df", "p", "tau2"):
            assert each["random"][key] == own["random"][key]
        assert [s["variance"] for s in each["sites"]] == [s["variance"] for s in own["sites"]]
        assert each["held"] == own["held"]


def test_an_undeclared_effect_is_never_called_held(pulled):
    holdings = read_holdings(pulled["maf"])
    for each in answer_questions(holdings, ["ols: chol ~ smoker + ward", "chol ~ smoker * ward"]):
        assert each["declared"] is None
        assert each["mark"] != "held"
        assert each["random"]["k"] == 2
        assert each["held"]["text"] in each["sentence"]


def test_what_the_model_lacks_has_no_number_in_its_sentence(pulled):
    holdings = read_holdings(pulled["structured"])
    (told,) = answer_questions(holdings, ["ols: chol ~ smoker:falls"])
    assert told["mark"] == "unsupported"
    assert "no answer from these tables" in told["sentence"]


def test_python_asks_the_same(pulled):
    coordinator = pulled["maf"].parent / "c"
    with penstock.Client(coordinator) as client:
        (fetched,) = client.analyse("maf", "mean(chol)")
        (there,) = client.analyse(pulled["maf"], "mean(chol)")
        with pytest.raises(InvalidInput, match="2 with an estimate, for 2 coefficients"):
            client.analyse("maf", "mean(chol)", moderators=["mean(sbp)"])
        with pytest.raises(InvalidInput, match="is no site"):
            client.analyse("maf", "mean(chol)", among={"a": ["north"], "b": ["norht"]})
    assert fetched == there


def test_a_question_has_one_answer_whatever_else_is_asked(pulled):
    holdings = read_holdings(pulled["maf"])
    alone = answer_questions(holdings, ["mean(chol)"])
    beside = answer_questions(read_holdings(pulled["maf"]), ["median(chol)", "mean(chol)"])
    assert alone[0]["random"] == beside[1]["random"]


def test_a_release_that_cannot_be_asked_is_refused(pulled):
    with pytest.raises(InvalidInput):
        read_holdings(pulled["gibbs"])


def test_one_copy_is_not_enough(pulled, tmp_path):
    with pytest.raises(InvalidInput, match=r"study\.json: is missing, got a folder with nothing"):
        read_holdings(tmp_path)


def test_the_command_prints_tables_json_and_plots(pulled, tmp_path):
    given = [str(pulled["maf"]), "mean(chol)", "--plot", str(tmp_path / "plots")]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    assert "95% interval" in shown.output
    assert (tmp_path / "plots" / "forest-1.svg").read_text().startswith("<svg")
    document = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert document["answers"][0]["question"] == "mean(chol)"


def test_the_command_says_what_is_wrong(pulled):
    shown = CliRunner().invoke(app, [str(pulled["maf"]), "mean(chool)", "--json"])
    assert shown.exit_code != 0
    assert "Did you mean 'chol'?" in shown.output


def test_there_are_no_imputations_without_refits(pulled, tmp_path):
    given = ["gibbs", "--imputations", "-o", str(tmp_path), "-c", str(pulled["gibbs"].parent / "c")]
    shown = CliRunner().invoke(pull_app, given)
    assert shown.exit_code == 2
    assert "--imputations: cannot be made: there are no refits" in shown.output
