"""The synthetic tables that an analyst pulls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.mechanisms.released import Refitting, name_copy, name_refit
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.writing import COPY, SITE, label_table, write_tables

REFIT, FIT, IMPUTATION = "_refit", "_fit", "_imputation"


Read = Callable[[Upload, str], pa.Table]
"""A part of an upload, by its name, as it is to be written."""

Labels = dict[str, str | int | float]
Tell = Callable[[Upload], Labels]
"""What is told of each row of a site beside whose it is."""


def _tell_nothing(_: Upload) -> Labels:
    return {}


def write_pooled(
    uploads: Iterable[Upload],
    out: Path,
    read: Read = Upload.part,
    tell: Tell = _tell_nothing,
    *,
    all_copies: bool,
) -> list[Path]:
    """Stream the pooled table, site by site, to Parquet and CSV.

    Rows of one release of all sites are no site's: of which each is, its own column says.
    """

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            for index in range(1, upload.manifest.copies + 1 if all_copies else 2):
                labels = {**_name_site(upload), COPY: index, **tell(upload)}
                yield label_table(read(upload, name_copy(index)), labels)

    return write_tables(tables(), out, "pooled")


def write_refits(
    uploads: Iterable[Upload],
    out: Path,
    read: Read = Upload.part,
    tell: Tell = _tell_nothing,
    *,
    made: Refitting,
) -> list[Path]:
    """Stream all refits, site by site, to Parquet and CSV, each under its number (:data:`REFIT`),
    that of the fit which it was drawn from (:data:`FIT`) and that of the copy to whose rows the
    fit was made; 0 of older releases: rows of its own."""

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            manifest = upload.manifest
            own = made.on_wire(manifest.wire)
            for refit in range(1, manifest.refits + 1):
                copy = own.find_copy(refit, manifest.copies)
                numbers: Labels = {REFIT: refit, FIT: own.find_fit(refit), COPY: copy}
                labels = {**_name_site(upload), **numbers, **tell(upload)}
                yield label_table(read(upload, name_refit(refit)), labels)

    return write_tables(tables(), out, "refits")


def write_imputations(
    uploads: Iterable[Upload],
    out: Path,
    read: Read = Upload.part,
    tell: Tell = _tell_nothing,
    *,
    made: Refitting,
) -> list[Path]:
    """Stream one refit of each fit, site by site, to Parquet and CSV, under its number from 1
    (:data:`IMPUTATION`): what software for multiple imputation takes for completed tables."""

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            own = made.on_wire(upload.manifest.wire)
            for refit in range(1, upload.manifest.refits + 1, own.per_fit):
                number: Labels = {IMPUTATION: own.find_fit(refit)}
                labels = {**_name_site(upload), **number, **tell(upload)}
                yield label_table(read(upload, name_refit(refit)), labels)

    return write_tables(tables(), out, "imputations")


def _name_site(upload: Upload) -> Labels:
    """The label of a site's rows; none of a release of all sites."""
    return {} if upload.site == ALL_SITES else {SITE: upload.site}
