"""What a model misses is alike at all sites, so that more of them do not make it less."""

import math

import numpy as np
import pytest

from penstock.inference.combine import SiteEstimate
from penstock.inference.headline import pool_sites
from penstock.inference.misfit import DRAWN, MISFIT

N, VARIANCE, NOISE = 2000, 0.002, 0.0005


def sites(k: int, n: int = N) -> list[SiteEstimate]:
    y = np.linspace(0.1, 0.1 + 1e-3 * (k - 1), k)
    return [
        SiteEstimate(float(one), 1.1 * VARIANCE + NOISE, VARIANCE, None, n, None, 10, 10, NOISE)
        for one in y
    ]


@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_common_error_is_added_to_the_pooled_one(k: int) -> None:
    known = pool_sites(sites(k), total=False, joint=False)
    further = pool_sites(sites(k), total=False, joint=False, further=True)
    common = math.hypot(MISFIT * math.sqrt(N * VARIANCE), DRAWN * math.sqrt(NOISE))
    for name, one in known.items():
        more = further[name]
        assert more.se == pytest.approx(math.hypot(one.se, common), rel=1e-12)
        half = (one.ci_high - one.ci_low) / one.se
        assert (more.ci_high - more.ci_low) / more.se == pytest.approx(half, rel=1e-12)
        assert (more.estimate, more.tau2, more.df) == (one.estimate, one.tau2, one.df)
        assert more.p_value > one.p_value


def test_no_number_of_sites_makes_it_less() -> None:
    many = pool_sites(sites(400), total=False, joint=False, further=True)["random"]
    assert many.se > MISFIT * math.sqrt(N * VARIANCE)


def test_a_further_site_is_foretold_with_it() -> None:
    known = pool_sites(sites(8), total=False, joint=False)["random"]
    further = pool_sites(sites(8), total=False, joint=False, further=True)["random"]
    assert known.pi_low is not None
    assert further.pi_low is not None
    assert further.pi_low < known.pi_low


def test_counts_have_none() -> None:
    counted = pool_sites(sites(3), total=True, joint=False)["random"]
    assert counted == pool_sites(sites(3), total=True, joint=False, further=True)["random"]
