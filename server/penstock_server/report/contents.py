"""The sections of the report, in the order of the page."""

from __future__ import annotations

from penstock_server.report.section import Section
from penstock_server.report.sections import (
    answers,
    baseline,
    beside,
    between,
    changes,
    crosstabs,
    differences,
    estimands,
    guarantees,
    header,
    holds,
    limits,
    mechanism,
    missing,
    reproduce,
    sensitivity_analysis,
    sites,
    survival,
    trajectory,
    transitions,
    warnings,
)

SECTIONS: tuple[Section, ...] = (
    header.SECTION,
    answers.SECTION,
    beside.SECTION,
    warnings.SECTION,
    baseline.SECTION,
    estimands.SECTION,
    between.SECTION,
    sensitivity_analysis.SECTION,
    survival.SECTION,
    changes.SECTION,
    transitions.SECTION,
    crosstabs.SECTION,
    holds.SECTION,
    differences.SECTION,
    trajectory.SECTION,
    mechanism.SECTION,
    guarantees.SECTION,
    sites.SECTION,
    missing.SECTION,
    limits.SECTION,
    reproduce.SECTION,
)
