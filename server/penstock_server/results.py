"""From checked uploads to the report and the pooled data that an analyst pulls."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.errors import CoordinatorError
from penstock.estimands import Estimand
from penstock.released import COPY
from penstock.schema import Coded, Schema, from_arrow
from penstock.study import Study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import SiteState, StudyState, explain
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import read_signed_study
from penstock_server.lifecycle import Coordinator
from penstock_server.meta.combine import SiteEstimate, combine, mechanism_variance
from penstock_server.meta.estimands import Estimate, estimate
from penstock_server.meta.floor import variance_floor
from penstock_server.report.build import build_report
from penstock_server.report.html import render
from penstock_server.report.inputs import ReportInputs, SiteInput, SiteRelease
from penstock_server.store import SiteRow, StudyRow
from penstock_server.uploads import Upload, read_upload

SITE = "_site"
REPORT = "report.json"
FORMULA_START = ("=", "+", "-", "@", "\t", "\r")
COMBINING = (
    "Copies are independent draws of n rows each from one fitted private model. Analyse every "
    "copy on its own and combine: estimate = mean of the m estimates; variance = (1 + 1/m) times "
    "the mean of the m variances (Raab, Nowok & Dibben 2017). Never stack the copies: standard "
    "errors would be too small by √m. This variance does not contain the noise that the private "
    "mechanism put into the model: the report adds it per estimand, from the sites' refits "
    "(mechanism_variance)."
)


def build(coordinator: Coordinator, study_id: str, finished: str) -> dict[str, Any]:
    """Estimate, pool, and write the report of a study that has a quorum; returns it."""
    row = coordinator.find(study_id)
    study = read_signed_study(row.signed).study
    parts = coordinator.store.parts(row.id)
    delivered = {
        upload.site: SiteInput(
            upload.site,
            str(SiteState.DELIVERED),
            estimates=estimates(upload, study),
            release=_release(upload.manifest),
        )
        for upload in uploads(coordinator, row)
    }
    sites = tuple(delivered.get(part.site) or _absent(part) for part in parts)
    truth = coordinator.store.get("truth")
    report = build_report(
        ReportInputs(
            study=study,
            study_id=row.id,
            state=str(StudyState.FINISHED),
            created=row.created,
            finished=finished,
            sites=sites,
            truth={e.name: truth[e.name] for e in study.estimands if e.name in (truth or {})}
            or None,
        )
    )
    folder = coordinator.folder / "studies" / row.id
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / REPORT, json.dumps(report, indent=1, allow_nan=False).encode())
    return report


def uploads(coordinator: Coordinator, row: StudyRow) -> Iterator[Upload]:
    """The delivered uploads of a study, one at a time, their tables checked as they are read."""
    study = read_signed_study(row.signed).study
    sites = coordinator.store.sites()
    for part in coordinator.store.parts(row.id):
        if part.state is SiteState.DELIVERED and part.manifest is not None:
            # Checked in full on arrival; since then the site may have enrolled another public n.
            manifest = read_manifest(part.manifest, sites[part.site].gate_key)
            path = coordinator.table_path(row.id, part.site)
            try:
                yield read_upload(part.site, manifest, path, study)
            except FileNotFoundError:
                raise CoordinatorError(
                    "a delivered table is gone", value=path, remedy="restore it from a backup"
                ) from None


def _absent(part: SiteRow) -> SiteInput:
    meaning, remedy = explain(part.code) if part.code else ("", "")
    return SiteInput(part.site, str(part.state), part.code, part.detail or remedy or meaning)


def estimates(upload: Upload, study: Study) -> dict[str, SiteEstimate]:
    """Every estimand of one site's release: combined over copies, widened by what refits show."""
    manifest = upload.manifest
    copies = [_coded(upload, study.schema, i + 1) for i in range(manifest.copies)]
    refits = [_coded(upload, study.schema, -i - 1) for i in range(manifest.refits)]
    found = {}
    # The fits are numpy and release the interpreter's lock for most of their time.
    with ThreadPool(os.cpu_count() or 1) as pool:
        for estimand in study.estimands:
            least = variance_floor(study.schema, estimand, manifest.rows)
            one = partial(_estimate, study.schema, estimand, least)
            found[estimand.name] = _widened(combine(pool.map(one, copies)), pool.map(one, refits))
    return found


def _coded(upload: Upload, schema: Schema, index: int) -> Coded:
    return from_arrow(upload.copy(index), schema)


