"""A site's file becomes text, and text becomes coded rows: every finding, and nothing else."""

from __future__ import annotations

import csv
import datetime
import io
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sources import check, outside_values, read_text

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema
from penstock_client.rows.findings import Finding
from penstock_client.rows.sources.layout import Layout
from penstock_client.rows.validation import MIN_PERSONS, require_clean

N = 60
AGE = Column("age", "continuous", lower=18, upper=100, missing=("-9", "?"), nullable=True)
VISITS = Column("visits", "integer", lower=0, upper=20)
SEX = Column("sex", "binary")
GRADE = Column("grade", "ordered", levels=("low", "mid", "high"), missing=("-9",))
SCHEMA = Schema((AGE, VISITS, SEX, GRADE))


def table(**changes: list[str]) -> pd.DataFrame:
    """Sound rows on the lines 2, 3, ..., with some columns replaced (cycled to the length)."""
    columns = {
        "age": [str(20 + i % 50) for i in range(N)],
        "visits": [str(i % 20) for i in range(N)],
        "sex": [str(i % 2) for i in range(N)],
        "grade": [("low", "mid", "high")[i % 3] for i in range(N)],
        **changes,
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(2, N + 2, name="line"), dtype=object)


def spoilt(column: str, *cells: str) -> pd.DataFrame:
    """The sound table with the first cells of a column replaced."""
    frame = table()
    frame.loc[frame.index[: len(cells)], column] = list(cells)
    return frame


def only(frame: pd.DataFrame, schema: Schema = SCHEMA) -> Finding:
    found = check(frame, schema).findings
    assert len(found) == 1, [str(f) for f in found]
    return found[0]


def test_sound_rows_give_no_finding_and_their_own_values():
    checked = check(table(), SCHEMA)
    assert checked.findings == ()
    assert checked.rows == checked.counted == N
    assert checked.coded["age"].tolist() == [20.0 + i % 50 for i in range(N)]
    assert checked.coded["grade"].tolist() == [float(i % 3) for i in range(N)]


@pytest.mark.parametrize(
    ("column", "cell", "message", "fatal", "remedy"),
    [
        ("age", "sixty", "text in a number", True, "declare the text in `missing`"),
        ("age", "61,5", "text in a number", True, "with a point"),
        ("age", "inf", "text in a number", True, "Correct"),
        ("age", "nan", "text in a number", True, "Correct"),
        ("age", "140", "outside [18, 100]; they are clamped", False, "-9 in `missing`"),
        ("age", "-1", "outside [18, 100]; they are clamped", False, "widened by public"),
        ("visits", "2.5", "fractions in a whole number; they are rounded", False, ""),
        ("visits", "", "missing values in a column that is not nullable", False, ""),
        (
            "sex",
            "male",
            "1 value outside the levels; they become missing",
            False,
            "name a public level",
        ),
        (
            "grade",
            "3",
            "1 value outside the levels; they become missing",
            False,
            "a code in `missing`",
        ),
    ],
)
def test_one_bad_cell_is_one_finding_with_its_line(column, cell, message, fatal, remedy):
    finding = only(spoilt(column, cell))
    assert finding.column == column
    assert message in finding.message
    assert (finding.lines, finding.count, finding.fatal) == ((2,), 1, fatal)
    assert remedy in finding.remedy


@pytest.mark.parametrize(("cell", "value"), [("140", 100.0), ("-1", 18.0), ("-9", math.nan)])
def test_bounds_clamp_but_missing_codes_do_not(cell, value):
    got = check(spoilt("age", cell), SCHEMA).coded["age"][0]
    assert got == value or (math.isnan(got) and math.isnan(value))


@pytest.mark.parametrize("cell", ["-9", "-9.0", "-9.00", "?", ""])
def test_missing_codes_are_known_as_text_and_as_number(cell):
    checked = check(spoilt("age", cell), SCHEMA)
    assert checked.findings == ()
    assert math.isnan(checked.coded["age"][0])
    assert not math.isnan(checked.coded["age"][1])


@pytest.mark.parametrize("cell", ["1", "1.0", "1.", "01"])
def test_a_level_written_as_another_number_is_the_level(cell):
    checked = check(spoilt("sex", cell), SCHEMA)
    assert checked.findings == ()
    assert checked.coded["sex"][0] == 1.0


