"""The report as people open it: in a browser on a desk and on a phone, dark, and on paper.

Chromium and axe-core come by `make browser`; without them all of this is skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.chromium import Chromium, Tab, find_chromium, start_chromium
from tests.support.concluded import add_up_answers, add_up_tables
from tests.unit.server.report import test_report as by_hand
from tests.unit.server.report import test_report_counts as counted
from tests.unit.server.report import test_report_over_time as over_time
from tests.unit.server.report import test_report_tables as tables
from tests.unit.server.report.test_report_beside import NAMED

from penstock.inference.refits import widen_sites
from penstock.mechanisms import Maf
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import ReportInputs, SiteInput, build_report
from penstock_server.report.contents import SECTIONS
from penstock_server.report.html import render
from penstock_server.report.sections.beside import tell_beside
from penstock_server.results import production

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".browser" / "axe_playwright_python" / "axe.min.js"
RECORDED = ROOT / "tests" / "golden" / "data" / "mechanisms"
PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None or not AXE.is_file(), reason="no Chromium or no axe-core here: make browser"
)

Report = dict[str, Any]
DESK, TABLET, PHONE = 1280, 820, 390
PAPER = 688
"""CSS pixels of A4 between margins of 14 mm."""
COLOURS = ("color-contrast",)
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true; })"

LABELS = """(() => {
  const found = [];
  for (const picture of document.querySelectorAll('svg')) {
    const frame = picture.getBoundingClientRect();
    if (!frame.width) continue;
    const labels = [...picture.querySelectorAll('text')].filter(t => t.lastChild).map(
      t => [t.lastChild.textContent, t.getBoundingClientRect()]);
    labels.forEach(([text, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1
          || a.top < frame.top - 1 || a.bottom > frame.bottom + 1) found.push('cut: ' + text);
      for (const [other, b] of labels.slice(i + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 4) found.push(text + ' lies on ' + other);
      }
    });
  }
  return found;
})()"""
"""Labels that run out of their picture, and pairs of which one lies on the other."""

WIDER = """(() => {
  const room = document.documentElement.clientWidth + 1;
  const found = [...document.querySelectorAll('body *')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width > 1 && box.right > room && !e.closest('svg') && !e.closest('thead');
  }).map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 60));
  if (document.documentElement.scrollWidth > room) found.push('the page itself');
  return found;
})()"""
"""What goes beyond the right edge of the page."""


# -- the pages -----------------------------------------------------------------------------------


def make_many(folder: Path) -> Report:
    """Eleven sites of long names: one far from the others, one without privacy, one without an
    answer, one that refused."""
    names = [f"hospital-of-the-northern-coast-{i}" for i in range(11)]
    sites = [by_hand.delivered(name, 0.1 + 0.03 * (i % 4)) for i, name in enumerate(names)]
    lost = {"epsilon_autodp": math.inf, "epsilon_pld": math.inf}
    sites[4] = by_hand.delivered(names[4], 3.0, guarantee="empirical", **lost)
    sites[5] = by_hand.delivered(names[5], 0.2, insecure_seed=True)
    failed = {e.name: by_hand.FAILED for e in by_hand.ESTIMANDS}
    sites.append(SiteInput("f", "delivered", estimates=failed, release=by_hand.release()))
    sites.append(SiteInput("r", "refused", "budget", "Ask for less."))
    return by_hand.built(by_hand.inputs(*sites, truth={"hr": 0.15}))


def make_arms(folder: Path) -> Report:
    """Five sites' tables with a survival curve for each arm."""
    asked = (tables.ARMS, *by_hand.ESTIMANDS[1:])
    of = by_hand.study(mechanism=Maf(copies=1, refits=0), estimands=asked)
    given = tables.summarised(of, folder)
    sites = [replace(s, estimates={**s.estimates, "arms": s.estimates["hr"]}) for s in given.sites]
    return by_hand.built(replace(given, sites=tuple(sites)))


def make_answers(folder: Path) -> Report:
    """One release of four sites' answers, of a study that asked for both."""
    report = add_up_answers().build(folder / "results")
    return {**report, "beside": tell_beside("global", 1.0, report, None, NAMED)}


def make_tables(folder: Path) -> Report:
    """One release of four sites' tables, one of them lost on the way."""
    return add_up_tables().build(folder / "results")


def make_counts(folder: Path) -> Report:
    """Answers of two sites: totals, rates, a table of two columns."""
    return counted.build("scoring", folder, counted.ESTIMANDS, counted.WIDE)[0]


