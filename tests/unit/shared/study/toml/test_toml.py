"""Dictionaries and studies as people write them: aliases, lines, templates, round trips."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import partial

import pytest
from tests.support.dictionaries import problems

from penstock.base.errors import InvalidInput
from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.suitability import estimand_problems
from penstock.schema import Column, Schema
from penstock.study.toml import (
    draft_study,
    mechanism_for,
    parse_dictionary,
    parse_study,
    question_for,
    write_dictionary,
    write_study,
)
from penstock.study.toml.reader import read_toml

DICTIONARY = """\
title = "Heart clinic"
person = "patient_id"          # optional
max_rows_per_person = 1

[columns.age]
type = "continuous"
range_min = 18
range_max = 100
decimal_places = 0
unit = "year"
missing = [-9, "?"]

[columns.time]
kind = "duration"
event = "cvd"
follow_up = 25
decimals = 2

[columns]
cvd = { kind = "event" }
ward.kind = "categorical"
ward.categories = [
    "a",  # not ], nor }
    'b',
    "c",
]
"""


SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100, 0, unit="year", missing=("-9", "?")),
        Column("time", "duration", upper=25, decimals=2, event="cvd"),
        Column("cvd", "event"),
        Column("ward", "categorical", levels=("a", "b", "c")),
    ),
    "patient_id",
)


RICH = Schema(
    (
        *SCHEMA.columns,
        Column("a.b", "integer", -3, 10**12, label='says "hi" \\ bye', nullable=True),
        Column("sex", "binary", levels=("männlich", "weiblich"), unit="µg"),
        Column("stage", "ordered", levels=("I", "II", "III"), missing=("NA",)),
        Column("x", "continuous", -1e-7, 0.1),
        Column("crp", "continuous", 0, 500, 1, spike=0.3, scale="log"),
        Column("a.b2", "integer", 0, 9),
    ),
    "patient_id",
    7,
)


def template(schema: Schema = SCHEMA, estimands: tuple[Estimand, ...] = ()) -> str:
    return draft_study(
        schema,
        name="bp-cvd",
        sites=("alpha", "beta", "gamma"),
        federation="main",
        not_before="2026-11-21T00:00:00Z",
        expires="2026-12-21T00:00:00Z",
        estimands=estimands,
    )


HR = Estimand("hr", "cox", "time", "age", 10, ("ward",))


def test_dictionary_with_the_names_that_people_know() -> None:
    found = parse_dictionary(DICTIONARY)
    assert found.title == "Heart clinic"
    assert found.schema == SCHEMA


@pytest.mark.parametrize("text", ["\ufeff" + DICTIONARY, DICTIONARY.replace("\n", "\r\n")])
def test_windows_text_is_read(text: str) -> None:
    assert parse_dictionary(text).schema == SCHEMA


@pytest.mark.parametrize("schema", [SCHEMA, RICH])
def test_dictionary_round_trip(schema: Schema) -> None:
    assert parse_dictionary(write_dictionary(schema)).schema == schema


@pytest.mark.parametrize(
    ("old", "new", "line", "where"),
    [
        ("person =", "persn =", 2, "persn"),
        ("max_rows_per_person = 1", "max_rows_per_person = 0", 3, "max_rows_per_person"),
        ('"continuous"', '"continous"', 6, "columns.age.type"),
        ("range_min = 18", 'range_min = ""', 7, "columns.age.range_min"),
        ("range_min = 18", "range_min = nan", 7, "columns.age.range_min"),
        ("range_min = 18\n", "", 5, "columns.age.lower"),
        ("range_max = 100", "range_max = 10", 8, "columns.age.range_max"),
        ("range_max = 100", "range_max = 100\nupper = 3", 9, "columns.age.upper"),
        ("decimal_places", "decimalplaces", 9, "columns.age.decimalplaces"),
        ("[-9,", "[-9, -9,", 11, "columns.age.missing"),
        ('event = "cvd"', 'event = "cvt"', 15, "columns.time.event"),
        ("follow_up = 25", "follow_up = 0", 16, "columns.time.follow_up"),
        ('"event" }', '"event", unit = 3 }', 20, "columns.cvd.unit"),
        ('ward.kind = "categorical"', 'ward.kind = "ordinal"', 21, "columns.ward.kind"),
        ('"c",', '"b",', 22, "columns.ward.categories"),
    ],
)
def test_a_problem_has_its_line(old: str, new: str, line: int, where: str) -> None:
    assert old in DICTIONARY
    found = problems(parse_dictionary, DICTIONARY.replace(old, new, 1))
    assert (line, where) in [(p.line, p.where) for p in found]


def test_a_blank_bound_says_where_bounds_come_from() -> None:
    text = DICTIONARY.replace("range_min = 18", 'range_min = ""')
    (found,) = problems(parse_dictionary, text)
    assert "never observed minima" in (found.remedy or "")


def test_an_unknown_key_names_the_nearest() -> None:
    (found,) = problems(parse_dictionary, DICTIONARY.replace("decimal_places", "decimal_place"))
    assert found.remedy == "Did you mean 'decimal_places'?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("a = 1\n\na = 2", 3),
        ('a = 1\nb = """x\n\n', 4),
        ("a = " + "[" * 5000, 1),
        ("a = " + "9" * 5000, None),
        ("a = 1 # " + "x" * 1_000_000, None),
    ],
    ids=["value", "twice", "open", "deep", "long", "large"],
)
@pytest.mark.parametrize("parse", [parse_dictionary, parse_study])
def test_what_is_not_toml_is_refused_with_its_line(
    parse: object, text: str, line: int | None
) -> None:
    (found,) = problems(parse, text)
    assert found.line == line