def test_levels_that_are_one_number_but_two_texts_stay_apart():
    codes = Schema((Column("icd", "categorical", levels=("01", "1", "2")),))
    frame = pd.DataFrame({"icd": ["01", "1", "2"] * 20}, dtype=object)
    assert check(frame, codes).coded["icd"].tolist() == [0.0, 1.0, 2.0] * 20


def test_lines_are_the_first_five_and_the_rest_are_counted():
    finding = only(spoilt("sex", *["x"] * 8))
    assert finding.lines == (2, 3, 4, 5, 6)
    assert "lines 2, 3, 4, 5, 6 and 3 more" in str(finding)


def test_all_findings_come_together():
    frame = spoilt("age", "old")
    frame.loc[2, "sex"] = "male"
    frame = frame.drop(columns="grade")
    found = check(frame, SCHEMA).findings
    assert [f.column for f in found] == ["age", "sex", "grade"]
    assert [f.fatal for f in found] == [True, False, True]


@pytest.mark.parametrize("nullable", [True, False])
def test_a_column_without_any_value_stops_unless_it_is_named(nullable):
    schema = Schema((Column("x", "continuous", lower=0, upper=1, nullable=nullable),))
    frame = pd.DataFrame({"x": [""] * N}, dtype=object)
    finding = only(frame, schema)
    assert finding.message == "every value is missing"
    assert finding.fatal
    assert "--allow-empty x" in finding.remedy
    (finding,) = check(frame, schema, allow_empty=["x"]).findings
    assert not finding.fatal
    assert (finding.without, finding.counted) == ((0, 0) if nullable else (N, N))


def test_a_missing_column_names_the_nearest_one():
    finding = only(table().rename(columns={"visits": "vists"}))
    assert finding.fatal
    assert finding.column == "visits"
    assert finding.remedy == "Did you mean 'vists'?"


def test_a_missing_column_of_a_wide_file_does_not_list_it_all():
    frame = table().drop(columns="age")
    frame = frame.assign(**{f"q{i}": "1" for i in range(50)})
    finding = only(frame)
    assert "q1" not in finding.remedy
    assert "from = …" in finding.remedy


def test_columns_that_the_dictionary_leaves_out_are_named_and_do_not_stop():
    checked = check(table().assign(ward="3"), SCHEMA)
    assert checked.findings == ()
    assert checked.unused == ("ward",)
    assert "ward" not in checked.coded


@pytest.mark.parametrize(("n", "words"), [(0, "no rows"), (10, f"at least {MIN_PERSONS}")])
def test_too_few_rows_stop(n, words):
    finding = only(table().head(n))
    assert finding.fatal
    assert words in finding.message


@pytest.mark.parametrize(("n", "enough"), [(MIN_PERSONS - 1, False), (MIN_PERSONS, True)])
def test_the_fewest_persons_that_pass(n, enough):
    assert (check(table().head(n), SCHEMA).findings == ()) is enough


def test_what_is_none_of_the_levels_becomes_the_level_that_is_named_for_it():
    frame = spoilt("grade", "3", "", "zebra", "high")
    checked = check(frame, SCHEMA, others={"grade": "mid"})
    (finding,) = [f for f in checked.findings if "outside" in f.message]
    assert "2 values outside the levels; they become 'mid'" in finding.message
    codes = checked.coded["grade"][:4].tolist()
    assert (codes[0], codes[2], codes[3]) == (1.0, 1.0, 2.0)
    assert math.isnan(codes[1])  # missing stays missing


def test_values_outside_are_counted_for_the_steward():
    frame = spoilt("age", "140", "-9", "140", "old", "", "17.5")
    frame.loc[frame.index[:2], "grade"] = ["zebra", "low"]
    assert outside_values(frame, SCHEMA) == {
        "age": [("140", 2), ("old", 1), ("17.5", 1)],
        "grade": [("zebra", 1)],
    }
    assert outside_values(table(), SCHEMA) == {}
    assert outside_values(table().head(0).drop(columns="age"), SCHEMA) == {}


