"""A worker's round: this site's numbers with its share of the noise, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federated import add_up, ask_sites
from tests.unit.shared.study.test_scope import SCHEMA, SITES, WHOLE, make

from penstock.aggregation.exchanges import read_sum
from penstock.base.errors import InvalidEvent
from penstock.mechanisms import MECHANISMS, Scoring, SlicedWasserstein, Structured
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import Contribution, conclude
from penstock.privacy.events import to_dict
from penstock.privacy.noise.sources import SeededNoise
from penstock.study.charges import plan_study
from penstock.wire.canonical import digest
from penstock_client.work.rehearsal import synthetic_rows
from penstock_client.work.spec import Spec
from penstock_client.work.worker import contribute_round, prepare, rehearse

PERSONS = dict(WHOLE.persons)


def make_specs(settings: Any) -> tuple[list[Spec], JointPlan]:
    study = make(mechanism=settings)
    planned = plan_study(study, 1)
    assert isinstance(planned, JointPlan)
    events: list[Any] = [to_dict(event) for event in planned.events]
    specs = [
        Spec(
            study=study.to_dict(),
            dictionary=SCHEMA.to_dict(),
            events=events,
            public=None,
            persons=PERSONS[site],
            device="cpu",
            threads=1,
            memory_gb=8.0,
            insecure_seed=10 + i,
            site=site,
            sums=[],
        )
        for i, site in enumerate(SITES)
    ]
    return specs, planned


def seed_of(spec: Spec) -> int:
    return int(digest({"study": spec.study, "site": spec.site}), 16)


@pytest.mark.parametrize(
    "settings",
    [
        Scoring(),
        Structured(copies=1, refits=0, planted=0),
        SlicedWasserstein(copies=1, refits=0, steps=4, bases=2, bins=16),
    ],
    ids=lambda s: s.name,
)
def test_rounds_of_workers_make_the_release_of_one_process(settings: Any, tmp_path: Path) -> None:
    """Number by number: each worker adds what its rows add, with noise of its own each round."""
    specs, plan = make_specs(settings)
    mechanism = MECHANISMS.of(settings)
    rows = [synthetic_rows(SCHEMA, PERSONS[s.site], 1, seed=i) for i, s in enumerate(specs)]
    tasks = [
        # Laid out as in every round: what is random in rows between a grid's points is the site's.
        prepare(spec, data, np.random.default_rng(seed_of(spec)))
        for spec, data in zip(specs, rows, strict=True)
    ]
    sums: list[list[int]] = []
    for round_ in range(plan.rounds):
        sent = []
        for spec, data in zip(specs, rows, strict=True):
            path = tmp_path / f"{spec.site}-{round_}"
            numbers = contribute_round(replace(spec, sums=sums), data, path)
            assert read_sum(path.read_bytes()) == numbers
            sent.append(numbers)
        apart = [(task.rows, task.present) for task in tasks]
        asked = ask_sites(mechanism, plan, tasks[0].encoding, apart, sums, SeededNoise(1))
        for spec, part, numbers in zip(specs, asked, sent, strict=True):
            noise: Any = SeededNoise(spec.insecure_seed or 0)
            for _ in range(round_):
                noise = noise.child()
            assert part.add_noise(len(SITES), noise) == numbers
        assert len(add_up(asked, SeededNoise(1))) == len(sent[0])
        sums.append([sum(each) for each in zip(*sent, strict=True)])
    assert list(conclude(mechanism, plan, tasks[0].encoding, sums, SeededNoise(2)))


def test_a_worker_that_adds_less_noise_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault's twin: a share of the variance as if there were more sites."""
    [spec, *_], plan = make_specs(Scoring())
    data = synthetic_rows(SCHEMA, spec.persons, 1)
    task = prepare(spec, data, np.random.default_rng(0))
    apart = [(task.rows, task.present)]
    [asked] = ask_sites(task.mechanism, plan, task.encoding, apart, [], SeededNoise(1))
    right = asked.add_noise(len(SITES), SeededNoise(10))
    assert contribute_round(spec, data, tmp_path / "vector") == right
    honest = Contribution.add_noise
    monkeypatch.setattr(
        Contribution, "add_noise", lambda self, sites, noise: honest(self, 4 * sites, noise)
    )
    assert contribute_round(spec, data, tmp_path / "vector") != right


def test_a_round_is_of_the_plan_that_was_charged(tmp_path: Path) -> None:
    [spec, *_], _ = make_specs(Scoring())
    data = synthetic_rows(SCHEMA, spec.persons, 1)
    cheaper = [{**event, "noise_multiplier": 9.0} for event in spec.events]
    with pytest.raises(InvalidEvent, match="not the one that was charged"):
        contribute_round(replace(spec, events=cheaper), data, tmp_path / "vector")
    assert not (tmp_path / "vector").exists()


def test_a_rehearsal_runs_every_round(tmp_path: Path) -> None:
    [spec, *_], plan = make_specs(Scoring())
    found = rehearse(spec, tmp_path)
    assert found.first > 0
    assert plan.rounds > 3
