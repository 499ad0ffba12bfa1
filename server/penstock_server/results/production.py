"""From checked uploads to the report and the pooled data that an analyst pulls.

The report is made by a process of its own (:mod:`penstock_server.results.assembly`), from
:class:`penstock_server.results.material.Material` alone; what is pulled is made when somebody asks
for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.base.files import replace_file
from penstock.inference.refits import widen_sites
from penstock.processes.crew import count_cores, count_processes, share_work
from penstock.study.halves import find_other
from penstock.study.scope import GLOBAL, SITE
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import Copies, SiteState, StudyState, explain
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import name_study
from penstock_server.intake.uploads import read_upload
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.writing import csv_safe, describe_column, write
from penstock_server.report.composition import build_report, complete_report
from penstock_server.report.contents import SECTIONS
from penstock_server.report.html import render
from penstock_server.report.inputs import JointRelease, ReportInputs, SiteInput, SiteRelease
from penstock_server.report.section import Sheet
from penstock_server.report.sections.beside import tell_beside
from penstock_server.results.conclusion import (
    RELEASE,
    conclude_study,
    join_study,
    read_conclusion,
)
from penstock_server.results.material import Material, gather
from penstock_server.results.site_findings import Findings, KeptFindings
from penstock_server.store.folder import table_path
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.studies.coordinator import Coordinator

REPORT = "report.json"
PROGRAM_BYTES, TABLE_TIMES = 300e6, 10
"""Of memory that a process takes to look at one release after the other: with nothing in hand, and
how many times the largest release's file beside it."""

_TYPES = {"categorical": pa.string(), "integer": pa.int64(), "continuous": pa.float64()}


def build_results(
    material: Material, folder: Path, pooled: Callable[[int], None] = lambda done: None
) -> Json:
    """Estimate, pool, and write the report of a study that has a quorum; returns it.

    Args:
        folder: to write into; it exists.
        pooled: told after each site how many are pooled so far.
    """
    if material.study.aggregation.joint:
        inputs = _conclude(material, folder, pooled)
    else:
        inputs = _pool(material, pooled)
    report = build_report(inputs)
    write(folder / REPORT, json.dumps(report, indent=1, allow_nan=False).encode())
    return report


def _pool(material: Material, pooled: Callable[[int], None]) -> ReportInputs:
    """Each site's release by itself, and the sites together."""
    study, found = material.study, _find_sites(material, pooled)
    # What one site's refits show says something of the others'.
    wide = widen_sites({site: one.measured for site, (_, one) in found.items()})
    delivered = {
        site: SiteInput(
            site,
            str(SiteState.DELIVERED),
            estimates=wide[site],
            release=_describe_release(manifest),
            summaries=one.summaries,
        )
        for site, (manifest, one) in found.items()
    }
    sites = (delivered.get(part.site) or _describe_absent(part) for part in material.parts)
    return _gather_inputs(material, study, tuple(sites))


def _find_sites(
    material: Material, pooled: Callable[[int], None]
) -> dict[str, tuple[Manifest, Findings]]:
    """What is found of each site's release, in the order of sites: as it was kept, or anew, by as
    many processes as are worth it."""
    results = kind_of(material.study).load_results()
    own = results.own_summaries
    kept = KeptFindings(material.findings, material.study_id, own)
    parts = list(_list_delivered(material))
    found = {
        part.site: before
        for part in parts
        if part.path.exists() and (before := kept.find(part.signed)) is not None
    }
    if found:
        pooled(len(found))
    left = [part for part in parts if part.site not in found]
    largest = max((part.manifest.table_bytes for part in left), default=0)
    processes = count_processes(len(left), PROGRAM_BYTES + TABLE_TIMES * largest)
    threads = max(1, count_cores() // processes)

    def look(number: int) -> bytes:
        part = left[number]
        data = Findings.of(results, part.read(material.study), threads).to_bytes(own)
        kept.keep(part.signed, data)
        return data

    for number, data in share_work(len(left), look, processes):
        found[left[number].site] = Findings.from_bytes(data, own)
        pooled(len(found))
    return {part.site: (part.manifest, found[part.site]) for part in parts}


def _conclude(material: Material, folder: Path, pooled: Callable[[int], None]) -> ReportInputs:
    """One release of all sites, made of their sums."""
    found = conclude_study(material, folder)
    study, upload = found.study, found.upload
    own = Findings.of(kind_of(study).load_results(), upload, count_cores())
    measured = SiteInput(
        upload.site,
        str(SiteState.DELIVERED),
        estimates=widen_sites({upload.site: own.measured})[upload.site],
        release=_describe_release(upload.manifest),
        summaries=own.summaries,
    )
    joint = JointRelease(
        plan=found.plan,
        measured=measured,
        survivors=tuple(each.survivors for each in material.sums),
        numbers=found.numbers,
        seed=found.seed,
        digest=upload.manifest.table_sha256,
    )
    delivered = {
        part.site: SiteInput(
            part.site, str(SiteState.DELIVERED), release=_describe_release(part.manifest)
        )
        for part in _read_delivered(material)
    }
    sites = (delivered.get(part.site) or _describe_absent(part) for part in material.parts)
    pooled(len(delivered))
    return _gather_inputs(material, study, tuple(sites), joint)


def _gather_inputs(
    material: Material,
    study: Study,
    sites: tuple[SiteInput, ...],
    joint: JointRelease | None = None,
) -> ReportInputs:
    truth = material.truth or {}
    return ReportInputs(
        study=study,
        study_id=material.study_id,
        state=str(StudyState.FINISHED),
        created=material.created,
        finished=material.finished,
        sites=sites,
        truth={e.name: truth[e.name] for e in study.estimands if e.name in truth} or None,
        joint=joint,
    )


def read_uploads(coordinator: Coordinator, row: StudyRow) -> Iterator[Upload]:
    """The delivered uploads of a study, one at a time, their tables checked as they are read."""
    return _read_delivered(gather(coordinator, row, row.finished))


def _read_delivered(material: Material) -> Iterator[Upload]:
    return (part.read(material.study) for part in _list_delivered(material))


@dataclass(frozen=True, slots=True)
class _Delivered:
    """A site's part that came: its manifest, as it was signed and as it reads, and its table."""

    site: str
    signed: bytes
    manifest: Manifest
    path: Path

    def read(self, study: Study) -> Upload:
        try:
            return read_upload(self.site, self.manifest, self.path, study)
        except FileNotFoundError:
            raise CoordinatorError(
                "a delivered table is gone", value=self.path, remedy="restore it from a backup"
            ) from None


def _list_delivered(material: Material) -> Iterator[_Delivered]:
    for part in material.parts:
        if part.state is SiteState.DELIVERED and part.manifest is not None:
            # Checked in full on arrival; since then the site may have enrolled another public n.
            manifest = read_manifest(part.manifest, material.keys[part.site])
            path = table_path(material.uploads, part.site)
            yield _Delivered(part.site, part.manifest, manifest, path)


def _describe_absent(part: SiteRow) -> SiteInput:
    meaning, remedy = explain(part.code) if part.code else ("", "")
    return SiteInput(part.site, str(part.state), part.code, part.detail or remedy or meaning)


def _describe_release(m: Manifest) -> SiteRelease:
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
        gate_fingerprint=fingerprint(m.gate_key) if m.gate_key else "",
        ledger_seq=m.ledger_seq,
        summed=m.rows == 0,
    )