# -- persons -----------------------------------------------------------------------------------


def people(k: int, ids: list[str]) -> tuple[pd.DataFrame, Schema]:
    return table(id=ids), Schema(SCHEMA.columns, "id", k)


def test_a_person_with_two_rows_stops_where_one_is_declared():
    finding = only(*people(1, ["p0", "p0", *[f"p{i}" for i in range(2, N)]]))
    assert finding.fatal
    assert finding.lines == (3,)
    assert "raise max_rows_per_person" in finding.remedy
    assert "p0" not in str(finding)


def test_rows_beyond_the_limit_are_said_and_do_not_stop():
    frame, schema = people(2, ["p0"] * 3 + [f"p{i}" for i in range(3, N)])
    finding = only(frame, schema)
    assert not finding.fatal
    assert finding.lines == (4,)
    assert "only the first 2 count" in finding.message
    assert check(frame, schema).counted == N - 2


def test_a_row_without_a_person_stops():
    finding = only(*people(3, ["", *[f"p{i}" for i in range(1, N)]]))
    assert finding.fatal
    assert "Give it one" in finding.remedy
    assert finding.lines == (2,)


def test_a_person_column_that_is_not_there_stops():
    finding = only(table(pid=[str(i) for i in range(N)]), Schema(SCHEMA.columns, "id", 1))
    assert finding.fatal
    assert "person column is missing" in finding.message
    assert "pid" in finding.remedy


def test_persons_are_numbered_whatever_their_ids():
    frame, schema = people(2, [f"p{i // 2}" for i in range(2 * N)][:N])
    frame = pd.concat([frame, frame.assign(id="q" + frame["id"])])
    checked = check(frame, schema)
    assert checked.counted == N
    assert checked.person.tolist() == [i // 2 for i in range(2 * N)]


@pytest.mark.parametrize(("persons", "fits"), [(N - 1, False), (N, True), (10 * N, True)])
def test_a_frame_has_a_place_for_everybody(persons, fits):
    checked = check(table(), SCHEMA, persons=persons)
    assert (checked.counted, checked.persons) == (N, persons)
    assert checked.fatal is not fits
    for finding in checked.findings:
        assert f"{N} persons in the rows, and {persons} places" in finding.message


def test_nothing_stands_for_a_frame_that_was_not_declared():
    assert check(table(), SCHEMA).persons is None


# -- laws --------------------------------------------------------------------------------------

CELLS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8).map(str.strip),
    st.floats().map(str),
    st.integers(-200, 200).map(str),
    st.sampled_from(["", "-9", "?", "0", "1", "1.0", "low", "high", "1e400", "--", "1,5", "٣"]),
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=12))
def test_any_text_at_all_is_coded_within_the_schema(rows):
    frame = pd.DataFrame(rows, columns=list(SCHEMA.names), dtype=object)
    coded = check(frame, SCHEMA).coded
    for column in SCHEMA.columns:
        values = coded[column.name]
        kept = values[~np.isnan(values)]
        low, high = (0, len(column.levels) - 1) if column.levels else column.bounds
        assert ((low <= kept) & (kept <= high)).all()
        if column.levels or column.kind == "integer":
            assert (kept == np.rint(kept)).all()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.sampled_from(["zq7", "9999.25", "-777", "zebra,1"]), min_size=4, max_size=4))
def test_no_finding_holds_a_value_of_a_row(cells):
    frame = table(**{name: [cell] * N for name, cell in zip(SCHEMA.names, cells, strict=True)})
    found = " ".join(map(str, check(frame, SCHEMA).findings))
    assert found
    assert not any(cell in found for cell in cells)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_numbers_are_clamped_and_otherwise_kept(numbers):
    schema = Schema((Column("x", "continuous", lower=-3, upper=40),))
    frame = pd.DataFrame({"x": [repr(v) for v in numbers]}, dtype=object)
    # pandas' parser rounds the last places its own way.
    coded = check(frame, schema).coded["x"]
    np.testing.assert_allclose(coded, np.clip(numbers, -3, 40), rtol=1e-12, atol=1e-12)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.permutations(range(N)))
