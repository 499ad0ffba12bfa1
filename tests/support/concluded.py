"""A study of one release of all sites whose sums are there: signed manifests, a coordinator's
store, and what results are made of, without gates and rounds around them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support.federated import ask_sites, encode_site

from penstock.aggregation.exchanges import read_sum, write_sum
from penstock.base.documents import Json
from penstock.mechanisms import MECHANISMS, Gibbs, Scoring, Structured
from penstock.mechanisms.joint.plan import JointPlan
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import RELATION, to_dict
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.study.scope import GLOBAL, LEAST_WIRE, Scope
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, sign_manifest
from penstock.wire.messages import SiteState, StudyState
from penstock.wire.signatures import public_hex
from penstock.wire.signed import SignedStudy, sign_study
from penstock_server.intake.summand import NOTHING
from penstock_server.results.material import Material
from penstock_server.results.production import build_results
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder, table_path
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.round_sums import RoundSum
from penstock_server.store.sites import Site
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator

NAMES = ("east", "north", "south", "west")
PERSONS = (300, 450, 250, 600)
SCHEMA = Schema(
    (
        Column("t", "duration", upper=10, decimals=1, unit="years", event="d", label="follow-up"),
        Column("d", "event", label="death"),
        Column("a", "continuous", lower=-4, upper=4, decimals=2, label="score"),
        Column("g", "categorical", levels=("u", "v", "w"), nullable=True),
        Column("y", "binary"),
    )
)
ESTIMANDS = (
    Estimand("hazard", "cox", "t", "a", adjust=("g",)),
    Estimand("odds", "logistic", "y", "a"),
    Estimand("level", "mean", "a"),
    Estimand("ill", "count", "y", outcome_level="1"),
)
TRUTH = {"hazard": 0.5, "odds": 0.8}


def draw_rows(count: int, rng: np.random.Generator) -> Coded:
    """Rows whose hazard goes with a by 0.5, and whose odds of y by 0.8."""
    a = np.clip(rng.standard_normal(count), -4, 4).round(2)
    time = rng.exponential(6 * np.exp(-0.5 * a))
    return {
        "t": np.minimum(time, 10).round(1),
        "d": (time < 10).astype(float),
        "a": a,
        "g": np.where(rng.random(count) < 0.1, np.nan, rng.integers(0, 3, count)),
        "y": (rng.random(count) < 1 / (1 + np.exp(-0.8 * a))).astype(float),
    }


def make_key(name: str) -> Ed25519PrivateKey:
    """The same at every run, since the study's id, and all that is drawn, follow from keys."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


