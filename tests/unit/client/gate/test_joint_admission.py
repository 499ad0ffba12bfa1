"""Whether a gate takes part in one release of many sites, for public reasons; and the charge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import World
from tests.support.adding import make_gates, sign_joint

from penstock.base.errors import Refused
from penstock.base.times import stamp
from penstock.mechanisms import Scoring
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.refusals import find_memory
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.events import DiscreteGaussian
from penstock.study.charges import plan_study
from penstock.study.scope import Scope
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import SignedStudy, sign_study
from penstock_client.gate.admission import SiteFacts, consider
from penstock_client.gate.jobs import Job
from penstock_client.gate.preview import describe_request, preview_request
from penstock_client.gate.settlement import Settlement
from penstock_client.gate.stores import Stores
from penstock_client.ledger.prospects import Machine, price_study
from penstock_client.ledger.replay import verify_ledger
from penstock_client.ledger.whatif import answer_prospect
from penstock_client.site.peer_keys import Peers, write_peers
from penstock_client.site.site_settings import read_settings

NAMES = ("east", "north", "south", "west")


class Site:
    """One of four sites, its stores open, at a clock that a test moves."""

    def __init__(self, world: World) -> None:
        self.world = world
        make_gates(world, NAMES)
        self.now = datetime.fromisoformat("2026-11-23T00:00:00+00:00")
        paths = world.sites[0].paths
        # After the certification's own record.
        self.now = max(self.now, datetime.now(self.now.tzinfo)) + timedelta(minutes=1)
        self.stores = Stores(paths, read_settings(paths), clock=lambda: stamp(self.now))

    @property
    def facts(self) -> SiteFacts:
        return self.stores.facts()

    def sign(self, **changes: Any) -> SignedStudy:
        return sign_joint(self.world, Scoring(), **changes)

    def rescope(self, **changes: Any) -> SignedStudy:
        study = self.sign().study
        scope: Scope = replace(study.aggregation, **changes)
        return sign_study(replace(study, aggregation=scope), self.world.analyst)  # type: ignore[arg-type]

    def refuse(self, signed: SignedStudy, facts: SiteFacts | None = None) -> str:
        with pytest.raises(Refused) as error:
            consider(signed, facts or self.facts)
        return f"{error.value.reason}: {error.value}"


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    made = Site(world)
    yield made
    made.stores.database.close()
    made.stores.decisions.close()


def test_the_charge_is_of_all_rounds_and_says_what_all_others_could_do(site: Site) -> None:
    signed = site.sign()
    admission = consider(signed, site.facts)
    assert isinstance(admission.plan, JointPlan)
    assert admission.charge.events == admission.plan.events
    assert float(admission.charge.alone_epsilon) == pytest.approx(
        admission.plan.epsilon_alone, abs=2e-6
    )
    shown = preview_request(make_job(site, signed), signed, site.facts, "")
    assert shown["guarantee"] == "formal (distributed)"
    assert shown["together_with"] == list(NAMES[1:])
    assert "against the coordinator" in shown["promise"]
    assert "up to 1 of the other sites" in shown["promise"]
    assert shown["alone_epsilon"] == admission.plan.epsilon_alone > shown["epsilon_autodp"]


def test_what_is_said_of_the_sites_must_be_so(site: Site) -> None:
    persons, keys = dict(site.sign().study.aggregation.persons), dict(site.facts.peers.keys)
    wrong = tuple({**persons, "east": 151}.items())
    assert site.refuse(site.rescope(persons=wrong)).startswith("frame: ")
    stranger = public_hex(generate_key())
    mine = {**keys, "east": site.facts.gate_key}
    other_self = tuple({**mine, "east": stranger}.items())
    assert site.refuse(site.rescope(keys=other_self)).startswith("gate-key: ")
    other_peer = tuple({**mine, "west": stranger}.items())
    assert "west" in site.refuse(site.rescope(keys=other_peer))
    write_peers(site.stores.paths.peers, Peers({"north": keys["north"]}))
    assert "south, west" in site.refuse(site.sign())
    assert site.refuse(site.sign()).startswith("peers: ")


def test_local_noise_rests_on_nobody_else(site: Site) -> None:
    """No gate need be pinned, nothing stands beside ε, and the ledger has an event of its own."""
    signed = site.rescope(colluders=0, noise="local")
    write_peers(site.stores.paths.peers, Peers({}))
    admission = consider(signed, site.facts)
    assert isinstance(admission.plan, JointPlan)
    assert {type(event) for event in admission.charge.events} == {DiscreteGaussian}
    assert admission.charge.alone_epsilon == ""
    assert admission.plan.epsilon_alone == admission.plan.epsilon
    # What all others could learn has no part in it, whatever the policy says of that.
    strict = replace(site.facts, policy=replace(site.facts.policy, alone_epsilon=0.1))
    assert consider(signed, strict).charge == admission.charge
    assert site.refuse(site.sign(), strict).startswith("peers: ")
    shown = preview_request(make_job(site, signed), signed, site.facts, "")
    assert (shown["guarantee"], shown["unpinned"]) == ("formal", [])
    assert "whatever they do" in shown["promise"]
    reserve(site, signed)
    assert verify_ledger(site.stores.ledger.records(), site.stores.public_key).findings == ()


def test_a_steward_sees_what_a_promise_rests_on_before_it_can_be_kept(site: Site) -> None:
    signed = site.sign()
    job = make_job(site, signed)
    write_peers(site.stores.paths.peers, Peers({"north": dict(site.facts.peers.keys)["north"]}))
    trust, peers = site.facts.trust, site.facts.peers
    row = describe_request(job, signed, (0, 0), trust, "", site="east", peers=peers)
    assert row["unpinned"] == ["south", "west"]
    assert row["guarantee"] == "formal (distributed)"
    shown = preview_request(job, signed, site.facts, "")
    assert shown["refusal"].startswith("the site's steward has not pinned")
    # A request may wait for a steward who pins them, and for nothing else that is wrong with it.
    assert consider(signed, site.facts, waits=True).request_id == job.request_id
    persons = {**dict(signed.study.aggregation.persons), "east": 9}
    few = site.rescope(persons=tuple(persons.items()))
    with pytest.raises(Refused, match="another number of persons"):
        consider(few, site.facts, waits=True)
    assert row["alone_epsilon"] == shown["alone_epsilon"] > 2
    assert "if all other sites collude" not in shown["promise"]
    assert (shown["rounds"], shown["seconds"]) == (shown["rounds"], 0.1 * shown["rounds"])
    apart = describe_request(job, site.world.signed(), (0, 0), trust, "", site="east", peers=peers)
    assert "alone_epsilon" not in apart


def test_memory_is_for_the_sites_own_rows(site: Site) -> None:
    """However many persons the other sites have, a run lays out this one's."""
    persons = {**dict(site.sign().study.aggregation.persons), "west": 2 * 10**6}
    large = site.rescope(persons=tuple(persons.items()))
    study = replace(large.study, privacy=replace(large.study.privacy, delta=1e-9))
    large = sign_study(study, site.world.analyst)
    mechanism = MECHANISMS.of(large.study.mechanism)
    planned = consider(large, site.facts).plan
    assert isinstance(planned, JointPlan)
    whole = mechanism.memory(planned.carried, planned.asked.schema, site.facts.dictionary, 1)
    own = find_memory(mechanism, planned.asked, planned.carried, site.facts.dictionary, 1, 150)
    assert 1.2 * own.gigabytes < whole.gigabytes
    tight = replace(site.facts, memory_gb=own.gigabytes, threads=1)
    assert consider(large, tight).charge.events == planned.events
    assert site.refuse(large, replace(tight, memory_gb=own.gigabytes * 0.99)).startswith("memory: ")