@pytest.mark.parametrize("text", ["", "columns = 3", "[columns]", "[columns]\nage = 3"])
@pytest.mark.parametrize("parse", [parse_dictionary, parse_study])
def test_empty_files_are_refused(parse: object, text: str) -> None:
    assert "columns" in {p.where.partition(".")[0] for p in problems(parse, text)}


@pytest.mark.parametrize("text", ["[study]\na = 1\nname = 1\nname = 2\n", "\n\n\nname=1\nname = 2"])
def test_a_key_that_is_written_twice_is_named_with_its_line(text: str) -> None:
    (problem,) = problems(parse_study, text)
    assert (problem.where, problem.line) == ("name", text.rstrip().count("\n") + 1)
    assert "is written twice" in problem.message


def test_lines_of_every_way_to_write_a_key() -> None:
    text = (
        "a.b = '#'  # [no]\n"
        '"c d" = """\n'
        '[no] x = "1"\n'
        '"""\n'
        "e = [ # ]\n"
        "  { f = 1 }, { f = [1,\n"
        "  2], g = '''}\n"
        "''' } ]\n"
        "[h.i]  # [no]\n"
        "j = 1979-05-27T07:32:00Z # x\n"
        "[[k]]\n"
        "l = 1\n"
        "[[k]]\n"
        "l = 2\n"
        "[k.m]\n"
        "n = 3\n"
    )
    _, lines = read_toml(text, "test")
    found = {
        "a.b": 1,
        "c d": 2,
        "e": 5,
        "e[1].f": 6,
        "e[2].f": 6,
        "e[2].g": 7,
        "h.i": 9,
        "h.i.j": 10,
        "k[1].l": 12,
        "k[2].l": 14,
        "k[2].m.n": 16,
        "k[2].absent": 13,
    }
    assert {path: lines[path] for path in found} == found
    assert lines["no"] is None


def test_template_parses_to_what_was_asked() -> None:
    study = parse_study(template(estimands=(HR,)))
    columns = (replace(SCHEMA.columns[0], missing=()), *SCHEMA.columns[1:])
    assert study.schema == replace(SCHEMA, columns=columns)
    assert study.estimands == (HR,)
    assert study.privacy == PrivacyRequest(1.0, 1e-5)
    assert study.quorum == 2


