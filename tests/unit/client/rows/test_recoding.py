"""A file's own way of saying things, in a file of its own: read, refused, carried out."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sources import check, outside_values, read_text

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema
from penstock.study.toml import (
    Guess,
    Roles,
    draft_dictionary,
    guess_person,
    infer_kind,
    parse_dictionary,
    read_codebook,
)
from penstock_client.rows.codes import Codes
from penstock_client.rows.dates import DateForm, measure_between
from penstock_client.rows.drafts import outline_source
from penstock_client.rows.findings import Finding
from penstock_client.rows.recoding import Recoding
from penstock_client.rows.recoding_file import parse_recoding
from penstock_client.rows.sources import source
from penstock_client.rows.sources.layout import Layout
from penstock_client.rows.sources.registry import SOURCES
from penstock_client.rows.sources.source import Batch, read_batches

N = 60
SEX = Column("sex", "categorical", levels=("male", "female"))
AGE = Column("age", "continuous", lower=0, upper=120, decimals=1)
TIME = Column("time", "duration", upper=365, event="died")
DIED = Column("died", "event")
SCHEMA = Schema((SEX, AGE, TIME, DIED))


def one(column: Column, rules: str, *cells: str) -> tuple[list[float], tuple[Finding, ...]]:
    """The first cells of one column, read from the file's column ``raw`` as ``rules`` say."""
    pair = Column("end", "duration", upper=9, event=column.name)
    schema = Schema((column, pair) if column.kind == "event" else (column,))
    raw = {"raw": [*cells, *[cells[-1]] * N][:N], "end": ["1"] * N}
    recoding = parse_recoding(f"[columns.{column.name}]\n{rules}", schema)
    found = check(pd.DataFrame(raw, dtype=object), schema, recoding=recoding)
    return found.coded[column.name][: len(cells)].tolist(), found.findings


def problems(text: str, schema: Schema = SCHEMA) -> list[str]:
    with pytest.raises(InvalidInput) as error:
        parse_recoding(text, schema)
    return [str(p) for p in error.value.problems]


# -- text stays as it is -----------------------------------------------------------------------


def test_the_code_i21_0_was_drafted_as_i21():
    """Two codes became one, and three of them a column of two."""
    cells = ["I21", "I21.0", "I22"]
    assert infer_kind("icd", cells) == Guess("categorical")
    assert infer_kind("icd", ["I21", "I21.0"]) == Guess("binary")


def test_codes_in_a_codebook_and_a_dictionary_lost_their_zeros():
    book = read_codebook(["name", "levels"], [(2, ["icd", "[410.10, 410.1, 7]"])])
    assert book.columns["icd"].fields["levels"] == ["410.10", "410.1", "7"]
    text = '[columns.icd]\nkind = "categorical"\nlevels = [410.10, 410.1, 7]\nmissing = [-9.0]\n'
    assert parse_dictionary(text).schema["icd"].levels == ("410.10", "410.1", "7")


@pytest.mark.parametrize(
    ("cell", "found"),
    [("410.1", "410.1"), ("410.10", None), ("410.0", None), ("410", "410"), ("4.1e2", None)],
)
def test_the_code_410_10_became_410_1(cell, found):
    assert Codes(("410", "410.1", "V45")).find(cell) == found


@pytest.mark.parametrize(
    ("cell", "found"), [("1", "1"), ("1.0", "1"), ("01", "1"), ("1e0", None), ("1.5", None)]
)
def test_whole_numbers_are_codes_however_they_are_written(cell, found):
    assert Codes(("0", "1")).find(cell) == found


def test_an_unknown_code_is_not_taken_for_its_neighbour():
    schema = Schema((Column("icd", "categorical", levels=("410.0", "410.1")),))
    frame = pd.DataFrame({"icd": ["410.10", *["410.0"] * N]}, dtype=object)
    checked = check(frame, schema)
    assert math.isnan(checked.coded["icd"][0])
    assert "1 value outside the levels" in checked.findings[0].message