def _widened(plain: SiteEstimate, refits: list[Estimate]) -> SiteEstimate:
    """A site's estimate with the mechanism's own variance; none where refits cannot show it."""
    if plain.problem is not None or not refits:
        return plain
    added = mechanism_variance(plain.estimate, refits)
    if added is None:
        problem = "most refits have no estimate, so the mechanism's noise is not known"
        return replace(plain, estimate=math.nan, variance=math.nan, problem=problem)
    return replace(plain, variance=plain.variance + added, mechanism_variance=added)


def _estimate(schema: Schema, estimand: Estimand, least: float, table: Coded) -> Estimate:
    found = estimate(table, schema, estimand)
    if found.problem is not None:
        return found
    # No table of so many rows can know more: a hostile one must not buy weight.
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


def pull(coordinator: Coordinator, prefix: str, out: Path, *, all_copies: bool) -> list[Path]:
    """Write report.html, report.json, pooled.parquet, pooled.csv and dictionary.json.

    One copy unless all are asked for.

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
    study = read_signed_study(row.signed).study
    report = json.loads((coordinator.folder / "studies" / row.id / REPORT).read_text())
    out.mkdir(parents=True, exist_ok=True)
    files = [out / n for n in ("report.html", "report.json", "dictionary.json")]
    write(files[0], render(report).encode())
    write(files[1], json.dumps(report, indent=1, allow_nan=False).encode() + b"\n")
    described = dictionary(study, report, all_copies=all_copies)
    write(files[2], json.dumps(described, indent=1, allow_nan=False).encode() + b"\n")
    return files + write_pooled(coordinator, row, out, all_copies=all_copies)


def write_pooled(
    coordinator: Coordinator, row: StudyRow, out: Path, *, all_copies: bool
) -> list[Path]:
    """Stream the pooled table, site by site, to Parquet and CSV."""
    parquet, plain = out / "pooled.parquet", out / "pooled.csv"
    with _replacing(parquet) as p, _replacing(plain) as c:
        writers: tuple[Any, Any] | None = None
        try:
            for upload in uploads(coordinator, row):
                copies = upload.manifest.copies if all_copies else 1
                for index in range(1, copies + 1):
                    table = _labelled(upload, index)
                    if writers is None:
                        writers = (
                            pq.ParquetWriter(p, table.schema, compression="zstd"),
                            pacsv.CSVWriter(c, table.schema),
                        )
                    for writer, part in zip(writers, (table, _csv_safe(table)), strict=True):
                        writer.write_table(part)
        finally:
            for writer in writers or ():
                writer.close()
    return [parquet, plain]


def _labelled(upload: Upload, index: int) -> pa.Table:
    table = upload.copy(index)
    site = pa.array([upload.site] * len(table), pa.string())
    copy = pa.array([index] * len(table), pa.int32())
    return table.add_column(0, SITE, site).add_column(1, COPY, copy)


def _csv_safe(table: pa.Table) -> pa.Table:
    """Levels are text from a schema; a spreadsheet must not run one as a formula."""
    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            values = table.column(position).to_pylist()
            if any(v and v.startswith(FORMULA_START) for v in set(values)):
                safe = [f"'{v}" if v and v.startswith(FORMULA_START) else v for v in values]
                table = table.set_column(position, field, pa.array(safe, pa.string()))
    return table


def dictionary(study: Study, report: dict[str, Any], *, all_copies: bool) -> dict[str, Any]:
    """What the pooled columns mean, and how copies combine."""
    columns = [
        {"name": SITE, "kind": "categorical", "label": "site that released the row"},
        {"name": COPY, "kind": "integer", "label": "synthetic copy, from 1"},
        *(
            {k: v for k, v in c.items() if v not in (None, "", [])}
            for c in study.schema.to_dict()["columns"]
        ),
    ]
    return {
        "study": study.name,
        "synthetic": True,
        "columns": columns,
        "copies_released": study.mechanism.copies,
        "copies_here": study.mechanism.copies if all_copies else 1,
        "combining": COMBINING,
        "sites": report["sites"],
    }


def write(path: Path, data: bytes) -> None:
    """Replace a file in one rename."""
    with _replacing(path) as name, open(name, "wb") as file:
        file.write(data)


@contextmanager
def _replacing(path: Path) -> Iterator[str]:
    """A temporary name beside ``path`` that takes its place if all goes well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    os.chmod(name, 0o644)
    try:
        yield name
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
