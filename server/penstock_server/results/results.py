"""From checked uploads to the report and the pooled data that an analyst pulls.

The report is made by a process of its own (:mod:`penstock_server.results.assembly`), from
:class:`penstock_server.results.material.Material` alone; what is pulled is made when somebody asks
for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from penstock.base.errors import CoordinatorError
from penstock.mechanisms import Gibbs, Maf, Trajectory
from penstock.mechanisms.released import PATH, refits_of_copies
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Schema, from_arrow
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import Copies, SiteState, StudyState, explain
from penstock.wire.signatures import fingerprint
from penstock_server.analysis.combine import SiteEstimate, combine
from penstock_server.analysis.estimands import Estimate, estimate
from penstock_server.analysis.floor import variance_floor
from penstock_server.analysis.marginals import Marginals, summarise
from penstock_server.analysis.refits import Measured, spread, widen_sites
from penstock_server.intake.uploads import Upload, read_upload
from penstock_server.report.build import build_report, completed
from penstock_server.report.html import render
from penstock_server.report.inputs import ReportInputs, SiteInput, SiteRelease
from penstock_server.results import export
from penstock_server.results.codebook import dictionary
from penstock_server.results.material import Material, gather
from penstock_server.store.folder import table_path
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.studies.coordinator import Coordinator

REPORT = "report.json"


def build(
    material: Material, folder: Path, pooled: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Estimate, pool, and write the report of a study that has a quorum; returns it.

    Args:
        folder: to write into; it exists.
        pooled: told after each site how many are pooled so far.
    """
    study = material.study
    delivered, measured = {}, {}
    for upload in _read(material):
        measured[upload.site] = measure(upload, study)
        delivered[upload.site] = SiteInput(
            upload.site,
            str(SiteState.DELIVERED),
            release=_release(upload.manifest),
            marginals=_marginals(upload, study),
        )
        pooled(len(delivered))
    # What one site's refits show says something of the others'.
    for site, found in widen_sites(measured).items():
        delivered[site] = replace(delivered[site], estimates=found)
    truth = material.truth or {}
    report = build_report(
        ReportInputs(
            study=study,
            study_id=material.study_id,
            state=str(StudyState.FINISHED),
            created=material.created,
            finished=material.finished,
            sites=tuple(delivered.get(part.site) or _absent(part) for part in material.parts),
            truth={e.name: truth[e.name] for e in study.estimands if e.name in truth} or None,
        )
    )
    export.write(folder / REPORT, json.dumps(report, indent=1, allow_nan=False).encode())
    return report


def uploads(coordinator: Coordinator, row: StudyRow) -> Iterator[Upload]:
    """The delivered uploads of a study, one at a time, their tables checked as they are read."""
    return _read(gather(coordinator, row, row.finished))


def _read(material: Material) -> Iterator[Upload]:
    study = material.study
    for part in material.parts:
        if part.state is SiteState.DELIVERED and part.manifest is not None:
            # Checked in full on arrival; since then the site may have enrolled another public n.
            manifest = read_manifest(part.manifest, material.keys[part.site])
            path = table_path(material.uploads, part.site)
            try:
                yield read_upload(part.site, manifest, path, study)
            except FileNotFoundError:
                raise CoordinatorError(
                    "a delivered table is gone", value=path, remedy="restore it from a backup"
                ) from None


def _absent(part: SiteRow) -> SiteInput:
    meaning, remedy = explain(part.code) if part.code else ("", "")
    return SiteInput(part.site, str(part.state), part.code, part.detail or remedy or meaning)


def measure(upload: Upload, study: Study) -> dict[str, Measured]:
    """Every estimand of one site's release: combined over copies, and what its refits show."""
    if isinstance(study.mechanism, Gibbs):
        return _answered(upload, study)
    manifest = upload.manifest
    # Persons' own latents, where there are any, are the same in every table.
    fresh = 1.0 - (study.mechanism.w if isinstance(study.mechanism, Maf) else 0.0)
    copies = [_coded(upload, study.schema, i + 1) for i in range(manifest.copies)]
    refits = [_coded(upload, study.schema, -i - 1) for i in range(manifest.refits)]
    found = {}
    # The fits are numpy and release the interpreter's lock for most of their time.
    with ThreadPool(os.cpu_count() or 1) as pool:
        for estimand in study.estimands:
            one = partial(_estimate, study.schema, estimand)
            fitted, again = pool.map(one, copies), pool.map(one, refits)
            plain = combine(fitted)
            made_of = fitted if refits_of_copies(manifest.wire) else None
            shown = spread(plain, again, made_of, fresh=fresh) if refits else None
            found[estimand.name] = Measured(plain, len(refits), shown)
    return found


