"""A study's file, and a dictionary, as commands are given them; problems under the file's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.base.files import reading_named
from penstock.cli.joins import REMEDY, read_record
from penstock.schema import Schema
from penstock.study.study import Study, require_estimands
from penstock.study.toml import parse_dictionary, parse_study, read_file

T = TypeVar("T")

StudyFile = Annotated[Path, typer.Argument(help="The study's TOML file.")]
NoEstimands = Annotated[
    bool,
    typer.Option("--no-estimands", help="What sites release is wanted, and no report's answer."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def read_schema(source: Path) -> Schema:
    """The columns of a dictionary.toml, or of a site's join.json.

    Raises:
        InvalidInput: with every problem of the file.
    """
    if source.suffix == ".json":
        record = read_record(source)
        if not isinstance(record.get("dictionary"), dict):
            raise InvalidInput(str(source), [Problem("dictionary", "is missing", remedy=REMEDY)])
        return _parse_named(source, lambda: Schema.from_dict(record["dictionary"]))
    with reading_named(source, "Give a dictionary.toml, or a site's join.json"):
        text = read_file(source)
    return _parse_named(source, lambda: parse_dictionary(text).schema)


def read_study(path: Path, no_estimands: bool) -> Study:
    """A study that asks something, unless its analyst says that it need not.

    Raises:
        InvalidInput: with every problem of the file; or there is no estimand.
    """
    with reading_named(path, "Draft one by `penstock study new`, or correct the path"):
        text = read_file(path)
    found = _parse_named(path, lambda: parse_study(text))
    if not no_estimands:
        require_estimands(found, str(path), "give --no-estimands")
    return found


def _parse_named(path: Path, parse: Callable[[], T]) -> T:
    """The problems of a text, under the name of its file."""
    try:
        return parse()
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None
