"""What one release of many sites is to do, and what each is charged: from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.checks import Checks, within
from penstock.base.errors import InvalidInput
from penstock.mechanisms.joint.consortium import LOCAL, Consortium
from penstock.mechanisms.protocol import AnyMechanism, Asked, Plan, Settings, SummedPlan
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian, Event, alone
from penstock.questions.suitability import estimand_problems

_ROUNDED_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class JointPlan:
    """
    Attributes:
        consortium: of which sites; asked: what, with the site of a row as a column where the
            mechanism tells of it (:meth:`~penstock.mechanisms.protocol.Mechanism.tells_site`).
        carried: the mechanism's plan for all rows, with the noise of all sites.
        events: what each site is charged; epsilon: of these, at the requested δ.
        epsilon_alone: the same if all other sites collude: a site's own noise is all there is; of
            local noise no other figure.
    """

    consortium: Consortium
    asked: Asked[Settings]
    carried: SummedPlan
    events: tuple[Event, ...]
    epsilon: float
    epsilon_alone: float

    @property
    def rounds(self) -> int:
        """How many sums are asked for, one after the other."""
        return sum(measurement.calls for measurement in self.carried.measurements)

    @property
    def largest(self) -> int:
        """How many numbers the largest sum has, at most."""
        return max(m.size for m in self.carried.measurements)


def plan_jointly(
    mechanism: AnyMechanism, asked: Asked[Settings], consortium: Consortium
) -> JointPlan:
    """The plan of one release of all sites' rows.

    Raises:
        InvalidInput: the mechanism asks for more than sums of whole numbers, or the study for what
            it does not do; or strata of sites make a question too large, which nobody is to learn
            after the sums are charged.
        BudgetExceeded: ε cannot be met.
    """
    if not mechanism.summed:
        raise _refuse(mechanism, f"Use {_name_others(mechanism)}")
    if instead := mechanism.instead_of_sums(asked.settings):
        raise _refuse(mechanism, instead)
    told, strata = mechanism.tells_site(asked), mechanism.stratifies
    joined = consortium.join(asked, told=told, strata=strata)
    problems = [*joined.settings.problems(joined.schema, joined.estimands)]
    for estimand in joined.estimands:
        found = estimand_problems(estimand, joined.schema.columns)
        problems += within(f"estimands.{estimand.name}", found)
    if problems:
        raise InvalidInput("one release of all sites", problems)
    planned: Plan = mechanism.plan_sums(joined, consortium.total)
    if not isinstance(planned, SummedPlan):
        raise _refuse(mechanism, f"Use {_name_others(mechanism)}")
    carried = planned.with_noise(consortium.swell)
    events = consortium.charge(planned.events, carried.events)
    delta = asked.privacy.delta
    charged = epsilon(events, delta)
    own = charged if consortium.noise == LOCAL else find_alone(events, delta)
    return JointPlan(consortium, joined, carried, events, charged, own)


def _refuse(mechanism: AnyMechanism, instead: str) -> InvalidInput:
    check = Checks("mechanism")
    check.add(
        "name",
        "is not made of sums, which is all that sites can add up unseen",
        value=mechanism.name,
        remedy=f"{instead}; or ask for scope = 'site'",
    )
    return InvalidInput("mechanism", check.problems)


def _name_others(mechanism: AnyMechanism) -> str:
    """Those that make sums, of what this one is for."""
    kind = (mechanism.answers, mechanism.takes_time)
    others = (m for m in MECHANISMS.values() if (m.answers, m.takes_time) == kind and m.summed)
    return " or ".join(other.name for other in others)


def find_alone(events: Sequence[Event], delta: float) -> float:
    """ε of a charge if all other sites collude; 0 of one that is no part of many sites' sums."""
    own = list_alone(events)
    return epsilon(own, delta) if own else 0.0


def list_alone(events: Sequence[Event]) -> tuple[Event, ...]:
    """What a charge is if all other sites collude: a site's own noise is all there is."""
    return tuple(alone(event) for event in events if isinstance(event, DistributedGaussian))


def find_against(events: Sequence[Event], colluders: int) -> tuple[Event, ...]:
    r"""What a charge is against more sites than it allows for.

    Of S - t sites' noise S - t - k is unknown to k colluders: σ' = σ √((S - t - k)/(S - t - c)) is
    its sd over the sensitivity, c what the charge allows for. Fewer than c know no more than c do:
    the charge itself is an upper bound then.

    Relation: that of the events.

    Raises:
        InvalidEvent: no site is left that adds noise.
    """
    found = []
    for event in events:
        if isinstance(event, DistributedGaussian) and colluders > event.colluders:
            left = event.sites - event.dropouts - colluders
            # A share of 0 is no multiplier: the event says what is wrong.
            share = math.sqrt(max(left, 1) / event.honest) / _ROUNDED_UP
            event = replace(
                event, noise_multiplier=event.noise_multiplier * share, colluders=colluders
            )
        found.append(event)
    return tuple(found)


def move_further(events: Sequence[Event], times: int) -> tuple[Event, ...]:
    r"""A charge for whoever moves each sum by up to so many times its sensitivity.

    A person whose rows are at m sites moves a sum by at most mΔ, for each site bounds its own part
    by Δ (triangle inequality): the noise multiplier is σ/m. That costs *more* than m charges that
    are composed, whose Rényi divergences add up to mα/(2σ²): here one sum has all m parts, and it
    is m²α/(2σ²). Replace-one is m = 2: out of a sum, and in again.

    Relation: zero-out with public n at all m sites at once.

    Raises:
        InvalidInput: an event that is no part of sums, or times is not 1 to 2000.
    """
    check = Checks("charge")
    check.whole("times", times, 1, 2000)
    moved = []
    for event in events:
        if isinstance(event, DistributedGaussian | DiscreteGaussian):
            multiplier = event.noise_multiplier / (times * (_ROUNDED_UP if times > 1 else 1.0))
            moved.append(replace(event, noise_multiplier=multiplier))
        else:
            check.add("events", "are no parts of sums", value=event.kind)
    check.done()
    return tuple(moved)


def move_at_sites(events: Sequence[Event], sites: int, group: Consortium) -> tuple[Event, ...]:
    r"""A charge for whoever has rows at so many of its sites.

    With shared noise one sum has all of that person's parts (:func:`move_further`). With local
    noise every site's part is private by itself before anybody adds it up: m of them are composed,
    mα/(2σ²) (Mironov 2017, Prop. 1; what is asked next may depend on what was said).

    Relation: zero-out with public n at all of these sites at once.

    Raises:
        InvalidInput: an event that is no part of sums.
    """
    if group.noise != LOCAL:
        return move_further(events, sites)
    return move_further(events, 1) * sites