def test_the_order_of_rows_changes_only_the_order_of_values(order):
    frame = spoilt("age", "140", "-9")
    there, back = check(frame, SCHEMA).coded, check(frame.iloc[list(order)], SCHEMA).coded
    for name, values in there.items():
        np.testing.assert_array_equal(values[list(order)], back[name])


# -- accepting ---------------------------------------------------------------------------------


def test_what_is_clampable_stands_until_it_is_accepted():
    checked = check(spoilt("age", "140"), SCHEMA)
    require_clean("x.csv", checked, accept=True)
    with pytest.raises(InvalidInput, match="--accept"):
        require_clean("x.csv", checked, accept=False)


def test_accepting_never_lets_a_fatal_finding_pass():
    checked = check(spoilt("age", "old"), SCHEMA)
    with pytest.raises(InvalidInput, match="text in a number") as error:
        require_clean("x.csv", checked, accept=True)
    assert "--accept" not in str(error.value)


# -- the file ----------------------------------------------------------------------------------


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", "x,y\n1,a b\n2,ü\n"),
        ("a.csv", "\ufeffx,y\n1,a b\n2,ü\n"),
        ("a.csv", "x,y\r\n1,a b\r\n2,ü"),
        ("a.CSV", " x , y\n 1, a b \n2 ,ü\n\n\n"),
        ("a.txt", '"x","y"\n"1","a b"\n"2","ü"\n'),
        ("a.tsv", "x\ty\n1\ta b\n2\tü\n"),
        ("a.csv", ",x,y\n0,1,a b\n1,2,ü\n"),
    ],
)
def test_the_same_table_in_every_dress(tmp_path, name, data):
    frame = read_text(write(tmp_path / name, data))
    assert frame.to_dict("list") == {"x": ["1", "2"], "y": ["a b", "ü"]}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"", "the file is empty"),
        ("a.csv", b"\n\n", "the file is empty"),
        ("a.csv", "x,y\n1,ü\n".encode("latin-1"), "line 2: not UTF-8 text. Save it as UTF-8"),
        ("a.csv", "x,y\n1,a\n".encode("utf-16"), "line 1: not UTF-8 text"),
        ("a.csv", b"x;y\n1;2\n", "line 1: the columns are separated by semicolons"),
        ("a.csv", b"x\ty\n1\t2\n", "line 1: the columns are separated by tabs"),
        ("a.tsv", b"x,y\n1,2\n", "line 1: the columns are separated by commas"),
        ("a.csv", b"x,y\n1,2\n3\n", "line 3: not as many cells as the header's 2"),
        ("a.csv", b"x,y\n1,2,\n3,4,\n", "line 2: not as many cells as the header's 2, and 1 more"),
        ("a.csv", b'x,y\n1,2\n3,"4\n5,6\n', "line 3: cannot be read. Check the quotes"),
        ("a.csv", b"x,y,x\n1,2,3\n", "x: column occurs twice"),
        ("a.csv", b"54,120\n55,121\n", "line 1: the first line holds no column names"),
        ("a.xlsx", b"x", "unknown kind of file, got .xlsx"),
        ("a", b"x", "unknown kind of file, got no ending"),
        ("a.parquet", b"x,y\n1,2\n", "cannot be read, got ArrowInvalid"),
    ],
)
def test_a_file_that_is_not_one_says_why_and_never_what_it_holds(tmp_path, name, data, words):
    with pytest.raises(InvalidInput) as error:
        read_text(write(tmp_path / name, data))
    assert words in str(error.value)
    assert "120" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read_text(tmp_path / "no.csv")


def test_lines_are_the_files_own_whatever_lies_between(tmp_path):
    data = 'x,note\n1,"two\nlines"\n\n2,b\n'
    frame = read_text(write(tmp_path / "a.csv", data))
    assert frame.index.tolist() == [2, 5]
    assert frame.index.name == "line"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=2, max_size=2),
        min_size=1,
        max_size=6,
    )
)
def test_what_a_csv_writer_wrote_is_read_back(tmp_path_factory, rows):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["x", "y"], *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", text.getvalue())
    kept = [[c.strip() for c in row] for row in rows if any(row)]
    assert read_text(path).to_numpy().tolist() == kept