@pytest.mark.parametrize(
    ("privacy", "mechanism", "estimands"),
    [
        (PrivacyRequest(0.1, 1e-12), Maf(), ()),
        (
            PrivacyRequest(1, 0.5, "empirical"),
            Maf(3, 0.3, 2.5, 7, "poisson", 0.01, 2, (8, 16)),
            (HR, Estimand("w", "logistic", "sex", "ward", level="c")),
        ),
        (
            PrivacyRequest(1, 0.5),
            SlicedWasserstein("sketch", 3, 0, 7, None, 9, 99, 0.5, 0.1),
            (Estimand("n", "poisson", "a.b2", "sex"), Estimand("m", "mean", "age")),
        ),
        (PrivacyRequest(1, 0.5), SlicedWasserstein(bases=3, bins=9), ()),
        (
            PrivacyRequest(1, 0.5),
            Trajectory("age", 12, 4, 2, 1, 30, 7, 11, "exact", "k-means", 3, 0.4, 9, 0.5, 0.5),
            (),
        ),
        (PrivacyRequest(1, 0.5), Trajectory("stage", start="public"), (HR,)),
        (PrivacyRequest(1, 0.5), Gibbs("underdamped", 300, 0.1, 2.0, "weibull", 3), (HR,)),
        (PrivacyRequest(1, 0.5), Gibbs(), (Estimand("m", "mean", "age"),)),
    ],
)
def test_study_round_trip(
    privacy: PrivacyRequest, mechanism: Settings, estimands: tuple[Estimand, ...]
) -> None:
    study = parse_study(template(RICH))
    study = replace(study, privacy=privacy, mechanism=mechanism, estimands=estimands)
    assert parse_study(write_study(study)) == study


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_draft_of_every_mechanism_parses_and_says_what_it_does(name: str) -> None:
    chosen = mechanism_for(name, RICH, "stage" if name == "trajectory" else None)
    text = draft_study(
        RICH,
        name="draft",
        sites=("alpha",),
        federation="main",
        not_before="2026-11-21T00:00:00Z",
        expires="2026-12-21T00:00:00Z",
        mechanism=chosen,
        estimands=(question_for(RICH),) if MECHANISMS[name].answers else (),
    )
    assert parse_study(text).mechanism == chosen
    assert f"# {name} releases" in text
    section = text.partition("[mechanism]\n")[2].partition("\n\n")[0]
    for setting in fields(chosen):
        lines = section.splitlines()
        line = next(x for x in lines if x.removeprefix("# ").startswith(f"{setting.name} ="))
        assert line.startswith("# ") == (getattr(chosen, setting.name) is None)
        assert line.count("#") >= (2 if line.startswith("# ") else 1), line


def without_name(settings: str = "", guarantee: str = "formal") -> str:
    """A study's text that names no mechanism."""
    before, _, after = template().partition("[mechanism]\n")
    before = before.replace('guarantee = "formal"', f'guarantee = "{guarantee}"')
    return f"{before}[mechanism]\n{settings}\n\n{after.partition(chr(10) * 2)[2]}"


def test_tables_have_as_many_rows_at_most_as_the_file_says() -> None:
    study = parse_study(without_name("most_rows = 5000"))
    assert study.mechanism == Structured(most_rows=5000)
    assert parse_study(write_study(study)) == study
    for wrong in ("50", "true", '"all"'):
        with pytest.raises(InvalidInput, match="most_rows"):
            parse_study(without_name(f"most_rows = {wrong}"))


def test_a_newly_written_study_is_structured_unless_it_says_otherwise() -> None:
    assert parse_study(template()).mechanism == Structured()
    assert parse_study(without_name()).mechanism == Structured()
    assert parse_study(without_name("copies = 3")).mechanism == Structured(copies=3)
    for each in (1, 2):
        study = parse_study(without_name(f"refits = 4\nper_fit = {each}"))
        assert study.mechanism == Structured(refits=4, per_fit=each)
        assert parse_study(write_study(study)) == study  # 1 is not in what is signed
    no_section = without_name().replace("[mechanism]\n", "")
    assert parse_study(no_section).mechanism == Structured()
    # It has no other guarantee than formal: those keep the mechanism that they had.
    for guarantee in ("public-flow", "empirical"):
        assert parse_study(without_name("w = 0.5", guarantee)).mechanism == Maf(w=0.5)


def test_settings_of_another_mechanism_than_the_default_ask_for_its_name() -> None:
    text = without_name("steps = 100\nflows = 2")
    (found,) = problems(parse_study, text)
    assert text.splitlines()[(found.line or 0) - 1] == "[mechanism]"
    assert str(found).endswith(
        "name is missing, and the default, structured, does not know flows, steps; one of maf. "
        "Say which"
    )


