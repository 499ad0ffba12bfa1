"""What a site makes public by joining: names that a steward confirmed, and no fact of a row.

Each test is named after what was found: levels, and the number of persons, were read from rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import SCHEMA, TestSite, World, rows_csv
from tests.support.sources import check, read_text
from typer.testing import CliRunner

from penstock.base.errors import LedgerError
from penstock.cli.main import app
from penstock.wire import gate_pb2
from penstock_client.onboarding.certification import certify_rows
from penstock_client.onboarding.inspection import inspect_rows
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

LABEL = "HIV index case, 3 March 1987"
N = 120


def penstock(*args: object, code: int | None = 0) -> str:
    """All that a command says, on both streams."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert code is None or result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    yield root
    shutil.rmtree(root)


def ward_csv(label: str = LABEL) -> str:
    """Rows of a ward: one cell of one patient holds what nobody may read."""
    lines = ["age,sex,ward"]
    lines += [f"{30 + i % 50},{'MF'[i % 2]},{('red', 'blue')[i % 3 == 0]}" for i in range(N)]
    lines[7] = f'41,M,"{label}"'
    return "\n".join(lines) + "\n"


def finish(folder: Path, **blanks: str) -> None:
    """Fill in blanks of a draft, as its steward does, and say that it is none any more."""
    path = folder / "dictionary.toml"
    text = path.read_text().replace("draft = true", "draft = false")
    for key, value in blanks.items():
        text = re.sub(rf'(?m)^{key} = (""|\[\])$', f"{key} = {value}", text)
    path.write_text(text)


def drafted(home: Path, csv: str, *more: object) -> Path:
    (home / "a.csv").write_text(csv)
    penstock("site", "init", "--name", "a", "-d", home / "a", "--from", home / "a.csv", *more)
    return home / "a"


def said_outside(folder: Path) -> str:
    """All that may leave a site by being certified."""
    files = [folder / "join.json", folder / "dictionary.toml", folder / "snapshots/dictionary.toml"]
    return "".join(f.read_text() for f in files if f.exists())


# -- a draft -----------------------------------------------------------------------------------


def test_a_draft_holds_no_value_of_a_row(home: Path) -> None:
    """With only the bounds filled in, one patient's label once stood in join.json."""
    folder = drafted(home, ward_csv())
    finish(folder, lower="0", upper="120")
    penstock("site", "check", "--accept", "-d", folder, code=None)
    assert LABEL not in said_outside(folder)
    assert not re.search(r'"(M|F|red|blue)"', said_outside(folder))


def test_a_draft_that_nobody_finished_is_not_certified(home: Path) -> None:
    """Every blank at once, each with its line; and the draft's own mark, when nothing is blank."""
    folder = drafted(home, ward_csv())
    said = penstock("site", "check", "--accept", "-d", folder, code=2)
    lines = (folder / "dictionary.toml").read_text().splitlines()
    found = re.findall(r"line (\d+): ([\w.]+): ", said)
    assert [where for _, where in found] == [
        "draft",
        "persons",
        "columns.age.lower",
        "columns.age.upper",
        "columns.sex.levels",
        "columns.ward.levels",
    ]
    assert all(where.rpartition(".")[2] in lines[int(line) - 1] for line, where in found)
    finish(folder, lower="0", upper="120", persons="500", levels='["red", "blue"]')
    path = folder / "dictionary.toml"
    path.write_text(path.read_text().replace("draft = false", "draft = true"))
    said = penstock("site", "check", "--accept", "-d", folder, code=2)
    assert re.findall(r"line \d+: (\w+): ", said) == ["draft"]
    assert not (folder / "join.json").exists()


def test_what_is_none_of_the_levels_leaves_as_missing_or_as_a_public_other(home: Path) -> None:
    folder = drafted(home, ward_csv())
    finish(folder, lower="0", upper="120", persons="500")
    path = folder / "dictionary.toml"
    text = path.read_text().replace("levels = []", 'levels = ["M", "F"]', 1)
    path.write_text(text.replace("levels = []", 'levels = ["red", "blue", "other"]', 1))
    said = penstock("site", "check", "-d", folder, code=2)
    assert "ward: 1 value outside the levels; they become missing (line 8)" in said
    assert LABEL not in said
    path.write_text(path.read_text() + 'other = "other"\n')
    said = penstock("site", "check", "--accept", "-d", folder)
    assert "ward: 1 value outside the levels; they become 'other' (line 8)" in said
    assert LABEL not in said_outside(folder)
    paths = SitePaths(folder)
    checked, _ = inspect_rows(paths, read_settings(paths))
    assert checked.coded["ward"][6] == 2.0
    join = json.loads((folder / "join.json").read_text())
    assert join["dictionary"]["columns"][2]["levels"] == ["red", "blue", "other"]
    # The site's own mapping: no part of what a study is compared with.
    assert all("other" not in column for column in join["dictionary"]["columns"])
    assert 'other = "other"' in (folder / "snapshots" / "dictionary.toml").read_text()


