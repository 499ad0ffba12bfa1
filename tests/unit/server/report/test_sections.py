"""The report's sections: a module, a template and a line each, and no more."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from tests.unit.server.report.test_report import inputs

from penstock.analyst import RESULT_FILES
from penstock_server.report import composition, sections
from penstock_server.report.contents import SECTIONS
from penstock_server.report.section import Section

FOLDER = Path(sections.__file__).parent


def test_every_module_has_a_template_and_a_line() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    templates = {path.name.removesuffix(".html.j2") for path in FOLDER.glob("*.j2")}
    assert modules == templates == {section.name for section in SECTIONS}
    assert len(SECTIONS) == len(modules)
    for section in SECTIONS:
        assert import_module(f"{sections.__name__}.{section.name}").SECTION is section


def test_every_table_of_a_section_is_pulled_over_the_network() -> None:
    """No name is taken from a server that an analyst's side does not expect."""
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    written = set(re.findall(r'"([a-z_]+\.csv)"', source))
    assert {"crosstabs.csv", "methods.csv", "parts.csv", "sites.csv"} <= written
    assert written <= set(RESULT_FILES)


def test_every_key_is_written_by_one_section_and_described_by_the_schema() -> None:
    found: dict[str, object] = {}
    for section in SECTIONS:
        part = section.write(inputs(), found)
        assert not part.keys() & found.keys(), section.name
        found |= part
    assert {"format", "format_version", *found} == set(composition.report_schema()["properties"])


def test_a_key_that_the_schema_does_not_describe_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Section("other", lambda inputs, report: {"other": 1})
    monkeypatch.setattr(composition, "SECTIONS", (*SECTIONS, other))
    with pytest.raises(KeyError, match="other"):
        composition.build_report(inputs())


def test_the_report_keeps_the_schemas_order() -> None:
    assert list(composition.build_report(inputs())) == list(
        composition.report_schema()["properties"]
    )
