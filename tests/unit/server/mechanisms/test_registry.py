"""Rooms of the coordinator ask the registry: a kind that takes another's place is heard in all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.support import made

from penstock.base.errors import UploadRejected
from penstock.mechanisms import Maf
from penstock_server.mechanisms import registry
from penstock_server.mechanisms.maf import MafKind
from penstock_server.report.composition import ReportInputs, SiteInput, build_report
from penstock_server.report.html import render
from penstock_server.results import production


class Toy(MafKind):
    """A mechanism that says and does something of its own wherever a kind is asked."""

    words = replace(MafKind.words, heading="Toys", size=lambda site: f"{site['copies']} toys")
    refuses = False

    def check(self, parts):
        if self.refuses:
            [(name, coded)] = parts.items()
            rows = len(coded["sbp"])
            raise UploadRejected(f"no toy: {name} has {rows} rows of {len(coded)} columns")

    def explain(self):
        return ["Each site made a toy."]

    def name_fit(self, estimand, model):
        return f"Toy of a {model.lower()}"

    def list_warnings(self):
        return [("toys", "Toys are not persons.")]

    def list_limits(self, *, mechanism_variance):
        return ["Before all, toys."], [f"After all, toys. {mechanism_variance}"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    kinds = MappingProxyType({**registry.KINDS, Maf.name: Toy})
    monkeypatch.setattr(registry, "KINDS", kinds)
    return Toy


def test_intake_asks_the_kind(
    toy: type[Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = made.study(Maf(copies=1, refits=0))
    made.read(study, made.table(study), tmp_path)
    monkeypatch.setattr(toy, "refuses", True)
    with pytest.raises(UploadRejected, match="no toy: tables/copy-1 has 80 rows of 6 columns"):
        made.read(study, made.table(study), tmp_path)


def test_the_report_speaks_the_kinds_words(toy: type[Toy], tmp_path: Path) -> None:
    study = made.study(Maf(copies=1, refits=0))
    sites = tuple(
        SiteInput(
            upload.site,
            "delivered",
            estimates=made.estimates(upload, study),
            release=production._describe_release(upload.manifest),
        )
        for upload in made.uploads(study, tmp_path)
    )
    report = build_report(ReportInputs(study, "5" * 64, "finished", "", "", sites))
    assert report["mechanism"] == ["Each site made a toy."]
    assert report["estimands"][0]["fitted"] == "Toy of a poisson model"
    assert ("toys", "caution") in {(w["code"], w["severity"]) for w in report["warnings"]}
    assert report["limits"][0] == "Before all, toys."
    assert report["limits"][-1] == "After all, toys. False"
    page = render(report)
    assert '<th role="columnheader" scope="col" class="number">Toys</th>' in page
    assert 'data-label="Toys">1 toys</td>' in page


def test_checking_uploads_needs_no_statistics() -> None:
    """The pump and the port check uploads all day."""
    code = (
        "import sys, penstock_server.mechanisms.registry\n"
        "found = {'scipy', 'torch', 'penstock_server.analysis'} & set(sys.modules)\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