BOOK = """\
name,kind,lower,upper,unit,values,missing
age,int,0,120,year,,-9
sex,radio,,,,"M, Male | F, Female",
ward,radio,,,,red | blue | green,
"""


def test_a_steward_with_a_codebook_types_two_lines(home: Path) -> None:
    (home / "book.csv").write_text(BOOK)
    folder = drafted(home, ward_csv("green"), "--codebook", home / "book.csv")
    finish(folder, persons="500")
    penstock("site", "check", "-d", folder)
    columns = json.loads((folder / "join.json").read_text())["dictionary"]["columns"]
    assert [c["levels"] for c in columns] == [[], ["M", "F"], ["red", "blue", "green"]]
    assert (columns[0]["lower"], columns[0]["upper"], columns[0]["unit"]) == (0, 120, "year")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("book.csv", "what,kind\nage,int\n", "no field holds the columns' names"),
        ("book.csv", "name,kind\nage,int\nage,int\n", "line 3: 'age': is described twice"),
        ("book.xlsx", "", "unknown kind of file, got .xlsx"),
        ("no.csv", None, "no such file. Correct --codebook"),
    ],
)
def test_a_codebook_that_is_none_makes_no_site(
    home: Path, name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (home / name).write_text(text)
    where = ("--name", "a", "-d", home / "a", "--codebook", home / name)
    assert words in penstock("site", "init", *where, code=2)
    assert not (home / "a").exists()


def test_rows_are_no_codebook(home: Path) -> None:
    """Rows with a column `name` would make a column of every patient."""
    (home / "a.csv").write_text("name,age\nAda Smith,41\n")
    where = ("--name", "a", "-d", home / "a", "--from", home / "a.csv")
    said = penstock("site", "init", *where, "--codebook", home / "a.csv", code=2)
    assert "is the file of the rows" in said
    assert "Smith" not in said


def test_a_codebook_never_goes_unread_beside_a_dictionary(home: Path) -> None:
    (home / "book.csv").write_text(BOOK)
    (home / "a").mkdir()
    (home / "a" / "dictionary.toml").write_text("# mine\n")
    where = ("--name", "a", "-d", home / "a", "--codebook", home / "book.csv")
    assert "lies there already, and is kept" in penstock("site", "init", *where, code=2)


# -- what lies outside, for the steward's own eyes ---------------------------------------------


def certified_ward(home: Path, label: str) -> Path:
    folder = drafted(home, ward_csv(label))
    finish(folder, lower="0", upper="60", persons="500", levels='["M", "F", "red", "blue"]')
    path = folder / "dictionary.toml"
    path.write_text(path.read_text().replace('kind = "binary"', 'kind = "categorical"'))
    return folder


def in_terminal(*args: object) -> str:
    """A command with a terminal as its standard output, and all that it shows there."""
    main, side = pty.openpty()
    command = [sys.executable, "-m", "penstock", *map(str, args)]
    process = subprocess.Popen(command, stdout=side, stderr=side, stdin=subprocess.DEVNULL)
    os.close(side)
    shown, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if not select.select([main], [], [], 1)[0]:
            continue
        with contextlib.suppress(OSError):
            if part := os.read(main, 65536):
                shown += part
                continue
        break
    os.close(main)
    assert process.wait(30) == 0, shown
    return shown.decode()


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_values_of_rows_go_to_no_file_and_no_pipe(home: Path, more: tuple[str, ...]) -> None:
    folder = certified_ward(home, LABEL)
    said = penstock("site", "check", "--values", *more, "-d", folder, code=2)
    assert "shows values of rows in a terminal only" in said
    assert LABEL not in said


def test_a_steward_who_asks_sees_which_values_lie_outside(home: Path) -> None:
    folder = certified_ward(home, LABEL + "\x1b]0;owned\x07\u202e")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    shown = in_terminal("site", "check", "--values", "-d", folder)
    assert f"1 × '{LABEL}\\x1b]0;owned\\x07\\u202e'" in shown
    assert re.search(r"age: \d+ outside, 19 different", shown)
    assert "sex" not in shown
    # Of a hostile cell nothing reaches the terminal but its name.
    assert "\x1b]" not in shown
    assert "\u202e" not in shown
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


# -- the frame ---------------------------------------------------------------------------------


def public_facts(site: TestSite) -> tuple[object, ...]:
    """What the coordinator and the analysts see of a site's size, by file and by call."""
    site.start()
    described = json.loads(site.call("Describe", gate_pb2.DescribeRequest()).json)
    site.close()
    site.processes.clear()
    join = json.loads(site.paths.join.read_text())
    return join["persons"], described["persons"], join["dictionary"]


def recertify(site: TestSite, csv: str, **flags: bool) -> None:
    (site.paths.root.parent / f"{site.name}.csv").write_text(csv)
    settings = read_settings(site.paths)
    checked, _ = inspect_rows(site.paths, settings, **flags)
    certify_rows(site.paths, settings, checked, accept=True, **flags)


def declare(site: TestSite, persons: int | str) -> None:
    path = site.paths.dictionary
    text = re.sub(r"(?m)^persons = .*\n", "", path.read_text())
    path.write_text(f"persons = {persons}\n{text}" if persons else text)


def test_recertifying_tells_nobody_who_joined(world: World) -> None:
    """The count of ids was the public n: adding one person changed what everybody saw."""
    site = world.site(csv=rows_csv(200, 1), persons=300)
    before = public_facts(site)
    assert before[:2] == (300, 300)
    recertify(site, rows_csv(201, 1))
    assert public_facts(site) == before
    recertify(site, rows_csv(150, 1))
    assert public_facts(site) == before
    versions = site.ledger().lineages["main"].versions
    assert [(v.number, v.persons) for v in versions] == [(1, 300), (2, 300), (3, 300)]


def test_places_that_nobody_takes_are_null_persons(world: World) -> None:
    """A release of a padded frame: its n, in the signed manifest too, is the frame's."""
    site = world.site(n=80, persons=200)
    site.start()
    job = site.wait(site.submit(world.signed()).request_id)
    assert job.state == "delivered"
    manifest = json.loads(site.collect(job.request_id)[0])["manifest"]
    assert manifest["persons"] == 200


def test_more_persons_than_places_are_told_to_the_steward_alone(world: World) -> None:
    site = world.site(csv=rows_csv(200, 1), persons=210)
    join = site.paths.join.read_bytes()
    records = site.ledger().seq
    (world.root / "a.csv").write_text(rows_csv(211, 1))
    said = penstock("site", "check", "--accept", "-d", site.paths.root, code=2)
    assert "211 persons in the rows, and 210 places in the declared frame" in said
    assert (site.paths.join.read_bytes(), site.ledger().seq) == (join, records)


def test_another_frame_is_declared_or_refused(world: World) -> None:
    site = world.site(csv=rows_csv(200, 1), persons=300)
    certified = (site.paths.snapshots / "dictionary.toml").read_bytes()
    declare(site, 400)
    said = penstock("site", "check", "--accept", "-d", site.paths.root, code=2)
    assert "persons = 400, and main has a frame of 300" in said
    assert "--new-frame" in said
    # The same where nobody could look at the ledger before: nothing of version 1 is undone.
    settings = read_settings(site.paths)
    checked, _ = inspect_rows(site.paths, settings, new_frame=True)
    with pytest.raises(LedgerError, match="stays as it is"):
        certify_rows(site.paths, settings, checked, accept=True)
    assert (site.paths.snapshots / "dictionary.toml").read_bytes() == certified
    said = penstock("site", "check", "--new-frame", "-d", site.paths.root)
    assert "certified as version 2 of main; public n = 400" in said
    assert [v.persons for v in site.ledger().lineages["main"].versions] == [300, 400]


def test_a_site_of_before_goes_on_with_the_count_that_was_published(world: World) -> None:
    """Certified without a frame: the gate answers as before, and the old n becomes the frame."""
    site = world.site(csv=rows_csv(203, 1), persons=203)
    certified = site.paths.snapshots / "dictionary.toml"
    for path in (site.paths.dictionary, certified):
        path.write_text(re.sub(r"(?m)^persons = .*\n", "", path.read_text()))
    assert public_facts(site)[:2] == (203, 203)
    said = penstock("site", "check", "-d", site.paths.root, code=2)
    assert "persons: is missing. Add persons = 203: this data set was certified with it" in said
    declare(site, 203)
    said = penstock("site", "check", "-d", site.paths.root)
    assert "certified as version 1 of main; public n = 203" in said
    assert "the frame is exactly the count" in said


def test_rows_without_a_frame_are_never_certified(world: World) -> None:
    site = world.site(csv=rows_csv(200, 1), persons=300)
    declare(site, "")
    said = penstock("site", "check", "--accept", "-d", site.paths.root, code=2)
    assert "Add persons = 300" in said
    schema = SCHEMA
    unframed = check(read_text(world.root / "a.csv"), schema)
    with pytest.raises(Exception, match="persons: is missing"):
        certify_rows(site.paths, read_settings(site.paths), unframed, accept=True)
