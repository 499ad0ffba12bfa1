"""The sections of the report, in the order of the page."""

from __future__ import annotations

from penstock_server.report.section import Section
from penstock_server.report.sections import (
    answers,
    changes,
    crosstabs,
    differences,
    estimands,
    header,
    holds,
    limits,
    mechanism,
    missing,
    reproduce,
    sites,
    survival,
    trajectory,
    transitions,
    warnings,
)

SECTIONS: tuple[Section, ...] = (
    header.SECTION,
    answers.SECTION,
    warnings.SECTION,
    estimands.SECTION,
    survival.SECTION,
    changes.SECTION,
    transitions.SECTION,
    crosstabs.SECTION,
    holds.SECTION,
    differences.SECTION,
    trajectory.SECTION,
    mechanism.SECTION,
    sites.SECTION,
    missing.SECTION,
    limits.SECTION,
    reproduce.SECTION,
)