def test_parquet_with_types_of_its_own(tmp_path):
    columns = {
        "i": pa.array([1, None, -3], pa.int32()),
        "f": pa.array([0.5, math.nan, None]),
        "b": pa.array([True, False, None]),
        "s": pa.array([" a ", "", None]),
        "c": pa.array(["u", "v", None]).dictionary_encode(),
        "d": pa.array([datetime.date(2020, 1, 31), None, None]),
        "t": pa.array([datetime.datetime(2020, 1, 31, 12), None, None]),
        "m": pa.array([Decimal("1.50"), None, None], pa.decimal128(5, 2)),
        "z": pa.nulls(3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    frame = read_text(tmp_path / "a.parquet")
    assert frame.to_dict("list") == {
        "i": ["1", "", "-3"],
        "f": ["0.5", "", ""],
        "b": ["1", "0", ""],
        "s": ["a", "", ""],
        "c": ["u", "v", ""],
        "d": ["2020-01-31", "", ""],
        "t": ["2020-01-31 12:00:00", "", ""],
        "m": ["1.50", "", ""],
        "z": ["", "", ""],
    }
    assert frame.index.tolist() == [1, 2, 3]


def test_findings_in_parquet_count_rows(tmp_path):
    frame = spoilt("sex", "9")
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "a.parquet")
    assert "(row 1)" in str(only(read_text(tmp_path / "a.parquet")))


def test_two_parquet_columns_of_one_name_are_refused(tmp_path):
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="x: column occurs twice"):
        read_text(tmp_path / "a.parquet")


def test_what_is_not_of_the_encoding_that_is_named_is_not_advised_the_same_one(tmp_path):
    path = write(tmp_path / "a.csv", b"x,y\n\x81\x8d,\xff\n")
    for encoding, advised in (("utf-8", True), ("windows-1252", False)):
        with pytest.raises(InvalidInput, match=f"not {encoding.upper()} text") as error:
            read_text(path, Layout(encoding=encoding))
        assert ('encoding = "windows-1252"' in str(error.value)) is advised
        assert ("whether it is text at all" in str(error.value)) is not advised


# -- the end of follow-up ----------------------------------------------------------------------