# -- persons who contribute nothing ------------------------------------------------------------


def coded_sex() -> tuple[pd.DataFrame, Schema]:
    frame = pd.DataFrame({"sex": ["1", "2"] * 30, "age": ["50"] * N}, dtype=object)
    return frame, Schema((SEX, AGE))


def test_a_column_whose_every_value_is_unknown_was_certified():
    frame, schema = coded_sex()
    checked = check(frame, schema)
    (finding,) = checked.findings
    assert finding.fatal
    assert "not one known value: 60 of 60 are outside the levels" in finding.message
    assert "--allow-empty sex" in finding.remedy
    assert "60 of 60 persons have no known value, and would contribute nothing" in str(finding)
    assert checked.without == N
    (named,) = check(frame, schema, allow_empty=("sex",)).findings
    assert not named.fatal


def test_a_column_in_another_unit_was_clamped_to_a_constant():
    frame = pd.DataFrame({"x": ["1.75"] * N}, dtype=object)  # metres
    schema = Schema((Column("x", "continuous", lower=100, upper=230),))
    (finding,) = check(frame, schema).findings
    assert finding.fatal
    assert "60 of 60 are outside [100, 230]" in finding.message
    assert "times" in finding.remedy
    assert (
        check(frame, schema, recoding=parse_recoding("[columns.x]\ntimes = 100", schema))
        .coded["x"]
        .tolist()
        == [175.0] * N
    )


def test_how_many_persons_contribute_nothing_is_said():
    frame, schema = coded_sex()
    frame["sex"] = ["male"] * 45 + ["3"] * 15
    frame.loc[:4, "age"] = ""
    checked = check(frame, schema)
    assert [(f.column, f.without, f.counted) for f in checked.findings] == [
        ("sex", 15, N),
        ("age", 5, N),
    ]
    assert checked.without == 20
    frame["who"] = [f"p{i // 2}" for i in range(N)]  # of two rows one is enough
    checked = check(frame, Schema(schema.columns, "who", 2))
    (sex,) = (f for f in checked.findings if f.column == "sex")
    assert (sex.without, checked.counted) == (7, 30)


def test_a_name_of_no_column_is_refused_on_the_command_line():
    frame, schema = coded_sex()
    with pytest.raises(InvalidInput, match="Did you mean 'sex'"):
        check(frame, schema, allow_empty=("sexe",))


# -- each kind of recoding ---------------------------------------------------------------------

FLAG = Column("flag", "binary")


@pytest.mark.parametrize(
    ("column", "rules", "cells", "found"),
    [
        (SEX, 'from = "raw"', ["male", "female"], [0, 1]),
        (
            SEX,
            'from = "raw"\nvalues = { 1 = "male", 2 = "female" }',
            ["1", "2.0", ""],
            [0, 1, None],
        ),
        (SEX, 'from = "raw"\nignore_case = true', ["MALE", "Female"], [0, 1]),
        (
            SEX,
            'from = "raw"\nignore_case = true\nvalues = { m = "male", f = "female" }',
            ["M", "f"],
            [0, 1],
        ),
        (
            SEX,
            'from = "raw"\ntrim = true\nvalues = { "a man" = "male", x = "female" }',
            ["a   man", "x"],
            [0, 1],
        ),
        (SEX, 'from = "raw"\nmissing = ["NA", -9]', ["NA", "-9.0", "female"], [None, None, 1]),
        (AGE, 'from = "raw"\ndecimal = ","', ["61,5", "70"], [61.5, 70]),
        (AGE, 'from = "raw"\ndecimal = ","\nmissing = [999]', ["999,0", "7,5"], [None, 7.5]),
        (AGE, 'from = "raw"\nthousands = " "\ntimes = 0.01', ["6 150", "7000"], [61.5, 70]),
        (
            AGE,
            'from = "raw"\nvalues = { "<1" = 0.5, ">99" = 100 }',
            ["<1", ">99", "7"],
            [0.5, 100, 7],
        ),
        (AGE, 'from = "raw"\nmissing = [-9, "."]', ["-9.00", ".", "7"], [None, None, 7]),
        (DIED, 'from = "raw"\nvalues = { yes = 1, no = 0 }', ["yes", "no"], [1, 0]),
        (DIED, 'from = "raw"\nvalues = { 1 = 0, 2 = 1 }', ["1", "2"], [0, 1]),
        (FLAG, 'from = "raw"\npresent = true', ["2020-01-01", ""], [1, 0]),
        (FLAG, 'from = "raw"\npresent = true\nmissing = ["."]', [".", "x"], [0, 1]),
    ],
)
def test_each_recoding_gives_the_dictionarys_own_values(column, rules, cells, found):
    got, findings = one(column, rules, *cells)
    assert [None if math.isnan(v) else v for v in got] == found
    assert not [f for f in findings if f.fatal]


