"""The report as one self-contained HTML file: no script, nothing fetched from anywhere."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from penstock.base.documents import Json
from penstock.telling import draw
from penstock_server.mechanisms.registry import words_of
from penstock_server.report.contents import SECTIONS
from penstock_server.report.formats import FILTERS


def render(report: Json) -> str:
    """The page of a report made by :func:`penstock_server.report.composition.build_report`.

    Names, titles, codes and remedies are hostile text: everything is escaped, and the page forbids
    scripts and requests by its own content security policy.
    """
    study = report["study"]
    words = words_of(study["mechanism"]["name"])
    sections = [
        _template(f"sections/{section.name}.html.j2").render(
            report=report, study=study, words=words, **section.show(report)
        )
        for section in SECTIONS
    ]
    page = _template("report.html.j2").render(
        study=study,
        sections=[Markup(section) for section in sections],  # each was escaped by its template
        style=Markup(_text("report.css")),
        figure_style=Markup(draw.css()),
    )
    return page.removesuffix("\n")


@cache
def _template(name: str) -> jinja2.Template:
    return _environment().from_string(_text(name))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    return environment


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
