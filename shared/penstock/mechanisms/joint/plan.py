"""What one release of many sites is to do, and what each is charged: from public numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.checks import Checks
from penstock.base.errors import InvalidInput
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.protocol import AnyMechanism, Asked, Plan, Settings, SummedPlan
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DistributedGaussian, Event, alone


@dataclass(frozen=True, slots=True)
class JointPlan:
    """
    Attributes:
        consortium: of which sites; asked: what, with the site of a row as a column.
        carried: the mechanism's plan for all rows, with the noise of all sites.
        events: what each site is charged; epsilon: of these, at the requested δ.
        epsilon_alone: the same if all other sites collude: a site's own noise is all there is.
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


def plan_jointly(
    mechanism: AnyMechanism, asked: Asked[Settings], consortium: Consortium
) -> JointPlan:
    """The plan of one release of all sites' rows.

    Raises:
        InvalidInput: the mechanism asks for more than sums of whole numbers, or the study for what
            it does not do.
        BudgetExceeded: ε cannot be met.
    """
    joined = consortium.join(asked)
    planned: Plan = mechanism.plan(joined, consortium.total)
    if not isinstance(planned, SummedPlan):
        check = Checks("mechanism")
        check.add(
            "name",
            "is not made of sums, which is all that sites can add up unseen",
            value=mechanism.name,
            remedy="Ask for scope = 'site', or for another mechanism",
        )
        raise InvalidInput("mechanism", check.problems)
    carried = planned.with_noise(consortium.swell)
    events = consortium.charge(planned.events, carried.events)
    delta = asked.privacy.delta
    own = find_alone(events, delta)
    return JointPlan(consortium, joined, carried, events, epsilon(events, delta), own)


def find_alone(events: Sequence[Event], delta: float) -> float:
    """ε of a charge if all other sites collude; 0 of one that is no part of many sites' sums."""
    own = [alone(event) for event in events if isinstance(event, DistributedGaussian)]
    return epsilon(own, delta) if own else 0.0