def make_course(folder: Path) -> Report:
    """Two sites' paths: changes, transitions and marginals."""
    study = over_time.STUDY
    results, uploads = kind_of(study).load_results(), over_time.make_uploads(lambda _: folder)
    wide = widen_sites({upload.site: results.measure(upload) for upload in uploads})
    sites = tuple(
        SiteInput(
            upload.site,
            "delivered",
            estimates=wide[upload.site],
            release=production._describe_release(upload.manifest),
            summaries=results.summarise(upload),
        )
        for upload in uploads
    )
    moment = "2026-11-20T08:00:00Z"
    return build_report(ReportInputs(study, "5" * 64, "finished", moment, moment, sites))


def read_recorded(name: str) -> Callable[[Path], Report]:
    """What a run left behind, with whatever sections of later have for it."""

    def read(folder: Path) -> Report:
        report: Report = json.loads((RECORDED / f"{name}.json").read_text())["report"]
        absent = {key: value for section in SECTIONS for key, value in section.absent.items()}
        return absent | report

    return read


KINDS: dict[str, Callable[[Path], Report]] = {
    "many": make_many,
    "arms": make_arms,
    "answers": make_answers,
    "tables": make_tables,
    "counts": make_counts,
    "course": make_course,
    **{f"recorded-{name}": read_recorded(name) for name in ("gibbs", "visits")},
}


@pytest.fixture(scope="module", params=KINDS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report's page."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "report.html"
    path.write_text(render(KINDS[request.param](folder)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    assert PROGRAM is not None
    with start_chromium(PROGRAM) as browser:
        yield browser


@cache
def read_axe() -> str:
    return AXE.read_text(encoding="utf-8")


def list_violations(tab: Tab, only: tuple[str, ...] = RULES) -> list[str]:
    """What axe-core finds: each rule with the first element that breaks it."""
    tab.run(f"{read_axe()};0")
    chosen = json.dumps({"runOnly": only, "resultTypes": ["violations"], "preload": False})
    told = tab.run(f"axe.run(document, {chosen}).then(r => r.violations)")
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in told]


# -- what is promised of them --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "dark"), [(DESK, False), (DESK, True), (PHONE, False)], ids=["desk", "dark", "phone"]
)
def test_axe_finds_nothing_and_the_console_stays_empty(
    chromium: Chromium, page: str, width: int, dark: bool
) -> None:
    """WCAG 2.1, A and AA, and best practices; whatever can be opened is open."""
    with chromium.open(page, width, dark=dark) as tab:
        assert tab.run("document.title").endswith("Penstock report")
        assert tab.list_complaints() == []
        tab.run(OPEN_ALL)
        # In the dark other colours are all that differs.
        assert list_violations(tab, COLOURS if dark else RULES) == []


@pytest.mark.parametrize("width", [DESK, TABLET, PHONE])
def test_nothing_goes_beyond_the_page_or_a_picture(
    chromium: Chromium, page: str, width: int
) -> None:
    with chromium.open(page, width) as tab:
        for _ in range(2):
            assert tab.run(WIDER) == []
            assert tab.run(LABELS) == []
            tab.run(OPEN_ALL)


def test_paper_has_all_of_it(chromium: Chromium, page: str, tmp_path: Path) -> None:
    """Tables as tables and the wide pictures, although paper is narrow. Contrast is of luminances,
    so that what is told by it can be read in black and white."""
    with chromium.open(page, DESK, dark=True) as tab:
        tab.show_media("print", dark=True)
        tab.resize(PAPER)
        assert tab.run(WIDER) == []
        assert tab.run(LABELS) == []
        assert list_violations(tab, COLOURS) == []
        assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        shown = "[...document.querySelectorAll('{}')].map(e => getComputedStyle(e).display)"
        assert set(tab.run(shown.format("figure > .compact"))) <= {"none"}
        assert set(tab.run(shown.format("thead"))) <= {"table-header-group"}
        tab.print_pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) > 0


def test_what_is_wrong_with_a_page_is_seen(chromium: Chromium, tmp_path: Path) -> None:
    """Else nothing of the above could fail."""
    path = tmp_path / "wrong.html"
    path.write_text(
        "<!doctype html><title>wrong</title><h1>a</h1><h3>b</h3>"
        "<p style='color:#999;background:#fff;width:2000px'>pale and wide</p><img src='none.png'>"
        "<svg viewBox='0 0 100 20' width='100'><text x='90' y='10'>far too long</text>"
        "<text x='88' y='12'>over it</text></svg><script>missing()</script>"
    )
    with chromium.open(path.as_uri(), PHONE) as tab:
        complaints = " ".join(tab.list_complaints())
        assert "missing is not defined" in complaints
        assert "none.png" in complaints
        rules = {line.partition(":")[0] for line in list_violations(tab)}
        assert {"image-alt", "color-contrast", "html-has-lang", "heading-order"} <= rules
        assert "P pale and wide" in tab.run(WIDER)
        said = tab.run(LABELS)
        assert "cut: far too long" in said
        assert "far too long lies on over it" in said
