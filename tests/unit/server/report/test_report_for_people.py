"""The report as people read it: each test names what somebody stumbled over."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from tests.unit.server.report.test_report import (
    EFFECTS,
    ESTIMANDS,
    SITES,
    Page,
    built,
    delivered,
    inputs,
    release,
    site_estimate,
    study,
)

from penstock.inference.combine import SiteEstimate
from penstock.telling import forest
from penstock.telling.axis import Scale
from penstock.telling.scales import LOG, PLAIN
from penstock_server.report.composition import SiteInput
from penstock_server.report.html import render
from penstock_server.report.sections.estimands import plot_of

REASON = (
    "every refit failed: the model did not converge in 50 Newton steps on any of the synthetic "
    "copies, since fewer than two events are left among women of the oldest group"
)


def failing(name: str) -> SiteInput:
    failed = SiteEstimate(math.nan, math.nan, math.nan, None, 0, 0, 10, 0, 0.0, REASON)
    return SiteInput(name, "delivered", estimates={"hr": failed}, release=release())


def drawn(svg: str) -> str:
    """The text that a drawing shows, without titles that only a mouse finds."""
    return " ".join(re.findall(r"<text[^>]*>(?:<title>[^<]*</title>)?([^<]*)", svg))


@pytest.mark.parametrize("compact", [False, True])
def test_events_did_not_stand_beside_n(compact: bool) -> None:
    report = built(inputs())
    shown = drawn(forest.forest_svg(plot_of(report["estimands"][0]), compact=compact))
    assert "Synthetic n / events" in shown
    assert shown.count("1,000 / 100") == len(SITES)
    text = re.sub(r"\s+", " ", Page(render(report)).text)
    assert "n and events are those of synthetic copies" in text
    assert "not patients" in text


def test_n_without_events_is_labelled_alone() -> None:
    means = replace(site_estimate(0.1), events=None)
    sites = [SiteInput(n, "delivered", estimates={"diff": means}, release=release()) for n in SITES]
    report = built(inputs(*sites, study=study(estimands=ESTIMANDS[2:])))
    plot = plot_of(report["estimands"][0])
    assert plot.note == "Synthetic n"
    assert {row.note for row in plot.rows} == {"1,000"}


@pytest.mark.parametrize("compact", [False, True])
def test_reasons_were_cut_off(compact: bool) -> None:
    sites = [failing("z"), *(delivered(n, v) for n, v in zip(SITES[:3], EFFECTS, strict=False))]
    report = built(inputs(*sites, study=study(sites=("z", *SITES[:3]), estimands=ESTIMANDS[:1])))
    svg = forest.forest_svg(plot_of(report["estimands"][0]), compact=compact)
    assert REASON in drawn(svg)
    assert "…" not in drawn(svg)


def test_numbers_were_written_for_machines() -> None:
    """−4.8e−02 beside −1.9 to 1.9, and <0.01 of a ratio as 1.7e−03."""
    plain = Scale(0.0, 1.0, PLAIN, 1)
    assert plain.text(-0.048) == "0.0"
    assert plain.interval_text(-0.048, 1.9) == "0.0–1.9"
    ratios = Scale(0.0, 1.0, LOG, 2)
    assert ratios.text(math.log(0.0017)) == "<0.01"
    assert [ratios.text(math.log(x)) for x in (1.17, 36.63, 3850.92)] == ["1.17", "36.6", "3,851"]
    assert Scale(0.0, 1.0, LOG, 3).text(math.log(12.151)) == "12.151"  # a narrow interval
    wild = [replace(site_estimate(0.004), variance=v) for v in (4.0, 5.0, 6.0)]
    sites = [
        SiteInput(n, "delivered", estimates={e.name: w for e in ESTIMANDS}, release=release())
        for n, w in zip(SITES, wild, strict=False)
    ]
    page = Page(render(built(inputs(*sites)))).text
    assert not re.search(r"\de[+−-]\d\d", page)


def test_a_phones_last_tick_was_cut_in_two() -> None:
    """1,000 at the right end of a compact axis."""
    rows = tuple(
        forest.ForestRow(n, x, x - 0.1, x + 0.1, 0.5) for n, x in (("a", 0.0), ("b", 6.55))
    )
    plot = forest.ForestPlot("t", "HR", "HR", LOG, rows)
    svg = forest.forest_svg(plot, compact=True)
    ticks = re.findall(r'<text class="fp-tick" x="([\d.]+)"[^>]*>([^<]*)<', svg)
    assert "1,000" in [text for _, text in ticks]
    for x, text in ticks:
        assert 3 * len(text) <= float(x) <= 380 - 3 * len(text), text


@pytest.mark.parametrize("finished", ["2026-11-21T10:12:34.654321Z", "2026-11-21T10:12:34Z"])
def test_times_had_microseconds(finished: str) -> None:
    site = delivered("a", released_at="2026-11-21T10:00:01.123456Z")
    report = built(inputs(site, created="2026-11-20T08:00:00.123456Z", finished=finished))
    text = Page(render(report)).text
    assert "(2026-11-21 10:12 UTC)" in text
    assert "2026-11-20 08:00 UTC" in text
    assert "2026-11-21 10:00 UTC" in text
    assert not re.search(r"\d\d:\d\d:\d\d", text)
    assert report["study"]["finished"] == finished  # scripts get all of it


def test_warnings_stood_before_the_answer_in_a_statisticians_words() -> None:
    wild = [*(delivered(s, 0.1 + i / 100) for i, s in enumerate("abcd")), delivered("e", 3.0)]
    report = built(inputs(*wild))
    [warning] = report["warnings"]
    assert warning["sites"] == ["e"]
    assert warning["text"].startswith("hr, or, diff: a site's answer lies far from what the others")
    for word in ("residual", "studentised", "leave-one-out", "|"):
        assert word not in warning["text"]
    page = render(report)
    assert page.index('class="answers"') < page.index('<div class="warning') < page.index("<figure")


def test_a_warning_without_an_answer_is_still_shown() -> None:
    report = built(inputs(delivered("a"), study=study(estimands=())))
    assert (
        "Too few sites: 1 delivered, and the study asked for at least 3"
        in Page(render(report)).text
    )


def test_who_is_missing_was_told_by_a_code_alone() -> None:
    gone = SiteInput("y", "refused", "mechanism", "choose another")
    text = re.sub(r"\s+", " ", Page(render(built(inputs(delivered("a"), gone)))).text)
    assert "the site does not allow this mechanism (mechanism)" in text
    newer = SiteInput("y", "refused", "of-a-newer-site", "wait")
    assert "of-a-newer-site" in Page(render(built(inputs(delivered("a"), newer)))).text
