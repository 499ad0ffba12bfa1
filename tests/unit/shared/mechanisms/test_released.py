"""The public shape of what a site releases, and uploads that depart from it, by mechanism."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import PERSONS, SCHEMA, TRAJECTORY

from penstock.base.errors import UploadRejected
from penstock.mechanisms import Gibbs, Maf, SlicedWasserstein, Trajectory, labelled
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.labelled import COPY, PATH
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import (
    EACH,
    PARTICLES,
    PATHS,
    Kind,
    PartShape,
    Refitting,
    Shape,
    answer_schema,
    name_copy,
    name_refit,
)
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column
from penstock.study.study import Study
from penstock_server.mechanisms.answered import read_answer
from penstock_server.mechanisms.registry import kind_of

ROWS = PERSONS * SCHEMA.max_rows_per_person
COUNT = TRAJECTORY.particles * 3
STUDY = made.study(TRAJECTORY)
TABLE = made.table(STUDY)
ASKED = made.study(Gibbs())
ANSWER = made.table(ASKED)
TERMS = len(ANSWER)


# -- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [Maf(3, refits=2), SlicedWasserstein(copies=3, refits=2)])
def test_tables_have_copies_and_refits(mechanism: Maf | SlicedWasserstein) -> None:
    shape = shape_of(made.study(mechanism), PERSONS)
    assert shape.names == (
        "tables/copy-1",
        "tables/copy-2",
        "tables/copy-3",
        "refits/1",
        "refits/2",
    )
    assert [part.kind for part in shape.parts] == [Kind.COPY] * 3 + [Kind.REFIT] * 2
    assert {(part.schema, part.rows) for part in shape.parts} == {(SCHEMA, ROWS)}
    assert shape.cells == 5 * ROWS * (1 + len(SCHEMA.columns))
    allowed = [shape.first.allows(rows) for rows in (0, 1, ROWS, ROWS + 1)]
    assert allowed == [False, True, True, False]
    assert labelled.arrow_schema(shape).names == [COPY, *SCHEMA.names]


def test_refits_of_a_fit_stand_together_and_fits_are_of_copies_in_turn() -> None:
    two = Refitting(per_fit=2)
    assert [two.find_fit(b) for b in range(1, 9)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [two.find_copy(b, 3) for b in range(1, 9)] == [1, 1, 2, 2, 3, 3, 1, 1]
    assert [EACH.find_copy(b, 3) for b in range(1, 5)] == [1, 2, 3, 1]
    assert EACH.on_wire("1.1") == EACH
    old = two.on_wire("1.0")
    assert old == replace(two, of_copies=False)
    assert old.find_copy(5, 3) == 0


@pytest.mark.parametrize(
    "study",
    [
        made.study(Maf(w=0.001), privacy=PrivacyRequest(2.0, 1e-5, "public-flow")),
        made.study(replace(TRAJECTORY, start="public")),
    ],
)
def test_what_nobody_counted_has_the_rows_that_were_planned(study: Study) -> None:
    shape = shape_of(study, PERSONS)
    most = shape.first.rows
    allowed = [shape.first.allows(rows) for rows in (most - 1, most, most + 1)]
    assert allowed == [False, True, False]
    fewer = {part.name: most - 1 for part in shape.parts if part.kind is not Kind.ONCE}
    assert shape.counts_fit(counted(study, made.table(study)))
    assert not shape.counts_fit(counted(study, made.table(study, rows_of=fewer)))


def counted(study: Study, table: pa.Table) -> dict[str, int]:
    rows = labelled.count_rows(shape_of(study, PERSONS), table)
    assert rows is not None
    return rows


def test_a_trajectory_also_has_particles_and_paths() -> None:
    shape = shape_of(STUDY, PERSONS)
    assert shape.names == ("tables/copy-1", "tables/copy-2", "particles", "paths", "refits/1")
    assert [part.rows for part in shape.parts] == [ROWS, ROWS, COUNT, 5 * 9, ROWS]
    assert [part.least for part in shape.parts] == [1, 1, COUNT, 5 * 9, 1]
    assert shape.part(PATHS).each == 9
    assert labelled.arrow_schema(shape).names == [COPY, PATH, *SCHEMA.names]


@pytest.mark.parametrize(
    ("column", "changed", "points"),
    [
        (Column("visit", "integer", lower=0, upper=4), {"subsample": None}, 5),
        (Column("visit", "integer", lower=0, upper=4), {"subsample": 2}, 2),
        (Column("visit", "ordered", levels=("I", "II", "III")), {"subsample": None}, 3),
        (Column("visit", "continuous", lower=0, upper=1), {"subsample": None, "points": 7}, 7),
        (Column("visit", "continuous", lower=0, upper=1), {"subsample": 4, "points": 7}, 4),
    ],
)
def test_time_points_are_those_of_the_model(
    column: Column, changed: dict[str, int | None], points: int
) -> None:
    schema = replace(SCHEMA, columns=(column, *SCHEMA.columns[1:]))
    mechanism = replace(TRAJECTORY, **changed)
    assert mechanism.time_points(schema) == points == len(times_of(mechanism, schema).used)
    shape = shape_of(made.study(mechanism, schema=schema), PERSONS)
    assert shape.part(PARTICLES).rows == points * mechanism.particles


def test_an_answer_is_numbers_only() -> None:
    shape = shape_of(ASKED, PERSONS)
    terms = answer_terms(SCHEMA, made.QUESTION, Gibbs())
    assert len(terms) == TERMS == 5
    [part] = shape.parts
    assert (part.name, part.rows) == ("answer", TERMS)
    assert [part.allows(TERMS + more) for more in (-1, 0, 1)] == [False, True, False]
    names = ["term", "estimate", "doubt", *(f"cov_{i + 1}" for i in range(TERMS))]
    assert part.arrow().names == names
    # Under labels nobody expects what came later, and nothing is known of it.
    older = [name for name in names if name != "doubt"]
    assert labelled.arrow_schema(shape).names == [COPY, *older]
    written = Part("answer", {name: np.arange(1.0, TERMS + 1) for name in names})
    table = pa.concat_tables(labelled.join_parts(shape, [written]))
    found = labelled.split_table(shape, table)
    assert found is not None
    assert found["answer"].schema.names == names
    assert found["answer"]["doubt"].null_count == TERMS
    assert found["answer"].drop_columns("doubt").equals(table.drop_columns(COPY))
    assert all(pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in part.arrow())


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_the_size_limit_holds_a_genuine_release(name: str) -> None:
    study = made.study(made.MECHANISMS[name])
    size = len(made.stream(made.table(study, persons=2000)))
    assert size < shape_of(study, 2000).bytes() < 3 * size + 2_000_000


def test_an_answer_of_one_term_has_a_schema() -> None:
    assert answer_schema(1).names == ("term", "estimate", "doubt", "cov_1")


TABLE_PART = PartShape("tables/copy-1", Kind.COPY, SCHEMA, 5)


@pytest.mark.parametrize("name", ["", "Tables", "a b", "/a", "a/", "a//b", "..", "é", "a" * 65])
def test_a_parts_name_is_plain(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a part"):
        replace(TABLE_PART, name=name)


def test_a_part_has_rows() -> None:
    for changed in ({"rows": -1}, {"rows": 0, "counted": True}, {"each": 0}):
        with pytest.raises(ValueError, match="cannot have"):
            replace(TABLE_PART, **changed)


def test_parts_have_names_of_their_own() -> None:
    for parts in ((), (TABLE_PART, TABLE_PART)):
        with pytest.raises(ValueError, match="a name of its own"):
            Shape(parts)


OTHER_PARTS = (
    (PartShape("model", Kind.ONCE, answer_schema(2), 2),),
    (PartShape("calibration", Kind.ONCE, SCHEMA, 2),),
)


@pytest.mark.parametrize("other", OTHER_PARTS)
def test_what_labels_cannot_tell_apart_is_not_labelled(other: tuple[PartShape, ...]) -> None:
    """Another schema, or a name that older versions do not know."""
    shape = Shape((TABLE_PART, *other))
    assert not labelled.has_labels(shape)
    assert labelled.has_labels(Shape(other))
    with pytest.raises(TypeError, match=r"before 1\.2"):
        labelled.arrow_schema(shape)


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_labels_lead_back_to_the_parts(name: str) -> None:
    study = made.study(made.MECHANISMS[name])
    shape, parts = shape_of(study, PERSONS), made.parts(study)
    found = labelled.split_table(shape, made.table(study))
    assert found is not None
    assert tuple(found) == shape.names == tuple(part.name for part in parts)
    for part in parts:
        assert found[part.name].equals(made.forget_later(shape.part(part.name).table(part.columns)))


# -- genuine uploads ---------------------------------------------------------------------------


def test_a_genuine_trajectory_passes(tmp_path: Path) -> None:
    upload = made.read(STUDY, TABLE, tmp_path)
    assert len(upload.part(name_copy(2))) == len(upload.part(name_refit(1))) == ROWS
    assert upload.part(PARTICLES)["visit"].to_pylist() == [0] * 6 + [2] * 6 + [4] * 6
    assert all(part.column_names == list(SCHEMA.names) for part in upload.parts.values())
    labelled_paths = TABLE.filter(pc.greater(TABLE[PATH], 0))
    assert upload.part(PATHS).equals(labelled_paths.drop_columns([COPY, PATH]))
    assert labelled_paths[PATH].to_pylist() == [p for p in range(1, 6) for _ in range(9)]


def test_parts_may_come_in_any_order(tmp_path: Path) -> None:
    copies = TABLE[COPY].to_numpy()
    order = np.argsort(np.where(copies == 0, 9, copies), kind="stable")
    mixed = made.read(STUDY, TABLE.take(order), tmp_path)
    whole = made.read(STUDY, TABLE, tmp_path)
    assert len(mixed.part(PARTICLES)) == COUNT
    assert all(mixed.part(name).equals(whole.part(name)) for name in whole.parts)


def test_rows_of_copies_may_lie_in_turn(tmp_path: Path) -> None:
    """Only particles and paths have an order that labels do not tell."""
    maf = made.study(Maf(copies=2, refits=1))
    table = made.table(maf)
    order = np.arange(len(table)).reshape(3, -1).T.ravel()
    mixed = made.read(maf, table.take(order), tmp_path)
    whole = made.read(maf, table, tmp_path)
    assert all(mixed.part(name).equals(whole.part(name)) for name in whole.parts)


def test_a_genuine_answer_passes(tmp_path: Path) -> None:
    estimates, covariance = read_answer(made.read(ASKED, ANSWER, tmp_path))
    assert estimates.tolist() == ANSWER["estimate"].to_pylist()
    for i in range(TERMS):
        assert covariance[:, i].tolist() == ANSWER[f"cov_{i + 1}"].to_pylist()


FEWER = {name_copy(1): 50, name_copy(2): 50, name_refit(1): 57}
"""Rows of copies and refit at a site that has fewer than its frame has places."""


def test_copies_of_a_frame_that_is_not_full_pass(tmp_path: Path) -> None:
    upload = made.read(STUDY, made.table(STUDY, rows_of=FEWER), tmp_path, rows=50)
    assert {name: len(upload.part(name)) for name in FEWER} == FEWER
    assert made.estimates(upload, made.study(TRAJECTORY))["mean-sbp"].n == 50
    found = kind_of(STUDY).load_results().summarise(upload)
    rows = [s.rows for s in found if isinstance(getattr(s, "rows", None), int)]
    assert rows
    assert set(rows) == {50}


# -- hostile ones ------------------------------------------------------------------------------


def put(name: str, rows: slice | int, value: object, table: pa.Table = TABLE) -> pa.Table:
    values = table[name].to_pylist()
    places = [rows] if isinstance(rows, int) else range(*rows.indices(len(values)))
    for place in places:
        values[place] = value
    position = table.column_names.index(name)
    return table.set_column(position, name, pa.array(values, table[name].type))


def swapped(first: int, second: int) -> pa.Table:
    order = np.arange(len(TABLE))
    order[[first, second]] = order[[second, first]]
    return TABLE.take(order)


OTHER = int(np.flatnonzero(TABLE[COPY].to_numpy() == 0)[0])
"""The first particle."""
FIRST_PATH = OTHER + COUNT
COPY_ROW = int(np.flatnonzero(TABLE[COPY].to_numpy() == 1)[0])
REFIT_ROW = int(np.flatnonzero(TABLE[COPY].to_numpy() == -1)[0])

LABELS = {
    "path 0 among what is no copy": put(PATH, OTHER, 0),
    "a path's row under 0": put(PATH, FIRST_PATH, 0),
    "a particle's label on a path": put(PATH, FIRST_PATH, -1),
    "a path's label on a particle": put(PATH, OTHER, 1),
    "a path's number in a copy": put(PATH, COPY_ROW, 1),
    "a particle in a copy": put(PATH, COPY_ROW, -1),
    "a path in a refit": put(PATH, REFIT_ROW, 3),
    "no label": put(PATH, OTHER, None),
    "no label in a copy": put(PATH, COPY_ROW, None),
    "a label of another kind": put(PATH, OTHER, -2),
    "one path too many": put(PATH, FIRST_PATH, 6),
    "a huge path": put(PATH, FIRST_PATH, 2**31 - 1),
    "rows of two paths swapped": swapped(FIRST_PATH + 8, FIRST_PATH + 9),
    "a particle behind a path": swapped(OTHER, FIRST_PATH),
    "a copy's row as a particle": put(COPY, COPY_ROW, 0),
    "a particle as a copy's row": put(COPY, OTHER, 1),
    "a particle missing": pa.concat_tables([TABLE.slice(0, OTHER), TABLE.slice(OTHER + 1)]),
    "all particles missing": TABLE.filter(pc.not_equal(TABLE[PATH], -1)),
    "all paths missing": TABLE.filter(pc.less_equal(TABLE[PATH], 0)),
    "one row twice": pa.concat_tables([TABLE, TABLE.slice(FIRST_PATH, 1)]),
    "copies of two sizes": made.table(STUDY, rows_of=FEWER | {name_copy(2): 51}),
    "a copy without a row": made.table(STUDY, rows_of=FEWER | {name_copy(2): 0}),
    "a refit without a row": made.table(STUDY, rows_of=FEWER | {name_refit(1): 0}),
    "a refit larger than the frame": made.table(STUDY, rows_of=FEWER | {name_refit(1): ROWS + 1}),
    "copies larger than the frame": made.table(
        STUDY, rows_of={name_copy(1): ROWS + 1, name_copy(2): ROWS + 1}
    ),
    "a copy more": pa.concat_tables([TABLE, put(COPY, slice(0, ROWS), 3).slice(0, ROWS)]),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_not_the_shapes_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UploadRejected, match="labels"):
        made.read(STUDY, LABELS[name], tmp_path)


@pytest.mark.parametrize("rows", [49, 51, ROWS])
def test_copies_that_have_not_the_manifests_rows_are_rejected(tmp_path: Path, rows: int) -> None:
    with pytest.raises(UploadRejected, match="not the manifest's rows"):
        made.read(STUDY, made.table(STUDY, rows_of=FEWER), tmp_path, rows=rows)


@pytest.mark.parametrize(
    "table",
    [
        put("visit", OTHER, 2),
        put("visit", slice(OTHER, OTHER + 6), 4),
        put("visit", FIRST_PATH, 1),
        put("visit", FIRST_PATH + 44, 0),
        swapped(OTHER, OTHER + 6),
        swapped(FIRST_PATH, FIRST_PATH + 4),
    ],
)
def test_particles_and_paths_at_other_times_are_rejected(tmp_path: Path, table: pa.Table) -> None:
    with pytest.raises(UploadRejected, match="not at the study's times"):
        made.read(STUDY, table, tmp_path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (put("sbp", FIRST_PATH, float("nan")), "sbp holds NaN"),
        (put("sbp", OTHER, 300.0), "sbp leaves"),
        (put("sbp", OTHER, 100.5), "sbp leaves"),
        (put("ward", FIRST_PATH, "z"), "unknown level"),
        (put("falls", OTHER, None), "missing values"),
        (TABLE.drop_columns([PATH]), "columns"),
        (TABLE.drop_columns([COPY]), "columns"),
        (TABLE.set_column(1, PATH, TABLE[PATH].cast(pa.int64())), "_path has another type"),
    ],
)
def test_rows_out_of_the_schema_are_rejected(tmp_path: Path, table: pa.Table, said: str) -> None:
    with pytest.raises(UploadRejected, match=said):
        made.read(STUDY, table, tmp_path)


def test_a_table_of_another_mechanism_is_rejected(tmp_path: Path) -> None:
    maf = made.study(made.MECHANISMS["maf"])
    for study, table in ((STUDY, made.table(maf)), (ASKED, TABLE), (maf, ANSWER), (maf, TABLE)):
        with pytest.raises(UploadRejected, match="columns"):
            made.read(study, table, tmp_path)


def change(name: str, row: int, value: object) -> pa.Table:
    return put(name, row, value, ANSWER)


def both(i: int, j: int, value: float) -> pa.Table:
    """A covariance changed on both sides of the diagonal."""
    return put(f"cov_{i}", j - 1, value, put(f"cov_{j}", i - 1, value, ANSWER))


COV_11 = ANSWER["cov_1"][0].as_py()
COV_22 = ANSWER["cov_2"][1].as_py()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (change("cov_1", 0, -0.1), "variances are not all above 0"),
        (change("cov_5", 4, 0.0), "variances are not all above 0"),
        (change("cov_2", 0, ANSWER["cov_2"][0].as_py() + 1e-3), "not symmetric"),
        (change("cov_1", 3, 0.0), "not symmetric"),
        (both(1, 2, 2 * (COV_11 * COV_22) ** 0.5), "not positive semidefinite"),
        (change("cov_1", 0, 5e-324), "not positive semidefinite"),
        (change("cov_1", 0, 1e12), "beyond what can be released"),
        (change("estimate", 4, -1e12), "beyond what can be released"),
        (change("estimate", 4, 1e13), "estimate leaves"),
        (change("estimate", 0, float("nan")), "estimate holds NaN"),
        (change("estimate", 0, float("inf")), "estimate leaves"),
        (change("cov_3", 3, float("nan")), "cov_3 holds NaN"),
        (change("cov_3", 3, None), "cov_3 holds missing"),
        (change("term", 0, 2), "not in order"),
        (change("term", 0, 0), "not in order"),
        (change("term", 0, -1), "term leaves"),
        (ANSWER.take([1, 0, 2, 3, 4]), "not in order"),
        (change("_copy", 0, 2), "labels"),
        (ANSWER.slice(1), "labels"),
        (pa.concat_tables([ANSWER, ANSWER]), "labels"),
        (ANSWER.drop_columns(["cov_5"]), "columns"),
        (ANSWER.set_column(1, "term", pa.array(list("abcde"))), "term has another type"),
    ],
    ids=range(22),
)
def test_a_made_up_answer_is_rejected(tmp_path: Path, table: pa.Table, said: str) -> None:
    with pytest.raises(UploadRejected, match=said):
        made.read(ASKED, table, tmp_path)


def test_a_covariance_that_only_looks_like_one_pairwise_is_rejected(tmp_path: Path) -> None:
    """Correlations of −0.9 among three: each pair may be, all three cannot."""
    columns = made.answer(5, np.random.default_rng(3))
    matrix = 0.01 * np.eye(5)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        matrix[i, j] = matrix[j, i] = -0.009
    columns |= {f"cov_{i + 1}": matrix[:, i] for i in range(5)}
    [table] = labelled.join_parts(shape_of(ASKED, PERSONS), [Part("answer", columns)])
    with pytest.raises(UploadRejected, match="not positive semidefinite"):
        made.read(ASKED, table, tmp_path)


def test_rounding_is_no_asymmetry(tmp_path: Path) -> None:
    value = ANSWER["cov_2"][0].as_py()
    assert (
        made.read(ASKED, change("cov_2", 0, value * (1 + 1e-12)), tmp_path).manifest.rows == TERMS
    )


def test_trajectories_of_every_time_column_are_checked(tmp_path: Path) -> None:
    column = Column("visit", "continuous", lower=0, upper=10, decimals=2)
    schema = replace(SCHEMA, columns=(column, *SCHEMA.columns[1:]))
    study = made.study(replace(TRAJECTORY, points=4, subsample=None), schema=schema)
    upload = made.read(study, made.table(study), tmp_path)
    assert len(set(upload.part(PARTICLES)["visit"].to_pylist())) == 4
    assert isinstance(study.mechanism, Trajectory)
