"""What was found of a release, as bytes: the same when it is read, and nothing but that is read."""

from __future__ import annotations

import math
import stat
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.support import made

from penstock.inference.combine import SiteEstimate
from penstock.inference.refits import Measured
from penstock.mechanisms import Gibbs, Scoring, Structured
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock_server.analysis.attendees import Attendees
from penstock_server.analysis.changes import SiteChanges
from penstock_server.analysis.site_effects import SiteEffect, SiteEffects
from penstock_server.analysis.transitions import SiteTransitions
from penstock_server.mechanisms.registry import kind_of
from penstock_server.results import site_findings
from penstock_server.results.site_findings import Findings, KeptFindings

DURATION = (
    Column("years", "duration", upper=10, decimals=1, event="died"),
    Column("died", "event"),
)
FOLLOWED = Schema((*made.SCHEMA.columns, *DURATION), person="patient", max_rows_per_person=2)
HAZARD = Estimand("hazard", "cox", "years", "smoker", adjust=("sbp",))
CROSSED = Estimand("crossed", "table", "smoker", "ward", level="b", outcome_level="yes")


def studies() -> dict[str, Study]:
    """One of each mechanism, and some that ask for more."""
    plain = {name: made.study(used) for name, used in made.MECHANISMS.items()}
    asked = {"schema": FOLLOWED, "estimands": (HAZARD, *made.ESTIMANDS)}
    return plain | {
        "planted": made.study(Structured(copies=2, refits=2, planted=4), **asked),
        "crossed": made.study(Scoring(), estimands=(made.QUESTION, CROSSED)),
    }


def own(of: Study) -> tuple[type, ...]:
    return kind_of(of).load_results().own_summaries


def look(of: Study, folder: Path) -> Findings:
    upload = made.read_parts(of, made.streams(of, made.parts(of)), folder)
    return Findings.of(kind_of(of).load_results(), upload, threads=2)


def same(one: object, other: object) -> bool:
    """To the bit and the type, but for numpy's own numbers."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one)]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple):
        alike = type(one) is type(other) and len(one) == len(other)  # type: ignore[arg-type]
        return alike and all(map(same, one, other))  # type: ignore[call-overload]
    if isinstance(one, float):
        return isinstance(other, float) and one.hex() == other.hex()
    return one == other and isinstance(other, type(one))


@pytest.mark.parametrize("name", studies())
def test_findings_of_every_mechanism_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    of = studies()[name]
    found = look(of, tmp_path)
    data = found.to_bytes(own(of))
    again = Findings.from_bytes(data, own(of))
    assert same(found, again)
    assert again.to_bytes(own(of)) == data


def test_every_class_that_has_a_form_is_found_somewhere(tmp_path: Path) -> None:
    """But those of persons over time, and of sites apart, which are read below."""
    seen = "".join(look(of, tmp_path).to_bytes(own(of)).decode() for of in studies().values())
    known = {one.__name__ for one in site_findings._CLASSES}
    absent = {name for name in known if f'"{name}":' not in seen}
    assert absent == {"Attendees", "SiteChanges", "SiteEffect", "SiteEffects", "SiteTransitions"}


def test_persons_over_time_and_sites_apart_come_back_as_they_were() -> None:
    one = Measured(SiteEstimate(0.1, 1e-300, math.inf, None, 12, None, 2, 2), 0, None)
    apart = SiteEffects({"a": (SiteEffect("north", 0.1, math.nan, -0.0),)}, {"a": 1})
    changes = SiteChanges("visit", [0.0, 2.0], {("sbp", "II"): [one, one]})
    transitions = SiteTransitions({"worse": {(0, 1): one, (1, 1): one}})
    found = Findings({"a": one}, (apart, changes, transitions, Attendees(7)))
    assert same(Findings.from_bytes(found.to_bytes()), found)


def test_what_has_no_form_is_refused() -> None:
    for strange in (object(), {1, 2}, 1j, np.array(["a"]), HAZARD):
        with pytest.raises(TypeError, match="no form"):
            Findings({}, (strange,)).to_bytes()


@pytest.mark.parametrize(
    "told",
    [
        "",
        "{",
        "7",
        "[]",
        "{}",
        '{"Findings":[]}',
        '{"Measured":[1,2,3]}',
        '{"Findings":[{"map":[]},{"tuple":[{"Estimand":[]}]}]}',
        '{"Findings":[{"map":[]},{"tuple":[{"array":["|O","[1]",""]}]}]}',
        '{"Findings":[{"map":[]},{"tuple":[{"array":["<f8",[3],"AAAA"]}]}]}',
        '{"Findings":[{"map":[[[],1]]},{"tuple":[]}]}',
        '{"Findings":[{"map":[]},{"tuple":[]}],"more":1}',
        "[" * 100_000,
    ],
)
def test_what_is_none_is_not_read(told: str) -> None:
    with pytest.raises(ValueError, match="no findings"):
        Findings.from_bytes(told.encode())


def test_findings_are_kept_by_what_they_were_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = look(made.study(Gibbs()), tmp_path).to_bytes()
    kept = KeptFindings(tmp_path / "kept" / "a", "a")
    assert kept.find(b"manifest") is None
    kept.keep(b"manifest", data)
    found = kept.find(b"manifest")
    assert found is not None
    assert found.to_bytes() == data
    assert kept.find(b"another") is None
    assert KeptFindings(tmp_path / "kept" / "a", "b").find(b"manifest") is None
    (path,) = (tmp_path / "kept" / "a").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(site_findings, "MEASURES", site_findings.MEASURES + 1)
    assert kept.find(b"manifest") is None


def test_a_damaged_entry_is_none(tmp_path: Path) -> None:
    kept = KeptFindings(tmp_path, "a")
    kept.keep(b"manifest", look(made.study(Gibbs()), tmp_path).to_bytes())
    (path,) = tmp_path.glob("*.json")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:70], whole.replace(b"0.", b"1.", 1), b"\xff" * 100):
        path.write_bytes(damaged)
        assert kept.find(b"manifest") is None
    path.unlink()
    path.mkdir()
    assert kept.find(b"manifest") is None


def test_where_nothing_is_kept_nothing_is_found() -> None:
    kept = KeptFindings(None, "a")
    kept.keep(b"manifest", b"data")
    assert kept.find(b"manifest") is None
