"""`penstock analyse` of what explains how sites differ: flags, tables, JSON and plots."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.held import SITES, hold, write_held
from typer.testing import CliRunner

from penstock.analyst.pulled import analyse
from penstock.base.errors import CoordinatorError
from penstock.cli.analyse import app, show_answer
from penstock.cli.console import out
from penstock.enquiry.reply import answer_questions

ASKED = (
    *("--moderator", "mean(age)", "--moderator", "share(sex == 'F')"),
    *("--among", f"north={','.join(SITES[:3])}", "--among", f"south={','.join(SITES[3:7])}"),
)


@pytest.fixture(scope="module")
def pulled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held") / "results"
    write_held(hold(), folder)
    return folder


def test_tables_say_what_explains_and_who_is_left_out(pulled, tmp_path):
    given = [str(pulled), "sbp ~ sex", *ASKED, "--plot", str(tmp_path)]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    for text in ("per 1 of mean(age)", "Left between sites", "south", f"Left out: {SITES[7]}"):
        assert text in shown.output
    assert "Moderators are estimated" in shown.output
    assert ">south<" in (tmp_path / "forest-1.svg").read_text()


def test_the_plain_mean_of_sites_stands_below_the_headline(pulled):
    said = CliRunner().invoke(app, [str(pulled), "sbp ~ sex"]).stdout
    (told,) = json.loads(CliRunner().invoke(app, [str(pulled), "sbp ~ sex", "--json"]).stdout)[
        "answers"
    ]
    plain = next(other for other in told["others"] if other["method"] == "unweighted")
    estimates = [site["coefficient"]["estimate"] for site in told["sites"]]
    assert plain["coefficient"]["estimate"] == pytest.approx(sum(estimates) / len(estimates))
    lines = said.splitlines()
    head, alike = (
        next(place for place, line in enumerate(lines) if text in line)
        for text in ("all (reml)", "each site alike")
    )
    assert alike == head + 1
    assert f"{plain['value']['estimate']:.4g}" in lines[alike]


def test_what_is_neither_a_folder_nor_a_study_is_called_so(tmp_path):
    def pull(name, out):
        raise CoordinatorError(said, value=name)

    said = "no such study"
    with pytest.raises(CoordinatorError, match="neither a folder with a"):
        analyse(tmp_path / "none", [], pull)
    said = "no results"
    with pytest.raises(CoordinatorError, match="no results"):
        analyse("aids", [], pull)


def test_one_site_alone_has_no_mean_of_sites(tmp_path):
    write_held(hold(sites=1), tmp_path / "results")
    shown = CliRunner().invoke(app, [str(tmp_path / "results"), "sbp ~ sex"])
    assert "all (reml)" in shown.stdout
    assert "each site alike" not in shown.stdout


def test_json_and_python_have_the_same(pulled):
    shown = CliRunner().invoke(app, [str(pulled), "sbp ~ sex", *ASKED, "--json"])
    (told,) = json.loads(shown.stdout)["answers"]
    (same,) = analyse(
        pulled,
        ["sbp ~ sex"],
        lambda name, out: pytest.fail("it is there"),
        moderators=["mean(age)", "share(sex == 'F')"],
        among={"north": SITES[:3], "south": SITES[3:7]},
    )
    assert told == json.loads(json.dumps(same))
    assert len(told["moderation"]["coefficients"]) == 3


@pytest.mark.parametrize(
    ("among", "what"),
    [
        (["aric-f"], "Write NAME=SITE,SITE"),
        (["=aric-f"], "is no group"),
        (["a=aric-f", "a=fos-f"], "is said twice"),
        (["a=aric-f", "b=foss-f"], "Did you mean 'fos-f'"),
    ],
)
def test_groups_are_read(pulled, among, what):
    given = [part for text in among for part in ("--among", text)]
    shown = CliRunner().invoke(app, [str(pulled), "sbp ~ sex", *given])
    assert shown.exit_code != 0
    assert what in shown.output


def test_each_answer_is_headed_by_its_question_and_what_is_none_is_called_so(tmp_path):
    """Its sites' numbers can be looked at; nobody takes what they are pooled to for an answer."""
    held = hold()
    lacking = {**held.report, "holds": [{"held": "no"}]}
    write_held(replace(held, report=lacking), tmp_path / "results")
    asked = ["sbp ~ sex", "sbp ~ sex where age > 50"]
    plots = ["--plot", str(tmp_path / "plots"), *ASKED]
    lines = CliRunner().invoke(app, [str(tmp_path / "results"), *asked, *plots]).stdout.splitlines()
    first, second = (lines.index(question) for question in asked)
    assert not any("no answer" in line for line in lines[first:second])
    rows = [line for line in lines[second:] if line.startswith(("all", "each site alike"))]
    assert len(rows) == 2
    assert all(": no answer" in row for row in rows)
    for title in ("What explains how sites differ", "Groups of sites"):
        assert [line for line in lines if title in line] == [title, f"{title}: no answer"]
    drawn = [(tmp_path / "plots" / f"forest-{place}.svg").read_text() for place in (1, 2)]
    assert [">Random effects<" in svg for svg in drawn] == [True, False]
    assert [">south<" in svg for svg in drawn] == [True, False]
    assert [">south: no answer<" in svg for svg in drawn] == [False, True]
    assert [">Random effects: no answer<" in svg for svg in drawn] == [False, True]
    assert ['class="fp-pooled-line"' in svg for svg in drawn] == [True, False]
    assert ['class="fp-random"' in svg for svg in drawn] == [True, False]


def test_of_one_release_of_all_sites_there_is_one_row():
    (told,) = answer_questions(hold(), ["mean(age)"])
    many = show_lines(told)
    one = show_lines({**told, "joint": True})
    assert sum(line.startswith(SITES) for line in many) == len(SITES)
    assert sum(line.startswith((*SITES, "all")) for line in one) == 1


def show_lines(told):
    with out.capture() as caught:
        show_answer(told)
    return caught.get().splitlines()