def test_a_map_knows_what_it_names_and_nothing_else():
    """0 is a level of the dictionary, and was none of this file's codes."""
    got, findings = one(DIED, 'from = "raw"\nvalues = { 1 = 0, 2 = 1 }', "0", "1", "2")
    assert math.isnan(got[0])
    assert "1 value outside the levels" in findings[0].message


@pytest.mark.parametrize("cell", ["1.5", "1,234.5", "1 234", "zq7"])
def test_a_point_among_decimal_commas_is_not_guessed_at(cell):
    _, findings = one(AGE, 'from = "raw"\ndecimal = ","', cell, "61,5")
    assert findings[0].fatal
    assert "numbers are written like 1234,5" in findings[0].remedy
    assert cell not in str(findings[0])


DATES = {
    "died_on": ["31.01.2020", "", "NA", ""],
    "last_seen": ["15.02.2020", "01.03.2020", "", ""],
    "included": ["01.01.2020", "01.01.2020", "01.01.2020", "01.02.2020"],
}
DATED = """
[source]
date = "dd.mm.yyyy"
missing = ["NA"]
[columns.time]
from = ["died_on", "last_seen"]
since = "included"
in = "days"
[columns.died]
from = "died_on"
present = true
"""


def dated(**changes: list[str]) -> tuple[pd.DataFrame, Schema]:
    raw = {name: cells * 15 for name, cells in (DATES | changes).items()}
    return pd.DataFrame(raw, dtype=object), Schema((TIME, DIED))


def test_a_duration_and_its_event_come_from_dates():
    frame, schema = dated()
    checked = check(frame, schema, recoding=parse_recoding(DATED, schema))
    assert checked.coded["time"][:2].tolist() == [30.0, 60.0]
    assert np.isnan(checked.coded["time"][2:4]).all()
    assert checked.coded["died"][:4].tolist() == [1, 0, 0, 0]
    assert [f.column for f in checked.findings] == ["time"]
    assert checked.unused == ()


@pytest.mark.parametrize("bad", ["2020-01-31", "01/31/2020", "31.02.2020", "31.01.20", "43861"])
def test_a_date_in_another_form_is_refused_and_never_guessed(bad):
    frame, schema = dated(died_on=["31.01.2020", bad, "", ""])
    recoding = parse_recoding(DATED, schema)
    checked = check(frame, schema, recoding=recoding)
    finding = next(f for f in checked.findings if f.fatal)
    assert finding.message == "not a date like dd.mm.yyyy"
    assert finding.count == 15
    assert bad not in str(finding)
    shown = outside_values(frame, schema, recoding)["time"]
    assert shown == [(f"{bad} since 01.01.2020", 15)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("yyyy-mm-dd", "2020-02-29"),
        ("yyyy-mm-dd", "2020-02-29 23:59:00"),
        ("yyyy-mm-dd", "2020-02-29T00:00:00.000+01:00"),
        ("DD.MM.YYYY", "29.2.2020"),
        ("mm/dd/yyyy", "2/29/2020"),
        ("yyyymmdd", "20200229"),
        ("dd-mon-yyyy", "29-FEB-2020"),
        ("mon dd, yyyy", "Feb 29, 2020"),
        ("days since 1899-12-30", "43890"),
        ("days since 1960-01-01", "21974.0"),
    ],
)
def test_every_form_of_a_date_is_the_same_day(form, text):
    assert DateForm(form).day(text) == 737484  # date(2020, 2, 29).toordinal()
    assert math.isnan(DateForm(form).day("29th of February"))


