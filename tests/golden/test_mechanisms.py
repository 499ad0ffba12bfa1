"""Every mechanism leaves behind what is recorded of it, and a changed one does not.

How to record anew, and when: :mod:`tests.golden.mechanisms`.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.golden.mechanisms import (
    DRIFT,
    PERSONS,
    ROUNDING,
    SEED,
    STUDIES,
    carried_out,
    differences,
    read_release,
    record,
    recorded,
    table_record,
)

from penstock.mechanisms.plans import plan
from penstock.privacy.events import to_dict
from penstock.schema import Schema
from penstock.study.study import Study
from penstock_client.rows import snapshot
from penstock_client.site.site_paths import SitePaths
from penstock_client.work import worker
from penstock_client.work.spec import Spec

each = pytest.mark.parametrize("name", STUDIES)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What each study left behind now; and the rows of each site."""
    folder = tmp_path_factory.mktemp("out")
    with carried_out() as ran:
        found = {name: record(one, folder / name) for name, one in ran.items()}
        rows = {name: rows_of(one.site.paths) for name, one in ran.items()}
    return found, rows


def rows_of(paths: SitePaths) -> bytes:
    return snapshot.locate_rows(paths.snapshots, "main", 1).read_bytes()


def changed(name: str, rows: bytes, *, seed: int = SEED, **change: Any) -> dict[str, Any]:
    """The upload of a worker that was asked something else, or has another seed."""
    study = Study.from_dict(recorded(name)["study"])
    study = replace(study, **{k: v for k, v in change.items() if k == "privacy"})
    steps = {k: v for k, v in change.items() if k != "privacy"}
    study = replace(study, mechanism=replace(study.mechanism, **steps))
    planned = plan(study.mechanism, study.schema, PERSONS, study.privacy, study.estimands)
    spec = Spec(
        study=study.to_dict(),
        dictionary=Schema.to_dict(study.schema),
        events=[to_dict(e) for e in planned.events],
        public=None,
        persons=PERSONS,
        device="cpu",
        threads=1,
        memory_gb=8.0,
        insecure_seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        worker.produce(spec, rows, lambda step, of: None, Path(folder) / "release")
        table = read_release(Path(folder) / "release", study)
    return json.loads(json.dumps({"upload": table_record(table, study)}))


@each
@pytest.mark.parametrize(
    "part",
    ["study", "upload", "manifest", "ledger", "decisions", "report", "dictionary", "exports"],
)
def test_a_study_leaves_behind_what_is_recorded(kept, name, part):
    found, known = kept[0][name], recorded(name)
    assert list(found) == list(known)
    assert differences({part: found[part]}, {part: known[part]}) == []


# -- a comparison that could not fail would show nothing ---------------------------------------


PLANTED = [
    *((name, "seed") for name in STUDIES),
    # A plan of ``resampled`` takes seconds, and ``gibbs`` without a chain has no steps.
    *((name, "step") for name in ("maf", "sketch", "trajectory", "chain")),
    *((name, "sigma") for name in STUDIES if name != "resampled"),
]


@pytest.mark.parametrize("name", ["maf", "trajectory", "chain"])
def test_the_same_worker_has_the_recorded_upload(kept, name):
    """So that in what follows, it is the change that is seen."""
    found = changed(name, kept[1][name])
    assert differences(found, {"upload": recorded(name)["upload"]}) == []


@pytest.mark.parametrize(("name", "change"), PLANTED)
def test_a_changed_release_is_seen_in_its_numbers_alone(kept, name, change):
    study, rows = Study.from_dict(recorded(name)["study"]), kept[1][name]
    if change == "seed":
        found = changed(name, rows, seed=SEED + 1)
    elif change == "sigma":
        found = changed(name, rows, privacy=replace(study.privacy, epsilon=2.9))
    else:
        found = changed(name, rows, steps=study.mechanism.steps + 1)
    seen = differences(found, {"upload": recorded(name)["upload"]})
    assert len([d for d in seen if d.startswith(("upload.values", "upload.answer"))]) >= 3, seen


@each
def test_a_changed_price_name_or_order_is_seen(name):
    known = recorded(name)
    (*_, event) = known["manifest"]["events"]
    where = (
        "noise_multiplier"
        if "noise_multiplier" in event
        else next(k for k, v in event.items() if isinstance(v, float))
    )
    for change in (
        lambda r: r["manifest"]["events"][-1].update({where: event[where] * (1 + 10 * ROUNDING)}),
        lambda r: r["manifest"]["events"][0].update(label="another"),
        lambda r: r["ledger"].pop(),
        lambda r: r["ledger"][0].update(kind="begin"),
        lambda r: r["upload"]["columns"].reverse(),
        lambda r: r["upload"]["copies"].update({"1": 1}),
        lambda r: r["report"]["estimands"][0].update(k=9),
        lambda r: r["report"]["estimands"][0].update(sentence="Another."),
        lambda r: r["report"].pop("limits"),
        lambda r: r["dictionary"].update(more=1),
        lambda r: r["exports"].pop("dictionary.json"),
        lambda r: r["study"].update(title="Another"),
    ):
        other = recorded(name)
        change(other)
        assert differences(other, known) != []


def test_as_many_values_as_rounding_moves_are_not_seen_and_more_are():
    known, other = recorded("maf"), recorded("maf")
    other["upload"]["values"]["copies"]["sbp"]["above"] += DRIFT["upload.values"]
    assert differences(other, known) == []
    other["upload"]["values"]["copies"]["sbp"]["above"] += 1
    assert len(differences(other, known)) == 1
