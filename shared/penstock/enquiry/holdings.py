"""The files of a study that an analyst has pulled, read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.inference.combine import SiteEstimate
from penstock.inference.floored import estimate_floored
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.mechanisms.protocol import Following
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import EACH, Refitting
from penstock.questions.estimands import Estimand
from penstock.questions.persons import Courses
from penstock.schema import Coded, from_arrow
from penstock.study.study import Study

SITE, COPY, REFIT, PERSON, WEIGHT = "_site", "_copy", "_refit", "_person", "_weight"

MOST_NAMED = 3
"""Lost sites that are told by their names."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One site's tables, in order, and how the refits were made of the copies."""

    copies: tuple[Coded, ...]
    refits: tuple[Coded, ...]
    made: Refitting = EACH


@dataclass(frozen=True, slots=True)
class Holdings:
    """What was pulled of a study: its sites' tables, and its report."""

    study: Study
    report: Json
    sites: Mapping[str, Holding]
    _known: dict[Estimand, dict[str, Measured]] = field(default_factory=dict)

    @property
    def read_courses(self) -> Callable[[Coded], Courses] | None:
        """Whose a table's rows are and when, of a study that follows persons."""
        mechanism = self.study.mechanism
        if not isinstance(mechanism, Following):
            return None
        return partial(mechanism.read_courses, self.study.schema)

    def measure(self, asked: Estimand) -> dict[str, SiteEstimate]:
        """An estimand at every site, with the mechanism's variance as refits show it.

        The study's own estimands are looked at, too: what their refits show of the noise says how
        far one site's are to be drawn to the others' (:func:`penstock.inference.refits.shrunk`).
        So one of them has the report's own number, and a question the same one whatever else is
        asked.
        """
        found = {own.name: self.look(own) for own in self.study.estimands}
        if asked not in self.study.estimands:
            found[asked.name] = self.look(asked)
        by_site = {
            site: {name: of_sites[site] for name, of_sites in found.items()} for site in self.sites
        }
        return {site: each[asked.name] for site, each in widen_sites(by_site).items()}

    def look(self, asked: Estimand) -> dict[str, Measured]:
        """An estimand at every site, and what its refits show by themselves."""
        if asked not in self._known:
            self._known[asked] = self._fit(asked)
        return self._known[asked]

    def _fit(self, asked: Estimand) -> dict[str, Measured]:
        found = {}
        one = partial(estimate_floored, self.study.schema, asked, read_courses=self.read_courses)
        for site, own in self.sites.items():
            fitted, again = [one(t) for t in own.copies], [one(t) for t in own.refits]
            found[site] = Measured.of(
                fitted,
                again,
                made=own.made,
                total=asked.regression.total,
            )
        return found


def read_holdings(folder: Path) -> Holdings:
    """What ``penstock pull STUDY --refits`` wrote.

    Raises:
        InvalidInput: a file is missing, or the study's release cannot be asked.
    """
    told = _read_json(folder / "study.json")
    study, report = Study.from_dict(told["study"]), _read_json(folder / "report.json")
    _require_tables(study, folder)
    _require_all_sites(report, folder)
    copies = _read_tables(folder / "pooled.parquet", study, COPY)
    shares = _read_shares(folder / "pooled.parquet")
    refits: dict[str, list[tuple[int, Coded]]] = {}
    if study.mechanism.refits:
        refits = _read_tables(folder / "refits.parquet", study, REFIT)
    sites, mechanism = {}, MECHANISMS.of(study.mechanism)
    per_fit, fresh = mechanism.count_per_fit(study.mechanism), float(told["fresh"])
    for site, tables in copies.items():
        if len(tables) != study.mechanism.copies:
            value, bound = str(len(tables)), f"{study.mechanism.copies} copies of each site"
            raise _unfit(folder, "pooled.parquet", "has one copy only", value, bound)
        again = refits.get(site, [])
        sites[site] = Holding(
            tuple(table for _, table in tables),
            tuple(table for _, table in again),
            Refitting(all(copy > 0 for copy, _ in again), per_fit, fresh, shares.get(site, 1.0)),
        )
    return Holdings(study, report, sites)


def _require_tables(study: Study, folder: Path) -> None:
    mechanism = MECHANISMS.of(study.mechanism)
    if mechanism.answers:
        remedy = "Its report has them; tables come from another mechanism"
        raise _unfit(
            folder,
            "study",
            f"{study.mechanism.name} answers its own questions alone",
            study.name,
            "a study whose sites release tables",
            remedy,
        )


def _require_all_sites(report: Json, folder: Path) -> None:
    """Of sites that were lost on the way answers say less: by how much, the report alone knows."""
    parts = [] if report.get("joint") is None else report["joint"]["parts"]
    lost = [part["site"] for part in parts if part["missed"]]
    if lost:
        raise _unfit(
            folder,
            "study",
            "is of one release that sites were lost from, which is not analysed here",
            ", ".join(lost[:MOST_NAMED]),
            "a release of all its sites",
            "Its report has what the study asked",
        )


def _read_tables(path: Path, study: Study, number: str) -> dict[str, list[tuple[int, Coded]]]:
    """By site, each table in the order of its number, with the copy that it is, or was made of."""
    if not path.exists():
        raise _missing(path, "copies and refits of a study")
    table = pq.read_table(path)
    own = table.select(study.schema.names)
    found: dict[str, list[tuple[int, Coded]]] = {}
    apart = SITE in table.column_names
    for site in pc.unique(table.column(SITE)).to_pylist() if apart else [ALL_SITES]:
        mine = pc.equal(table.column(SITE), site) if apart else pa.array([True] * len(table))
        rows, labels = own.filter(mine), table.filter(mine)
        found[site] = []
        for each in sorted(pc.unique(labels.column(number)).to_pylist()):
            chosen = pc.equal(labels.column(number), each)
            copy = pc.filter(labels.column(COPY), chosen)[0].as_py()
            part: pa.Table = rows.filter(chosen).combine_chunks()
            found[site].append((copy, from_arrow(part, study.schema)))
    return found


def _read_shares(path: Path) -> dict[str, float]:
    """Of as many rows as each site has, the share that its tables have; none, where all have
    all."""
    apart = SITE in (names := pq.read_schema(path).names)
    if WEIGHT not in names:
        return {}
    told = pq.read_table(path, columns=[SITE, WEIGHT] if apart else [WEIGHT])
    found = told.group_by([SITE] if apart else []).aggregate([(WEIGHT, "min")]).to_pylist()
    return {each.get(SITE, ALL_SITES): 1 / each[f"{WEIGHT}_min"] for each in found}


def _read_json(path: Path) -> Json:
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _missing(path, "a pulled study") from None
    return found


def _missing(path: Path, bound: str) -> InvalidInput:
    """Of a file that a pulled folder has."""
    held = sorted(one.name for one in path.parent.glob("*")) if path.parent.is_dir() else []
    value = f"a folder with {', '.join(held[:MOST_NAMED]) or 'nothing'}"
    return _unfit(path.parent, path.name, "is missing", value, bound)


def _unfit(
    folder: Path,
    where: str,
    what: str,
    value: str,
    bound: str,
    remedy: str = "penstock pull STUDY --refits --out FOLDER",
) -> InvalidInput:
    return InvalidInput(
        str(folder), [Problem(where, what, value=value, bound=bound, remedy=remedy)]
    )
