"""A site's part in sums of all sites: one sound manifest, and every way to depart from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.concluded import Concluded, add_up_answers

from penstock.base.errors import UploadRejected
from penstock.privacy.events import DistributedGaussian, to_dict
from penstock.wire.manifest import Manifest, ManifestPart
from penstock_server.intake.uploads import check_manifest, read_upload, size_limit


@pytest.fixture(scope="module")
def made() -> Concluded:
    return add_up_answers()


def check(made: Concluded, enrolled: int | None = None, **changes: Any) -> Manifest:
    site = made.enrolled("north")
    if enrolled is not None:
        site = replace(site, persons=enrolled)
    return check_manifest(
        made.sign("north", **changes),
        made.study,
        made.signed.study_id,
        site,
        ledger_seen={},
        simulation=False,
    )


def test_a_sound_part_is_taken(made: Concluded, tmp_path: Path) -> None:
    manifest = check(made)
    assert size_limit(made.study, 450) == 0
    path = tmp_path / "north.arrow"
    path.write_bytes(b"")
    assert read_upload("north", manifest, path, made.study).parts == {}
    # What it has enrolled since changes nothing: sums were divided by what is signed.
    assert check(made, enrolled=460) == manifest


def events(made: Concluded, **changes: Any) -> tuple[dict[str, Any], ...]:
    """The plan's events, the first of them another one."""
    first, *rest = made.plan.events
    assert isinstance(first, DistributedGaussian)
    told = [to_dict(event) for event in (replace(first, **changes), *rest)]
    return tuple(json.loads(json.dumps(told)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": 1}, "rows"),
        ({"table_bytes": 7}, "bytes"),
        ({"table_sha256": "0" * 64}, "SHA-256"),
        ({"parts": (ManifestPart("answer", 0, 0),)}, "parts"),
        ({"persons": 449}, "public n"),
        ({"wire": "1.1"}, "wire"),
        ({"epsilon_autodp": 1.0}, "claimed ε"),
        ({"epsilon_pld": None}, "claimed ε"),
        ({"epsilon_replace_one": 3.0}, "claimed ε"),
        ({"guarantee": "empirical"}, "guarantee"),
        ({"insecure_seed": True}, "test seed"),
        ({"events": ()}, "events"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_any_other_is_refused(made: Concluded, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UploadRejected, match=says):
        check(made, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 1e6},
        {"colluders": 0},
        {"dropouts": 0},
        {"sites": 5},
        {"count": 2},
        {"label": "other"},
    ],
    ids=lambda value: next(iter(value)),
)
def test_events_are_those_of_the_plan(made: Concluded, changes: dict[str, Any]) -> None:
    """Also ones that cost less than was asked."""
    with pytest.raises(UploadRejected, match="study's plan"):
        check(made, events=events(made, **changes))


def test_a_part_too_few_or_too_many_is_seen(made: Concluded) -> None:
    told = events(made)
    assert check(made, events=told).events == told
    for other in (told[1:], (*told, told[0])):
        with pytest.raises(UploadRejected, match="study's plan"):
            check(made, events=other)


def test_a_table_beside_it_is_refused(made: Concluded, tmp_path: Path) -> None:
    path = tmp_path / "north.arrow"
    path.write_bytes(b"x")
    with pytest.raises(UploadRejected, match="not the one"):
        read_upload("north", made.describe("north"), path, made.study)