def test_a_trajectory_finds_its_time() -> None:
    counted = partial(Trajectory, start="counts")  # where everybody has one row
    assert mechanism_for("trajectory", RICH, "stage") == Trajectory("stage")
    assert mechanism_for("trajectory", RICH, "time") == Trajectory("time", points=10)
    visit = Column("visit", "integer", 0, 5)
    assert mechanism_for("trajectory", Schema((visit, RICH["x"]))) == counted("visit")
    day = Column("day", "integer", 0, 3650)
    assert mechanism_for("trajectory", Schema((day, RICH["x"]))) == counted("day", points=10)
    rough = Column("rough", "continuous", 0, 3, 0)
    wanted = counted("rough", points=4)
    assert mechanism_for("trajectory", Schema((rough, RICH["x"])), "rough") == wanted


@pytest.mark.parametrize(
    ("name", "schema", "time", "words"),
    [
        ("gan", SCHEMA, None, "one of structured"),
        ("maf", SCHEMA, "age", "has no meaning for 'maf'"),
        ("trajectory", SCHEMA, None, "Give --time"),
        ("trajectory", SCHEMA, "agee", "Did you mean 'age'"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    name: str, schema: Schema, time: str | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        mechanism_for(name, schema, time)


@pytest.mark.parametrize(
    ("columns", "model"),
    [
        (RICH.columns, "cox"),
        ((RICH["sex"], RICH["x"]), "logistic"),
        ((RICH["x"], RICH["ward"]), "ols"),
        ((RICH["x"],), "mean"),
        ((RICH["sex"],), "mean"),
    ],
)
def test_a_question_to_begin_with_suits_the_columns(
    columns: tuple[Column, ...], model: str
) -> None:
    estimand = question_for(Schema(columns))
    assert estimand.model == model
    assert estimand_problems(estimand, columns) == []


def test_columns_without_a_question_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no column can be asked about"):
        question_for(Schema((RICH["ward"], RICH["stage"])))


def test_template_refuses_what_a_study_refuses() -> None:
    with pytest.raises(InvalidInput, match="not well formed"):
        draft_study(
            SCHEMA,
            name="bad name",
            sites=("a",),
            federation="main",
            not_before="2026-11-21T00:00:00Z",
            expires="2026-12-21T00:00:00Z",
        )


@pytest.mark.parametrize(
    "time", ["2026-11-21T00:00:00Z", "2026-11-21T02:00:00+02:00", "2026-11-20 23:00:00-01:00"]
)
def test_times_may_be_written_as_toml_times(time: str) -> None:
    text = template().replace('"2026-11-21T00:00:00Z"', time)
    assert parse_study(text).not_before == "2026-11-21T00:00:00Z"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('wire = "1.2"', 'wire = "one"', "wire"),
        ('wire = "1.2"', "wirre = 1", "wirre"),
        ('name = "bp-cvd"', 'name = "bp cvd"', "study.name"),
        ("quorum = 2", "quorum = 4", "study.quorum"),
        ("quorum =", "quorrum =", "study.quorrum"),
        ('"2026-11-21T00:00:00Z"', "2026-11-21T00:00:00", "study.not_before"),
        ("epsilon = 1 ", "epsilon = inf ", "privacy.epsilon"),
        ("copies = 10", "copies = 0", "mechanism.copies"),
        ("effects = []", "effects = 1", "mechanism.effects"),
        ('term = "age"', 'term = "aeg"', "estimands[1].term"),
        ('model = "cox"', 'modle = "cox"', "estimands[1].modle"),
        ("max_rows_per_person = 1", "max_rows_per_person = -1", "table.max_rows_per_person"),
        ("max_rows_per_person = 1", "rows = 1", "table.rows"),
        ("lower = 18", "lower = 101", "columns.age.upper"),
        ("lower = 18", "missing = [1]\nlower = 18", "columns.age.missing"),
        ("follow_up = 25", "follow_up = -1", "columns.time.follow_up"),
    ],
)
def test_a_problem_of_a_study_has_its_line(old: str, new: str, where: str) -> None:
    text = template(estimands=(HR,))
    assert old in text
    text = text.replace(old, new, 1)
    key = where.rpartition(".")[2]
    found = {p.where: p.line for p in problems(parse_study, text)}
    line = found[where]
    assert line is not None
    assert key in text.splitlines()[line - 1]


def test_all_problems_of_a_study_are_reported_in_the_order_of_the_file() -> None:
    text = template(estimands=(HR,))
    changes = {
        "quorum = 2": "quorum = 9",
        "delta = 1e-05": "delta = 0",
        'term = "age"': 'term = "aeg"',
        'kind = "categorical"': 'kind = "nominal"',
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    found = problems(parse_study, text)
    assert [p.where for p in found] == [
        "study.quorum",
        "privacy.delta",
        "estimands[1].term",
        "columns.ward.kind",
    ]
    lines = [p.line or 0 for p in found]
    assert lines == sorted(lines)


def test_a_missing_section_is_one_problem() -> None:
    text = template()
    start, end = text.index("[study]"), text.index("[privacy]")
    assert [p.where for p in problems(parse_study, text[:start] + text[end:])] == ["study"]


@pytest.mark.parametrize(
    "given", ['""', "0", "-5", "true", "10.0", '"500"', "10000000000"], ids=str
)
def test_a_frame_is_a_whole_number_of_persons(given: str) -> None:
    (found,) = problems(parse_dictionary, f"persons = {given}\n{DICTIONARY}")
    assert (found.where, found.line) == ("persons", 1)
    assert "never the count itself" in (found.remedy or "")


def test_a_frame_is_asked_for_where_a_site_certifies() -> None:
    assert parse_dictionary(DICTIONARY).persons is None
    (found,) = problems(lambda t: parse_dictionary(t, framed=True), DICTIONARY)
    assert (found.where, found.message) == ("persons", "is missing")


def test_a_schema_knows_no_frame() -> None:
    """A study's schema and its comparison are the same whatever the frame is."""
    with_frame = parse_dictionary(f"persons = 5000\n{DICTIONARY}")
    assert with_frame.schema == SCHEMA
    assert with_frame.schema.to_dict() == SCHEMA.to_dict()
    assert not re.search(r"(?m)^persons", write_study(parse_study(template(with_frame.schema))))


def test_other_names_a_level_and_is_not_part_of_the_schema() -> None:
    said = DICTIONARY + 'ward.other = "c"\n'
    found = parse_dictionary(said)
    assert (found.schema, found.others) == (SCHEMA, {"ward": "c"})
    written = write_dictionary(found.schema, 500, found.others)
    assert parse_dictionary(written, framed=True) == replace(found, persons=500, title="")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('ward.other = "d"', "is not one of the levels"),
        ("ward.other = []", "must be text"),
        ('ward.other = ""', "is blank"),
        ('cvd = { kind = "event", other = "1" }', "has no meaning for kind 'event'"),
    ],
)
def test_an_other_that_is_no_level_is_refused(line: str, message: str) -> None:
    text = DICTIONARY + line + "\n"
    if line.startswith("cvd"):
        text = DICTIONARY.replace('cvd = { kind = "event" }', line)
    (found,) = problems(parse_dictionary, text)
    assert (found.where.rpartition(".")[2], found.message) == ("other", message)
    assert found.line is not None


def test_another_number_for_a_level_is_the_level() -> None:
    text = "[columns.x]\nkind = 'ordered'\nlevels = [1, 2, 9]\nother = 9\n"
    assert parse_dictionary(text).others == {"x": "9"}


@pytest.mark.parametrize("guarantee", ["public-flow", "empirical"])
@pytest.mark.parametrize("settings", [Structured(), SlicedWasserstein(), Gibbs()])
def test_a_guarantee_that_its_mechanism_does_not_offer_has_its_line(
    guarantee: str, settings: Settings
) -> None:
    """A study that every site refuses was sound to `study check`."""
    study = replace(parse_study(template(estimands=(HR,))), mechanism=settings)
    text = write_study(study).replace('guarantee = "formal"', f'guarantee = "{guarantee}"')
    (found,) = problems(parse_study, text)
    assert found.where == "privacy.guarantee"
    assert text.splitlines()[(found.line or 0) - 1].startswith("guarantee = ")
    assert (found.bound, found.remedy) == ("one of formal", "Or name another mechanism: maf")
