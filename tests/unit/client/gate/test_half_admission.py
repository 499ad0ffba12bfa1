"""Whether a gate answers a half of a study of both: both halves are charged at once, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.conftest import World
from tests.support.adding import sign_halves_of
from tests.unit.client.gate.test_joint_admission import Site, make_job

from penstock.base.errors import BudgetExceeded, InvalidInput, Refused
from penstock.mechanisms import Scoring
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DistributedGaussian, alone
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy, read_signed_study, sign_study
from penstock_client.gate.admission import Admission, consider, is_held, require_held
from penstock_client.gate.preview import preview_request


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    made = Site(world)
    yield made
    made.stores.database.close()
    made.stores.decisions.close()


@pytest.fixture
def halves(site: Site) -> tuple[SignedStudy, SignedStudy]:
    return sign_halves_of(site.world, Scoring())


def reserve(site: Site, admission: Admission) -> None:
    """As a run does, in one transaction."""
    site.stores.decisions.begin(site.stores.settings.name)
    charges = [admission.charge, *([admission.beside] if admission.beside else [])]
    with site.stores.database.transaction():
        for charge in charges:
            named = replace(charge, decisions=site.stores.decisions.head)
            site.stores.ledger.reserve(
                named, signer_epsilon=admission.signer.epsilon, policy=site.facts.policy
            )


def test_either_half_admits_both_by_the_same_requests(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    own, joint = (consider(half, site.facts) for half in halves)
    assert own.beside == joint.charge
    assert joint.beside == own.charge
    assert own.charge.study == joint.charge.study
    assert (bool(own.charge.alone_epsilon), bool(joint.charge.alone_epsilon)) == (False, True)
    both = (*own.charge.events, *joint.charge.events)
    assert epsilon(both, own.charge.delta) <= (halves[0].study.aggregation.whole or 0)
    shown = preview_request(make_job(site, halves[0]), halves[0], site.facts, "")
    assert shown["epsilon_autodp"] == epsilon(both, own.charge.delta)
    assert shown["whole_epsilon"] == halves[0].study.aggregation.whole
    assert shown["other_half"] == "one release of all sites"


def test_the_release_of_all_sites_begins_after_the_sites_own_or_never(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    own, joint = (consider(half, site.facts) for half in halves)
    with pytest.raises(Refused) as refused:
        require_held(site.facts.state, joint.request_id)
    assert refused.value.reason == "half"
    reserve(site, own)
    require_held(site.facts.state, joint.request_id)
    charge = site.facts.state.charges[joint.request_id]
    assert is_held(halves[1], charge)
    assert not is_held(halves[0], site.facts.state.charges[own.request_id])
    assert consider(halves[1], site.facts).beside is None
    # Outside it is no run: the next may begin, and its job looks as it stands.
    for admitted, half, state in (
        (joint, halves[1], JobState.QUEUED),
        (own, halves[0], JobState.RUNNING),
    ):
        made = make_job(site, half)
        job = replace(made, request_id=admitted.request_id, state=state)
        site.stores.jobs.add(job)
    assert list(site.stores.list_unbegun(site.facts.state)) == [joint.request_id]
    hidden = [each.id for each in site.stores.outside().hidden()]
    assert hidden == [own.request_id]


def test_no_room_for_one_is_no_room_for_either(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    """The signer's allowance has room for either by itself."""
    facts, whole = site.facts, halves[0].study.aggregation.whole or 0
    [(key, signer)] = facts.trust.signers.items()
    small = replace(signer, epsilon=0.8 * whole)
    assert all(half.study.privacy.epsilon < 0.8 * whole for half in halves)
    poor = replace(facts, trust=replace(facts.trust, signers={key: small}))
    for half in halves:
        with pytest.raises(Refused) as refused:
            consider(half, poor)
        assert refused.value.reason == "signer-budget"
        assert str(refused.value).endswith(", or a larger allowance")
    admission = replace(consider(halves[0], facts), signer=small)
    with pytest.raises(BudgetExceeded):
        reserve(site, admission)
    assert not site.facts.state.charges


def test_the_stewards_limits_are_for_both(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    own, joint = (consider(half, site.facts) for half in halves)
    policy, text = site.stores.paths.policy, site.stores.paths.policy.read_text()
    delta = own.charge.delta
    lone = [alone(e) for e in joint.charge.events if isinstance(e, DistributedGaussian)]
    part, both = (epsilon(each, delta) for each in (lone, (*lone, *own.charge.events)))
    limit = (part + both) / 2
    policy.write_text(re.sub("alone_epsilon = .*", f"alone_epsilon = {limit}", text))
    for half in halves:
        assert site.refuse(half).startswith("alone: ")
    policy.write_text(re.sub("study_epsilon = .*", "study_epsilon = 1.9", text, count=1))
    for half in halves:
        assert half.study.privacy.epsilon < 1.9
        assert site.refuse(half).startswith("study-budget: ")


def test_halves_that_say_too_little_of_each_other_are_refused(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    study = halves[0].study
    scope = replace(study.aggregation, other=0.99 * (study.aggregation.whole or 0))
    greedy = sign_study(replace(study, aggregation=scope), site.world.analyst)
    assert "two halves cost together" in site.refuse(greedy)


def test_a_study_of_both_is_not_signed_as_one(
    site: Site, halves: tuple[SignedStudy, SignedStudy]
) -> None:
    study = halves[0].study
    scope = replace(study.aggregation, scope="both", whole=None, other=None)
    signed = sign_study(replace(study, aggregation=scope), site.world.analyst)
    with pytest.raises(InvalidInput, match="signs its two halves"):
        read_signed_study(signed.data)