@pytest.mark.parametrize(
    ("start", "end", "unit", "found"),
    [
        ("2000-02-29", "2001-02-28", "full years", 0),
        ("2000-02-29", "2001-03-01", "full years", 1),
        ("1950-06-15", "2020-06-14", "full years", 69),
        ("1950-06-15", "2020-06-15", "full years", 70),
        ("2020-01-01", "2021-01-01", "years", 366 / 365.25),
        ("2020-01-15", "2020-01-01", "weeks", -2),
        ("2020-01-01", "2020-12-31", "months", 365 / (365.25 / 12)),
    ],
)
def test_times_between_dates(start, end, unit, found):
    days = [np.array([DateForm().day(text), math.nan]) for text in (start, end)]
    got = measure_between(*days, unit)
    assert got[0] == pytest.approx(found, abs=1e-12)
    assert math.isnan(got[1])


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sources]\n", "line 1: sources: is not a known key. Did you mean 'source'?"),
        ("[source]\ndelimeter = ';'\n", "line 2: source.delimeter: is not a known key. Did you"),
        ("[source]\ndelimiter = '::'\n", "source.delimiter: is unknown, got '::'; one of"),
        ("[source]\nencoding = 'latin1'\n", "source.encoding: is unknown, got 'latin1'; one of"),
        ("[source]\ndecimal = ','\nthousands = ','\n", "is the decimal mark too"),
        ("[source]\ndate = 'dd.mm.yy'\n", "two-digit years can be read in two ways"),
        ("[source]\ndate = 'mm.yyyy'\n", "does not have a day, a month and a year"),
        ("[source]\nmissing = 'NA'\n", "source.missing: must be a list"),
        ("[source]\nmissing = [-1, 200]\n", "line 2: source.missing: would be missing in every"),
        ("[source]\nmissing = ['FEMALE']\nignore_case = true\n", "no level of sex"),
        ("[columns.sexe]\nfrom = 's'\n", "columns.sexe: is no column of dictionary.toml. Did you"),
        (
            "[columns.sex]\nform = 's'\n",
            "columns.sex.form: is not a known key. Did you mean 'from'",
        ),
        ("[columns.sex]\nvalues = {1 = 'mal'}\n", "is mapped to what is no level, got 'mal'; one"),
        ("[columns.sex]\nvalues = {1.0 = 'male'}\n", "columns.sex.values.1: is a table"),
        ("[columns.sex]\nvalues = {1 = true}\n", "Write 1 or 0"),
        ("[columns.sex]\nvalues = {}\n", "must be a table that is not empty"),
        ("[columns.sex]\nvalues = {9 = 'male'}\nmissing = [9]\n", "is in `missing` too"),
        ("[columns.sex]\nmissing = ['male']\n", "is a level too"),
        (
            "[columns.sex]\nignore_case = true\nvalues = {m = 'male', M = 'male'}\n",
            "says the same as 'm'",
        ),
        ("[columns.sex]\ntimes = 2\n", "columns.sex.times: has no meaning for kind 'categorical'"),
        ("[columns.sex]\nsince = 'd'\n", "columns.sex.since: has no meaning for kind"),
        ("[columns.sex]\npresent = true\n", "a column whose levels are 0 and 1"),
        ("[columns.age]\nvalues = {old = 300}\n", "is out of range, got 300.0; a number from 0 to"),
        ("[columns.age]\nvalues = {old = 'x'}\n", "must be a number, got 'x'"),
        ("[columns.age]\ntimes = nan\n", "columns.age.times: is out of range, got nan"),
        ("[columns.age]\ntimes = 0\n", "columns.age.times: is 0"),
        ("[columns.age]\nsince = 'd'\n", "columns.age.in: is missing; one of days, weeks"),
        ("[columns.age]\nin = 'days'\n", "columns.age.in: has no meaning without `since`"),
        ("[columns.age]\nsince = 'd'\nin = 'dyas'\n", "columns.age.in: is unknown, got 'dyas'"),
        ("[columns.age]\nsince = 'd'\nin = 'days'\ntimes = 2\n", "has no meaning beside `since`"),
        ("[columns.age]\nfrom = 'sex'\n", "sex and age are read from the same column of the file"),
        ("[columns.age]\nfrom = []\n", "columns.age.from: has the wrong length"),
    ],
)
def test_what_a_recoding_cannot_mean_is_refused_with_its_line(text, words):
    found = problems(text)
    assert len(found) == 1, found
    assert words in found[0]
    assert found[0].startswith("line ")


