"""The three guarantee classes, through a real gate: what they cost, and what they end."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import World

from penstock.base.errors import Refused
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import from_dict
from penstock.privacy.request import PrivacyRequest
from penstock.wire import gate_pb2
from penstock_client.cli.common import call_document
from penstock_client.cli.reading import read_ledger
from penstock_client.ledger.budget import summarize_budget
from penstock_client.operate import site_daemon, site_doctor

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def formal():
    """A world with one site, for what is formal or refused: no study ends another's budget."""
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    made = World(root)
    try:
        made.site(total=20.0, allowance=20.0).start()
        yield made
    finally:
        for site in made.sites:
            site.close()
        shutil.rmtree(root, ignore_errors=True)


def manifest_of(site, signed):
    job = site.submit(signed)
    end = site.wait(job.request_id)
    assert end.state == "delivered", end.code
    return json.loads(site.collect(job.request_id)[0])["manifest"]


def test_formal_with_injection_charges_flow_and_injection_within_one_epsilon(formal, fast):
    [site] = formal.sites
    mechanism = replace(fast, copies=1, w=0.05, latent_clip=2.0)
    made = manifest_of(site, formal.signed(name="injected", mechanism=mechanism))
    events = [from_dict(e) for e in made["events"]]
    labels = [e.label for e in events]
    assert labels == ["margins", "moments", "flow, DP-SGD", "latent noise injection"]
    assert 0 < made["injection_epsilon"] < made["epsilon_autodp"] <= 2.0
    assert epsilon(events, 1e-5) == pytest.approx(made["epsilon_autodp"], rel=1e-9)


def test_every_copy_of_an_injection_is_charged(formal, fast):
    [site] = formal.sites
    one = replace(fast, copies=1, w=0.01, latent_clip=2.0)
    costs = [
        manifest_of(site, formal.signed(name=f"c{m}", mechanism=replace(one, copies=m)))
        for m in (1, 3)
    ]
    assert costs[1]["injection_epsilon"] > costs[0]["injection_epsilon"]


def test_an_injection_that_alone_costs_more_than_asked_is_refused(formal, fast):
    [site] = formal.sites
    before = site.ledger().charges
    with pytest.raises(Refused, match="use w below") as caught:
        site.submit(formal.signed(name="too-much", mechanism=replace(fast, w=0.9)))
    assert caught.value.reason == "plan"
    assert site.ledger().charges == before


def test_public_flow_charges_the_injection_alone(world, fast):
    rng = np.random.default_rng(5)
    public = "age,sbp,sex,score\n" + "".join(
        f"{a:.0f},{b:.0f},{i % 2},{c:.3f}\n"
        for i, (a, b, c) in enumerate(
            zip(
                np.clip(rng.normal(55, 9, 150), 18, 100),
                np.clip(rng.normal(125, 18, 150), 70, 250),
                np.clip(rng.normal(0, 3, 150), -50, 50),
                strict=True,
            )
        )
    )
    site = world.site(public_csv=public)
    site.start()
    mechanism = replace(fast, copies=1, w=0.05, latent_clip=2.0)
    asked = PrivacyRequest(2.0, 1e-5, "public-flow")
    made = manifest_of(site, world.signed(mechanism=mechanism, privacy=asked))
    assert [e["label"] for e in made["events"]] == ["latent noise injection"]
    assert made["guarantee"] == "public-flow"
    assert made["epsilon_autodp"] == made["injection_epsilon"] <= 2.0


def test_public_flow_needs_public_rows(formal, fast):
    [site] = formal.sites
    mechanism = replace(fast, copies=1, w=0.05, latent_clip=2.0)
    asked = PrivacyRequest(2.0, 1e-5, "public-flow")
    with pytest.raises(Refused) as caught:
        site.submit(formal.signed(name="no-public", mechanism=mechanism, privacy=asked))
    assert caught.value.reason == "no-public-data"


EMPIRICAL = PrivacyRequest(1.0, 1e-5, "empirical")


def test_empirical_is_infinite_and_ends_the_formal_budget(world, fast):
    site = world.site()
    site.start()
    mechanism = replace(fast, copies=1, w=0.8)
    made = manifest_of(site, world.signed(mechanism=mechanism, privacy=EMPIRICAL))
    assert made["epsilon_autodp"] is None
    assert made["epsilon_pld"] is None
    with pytest.raises(Refused) as caught:
        site.submit(world.signed(name="formal-after"))
    assert caught.value.reason == "closed"
    [request] = call_document(site.paths, "Requests")["requests"]
    assert request["epsilon"] is None
    shown = call_document(site.paths, "Preview", gate_pb2.JobRequest(request_id=request["request"]))
    assert shown["left_before"] == 0


def test_empirical_is_refused_unless_the_site_allows_it(world, fast):
    site = world.site()
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text(policy.replace(', "empirical"', ""))
    site.start()
    with pytest.raises(Refused) as caught:
        site.submit(world.signed(privacy=EMPIRICAL))
    assert caught.value.reason == "guarantee"


def test_poisson_sampling_runs_and_is_charged_as_such(formal, fast):
    [site] = formal.sites
    mechanism = replace(fast, sampling="poisson", rate=0.2)
    made = manifest_of(site, formal.signed(name="poisson", mechanism=mechanism))
    assert any(e["kind"] == "poisson-gaussian" and e["rate"] == 0.2 for e in made["events"])
    assert made["epsilon_pld"] <= made["epsilon_autodp"] <= 2.0


def test_a_test_seed_is_said_everywhere_and_charged_for_what_it_is(world):
    """Whoever knows the seed takes the noise off again: the ledger may not say ε = 2."""
    site = world.site(settings="insecure_seed = 3\n")
    assert any("NOTHING" in note for note in site_daemon.check_before_start(site.paths))
    site.start()
    assert manifest_of(site, world.signed())["insecure_seed"] is True
    assert "NOTHING" in call_document(site.paths, "Status")["WARNING"]
    (lineage,) = summarize_budget(read_ledger(site.paths)[1])
    assert lineage["closed"] is True
    assert lineage["spent_epsilon"] is None
    (noise,) = [row for row in site_doctor.check_site(site.paths.root) if row.check == "noise"]
    assert noise.state == "fail"