def test_the_policy_limits_what_all_others_together_could_learn(site: Site) -> None:
    facts = site.facts
    plan = consider(site.sign(), facts).plan
    assert isinstance(plan, JointPlan)
    few = replace(facts, policy=replace(facts.policy, alone_epsilon=plan.epsilon_alone / 2))
    assert site.refuse(site.sign(), few).startswith("alone: ")
    unsaid = replace(facts.policy, alone_epsilon=None)
    assert unsaid.largest_alone == 5 * unsaid.study_epsilon
    small = replace(unsaid, study_epsilon=2.0, slot_seconds=1.0)
    assert small.largest_alone == 10.0


def test_what_if_says_of_all_others_what_the_gate_would_say(site: Site) -> None:
    facts, study = site.facts, site.sign().study
    prospect = price_study(study, 150, Machine(facts.dictionary, facts.memory_gb, facts.threads))

    def answer(**limits: float) -> Any:
        policy = replace(facts.policy, **limits)
        return answer_prospect(prospect, facts.state, policy, facts.lineage, now=facts.now)

    found, plan = answer(), consider(site.sign(), facts).plan
    assert isinstance(plan, JointPlan)
    assert found["admitted"]
    assert found["alone_epsilon"] == plan.epsilon_alone
    assert found["alone_allowed"] == facts.policy.largest_alone
    refused = answer(alone_epsilon=plan.epsilon_alone / 2)
    assert [each["reason"] for each in refused["refusals"]] == ["alone"]
    assert "if all other sites collude" in refused["largest_limit"]
    less = replace(study, privacy=replace(study.privacy, epsilon=refused["largest_epsilon"]))
    fitting = plan_study(less, 150)
    assert isinstance(fitting, JointPlan)
    assert 0.9 * plan.epsilon_alone / 2 < fitting.epsilon_alone <= plan.epsilon_alone / 2
    local = price_study(
        site.rescope(colluders=0, noise="local").study,
        150,
        Machine(facts.dictionary, facts.memory_gb, facts.threads),
    )
    policy = replace(facts.policy, alone_epsilon=0.1)
    told = answer_prospect(local, facts.state, policy, facts.lineage, now=facts.now)
    assert told["admitted"]
    assert "alone_epsilon" not in told