def test_two_columns_of_one_source_are_meant_where_it_is_said():
    text = "[columns.age]\nfrom = 'sex'\nagain = true\n"
    assert parse_recoding(text, SCHEMA).rule("age").sources == ("sex",)


def test_all_problems_come_together_in_the_order_of_the_file():
    found = problems("[source]\ndecimel = ','\n[columns.age]\ntims = 2\n[columns.sx]\n")
    assert [line.partition(":")[0] for line in found] == ["line 2", "line 4", "line 5"]


def test_an_identifier_is_taken_as_it_stands_and_never_modelled():
    schema = Schema((SEX,), "id", 1)
    assert (
        "has no meaning for the person column" in problems("[columns.id]\ntrim = true\n", schema)[0]
    )
    assert "is the person column" in problems("[columns.sex]\nfrom = 'id'\n", schema)[0]
    text = "[columns.id]\nfrom = 'Patient-Nr'\n[source]\nmissing = ['NA', 9]\nignore_case = true\n"
    frame = pd.DataFrame({"Patient-Nr": ["a", "A", "NA", *map(str, range(57))]}, dtype=object)
    frame["sex"] = "male"
    checked = check(frame, schema, recoding=parse_recoding(text, schema))
    assert [f.message for f in checked.findings] == ["a row without a person id"]
    assert checked.counted == N


def test_a_source_that_the_file_lacks_is_named_with_its_neighbour():
    schema = Schema((SEX,))
    frame = pd.DataFrame({"Geschlecht": ["1"] * N}, dtype=object)
    (finding,) = check(
        frame, schema, recoding=parse_recoding("[columns.sex]\nfrom = 'Geschlect'", schema)
    ).findings
    assert "'Geschlect', from which recoding.toml reads it" in finding.message
    assert finding.remedy == "Did you mean 'Geschlecht'?"


# -- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "utf-16", "iso-8859-15", "UTF-8"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
def test_a_file_in_every_layout_is_the_same_table(tmp_path, encoding, delimiter):
    text = 'Größe,Ort\n1,"Köln, Süd"\n'.replace(",", delimiter)
    if delimiter == ",":
        text = 'Größe,Ort\n1,"Köln, Süd"\n'
    else:
        text = text.replace(f"Köln{delimiter} Süd", "Köln, Süd")
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    recoding = parse_recoding(
        f"[source]\nencoding = '{encoding}'\ndelimiter = \"{delimiter}\"\n".replace("\t", "\\t"),
        SCHEMA,
    )
    found = read_text(path, recoding.layout)
    assert found.to_dict("list") == {"Größe": ["1"], "Ort": ["Köln, Süd"]}