def _answered(upload: Upload, study: Study) -> dict[str, Measured]:
    """The one estimand that a site has answered itself.

    The last term is the estimand, per its units already; its variance holds the mechanism's noise.
    """
    estimand, schema = study.estimands[0], study.schema
    most = upload.manifest.persons * schema.max_rows_per_person
    estimates, covariance = upload.answer()
    # As for tables: no answer from so many rows can know more.
    variance = max(float(covariance[-1, -1]), variance_floor(schema, estimand, most))
    # How many rows are behind it, within the frame, is not released.
    found = SiteEstimate(float(estimates[-1]), variance, variance, None, None, None, 1, 1)
    return {estimand.name: Measured(found, 0, None)}


def _marginals(upload: Upload, study: Study) -> Marginals | None:
    if not isinstance(study.mechanism, Trajectory):
        return None
    particles = from_arrow(upload.particles(), study.schema)
    paths = from_arrow(upload.paths().drop_columns([PATH]), study.schema)
    return summarise(study.mechanism, study.schema, upload.manifest.rows, particles, paths)


def _coded(upload: Upload, schema: Schema, index: int) -> Coded:
    return from_arrow(upload.copy(index), schema)


def _estimate(schema: Schema, estimand: Estimand, table: Coded) -> Estimate:
    found = estimate(table, schema, estimand)
    if found.problem is not None:
        return found
    # No table of so many rows can know more: a hostile one must not buy weight.
    least = variance_floor(schema, estimand, len(table[estimand.outcome]))
    return replace(found, variance=max(found.variance, least))


def _release(m: Manifest) -> SiteRelease:
    infinite = float("inf")
    return SiteRelease(
        n_persons=m.persons,
        rows=m.rows,
        copies=m.copies,
        guarantee=m.guarantee,
        mechanism=m.mechanism,
        epsilon_autodp=infinite if m.epsilon_autodp is None else m.epsilon_autodp,
        epsilon_pld=infinite if m.epsilon_pld is None else m.epsilon_pld,
        epsilon_replace_one=infinite if m.epsilon_replace_one is None else m.epsilon_replace_one,
        delta=m.delta,
        relation=m.relation,
        insecure_seed=m.insecure_seed,
        released_at=m.released_at,
        gate_fingerprint=fingerprint(m.gate_key),
        ledger_seq=m.ledger_seq,
    )


# -- pull --------------------------------------------------------------------------------------


def pull(coordinator: Coordinator, prefix: str, out: Path, *, copies: Copies) -> list[Path]:
    """Write report.html, report.json, dictionary.json, and the released tables.

    Those are pooled.parquet and .csv, with one copy unless all are asked for; with ``refits`` also
    refits.parquet and .csv, where the study has any; of a trajectory also
    paths and particles (.parquet, .csv) and, where they can be made, couplings.parquet; of an
    answer coefficients.csv and .json instead.

    Raises:
        CoordinatorError: the study has not finished.
    """
    row = coordinator.find(prefix)
    if row.state is not StudyState.FINISHED:
        raise CoordinatorError(
            "the study has no results",
            value=str(row.state),
            bound=row.note or None,
            remedy="see `penstock study status`",
        )
    study = row.signed.study
    # An older version's report may have been kept.
    report = completed(json.loads((coordinator.folder.results(row.id) / REPORT).read_text()))
    out.mkdir(parents=True, exist_ok=True)
    files = [out / n for n in ("report.html", "report.json", "dictionary.json")]
    export.write(files[0], render(report).encode())
    export.write(files[1], json.dumps(report, indent=1, allow_nan=False).encode() + b"\n")
    described = dictionary(study, report, copies=copies)
    export.write(files[2], json.dumps(described, indent=1, allow_nan=False).encode() + b"\n")
    if isinstance(study.mechanism, Gibbs):
        return files + export.write_answers(uploads(coordinator, row), study, out)
    every = copies != "one"
    files += export.write_pooled(uploads(coordinator, row), out, all_copies=every)
    if copies == "refits" and study.mechanism.refits:
        files += export.write_refits(uploads(coordinator, row), out)
    if isinstance(study.mechanism, Trajectory):
        files += export.write_paths(uploads(coordinator, row), study, out)
        files += export.write_particles(uploads(coordinator, row), study, out)
        if export.no_couplings(study) is None:
            files += export.write_couplings(uploads(coordinator, row), study, out)
    return files
