"""The headline, and what stands beside it."""

import pytest

from penstock.inference.combine import SiteEstimate
from penstock.inference.headline import pool_sites

SITES = [
    SiteEstimate(estimate, 0.04, 0.04, None, 500, None, 1, 1) for estimate in (0.1, 0.5, 0.9, 0.2)
]


@pytest.mark.parametrize(
    ("count", "beside"), [(1, {"fixed"}), (4, {"fixed", "dl", "pm", "unweighted"})]
)
def test_a_headline_is_the_same_whatever_stands_beside_it(count: int, beside: set[str]) -> None:
    every = pool_sites(SITES[:count], total=False, joint=False)
    assert set(every) == {"random", *beside}
    alone = pool_sites(SITES[:count], total=False, joint=False, beside=False)
    assert alone == {"random": every["random"]}
    assert every["random"].method == "reml"
