"""Memory is planned from public numbers: real workers stay within it, and what cannot fit is told.

Before, a `sliced-wasserstein` of 20 columns held 3.1 GB at n = 450, what did not fit burnt its
charge, and nobody read why.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.integration.test_rehearsal import PLANTED
from tests.support.weighed import (
    LINUX,
    MECHANISMS,
    Weight,
    asked,
    foreseen,
    foreseen_of_attack,
    schema,
    weigh,
    weigh_attack,
)

from penstock.base.errors import Refused
from penstock.mechanisms import Gibbs, SlicedWasserstein
from penstock.mechanisms.memory import Memory
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock_client.cli.common import call_document

pytestmark = pytest.mark.thorough

linux = pytest.mark.skipif(not LINUX, reason="the peak is Linux's own count")

MOST_MB = 400

SHORT: dict[str, dict[str, object]] = {
    "maf": {"copies": 1, "refits": 1, "steps": 3},
    "sliced-wasserstein": {"copies": 1, "refits": 1},
    "structured": {"copies": 1, "refits": 1},
    "trajectory": {"copies": 1, "refits": 1, "steps": 4},
    "gibbs": {},
    "scoring": {},
}
"""As long as it takes for a peak: what memory does not depend on is short."""


def is_idle(planned: Memory, weighed: Weight) -> bool:
    """Whether far more is planned than is taken: of the mechanism's own part, and of the whole.

    The program's part bounds a limit on data, too, and how many of its libraries' pages are
    resident is the kernel's affair: with the same code peaks differ by several per cent.
    """
    own, taken = planned.total - planned.program, weighed.peak - weighed.ready
    return own > 1.6e6 * taken or planned.total > 2.75e6 * weighed.peak


@linux
@pytest.mark.parametrize(
    ("name", "persons", "columns", "threads", "changed"),
    [
        ("maf", 5000, 20, 1, {}),
        ("maf", 450, 6, 2, {"flows": 6, "hidden": (96, 96)}),
        ("sliced-wasserstein", 450, 20, 1, {}),
        ("sliced-wasserstein", 2000, 6, 2, {"bases": 20, "bins": 64, "steps": 10}),
        ("sliced-wasserstein", 2000, 8, 1, {"variant": "presampled", "steps": 10}),
        ("structured", 5000, 20, 1, {}),
        ("structured", 450, 8, 2, {}),
        ("structured", 5000, 12, 2, {"planted": 2, "effects": ("t ~ x2:x3",)}),
        ("trajectory", 1667, 20, 1, {}),
        ("trajectory", 1667, 20, 1, {"dependence": "inferred"}),
        ("trajectory", 200, 5, 1, {"particles": 300, "dependence": "inferred"}),
        ("trajectory", 3000, 8, 1, {}),
        ("gibbs", 5000, 20, 1, {}),
        ("scoring", 5000, 20, 1, {}),
    ],
)
def test_a_worker_delivers_within_the_memory_that_is_planned(
    name, persons, columns, threads, changed
):
    """It is given no more (``RLIMIT_DATA``), and its peak is no more; nor is the plan idle."""
    mechanism = replace(MECHANISMS[name](), **(SHORT[name] | changed))
    of = asked(mechanism, schema(columns, visits=name == "trajectory"))
    planned = foreseen(of, persons, threads)
    weighed = weigh(of, persons, threads=threads, memory_gb=planned.gigabytes)
    assert weighed.whole
    assert weighed.peak * 1e6 <= planned.total
    assert not is_idle(planned, weighed), (planned, weighed)
    if (columns, threads, changed) == (20, 1, {}):
        assert weighed.peak < MOST_MB


@linux
@pytest.mark.parametrize("persons", [450, 5000])
def test_two_fits_at_once_are_within_the_memory_that_is_planned(persons):
    """Of tables from rounds of scores, whose refits are made two at a time."""
    mechanism = replace(MECHANISMS["structured"](), copies=2, refits=6, planted=2)
    of = asked(mechanism, schema(12))
    planned = foreseen(of, persons, 2)
    weighed = weigh(of, persons, threads=2, memory_gb=planned.gigabytes)
    assert weighed.whole
    assert weighed.peak * 1e6 <= planned.total


@linux
def test_a_worker_with_outcomes_of_several_kinds_delivers_within_its_memory():
    """A duration, a number and a 0/1 column, each drawn given those before it."""
    mechanism = replace(MECHANISMS["structured"](), **SHORT["structured"])
    estimands = (
        Estimand("difference", "ols", "x2", "x3", adjust=("x5",)),
        Estimand("odds", "logistic", "b4", "x2"),
        Estimand("hazard", "cox", "t", "b4", adjust=("x2",)),
    )
    of = asked(mechanism, schema(20), estimands=estimands)
    planned = foreseen(of, 5000)
    weighed = weigh(of, 5000, memory_gb=planned.gigabytes)
    assert weighed.whole
    assert weighed.peak * 1e6 <= planned.total
    assert not is_idle(planned, weighed), (planned, weighed)


@linux
@pytest.mark.parametrize(
    ("persons", "columns", "visits", "swept", "changed"),
    [
        (5000, 20, False, False, {}),
        (450, 6, False, True, {"flows": 6, "hidden": (96, 96)}),
        (700, 12, True, True, {}),
    ],
)
def test_an_attack_stays_within_the_memory_that_is_planned_for_it(
    persons, columns, visits, swept, changed
):
    """Of `preview --attack` and `--sweep-w`: a process beside a worker, given no more than that."""
    mechanism = replace(MECHANISMS["maf"](), **(SHORT["maf"] | changed))
    of = asked(mechanism, schema(columns, visits=visits))
    planned = foreseen_of_attack(of, persons)
    peak = weigh_attack(of, persons, swept=swept, memory_gb=planned.gigabytes)
    assert peak * 1e6 <= planned.total <= 2.5e6 * peak
    if (columns, changed) == (20, {}):
        assert peak < MOST_MB


GREEDY = """
import numpy as np
from penstock.mechanisms.tables import run as mechanism
real = mechanism.draw
def draw(plan, *args, **kwargs):
    if plan.copies > 2:  # not in the rehearsal
        np.ones(2 * 10**9)
    yield from real(plan, *args, **kwargs)
