"""A study with planted effects, from a site's rows to what its analyst pulls: gate, worker and
coordinator are the real ones."""

from __future__ import annotations

import html
import json
import shutil
import tempfile
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tests.conftest import World
from tests.golden.mechanisms import finish
from tests.support.here import GateHere

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.privacy.events import to_dict
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.report.composition import report_schema
from penstock_server.results import production

pytestmark = pytest.mark.thorough

RUNS, EFFECT, PERSONS = 6, "years ~ age:smoker", 400
SCHEMA = Schema(
    (
        Column("years", "duration", upper=10, decimals=1, event="died"),
        Column("died", "event"),
        Column("age", "integer", lower=18, upper=100),
        Column("smoker", "binary"),
    )
)
HAZARD = Estimand("hazard", "cox", "years", "smoker", adjust=("age",))


def rows_csv() -> str:
    rng, lines = np.random.default_rng(3), ["years,died,age,smoker"]
    for _ in range(PERSONS):
        age, smoker = int(rng.integers(30, 90)), int(rng.random() < 0.4)
        years = rng.exponential(12 * np.exp(-0.03 * (age - 60) - 0.5 * smoker))
        lines.append(f"{min(years, 10):.1f},{int(years < 10)},{age},{smoker}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def pulled():
    """The manifest of what the site released, and what an analyst pulls."""
    root = Path(tempfile.mkdtemp(prefix="pk-"))  # short, for the sake of sockets
    world = World(root)
    site = world.site(
        "north",
        csv=rows_csv(),
        schema=SCHEMA,
        settings="insecure_seed = 8\n",
        persons=PERSONS,
    )
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text(policy.replace('["maf"]', '["structured"]'))
    make_coordinator(root / "hub", simulation=True)
    hub = open_coordinator(root / "hub")
    enrol_site(hub, json.loads(site.paths.join.read_text()))
    gate = GateHere(site.paths)
    study_id = hub.submit(
        world.signed(
            name="planted",
            schema=SCHEMA,
            estimands=(HAZARD,),
            sites=("north",),
            mechanism=Structured(copies=2, refits=1, planted=RUNS, effects=(EFFECT,)),
            privacy=PrivacyRequest(3.0, 1e-5),
        )
    )
    try:
        finish(hub, {"north": site.paths.gate_socket})
    finally:
        gate.close()
    files = production.pull_results(hub, study_id, root / "out", copies="refits")
    (folder,) = site.paths.releases.iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    report, dictionary = (
        json.loads((root / "out" / name).read_text()) for name in ("report.json", "dictionary.json")
    )
    page = html.unescape((root / "out" / "report.html").read_text())
    yield manifest, report, dictionary, page, {file.name for file in files}
    hub.store.close()
    shutil.rmtree(root, ignore_errors=True)


def test_planted_tables_and_what_came_of_them_leave_as_parts(pulled):
    manifest, *_ = pulled
    rows = {part["name"]: part["rows"] for part in manifest["parts"]}
    tables = ["tables/copy-1", "tables/copy-2", "refits/1"]
    runs = [f"{what}/{i}" for i in range(1, RUNS + 1) for what in ("planted", "recovered")]
    assert list(rows) == tables + runs
    # Drawn by the noisy count of the release; and counted again, with noise of its own.
    assert {rows[f"planted/{i}"] for i in range(1, RUNS + 1)} == {rows["tables/copy-1"]}
    assert len({rows[f"recovered/{i}"] for i in range(1, RUNS + 1)}) > 1


def test_they_are_charged_nothing(pulled):
    """What is charged is what a study without them is charged."""
    manifest, *_ = pulled
    without = Structured(copies=2, refits=1, planted=0)
    planned = plan(without, SCHEMA, PERSONS, PrivacyRequest(3.0, 1e-5), (HAZARD,))
    assert manifest["events"] == [to_dict(event) for event in planned.events]


def test_the_report_and_the_dictionary_say_what_came_back(pulled):
    _, report, dictionary, page, files = pulled
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    [hazard] = report["estimands"]
    [effect] = report["effects"]
    for found in (hazard["held"], effect):
        assert [site["site"] for site in found["sites"]] == ["north"]
        assert found["runs"] == RUNS
        assert found["slope"] is not None
        assert found["text"] in page or found is effect
    assert effect["effect"] == EFFECT
    assert dictionary["held"]["estimands"] == [{"estimand": "hazard", **hazard["held"]}]
    assert dictionary["held"]["effects"] == report["effects"]
    assert dictionary["held"]["classes"] == report["holds"]
    assert "What the tables hold" in page
    # They show what tables hold; nobody is to analyse them as if they were one.
    assert not any("planted" in name or "recovered" in name for name in files)