def test_a_parquet_file_has_no_delimiter(tmp_path):
    pd.DataFrame({"x": ["1"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="no delimiter and no encoding"):
        read_text(tmp_path / "a.parquet", Layout(";"))


def test_text_that_parquet_keeps_as_bytes_is_text(tmp_path):
    pd.DataFrame({"x": [b"male", None]}).to_parquet(tmp_path / "a.parquet")
    assert read_text(tmp_path / "a.parquet")["x"].tolist() == ["male", ""]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_large_file_was_held_whole_in_memory(tmp_path, monkeypatch, kind):
    """Batches give what the whole table gives, and each is let go before the next."""
    monkeypatch.setattr(source, "BATCH_CELLS", 20)
    monkeypatch.setattr(source, "SAMPLE_ROWS", 7)
    frame = pd.DataFrame(
        {
            "who": [f"p{i // 2}" for i in range(100)],
            "sex": [("male", "female", "x")[i % 3] for i in range(100)],
            "age": [str(i) if i % 9 else "" for i in range(100)],
        }
    )
    path = tmp_path / f"a.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    schema = Schema((SEX, AGE), "who", 1)
    kept: list[weakref.ref[Batch]] = []

    def watched():
        for batch in read_batches(SOURCES.open(path)):
            gc.collect()
            assert sum(ref() is not None for ref in kept) <= 1
            kept.append(weakref.ref(batch))
            yield batch
            del batch

    piecewise = check(watched(), schema, secret=b"k")
    monkeypatch.undo()
    whole = check(read_text(path), schema, secret=b"k")
    assert len(kept) > 10
    assert [str(f) for f in piecewise.findings] == [str(f) for f in whole.findings]
    assert piecewise.person.tolist() == whole.person.tolist()
    for name, values in whole.coded.items():
        np.testing.assert_array_equal(values, piecewise.coded[name])
    assert piecewise.everybody.rows.tolist() == whole.everybody.rows.tolist()
    assert len(whole.everybody.persons) == 50


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=20))
def test_any_cell_at_all_is_recoded_within_the_schema_and_the_same_each_time(cells):
    text = (
        "[source]\ndecimal = ','\nthousands = '.'\nmissing = [-9, 'NA']\nignore_case = true\n"
        "trim = true\n[columns.sex]\nfrom = 'a'\nvalues = {1 = 'male'}\n"
        "[columns.age]\nfrom = 'a'\nagain = true\ntimes = 3\n"
        "[columns.time]\nfrom = 'a'\nsince = 'a'\nin = 'years'\ndate = 'yyyymmdd'\n"
        "[columns.died]\nfrom = 'a'\npresent = true\n"
    )
    frame = pd.DataFrame({"a": [c.strip() for c in cells]}, dtype=object)
    recoding = parse_recoding(text, SCHEMA)
    checked, again = (check(frame, SCHEMA, recoding=recoding) for _ in range(2))
    for column in SCHEMA.columns:
        values = checked.coded[column.name]
        np.testing.assert_array_equal(values, again.coded[column.name])
        kept = values[~np.isnan(values)]
        low, high = (0, len(column.levels) - 1) if column.levels else column.bounds
        assert ((low <= kept) & (kept <= high)).all()


# -- drafts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["age", "person"], "person"),
        (["ID", "age"], "ID"),
        (["visit", "Patient-ID", "id"], "Patient-ID"),
        (["usubjid", "age"], "usubjid"),
        (["age", "case", "number", "idea"], None),
    ],
)
def test_a_column_called_like_a_persons_id_was_drafted_as_a_number(names, found):
    assert guess_person(names) == found
    text = draft_dictionary({name: Guess("integer") for name in names})
    assert (f'\nperson = "{found}"  # guessed from its name' in text) is (found is not None)
    assert ("\n# person = " in text) is (found is None)
    assert f"[columns.{found}]" not in text