def test_events_after_the_follow_up_are_event_free_at_its_end():
    """They were events at exactly the follow-up, once times had been clamped to it."""
    time = Column("time", "duration", upper=5, event="died", decimals=1)
    schema = Schema((time, Column("died", "event")))
    cells = {"time": ["4.9", "5", "7.2", "9", "-1"], "died": ["1", "1", "1", "0", "1"]}
    cells = {name: values * (N // 5) for name, values in cells.items()}
    frame = pd.DataFrame(cells, index=pd.RangeIndex(2, N + 2, name="line"), dtype=object)
    checked = check(frame, schema)
    np.testing.assert_array_equal(checked.coded["time"][:5], [4.9, 5, 5, 5, 0])
    np.testing.assert_array_equal(checked.coded["died"][:5], [1, 1, 0, 0, 1])
    said = [str(f) for f in checked.findings]
    assert any(f"{N // 5} events after the follow-up" in text for text in said)
    assert not checked.fatal


def test_times_below_0_are_told_apart_from_those_beyond_the_follow_up():
    time = Column("time", "duration", upper=5, event="died")
    schema = Schema((time, Column("died", "event")))
    cells = {"time": ["-5", "9", "-200", *["1"] * (N - 3)], "died": ["0"] * N}
    frame = pd.DataFrame(cells, index=pd.RangeIndex(2, N + 2, name="line"), dtype=object)
    below, beyond = check(frame, schema).findings
    assert (below.lines, below.message) == ((2, 4), "2 values below 0; they are clamped to 0")
    assert "Correct them" in below.remedy
    assert (beyond.lines, beyond.count) == ((3,), 1)
    assert "1 value beyond the follow-up, 5" in beyond.message
    assert "Nothing is wrong" in beyond.remedy
    assert "Correct" not in beyond.remedy
    (nobody,) = check(frame.assign(time="-1"), schema).findings
    assert nobody.fatal
    assert f"{N} are below 0 and 0 beyond the follow-up, 5" in nobody.message


@pytest.mark.parametrize(("cells", "most"), [(N // 2, False), (N // 2 + 1, True)])
def test_a_column_of_mostly_text_is_to_be_written_in_numbers(cells, most):
    remedy = only(spoilt("age", *["35 yrs"] * cells)).remedy
    assert ("without a unit" in remedy) is most
    assert ("declare the text in `missing`" in remedy) is not most


@pytest.mark.parametrize(
    ("cells", "levels", "only_case"),
    [
        (["Male", "FEMALE"], ("male", "female"), True),
        (["Male", "m"], ("male", "female"), False),
        (["MALE"], ("male", "Male", "female"), False),  # `ignore_case` would be refused
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_levels_but_for_capital_letters_are_told_how_to_be_read(cells, levels, only_case, known):
    schema = Schema((Column("sex.1", "categorical", levels=levels),))
    frame = pd.DataFrame({"sex.1": [*cells, "female" if known else ""] * N}, dtype=object)
    (remedy,) = [f.remedy for f in check(frame, schema).findings if "outside" in f.message]
    assert ('ignore_case = true under [columns."sex.1"] in recoding.toml' in remedy) is only_case


def test_events_after_the_follow_up_are_counted_once_a_person():
    """Both rows of a person say the same; of a duration that varies each row is one."""
    for varies, many, whose in ((False, N // 2, "persons"), (True, N, "rows")):
        time = Column("time", "duration", upper=5, event="died", varies=varies)
        schema = Schema((time, Column("died", "event", varies=varies)), "pid", 2)
        ids = [str(i // 2) for i in range(N)]
        cells = {"pid": ids, "time": ["7"] * N, "died": ["1"] * N}
        frame = pd.DataFrame(cells, index=pd.RangeIndex(2, N + 2, name="line"), dtype=object)
        said = [str(f) for f in check(frame, schema).findings]
        assert any(f"{many} events after the follow-up; these {whose}" in text for text in said)


def test_persons_whose_rows_differ_in_what_does_not_vary_are_counted():
    sex = Column("sex", "binary", varies=False)
    schema = Schema((VISITS, sex), "pid", 2)
    frame = pd.concat([table(sex=["0"] * N)] * 2, ignore_index=True)
    frame.index = pd.RangeIndex(2, 2 * N + 2, name="line")
    frame["pid"] = [str(i // 2) for i in range(2 * N)]
    assert check(frame, schema).findings == ()
    frame.loc[frame.index[[1, 4]], "sex"] = ["1", ""]
    found = [str(f) for f in check(frame, schema).findings if f.column == "sex"]
    assert any("rows of 1 person differ in a column that does not vary" in f for f in found)
    # One row of a person tells it of all: nobody is lost by the value that is missing.
    assert check(frame, schema).without == 0


def stray(unit: str = "days", begins: float = -10) -> list[Finding]:
    """Persons of two rows each, followed for 100 days; the second row of every third is later, and
    the first of one lies before the beginning."""
    schema = Schema(
        (
            Column("day", "continuous", begins, 400, unit=unit),
            Column("days", "duration", upper=400, unit="days", event="died", varies=False),
            Column("died", "event", varies=False),
        ),
        person="id",
        max_rows_per_person=2,
    )
    person = [i // 2 for i in range(2 * N)]
    day = [("5" if i % 2 == 0 else "150" if i % 6 == 1 else "90") for i in range(2 * N)]
    day[0] = "-3" if begins < 0 else "0"
    columns = {"id": [str(i) for i in person], "day": day}
    columns |= {"days": ["100"] * 2 * N, "died": ["0"] * 2 * N}
    index = pd.RangeIndex(2, 2 * N + 2, name="line")
    return list(check(pd.DataFrame(columns, index=index, dtype=object), schema).findings)


def test_visits_after_a_persons_end_and_before_its_beginning_are_told_in_one_line():
    [found] = stray()
    assert found.note
    assert not found.fatal
    assert found.column == "day"
    assert f"{N // 3} rows of {N // 3} persons are after their days" in str(found)
    assert "1 rows of 1 persons are before the beginning of their days" in str(found)


def test_what_is_on_another_clock_is_no_stray_visit():
    assert stray(unit="years") == []