@dataclass
class Concluded:
    """A joint study and its sites.

    Args:
        changes: of the study.
        lost: of a site the rounds, from 1, in which its part did not come; its state is lost then.
        seed: of rows and of noise.
    """

    settings: Any
    changes: Mapping[str, Any] = field(default_factory=dict)
    lost: Mapping[str, Collection[int]] = field(default_factory=dict)
    seed: int = 4
    keys: dict[str, Ed25519PrivateKey] = field(
        default_factory=lambda: {name: make_key(name) for name in NAMES}
    )
    analyst: Ed25519PrivateKey = field(default_factory=lambda: make_key("analyst"))

    @cached_property
    def signed(self) -> SignedStudy:
        scope = Scope(
            GLOBAL,
            dropouts=1,
            colluders=1,
            persons=tuple(zip(NAMES, PERSONS, strict=True)),
            keys=tuple((name, public_hex(key)) for name, key in self.keys.items()),
        )
        values: dict[str, Any] = {
            "name": "together",
            "title": "One release of four sites",
            "federation": "net",
            "sites": NAMES,
            "schema": SCHEMA,
            "estimands": ESTIMANDS,
            "privacy": PrivacyRequest(8.0, 1e-5),
            "mechanism": self.settings,
            "quorum": 3,
            "deadline_hours": 48.0,
            "not_before": "2026-11-01T00:00:00Z",
            "expires": "2099-12-01T00:00:00Z",
            "wire": LEAST_WIRE,
            "aggregation": scope,
        }
        return sign_study(Study(**(values | dict(self.changes))), self.analyst)

    @property
    def study(self) -> Study:
        return self.signed.study

    @cached_property
    def plan(self) -> JointPlan:
        planned = plan_study(self.study, 1)
        assert isinstance(planned, JointPlan)
        return planned

    @cached_property
    def sites(self) -> list[tuple[Any, Any]]:
        """Each one's rows, as its worker has them."""
        rng, encoding = np.random.default_rng(self.seed), Encoding(self.plan.asked.schema)
        rows = [draw_rows(count, rng) for count in PERSONS]
        return [encode_site(self.plan, encoding, i, each) for i, each in enumerate(rows)]

    @cached_property
    def sums(self) -> tuple[RoundSum, ...]:
        """All rounds. Those that lack a site are scaled up by public frames, in whole numbers."""
        noise, found = SeededNoise(self.seed + 1), list[RoundSum]()
        mechanism, encoding = MECHANISMS.of(self.settings), Encoding(self.plan.asked.schema)
        for number in range(1, self.plan.rounds + 1):
            there = [i for i, name in enumerate(NAMES) if number not in self.lost.get(name, ())]
            told = [read_sum(each.data) for each in found]
            asked = [self.sites[i] for i in there]
            parts = ask_sites(mechanism, self.plan, encoding, asked, told, noise)
            noisy = [part.add_noise(len(NAMES), noise) for part in parts]
            total = [sum(each) for each in zip(*noisy, strict=True)]
            here = sum(PERSONS[i] for i in there)
            total = [value * sum(PERSONS) // here for value in total]
            found.append(RoundSum(tuple(NAMES[i] for i in there), write_sum(total)))
        return tuple(found)

    def describe(self, name: str, **changes: Any) -> Manifest:
        """What a site says of its part at the end."""
        study, events, delta = self.study, self.plan.events, self.study.privacy.delta
        values: dict[str, Any] = {
            "wire": LEAST_WIRE,
            "study_id": self.signed.study_id,
            "site": name,
            "request_id": "r" * 64,
            "release": study.release,
            "lineage": "main",
            "version": 1,
            "persons": PERSONS[NAMES.index(name)],
            "rows": 0,
            "copies": study.mechanism.copies,
            "refits": study.mechanism.refits,
            "guarantee": "formal",
            "mechanism": study.mechanism.name,
            "events": tuple(json.loads(json.dumps(to_dict(event))) for event in events),
            "relation": RELATION,
            "delta": delta,
            "epsilon_autodp": epsilon(events, delta),
            "epsilon_pld": epsilon_pld(events, delta),
            "epsilon_replace_one": epsilon_pld(events, delta, relation="replace-one"),
            "injection_epsilon": None,
            "table_sha256": NOTHING,
            "table_bytes": 0,
            "ledger_seq": 3,
            "ledger_head": hashlib.sha256(name.encode()).hexdigest(),
            "released_at": "2026-11-21T08:00:00Z",
            "insecure_seed": False,
            "software": {},
            "gate_key": public_hex(self.keys[name]),
        }
        return Manifest(**(values | changes))

    def sign(self, name: str, **changes: Any) -> bytes:
        return sign_manifest(self.describe(name, **changes), self.keys[name])

    def enrolled(self, name: str) -> Site:
        """A site as the store has it."""
        key, persons = public_hex(self.keys[name]), PERSONS[NAMES.index(name)]
        return Site(name, "net", key, persons, {})

    def material(self, uploads: Path, **changes: Any) -> Material:
        """What results are made of, the sites' empty tables among it."""
        uploads.mkdir(parents=True, exist_ok=True)
        parts = []
        for name in NAMES:
            lost = name in self.lost
            if not lost:
                table_path(uploads, name).write_bytes(b"")
            state = SiteState.TIMED_OUT if lost else SiteState.DELIVERED
            manifest = None if lost else self.sign(name)
            code = "deadline" if lost else ""
            parts.append(
                SiteRow(self.signed.study_id, name, state, code, "", "r" * 64, 1, 1, manifest)
            )
        made = Material(
            study_id=self.signed.study_id,
            signed=self.signed,
            created="2026-11-20T08:00:00Z",
            finished="2026-11-21T10:12:00Z",
            parts=tuple(parts),
            keys={name: public_hex(key) for name, key in self.keys.items()},
            uploads=uploads,
            truth=TRUTH,
            sums=self.sums,
        )
        return replace(made, **changes)

    def build(self, folder: Path) -> Json:
        """The report, its files in a folder; what it is made of has been to another process."""
        folder.mkdir(parents=True, exist_ok=True)
        material = Material.from_bytes(self.material(folder.parent / "uploads").to_bytes())
        return build_results(material, folder)

    def finish(self, root: Path) -> Coordinator:
        """A coordinator whose store says that the study has its results."""
        folder, clock = Folder(root), "2026-11-20T08:00:00Z"
        folder.make()
        store = Store.create(sqlite_url(root))
        for name in NAMES:
            enrolled = self.enrolled(name)
            store.sites.add(
                {
                    "site": name,
                    "federation": "net",
                    "gate_key": enrolled.gate_key,
                    "persons": enrolled.persons,
                    "dictionary": self.study.schema.to_dict(),
                    "node_key": f"ecdsa-sha2-nistp384 {name}",
                },
                clock,
            )
        study_id, study = self.signed.study_id, self.study
        # As after submission, rounds and pooling, none of which are looked at here.
        row = StudyRow(
            study_id, study.name, self.signed.data, StudyState.OPEN, clock, "2099-01-01", "", ""
        )
        store.studies.add(row, study.sites)
        self.build(folder.results(study_id))
        with store.begin() as c:
            store.studies.end(c, study_id, StudyState.FINISHED, "2026-11-21T10:12:00Z")
        return Coordinator(store, folder)


@cache
def add_up_answers() -> Concluded:
    """Four sites' answers, without a regression of a hazard."""
    return Concluded(Scoring(), {"estimands": ESTIMANDS[1:]})


@cache
def add_up_tables() -> Concluded:
    """Their tables, in half of whose sums a site is not, and a person may be at two sites."""
    settings = Structured(copies=2, refits=4, planted=0)
    rounds = Concluded(settings).plan.rounds
    lost = {"south": range(rounds // 2 + 1, rounds + 1)}
    return Concluded(settings, {"max_sites_per_person": 2}, lost)


@cache
def add_up_chain() -> Concluded:
    """One hazard ratio of four sites, of whose 19 rounds a site is not in the last five."""
    return Concluded(Gibbs(), {"estimands": ESTIMANDS[:1]}, {"west": range(15, 20)})
