"""What one release of many sites costs each of them, and what it promises: in words.

One text for the analyst who asks and for the steward who decides.
"""

from __future__ import annotations

import math

from penstock.base.documents import Json
from penstock.mechanisms.joint.consortium import LOCAL
from penstock.mechanisms.joint.plan import JointPlan

ROUND_SECONDS = 5.0
"""The slot of a round at a site whose steward does not say another one."""

ALONE_TIMES = 5.0
"""How many times what it lets a study cost a site allows it to cost if all others collude, unless
its steward says otherwise."""


def estimate_seconds(plan: JointPlan, each: float = ROUND_SECONDS) -> float:
    """About how long all rounds take, at least: one slot each, one after the other."""
    return plan.rounds * each


def list_promises(plan: JointPlan) -> list[str]:
    """ε against whom, and what is assumed of whom."""
    group, asked, delta = plan.consortium, plan.epsilon, plan.asked.privacy.delta
    if group.noise == LOCAL:
        return [
            f"against the coordinator, all other sites and whoever reads the release: "
            f"ε = {asked:.3g} at δ = {delta:g}, whatever they do. Each site adds the whole noise "
            "by itself; masks hide its part besides, and no ε rests on them"
        ]
    reach = (
        f"; the same if up to {group.colluders} of the other sites tell it all they know"
        if group.colluders
        else "; with colluders = 0 nothing is promised against another site"
    )
    return [
        f"against the coordinator and whoever reads the release: ε = {asked:.3g} at δ = {delta:g}"
        f"{reach}. It rests on masks, and on at least {group.honest} of {len(group.sites)} sites, "
        "a person's own among them, that add their share of the noise and tell nobody of it",
        f"if all other sites collude: ε = {plan.epsilon_alone:.3g}, by a site's own noise alone",
    ]


def describe_noise(plan: JointPlan) -> str:
    """How much noise a sum has, beside that of one place with all rows."""
    group = plan.consortium
    times = f"a sum has {group.swell:.3g} times the noise of one place with all rows"
    if group.noise == LOCAL:
        return f'{times}, √S; noise = "shared" has less, where sites trust each other'
    lost = " and ".join(
        f"{count} that may {what}"
        for count, what in ((group.dropouts, "drop out"), (group.colluders, "collude"))
        if count
    )
    most = math.sqrt(len(group.sites))
    why = f", for {lost}" if lost else ""
    return f'{times}{why}; noise = "local", which asks no trust, would have {most:.3g} times'


def describe_rounds(plan: JointPlan) -> str:
    """Who adds up how often, and about how long that takes."""
    group, seconds = plan.consortium, estimate_seconds(plan)
    taken = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return (
        f"one release of {len(group.sites)} sites, {group.total} persons together, by "
        f"{plan.rounds} sums one after the other: {taken} at least, at {ROUND_SECONDS:g} s a round"
    )


def describe_joint(plan: JointPlan) -> Json:
    """The same as numbers, for scripts."""
    group = plan.consortium
    return {
        "guarantee": group.guarantee,
        "noise": group.noise,
        "sites": len(group.sites),
        "persons": group.total,
        "dropouts": group.dropouts,
        "colluders": group.colluders,
        "rounds": plan.rounds,
        "seconds": estimate_seconds(plan),
        "epsilon": plan.epsilon,
        "alone_epsilon": plan.epsilon_alone,
        "noise_times": group.swell,
    }