mechanism.draw = draw
"""


@linux
def test_a_run_that_burnt_for_want_of_memory_says_so_to_the_steward_alone(world):
    site = world.site(settings="\nmemory_gb = 2\n")
    site.start(driver=PLANTED.format(planted=GREEDY))
    job = site.submit(world.signed())
    end = site.wait(job.request_id)
    assert (end.state, end.code) == ("failed", "failed")
    assert "memory" not in str(end)
    (row,) = call_document(site.paths, "Requests")["requests"]
    assert "ran out of memory (limit 2 GB)" in row["why"]
    assert row["outside"] == "failed"
    (charge,) = site.ledger().charges.values()
    assert charge.status == "burnt"


def test_what_cannot_fit_is_refused_before_anything_is_reserved(world):
    site = world.site(settings="\nmemory_gb = 1\n")
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace('["maf"]', '["maf", "sliced-wasserstein"]'))
    site.start()
    large = SlicedWasserstein(copies=1, refits=0, steps=10_000, bases=512, bins=1024)
    before = site.ledger().seq
    with pytest.raises(Refused) as caught:
        site.submit(world.signed(mechanism=large))
    assert caught.value.reason == "memory"
    assert "of 1 GB" in str(caught.value)
    assert "for 200 persons" in str(caught.value)
    assert site.ledger().seq == before
    assert call_document(site.paths, "Requests")["requests"] == []


def test_a_hopeless_answer_is_refused_before_anything_is_reserved(world):
    """n = 200 at ε = .3: the interval would be many times the real one, whatever the rows are."""
    site = world.site()
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace('["maf"]', '["maf", "gibbs"]'))
    site.start()
    question = (Estimand("e", "ols", "score", "sbp", adjust=("age", "sex")),)
    asked_for = {"mechanism": Gibbs(), "estimands": question}
    before = site.ledger().seq
    with pytest.raises(Refused) as caught:
        site.submit(world.signed(**asked_for, privacy=PrivacyRequest(0.3, 1e-5)))
    assert caught.value.reason == "hopeless"
    assert "ask for an ε of at least" in str(caught.value)
    assert site.ledger().seq == before
    site.submit(world.signed(**asked_for, privacy=PrivacyRequest(2.0, 1e-5)))
