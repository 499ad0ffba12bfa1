"""How to come to the same numbers again, and what to compare."""

from penstock_server.report.section import Section

SECTION = Section("reproduce")
