"""One release of four sites' trajectories is as good as that of one place with all rows.

Seeds are fixed, so that there is no false alarm. Over five draws the standard error of a mean is
about 5 % of it; a fifth is the margin, and what is beyond it must be seen to be.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.studies import half_circles as circles
from tests.studies import joint_trajectories as study
from tests.support.federated import encode_site

from penstock.mechanisms import Trajectory
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.protocol import Asked, Settings
from penstock.mechanisms.trajectory import run as mechanism
from penstock.mechanisms.trajectory.plan import WholePlan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema.encoding import Encoding

DRAWS, SIZES, MARGIN = 5, (1200, 900, 600, 300), 1.2


def plan_sites() -> JointPlan:
    settings = Trajectory(
        "time", particles=study.PARTICLES_EACH, steps=30, copies=1, refits=0, paths=1, path_times=2
    )
    asked: Asked[Settings] = Asked(settings, circles.SCHEMA, PrivacyRequest(3.0, study.DELTA))
    return plan_jointly(study.TRAJECTORY, asked, Consortium(study.NAMES, SIZES))


def fit_whole(plan: WholePlan, joint: JointPlan, sites: list[study.Rows], seed: int) -> study.Array:
    """Particles of all rows in one place, by the plan of sums."""
    encoding = Encoding(joint.asked.schema)
    laid = [encode_site(joint, encoding, i, rows, seed) for i, rows in enumerate(sites)]
    rows, present = (np.concatenate(parts) for parts in zip(*laid, strict=True))
    return mechanism.fit(plan, encoding, rows, present, SeededNoise(seed)).particles


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Mean W2 to fresh persons of all sites, of which each prefers a branch of its own."""
    joint, found = plan_sites(), dict[str, list[float]]()
    plan = joint.carried
    assert isinstance(plan, WholePlan)
    last, even = circles.TIMES - 1, np.full(study.PARTICLES_EACH, 1 / study.PARTICLES_EACH)
    for draw in range(DRAWS):
        rng, sites = np.random.default_rng([9, draw]), []
        for size, shares in zip(SIZES, study.PREFERS, strict=True):
            when = rng.permutation(np.arange(size) % circles.TIMES)
            xy = study.walk_branches(shares, when / last, rng)
            sites.append({"time": when.astype(float), "x": xy[:, 0], "y": xy[:, 1]})
        overall = np.array(study.PARTS) @ study.PREFERS
        fresh = [
            study.walk_branches(overall, np.full(circles.FRESH, t / last), rng)
            for t in range(circles.TIMES)
        ]
        together = study.fit_jointly(joint, sites, 100 + draw)
        found.setdefault("joint", []).append(study.compare(together, even, fresh))
        unit = [at / circles.WIDTH for at in fresh]
        arms = {
            "one place": fit_whole(plan, joint, sites, 200 + draw),
            "loud": fit_whole(plan.with_noise(4.0), joint, sites, 300 + draw),
            "averaged": study.average_drifts(
                [study.fit_alone(joint.asked, rows, 400 + draw) for rows in sites]
            ),
        }
        for name, particles in arms.items():
            distance = circles.WIDTH * study.compare(particles, even, unit)
            found.setdefault(name, []).append(distance)
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_sites_together_are_as_good_as_one_place(measured: dict[str, float]) -> None:
    assert 1 / MARGIN < measured["joint"] / measured["one place"] < MARGIN, measured


@pytest.mark.parametrize("worse", ["loud", "averaged"])
def test_more_noise_and_averaged_drifts_are_seen_to_be_worse(
    measured: dict[str, float], worse: str
) -> None:
    assert measured[worse] / measured["one place"] > 1.5 * MARGIN, measured
