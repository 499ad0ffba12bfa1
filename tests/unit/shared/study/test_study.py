"""Studies refuse what is wrong, round trip, and have one byte string."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import InvalidInput
from penstock.base.times import parse_time
from penstock.mechanisms import Maf, Structured
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock.wire.canonical import canonical
from penstock.wire.signed import read_signed_study

SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100),
        Column("sbp", "continuous", 70, 250, 0),
        Column("sex", "binary"),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("time", "duration", upper=25, event="cvd"),
        Column("cvd", "event"),
        Column("months", "duration", upper=300, event="death"),
        Column("death", "event"),
    )
)
HR = Estimand("hr", "cox", "time", "sbp", 10, ("age", "sex"))
STUDY = Study(
    name="bp-cvd",
    title="Blutdruck & Überleben",
    federation="main",
    sites=("alpha", "beta", "gamma"),
    schema=SCHEMA,
    estimands=(HR, Estimand("ward", "ols", "sbp", "ward", level="b")),
    privacy=PrivacyRequest(1, 1e-5),
    mechanism=Maf(),
    quorum=2,
    deadline_hours=24,
    not_before="2026-11-21T00:00:00Z",
    expires="2026-12-21T00:00:00Z",
)


def signed_bytes(study: Study) -> bytes:
    """What a signature covers."""
    return canonical(study.to_dict())


def refused(make: Any, *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        make(*args, **kwargs)
    return [p.where for p in caught.value.problems]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a b"),
        ("name", "../etc"),
        ("title", ""),
        ("title", "a\x1b[2J"),
        ("title", "\ud800"),
        ("federation", ""),
        ("sites", ()),
        ("sites", ("Alpha", "b", "c")),
        ("sites", ("a", "a", "b")),
        ("sites", ["a", "b", "c"]),
        ("sites", "abc"),
        ("readers", ("a b",)),
        ("readers", ("bob", "bob")),
        ("readers", "bob"),
        ("readers", ["bob"]),
        ("readers", None),
        ("readers", tuple(f"r{i}" for i in range(101))),
        ("quorum", 0),
        ("quorum", 4),
        ("quorum", 2.0),
        ("quorum", True),
        ("deadline_hours", 0),
        ("deadline_hours", math.nan),
        ("deadline_hours", math.inf),
        ("not_before", "2026-11-21"),
        ("not_before", "2026-11-21T00:00:00+00:00"),
        ("not_before", "2026-13-21T00:00:00Z"),
        ("not_before", None),
        ("expires", "2026-11-21T00:00:00Z"),
        ("expires", "2026-11-20T00:00:00Z"),
        ("release", 0),
        ("max_sites_per_person", 0),
        ("max_sites_per_person", 1.5),
        ("wire", "1"),
        ("wire", "01.0"),
        ("wire", 1.0),
    ],
)
def test_a_field_out_of_bounds_is_refused(field: str, value: Any) -> None:
    assert set(refused(replace, STUDY, **{field: value})) == {field}


@pytest.mark.parametrize("field", ["schema", "estimands", "privacy", "mechanism"])
def test_parts_of_the_wrong_type_are_refused(field: str) -> None:
    assert refused(replace, STUDY, **{field: {}}) == [""]


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"epsilon": math.nan, "guarantee": "empirical"}, "epsilon"),
        ({"epsilon": -1, "guarantee": "empirical"}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": 9e-13}, "delta"),
        ({"delta": 1}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"guarantee": "none"}, "guarantee"),
    ],
)
def test_privacy_out_of_bounds_is_refused(kwargs: dict[str, Any], where: str) -> None:
    assert refused(PrivacyRequest, **({"epsilon": 1.0, "delta": 1e-5} | kwargs)) == [where]


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"copies": 0}, "copies"),
        ({"copies": 101}, "copies"),
        ({"w": 1}, "w"),
        ({"w": -0.1}, "w"),
        ({"w": math.nan}, "w"),
        ({"latent_clip": 0}, "latent_clip"),
        ({"steps": 0}, "steps"),
        ({"steps": 10_001}, "steps"),
        ({"sampling": "fixed"}, "sampling"),
        ({"rate": 0, "sampling": "poisson"}, "rate"),
        ({"rate": 1.1, "sampling": "poisson"}, "rate"),
        ({"rate": 0.5}, "rate"),
        ({"flows": 0}, "flows"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": [32]}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
    ],
)
def test_mechanism_out_of_bounds_is_refused(kwargs: dict[str, Any], where: str) -> None:
    assert refused(Maf, **kwargs) == [where]


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"copies": 0}, "copies"),
        ({"refits": True}, "refits"),
        ({"planted": 49}, "planted"),
        ({"effects": 1}, "effects"),
        ({"effects": "sbp ~ age"}, "effects"),
        ({"effects": (1,)}, "effects"),
        ({"effects": (["sbp ~ age"],)}, "effects"),
        ({"effects": ("sbp + age",)}, "effects"),
        ({"effects": ("sbp ~ age", "sbp ~ age")}, "effects"),
        ({"effects": ("sbp ~ age",), "planted": 0}, "effects"),
    ],
)
def test_settings_of_structured_out_of_bounds_are_refused(
    kwargs: dict[str, Any], where: str
) -> None:
    assert refused(Structured, **kwargs) == [where]


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"name": ""}, "name"),
        ({"model": "probit"}, "model"),
        ({"per": 0}, "per"),
        ({"per": math.nan}, "per"),
        ({"adjust": ["age"]}, "adjust"),
        ({"adjust": ("age", "age")}, "adjust"),
        ({"level": 3}, "level"),
    ],
)
def test_estimand_out_of_bounds_is_refused(kwargs: dict[str, Any], where: str) -> None:
    assert set(refused(replace, HR, **kwargs)) == {where}


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"outcome": "tim"}, "outcome"),
        ({"outcome": "cvd"}, "outcome"),
        ({"model": "ols"}, "outcome"),
        ({"model": "logistic", "outcome": "ward"}, "outcome"),
        ({"term": "bp"}, "term"),
        ({"term": "cvd"}, "term"),
        ({"term": "months"}, "term"),
        ({"term": "age"}, "adjust"),
        ({"term": "ward", "per": 1}, "level"),
        ({"term": "ward", "per": 1, "level": "a"}, "level"),
        ({"term": "ward", "per": 1, "level": "z"}, "level"),
        ({"term": "ward", "level": "b"}, "per"),
        ({"level": "b"}, "level"),
        ({"adjust": ("death",)}, "adjust"),
        ({"adjust": ("weight",)}, "adjust"),
        ({"model": "ols", "outcome": "sbp"}, "term"),
    ],
)
def test_estimand_must_suit_the_columns(kwargs: dict[str, Any], where: str) -> None:
    estimands = (replace(HR, **kwargs),)
    assert refused(replace, STUDY, estimands=estimands) == [f"estimands[1].{where}"]


def test_estimands_have_distinct_names() -> None:
    assert refused(replace, STUDY, estimands=(HR, HR)) == ["estimands"]


def test_codes_for_missing_stay_at_the_site() -> None:
    schema = Schema((Column("age", "continuous", 18, 100, missing=("-9",)),))
    wheres = refused(replace, STUDY, schema=schema, estimands=())
    assert wheres == ["schema.columns.age.missing"]


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_an_empirical_study_costs_everything(epsilon: float) -> None:
    privacy = PrivacyRequest(epsilon, 1e-5, "empirical")
    assert privacy.epsilon == math.inf
    study = replace(STUDY, privacy=privacy)
    assert study.to_dict()["privacy"]["epsilon"] is None
    assert Study.from_dict(json.loads(signed_bytes(study))) == study


def test_json_round_trip() -> None:
    assert Study.from_dict(json.loads(signed_bytes(STUDY))) == STUDY


def test_whole_numbers_and_floats_are_one_study() -> None:
    data = STUDY.to_dict()
    data["privacy"]["epsilon"], data["deadline_hours"] = 1, 24
    data["schema"]["columns"][0]["lower"] = 18
    data["mechanism"]["w"] = -0.0
    assert signed_bytes(Study.from_dict(data)) == signed_bytes(STUDY)


def test_a_study_without_readers_keeps_its_bytes_its_id_and_its_signature() -> None:
    """What was signed before a study could name readers stays the same study."""
    old = (Path(__file__).parents[3] / "golden" / "data" / "coordinator-2.sql").read_text()
    (body,) = set(re.findall(r"'submit',X'([0-9A-F]+)'", old))
    (study_id,) = set(re.findall(r'INSERT INTO "study" VALUES\(\'([0-9a-f]{64})\'', old))
    signed = read_signed_study(bytes.fromhex(body))
    assert signed.study.readers == ()
    assert signed.study_id == study_id
    assert signed.to_bytes() == bytes.fromhex(body)
    assert "readers" not in STUDY.to_dict()


def test_readers_are_part_of_what_is_signed() -> None:
    shared = replace(STUDY, readers=("bob", "carol"))
    assert shared.to_dict()["readers"] == ["bob", "carol"]
    assert Study.from_dict(json.loads(signed_bytes(shared))) == shared
    assert signed_bytes(shared) != signed_bytes(STUDY)
    assert Study.from_dict({**STUDY.to_dict(), "readers": []}) == STUDY


def test_canonical_bytes_do_not_depend_on_order() -> None:
    backwards = dict(reversed(STUDY.to_dict().items()))
    assert signed_bytes(Study.from_dict(backwards)) == signed_bytes(STUDY)


def test_any_change_changes_the_bytes() -> None:
    assert signed_bytes(replace(STUDY, release=2)) != signed_bytes(STUDY)


def put(data: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["nonce"], 1, "nonce"),
        (["privacy", "epsilonn"], 1, "privacy.epsilonn"),
        (["mechanism", "seed"], 1, "mechanism.seed"),
        (["schema", "rows"], 1, "schema.rows"),
        (["schema", "columns", 0, "min"], 1, "schema.columns.age.min"),
        (["estimands", 1, "weight"], 1, "estimands[2].weight"),
        (["schema"], None, "schema.columns"),
        (["schema", "columns"], {}, "schema.columns"),
        (["schema", "columns", 1], None, "schema.columns.[2]"),
        (["estimands"], {}, "estimands"),
        (["estimands", 0], 7, "estimands[1]"),
        (["privacy"], [], "privacy"),
        (["privacy", "epsilon"], 10**400, "privacy.epsilon"),
        (["privacy", "epsilon"], None, "privacy.epsilon"),
        (["mechanism", "hidden"], [[1]], "mechanism.hidden"),
        (["sites"], {"a": 1}, "sites"),
        (["sites", 0], ["alpha"], "sites"),
        pytest.param(["quorum"], 10**5000, "quorum", id="huge"),
        (["title"], "x" * 10**6, "title"),
    ],
)
def test_hostile_dicts_are_refused(path: list[Any], value: Any, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Study.from_dict(put(STUDY.to_dict(), path, value))
    assert where in {p.where for p in caught.value.problems}
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("data", [None, [], 3, "study"])
def test_other_values_are_refused(data: Any) -> None:
    assert refused(Study.from_dict, data) == [""]


@pytest.mark.parametrize("key", ["name", "sites", "schema", "privacy", "mechanism", "expires"])
def test_a_missing_key_is_named(key: str) -> None:
    data = STUDY.to_dict()
    del data[key]
    assert key in refused(Study.from_dict, data)


def test_all_problems_are_reported_together() -> None:
    data = STUDY.to_dict()
    data["quorum"] = 9
    data["privacy"]["delta"] = 0
    data["schema"]["columns"][2]["kind"] = "nominal"
    data["estimands"][0]["term"] = "bp"
    assert sorted(refused(Study.from_dict, data)) == [
        "estimands[1].term",
        "privacy.delta",
        "quorum",
        "schema.columns.sex.kind",
    ]


def test_time_is_read_as_utc() -> None:
    offset = parse_time("2026-11-21T01:02:03Z").utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0