# -- pull --------------------------------------------------------------------------------------


def pull_results(coordinator: Coordinator, prefix: str, out: Path, *, copies: Copies) -> list[Path]:
    """Write report.html, report.json, dictionary.json, the report's tables, and what the study's
    mechanism exports.

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
    folder = coordinator.folder.results(row.id)
    report = _read_report(coordinator, row)
    report |= _tell_beside(coordinator, row, report)
    study, uploads = _find_released(coordinator, row, folder, report)
    mechanism = kind_of(study).load_results()
    out.mkdir(parents=True, exist_ok=True)
    files = [out / n for n in ("report.html", "report.json", "dictionary.json", "study.json")]
    write(files[0], render(report).encode())
    write(files[1], json.dumps(report, indent=1, allow_nan=False).encode() + b"\n")
    described = mechanism.describe(report, copies)
    sheets = [sheet for section in SECTIONS for sheet in section.tabulate(report)]
    if sheets:
        described["tables"] = {sheet.name: _describe_sheet(sheet) for sheet in sheets}
    files += [write_sheet(sheet, out) for sheet in sheets]
    made = {"fresh": kind_of(study).refitting.fresh, "per_fit": kind_of(study).refitting.per_fit}
    asked = {"study_id": row.id, **made, "study": study.to_dict()}
    write(files[3], json.dumps(asked, indent=1, allow_nan=False).encode() + b"\n")
    write(files[2], json.dumps(described, indent=1, allow_nan=False).encode() + b"\n")
    return files + mechanism.export(uploads, out, copies)


def _read_report(coordinator: Coordinator, row: StudyRow) -> Json:
    """The report that was kept, maybe by an older version."""
    text = (coordinator.folder.results(row.id) / REPORT).read_text()
    return complete_report(json.loads(text))


def _tell_beside(coordinator: Coordinator, row: StudyRow, report: Json) -> Json:
    """Of a half of a study of both, its answers beside those of the other half as it stands now."""
    half = row.signed.study
    scope, own = half.aggregation, half.privacy.epsilon
    if scope.whole is None or scope.other is None:
        return {}
    other = coordinator.store.studies.find(name_study(find_other(half), row.signed.signer))
    finished = other is not None and other.state is StudyState.FINISHED
    names = (GLOBAL, SITE) if scope.joint else (SITE, GLOBAL)
    told = {
        "study": name_study(find_other(half), row.signed.signer),
        "state": "not submitted" if other is None else str(other.state),
        "epsilon": dict(zip(names, (own, scope.other), strict=True)),
    }
    beside = _read_report(coordinator, other) if other is not None and finished else None
    return {"beside": tell_beside(scope.scope, scope.whole, report, beside, told)}


def _find_released(
    coordinator: Coordinator, row: StudyRow, folder: Path, report: Json
) -> tuple[Study, Callable[[], Iterator[Upload]]]:
    """A study as its releases answer it, and what reads them, as often as they are asked for."""
    if report["joint"] is None:
        return row.signed.study, partial(read_uploads, coordinator, row)
    study, plan = join_study(row.signed.study)
    digest = report["joint"]["release_sha256"]
    return study, lambda: iter([read_conclusion(study, plan, folder / RELEASE, digest)])


def _describe_sheet(sheet: Sheet) -> Json:
    """What the data dictionary says of a table of the report."""
    columns = [describe_column(name, *said) for name, said in sheet.columns.items()]
    return {"rows": sheet.what, "columns": columns}


def write_sheet(sheet: Sheet, out: Path) -> Path:
    """A table of the report as CSV."""
    columns = list(zip(*sheet.rows, strict=True))
    kinds = [pa.field(name, _TYPES[kind]) for name, (kind, _) in sheet.columns.items()]
    arrays = [pa.array(c, k.type) for c, k in zip(columns, kinds, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(kinds))
    path = out / sheet.name
    with replace_file(path) as name:
        pacsv.write_csv(csv_safe(table), name)
    return path