def make_job(site: Site, signed: SignedStudy, state: JobState = JobState.RUNNING) -> Job:
    admission, now = consider(signed, site.facts), site.stores.now()
    return Job(
        admission.request_id,
        signed.study_id,
        signed.to_bytes(),
        admission.charge.lineage,
        admission.charge.version,
        state,
        "",
        now,
        now,
    )


def reserve(site: Site, signed: SignedStudy) -> Job:
    job, admission = make_job(site, signed), consider(signed, site.facts)
    site.stores.decisions.begin("east")
    charge = replace(admission.charge, decisions=site.stores.decisions.head)
    site.stores.jobs.add(job)
    site.stores.ledger.reserve(charge, signer_epsilon=10.0, policy=site.facts.policy)
    return job


def test_rounds_outlive_the_process_and_end_with_the_study(site: Site) -> None:
    job = reserve(site, site.sign(deadline_hours=2.0))
    settlement = Settlement(site.stores)
    settlement.recover()
    settlement.end_overdue()
    assert site.stores.ledger.state().charges[job.request_id].status == "reserved"
    site.now += timedelta(hours=2.1)
    settlement.end_overdue()
    assert site.stores.ledger.state().charges[job.request_id].status == "burnt"
    assert site.stores.job(job.request_id).state is JobState.FAILED


def test_a_ledger_that_hides_what_all_others_could_learn_is_found_out(site: Site) -> None:
    signed = site.sign()
    reserve(site, signed)
    records, key = site.stores.ledger.records(), site.stores.public_key
    assert verify_ledger(records, key).findings == ()


def test_a_lower_figure_in_the_ledger_is_found(site: Site, tmp_path: Path) -> None:
    signed = site.sign()
    admission = consider(signed, site.facts)
    site.stores.decisions.begin("east")
    charge = replace(
        admission.charge, decisions=site.stores.decisions.head, alone_epsilon="1.000000"
    )
    site.stores.ledger.reserve(charge, signer_epsilon=10.0)
    [found] = verify_ledger(site.stores.ledger.records(), site.stores.public_key).findings
    assert "all other sites collude" in found.what
