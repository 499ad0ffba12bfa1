"""TOML of strangers: bombs are refused before they are parsed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.dictionaries import problems

from penstock.base.errors import InvalidInput
from penstock.study.toml import parse_dictionary, parse_study, read_file
from penstock.study.toml.reader import read_toml


@pytest.mark.parametrize(
    "bomb",
    [
        "a." * 250_000 + "a = 1",
        '"a".' * 200_000 + "a = 1",
        "[" + "a." * 250_000 + "a]",
        "a = " + "[" * 500_000,
        "a = " + "{a = " * 100_000,
        "a = [" + "{b.c.d = [" * 10,
        "x.y.z = {" + "a.b.c.d.e = {" * 3,
    ],
    ids=["dotted", "quoted", "header", "arrays", "tables", "mixed", "sums"],
)
@pytest.mark.parametrize("parse", [parse_dictionary, parse_study])
def test_a_toml_bomb_is_refused_before_it_is_parsed(
    parse: object, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_: str) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("penstock.study.toml.reader.tomllib.loads", never)
    (found,) = problems(parse, bomb)
    assert "nested too deeply" in found.message


@pytest.mark.parametrize(
    "text",
    [
        'a = "' + "[" * 50 + '"',
        "a = '" + "." * 50 + "'",
        'a = """' + "[\n" * 50 + '"""',
        "# " + "[." * 50 + "\na = 1",
        "a = [" + "1.5, " * 100 + "]",
        "a = [\n" + "[1.5], # ]\n" * 100 + "]",
        "".join(f"[a.b.c.d{i}]\ne.f = {{g.h = 1}}\n" for i in range(100)),
    ],
    ids=["string", "literal", "lines", "comment", "numbers", "rows", "many"],
)
def test_depth_is_counted_outside_strings_and_side_by_side(text: str) -> None:
    assert read_toml(text, "test")[0]


def test_a_file_of_any_size_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(10**12)  # sparse: it takes no disk, and would take all memory
    with pytest.raises(InvalidInput, match="is too large, got 1000000000000 bytes"):
        read_file(huge)


def test_size_is_counted_in_bytes() -> None:
    (found,) = problems(parse_dictionary, "# " + "é" * 600_000)
    assert "is too large" in found.message
