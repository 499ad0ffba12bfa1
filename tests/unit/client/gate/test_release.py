"""What a gate makes of its worker's table: checked by the public shape, its rows counted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import PERSONS, SCHEMA

from penstock.base.errors import JobFailed
from penstock.mechanisms import Maf
from penstock.study.study import Study
from penstock_client.gate.release import check_table

ROWS = PERSONS * SCHEMA.max_rows_per_person
MAF = made.study(Maf(copies=2, refits=1))


def check(table: pa.Table, folder: Path, study: Study = MAF) -> int:
    path = folder / "table.arrow"
    path.write_bytes(made.stream(table))
    return check_table(path, shape_of(study, PERSONS))


@pytest.mark.parametrize("rows", [1, 33, ROWS])
def test_copies_have_as_many_rows_as_were_counted(rows: int, tmp_path: Path) -> None:
    assert check(made.table(MAF, rows_of={1: rows, 2: rows, -1: 7}), tmp_path) == rows


@pytest.mark.parametrize(
    "rows",
    [
        {1: 33, 2: 34},
        {1: ROWS + 1, 2: ROWS + 1},
        {-1: ROWS + 1},
        {-1: 0},
        {1: 0, 2: 0},
        {2: 0},
        {3: ROWS},
    ],
)
def test_other_sizes_than_a_release_can_have_fail(rows: dict[int, int], tmp_path: Path) -> None:
    with pytest.raises(JobFailed):
        check(made.table(MAF, rows_of=rows), tmp_path)


def test_missing_values_where_there_can_be_none_fail(tmp_path: Path) -> None:
    table = made.table(MAF, rows_of={1: 5, 2: 5, -1: 5})
    holes = [None, *table["sbp"].to_pylist()[1:]]
    place = table.column_names.index("sbp")
    holed = table.set_column(place, "sbp", pa.array(holes, table["sbp"].type))
    with pytest.raises(JobFailed):
        check(holed, tmp_path)
    with pytest.raises(JobFailed):
        check(table.drop_columns(["sbp"]), tmp_path)
    with pytest.raises(JobFailed):
        check(table.slice(0, 0), tmp_path)