def test_roles_that_were_said_stand_before_guesses():
    guesses = {n: Guess("integer") for n in ("id", "fu", "status", "note", "age")}
    roles = Roles(person=None, time="fu", event="status", left_out=("note",))
    text = draft_dictionary(guesses, None, roles)
    assert '[columns.fu]\nkind = "duration"\nevent = "status"\n' in text
    assert '[columns.status]\nkind = "event"\n' in text
    assert "[columns.id]" in text
    assert "note" not in text.partition("# Kinds")[2].partition("[columns")[2]
    with pytest.raises(InvalidInput, match="Did you mean 'status'"):
        Roles(event="statsu").check(list(guesses))
    with pytest.raises(InvalidInput, match="has two roles"):
        Roles(person="id", time="id").check(list(guesses))


SPANISH = "Nº paciente;Edad (años);Fecha;Colesterol\nz7;61;03.04.2020;5,25\nz8;71;13.04.2020;6,5\n"


def test_what_a_file_shows_is_its_layout_and_kinds_and_no_value(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(SPANISH.encode("windows-1252"))
    seen = outline_source(path)
    assert (seen.layout, seen.decimal_commas) == (Layout(";", "windows-1252"), True)
    assert {n: g.kind for n, g in seen.guesses.items()} == {
        "No_paciente": "binary",
        "Edad_anos": "integer",
        "Fecha": "binary",
        "Colesterol": "continuous",
    }
    assert seen.dates == {"Fecha": "Fecha"}
    text = seen.recoding()
    said = text.partition('[source]\ndelimiter = ";"  # guessed')[2]
    assert 'from = "Edad (años)"' in said
    assert not any(value in said for value in ("z7", "61", "5,25", "03.04"))
    draft = draft_dictionary(seen.guesses, None, None, tuple(seen.dates))
    assert "# Dates, of which recoding.toml makes times: Fecha" in draft
    assert "[columns.Fecha]" not in draft


def test_dates_are_not_drafted_as_columns_whatever_the_file_calls_them(tmp_path):
    """The draft had a column of levels for dates whose name no dictionary can have."""
    path = tmp_path / "a.csv"
    path.write_text("Alter;letzter Kontakt\n61;03.04.2020\n71;13.04.2020\n")
    seen = outline_source(path)
    assert seen.dates == {"letzter_Kontakt": "letzter Kontakt"}
    assert "(use `since`): letzter Kontakt\n" in seen.recoding()
    draft = draft_dictionary(seen.guesses, None, None, tuple(seen.dates))
    assert "[columns.letzter_Kontakt]" not in draft


def test_a_drafted_recoding_parses_and_says_what_was_seen(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(SPANISH.encode("windows-1252"))
    seen = outline_source(path)
    schema = Schema(
        (
            Column("Edad_anos", "integer", 0, 120),
            Column("No_paciente", "categorical", levels=("a", "b")),
        )
    )
    found = parse_recoding(seen.recoding(), schema)
    assert found.layout == seen.layout
    assert found.general.decimal == ","
    assert found.rule("Edad_anos").sources == ("Edad (años)",)
    (tmp_path / "b.csv").write_text("age,sex\n61,1\n")
    assert parse_recoding(outline_source(tmp_path / "b.csv").recoding(), SCHEMA) == Recoding()


def test_every_example_in_a_drafted_recoding_is_true(tmp_path: Path):
    """Its comments, taken out, parse against a dictionary with those columns."""
    (tmp_path / "b.csv").write_text("age,sex\n61,1\n")
    text = outline_source(tmp_path / "b.csv").recoding().partition("# [source]")[1:]
    plain = "".join(
        line.removeprefix("#").removeprefix(" ") + "\n" for line in "".join(text).splitlines()
    )
    plain = "\n".join(x for x in plain.splitlines() if not x.startswith("For a column"))
    schema = Schema(
        (
            SEX,
            TIME,
            DIED,
            Column("cvd", "binary"),
            Column("cholesterol", "continuous", lower=1, upper=20),
        )
    )
    found = parse_recoding(plain, schema)
    assert set(found.rules) == {"sex", "died", "cvd", "time", "cholesterol"}
    assert found.general.missing == ("-9", "999", "NA", ".")
