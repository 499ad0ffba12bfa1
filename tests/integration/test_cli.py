"""The commands as a steward and an analyst use them, with every mistake they may make."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from penstock.base.errors import SignatureError
from penstock.cli.main import GROUP, app
from penstock.schema import Column, Schema
from penstock.study.toml import parse_study, write_dictionary
from penstock.wire.canonical import canonical
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import State
from penstock_client.onboarding import certification
from penstock_client.site.site_paths import SitePaths
from penstock_server.api.directory import Directory

SCHEMA = Schema(
    (
        Column("age", "continuous", lower=18, upper=100, decimals=0, unit="year"),
        Column("sbp", "continuous", lower=70, upper=250, decimals=0, unit="mmHg"),
        Column("sex", "binary"),
        Column("score", "continuous", lower=-50, upper=50, decimals=3),
    )
)
N = 200
FRAME = 240
DICTIONARY = write_dictionary(SCHEMA, FRAME)


def rows(n: int = N, shift: int = 0) -> list[list[str]]:
    """A header and n rows: what a study on blood pressure might see."""
    body = [
        [str(40 + i % 31), str(100 + (7 * i + shift) % 61), str(i % 2), f"{i % 17 - 8}.125"]
        for i in range(n)
    ]
    return [list(SCHEMA.names), *body]


def csv_of(table: list[list[str]], separator: str = ",") -> str:
    return "\n".join(separator.join(row) for row in table) + "\n"


def spoilt(column: str, *cells: str) -> str:
    table = rows()
    for row, cell in zip(table[1:], cells, strict=False):
        row[table[0].index(column)] = cell
    return csv_of(table)


@dataclass
class Said:
    code: int
    out: str
    err: str


def penstock(*args: object, code: int = 0, env: dict[str, str] | None = None) -> Said:
    """Run a command here; no traceback, and the exit code that is expected."""
    result = CliRunner().invoke(app, [str(a) for a in args], env=env)
    said = Said(result.exit_code, result.stdout, result.stderr)
    assert result.exception is None or isinstance(result.exception, SystemExit), said
    assert said.code == code, said
    assert "Traceback" not in said.err
    return said


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    yield root
    shutil.rmtree(root)


def site(home: Path, data: str | bytes | None = None, dictionary: str = DICTIONARY) -> Path:
    """A site that was made and described, and not yet checked."""
    folder = home / "a"
    text = csv_of(rows()) if data is None else data
    (home / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    folder.mkdir(mode=0o700)
    (folder / "dictionary.toml").write_text(dictionary)
    penstock("site", "init", "--name", "a", "--dir", folder)
    replace(folder / "site.toml", '"data.csv"', '"../a.csv"')
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def ledger(folder: Path) -> State:
    paths = SitePaths(folder)
    with contextlib.closing(Database(paths.database, read_only=True)) as database:
        return Ledger(database, None).verify(paths.gate_public())


def nothing_was_certified(folder: Path) -> bool:
    snapshots = list((folder / "snapshots").iterdir())
    return not (folder / "join.json").exists() and not snapshots and not ledger(folder).lineages


# -- the steward: a site is made ---------------------------------------------------------------


def test_a_site_is_drafted_from_a_file_and_asks_for_what_is_public(home):
    (home / "a.csv").write_text(csv_of(rows()))
    said = penstock("site", "init", "--name", "a", "-d", home / "a", "--from", home / "a.csv")
    assert "gate fingerprint SHA256:" in said.out
    assert "never" in said.out
    draft = (home / "a" / "dictionary.toml").read_text()
    assert "\n[columns.sbp]\n" in draft
    assert not re.search(r"= (100|160|40|70|8\.125)\b", draft)  # no observed minimum or maximum
    said = penstock("site", "check", "-d", home / "a", code=2)
    assert str(home / "a" / "dictionary.toml") in said.err
    assert said.err.count("is blank. Bounds are public knowledge") == 6
    assert len(re.findall(r"line \d+: columns\.\w+\.(lower|upper)", said.err)) == 6
    assert re.search(r"line \d+: draft: this is a draft that nobody finished", said.err)
    assert re.search(r"line \d+: persons: is blank. Declare the frame", said.err)
    assert nothing_was_certified(home / "a")


def test_a_site_is_never_made_twice(home):
    folder = site(home)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    said = penstock("site", "init", "--name", "b", "-d", folder, code=1)
    assert "a site exists there already and is never overwritten" in said.err
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--name", "Ward 7"), 2, "--name: is not well formed, got 'Ward 7'; lower-case"),
        (("--name", "a", "--federation", "a b"), 2, "--federation: is not well formed"),
        (("--name", "a", "--from", "no.csv"), 2, "no such file"),
        ((), 2, "Missing option '--name'"),
    ],
)
def test_a_site_that_cannot_be_made_leaves_nothing(home, args, code, words):
    said = penstock("site", "init", *args, "-d", home / "a", code=code)
    assert words in said.err
    assert not (home / "a").exists()


def test_a_policy_and_a_dictionary_that_are_there_are_kept(home):
    (home / "a").mkdir()
    for name in ("policy.toml", "dictionary.toml"):
        (home / "a" / name).write_text(f"# my own {name}\n")
    penstock("site", "init", "--name", "a", "-d", home / "a")
    for name in ("policy.toml", "dictionary.toml"):
        assert (home / "a" / name).read_text() == f"# my own {name}\n"


def test_a_path_too_long_for_a_socket_is_said_at_once(home):
    folder = home / ("x" * 100)
    said = penstock("site", "init", "--name", "a", "-d", folder, code=1)
    assert re.search(r"too long a path .*\(got \d+ bytes; at most 107\): move it", said.err)
    assert not folder.exists()


@pytest.mark.parametrize("command", ["check", "start", "gate", "stop", "requests", "status"])
def test_where_no_site_is(home, command):
    said = penstock("site", command, "-d", home, code=2)
    assert "no site here. run `penstock site init` first" in said.err


# -- the steward: rows are checked -------------------------------------------------------------

BAD_FILES = {
    "a missing column": (csv_of([r[:3] for r in rows()]), "score: column missing from the file"),
    "text in a number": (spoilt("age", "sixty"), "age: text in a number (line 2)"),
    "decimal commas": (spoilt("score", '"1,5"'), "Write decimals with a point, not a comma"),
    "an empty file": ("", "the file is empty"),
    "a header only": (csv_of(rows(0)), "the file holds no rows"),
    "ten rows": (csv_of(rows(10)), "10 persons; at least 50 are needed"),
    "an empty column": (spoilt("score", *[""] * N), "score: every value is missing"),
    "latin-1": (spoilt("sex", "männlich").encode("latin-1"), "line 2: not UTF-8 text"),
    "semicolons": (csv_of(rows(), ";"), "separated by semicolons"),
    "a comma too many": (
        csv_of([rows()[0], *[[*r, ""] for r in rows()[1:]]]),
        "and 199 more such lines",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_one_message(home, name):
    data, words = BAD_FILES[name]
    folder = site(home, data)
    said = penstock("site", "check", "--accept", "-d", folder, code=2)
    assert words in said.err
    assert said.err.count("error:") == 1
    assert not any(cell in said.err + said.out for cell in ("sixty", "1,5", "nlich"))
    assert nothing_was_certified(folder)


def test_duplicate_person_ids_stop(home):
    table = [["id", *rows()[0]], *[[f"p{max(i, 1)}", *r] for i, r in enumerate(rows()[1:])]]
    folder = site(home, csv_of(table), f'person = "id"\n{DICTIONARY}')
    said = penstock("site", "check", "-d", folder, code=2)
    assert "id: duplicate person ids (line 3). Make each id the id of one row" in said.err
    assert nothing_was_certified(folder)


def test_rows_that_are_not_there_make_no_site(home):
    said = penstock(
        "site", "init", "--name", "a", "-d", home / "a", "--from", home / "no.csv", code=2
    )
    assert "no.csv: 1 problem" in said.err
    assert "no such file. Correct --from" in said.err
    assert not (home / "a").exists()


def test_all_findings_are_shown_together_and_once(home):
    folder = site(home, spoilt("age", "old").replace("sex", "sx", 1))
    said = penstock("site", "check", "-d", folder, code=2)
    assert said.err.count("text in a number") == 1
    assert said.err.count("Did you mean 'sx'?") == 1
    assert ".csv: 2 problems\n  nothing was certified" in said.err
    assert "nothing was certified: correct what is marked ✗" in said.err


def test_a_dictionary_with_many_mistakes_names_them_all_with_lines(home):
    text = DICTIONARY.replace("upper = 100", "uper = 100").replace('"binary"', '"binnary"')
    folder = site(home, dictionary=text.replace("lower = -50", 'lower = "x"'))
    said = penstock("site", "check", "-d", folder, code=2)
    assert f"{folder / 'dictionary.toml'}: 4 problems" in said.err
    assert len(re.findall(r"^  line \d+: ", said.err, re.MULTILINE)) == 4
    assert "Did you mean 'upper'?" in said.err
    assert "Did you mean 'binary'?" in said.err


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("policy.toml", 'aproval = "automatic"\n', "line 1: aproval: is not a known key. Did you"),
        (
            "site.toml",
            "thread = 2\n",
            "line 1: thread: is not a known key. Did you mean 'threads'?",
        ),
        ("dictionary.toml", "persn = 'id'\n", "line 1: persn: is not a known key. Did you mean"),
    ],
)
def test_an_unknown_key_is_named_with_its_file_line_and_neighbour(home, file, line, words):
    folder = site(home)
    path = folder / file
    path.write_text(line + path.read_text())
    said = penstock("site", "check", "-d", folder, code=2)
    assert str(path) in said.err
    assert words in said.err
    assert nothing_was_certified(folder)


def test_a_file_that_is_not_there_is_named(home):
    folder = site(home)
    (home / "a.csv").unlink()
    said = penstock("site", "check", "-d", folder, code=2)
    assert "a.csv: 1 problem" in said.err
    assert "no such file. Correct `data` in site.toml" in said.err


@pytest.mark.parametrize("how", ["parquet", "tsv", "codes"])
def test_other_honest_files_pass(home, how):
    folder, dictionary = site(home), DICTIONARY
    table = rows()
    frame = pd.DataFrame(table[1:], columns=table[0])
    if how == "parquet":
        typed = frame.astype({"age": "int32", "sbp": float, "sex": int, "score": float})
        typed["sex"] = typed["sex"].astype(bool)
        typed.to_parquet(home / "a.parquet")
    elif how == "tsv":
        (home / "a.tsv").write_text(csv_of(table, "\t"))
    else:
        frame.loc[0, "age"], frame.loc[1, "age"], frame.loc[2, "sex"] = "-9.0", "?", "1.0"
        frame.to_csv(home / "a.codes.csv")  # with pandas' index in a column without a name
        dictionary = dictionary.replace(
            "decimals = 0\n", 'decimals = 0\nmissing = [-9, "?"]\nnullable = true\n', 1
        )
        (folder / "dictionary.toml").write_text(dictionary)
    name = {"codes": "a.codes.csv"}.get(how, f"a.{how}")
    replace(folder / "site.toml", "a.csv", name)
    said = penstock("site", "check", "-d", folder)
    assert said.err == ""
    assert f"certified as version 1 of main; public n = {FRAME}" in said.out


def test_what_is_clampable_needs_to_be_accepted(home):
    folder = site(home, spoilt("age", "140", "17").replace("sex", "sex", 1))
    said = penstock("site", "check", "-d", folder, code=2)
    assert "2 values outside [18, 100]; they are clamped (lines 2, 3)" in said.err
    assert "nothing was certified: add --accept" in said.err
    assert nothing_was_certified(folder)
    said = penstock("site", "check", "--accept", "-d", folder)
    assert "certified as version 1" in said.out
    assert "they are clamped" in said.err


@pytest.mark.parametrize(("cell", "words"), [("140", "clamped"), ("50", "")])
def test_a_dry_run_certifies_nothing(home, cell, words):
    folder = site(home, spoilt("age", cell))
    assert words in penstock("site", "check", "--dry-run", "-d", folder).err
    assert nothing_was_certified(folder)


@pytest.mark.parametrize(
    ("data", "flags", "code", "fatal", "version"),
    [
        (csv_of(rows()), (), 0, [], 1),
        (spoilt("age", "140"), (), 2, [False], None),
        (spoilt("age", "140"), ("--accept",), 0, [False], 1),
        (spoilt("age", "old"), ("--accept",), 2, [True], None),
        (spoilt("age", "old"), ("--dry-run",), 2, [True], None),
    ],
)
def test_json_is_all_there_is_on_standard_output(home, data, flags, code, fatal, version):
    said = penstock("site", "check", "--json", *flags, "-d", site(home, data), code=code)
    document = json.loads(said.out)
    numbers = [document[name] for name in ("rows", "counted", "persons", "version")]
    assert numbers == [N, N, FRAME, version]
    assert [f["fatal"] for f in document["findings"]] == fatal
    assert [f["lines"] for f in document["findings"]] == [[2]] * len(fatal)


def counts_of(*cells: str) -> str:
    header, *body = rows()
    counted = [[cell, *row] for row, cell in zip(body, itertools.cycle(cells), strict=False)]
    return csv_of([["nodes", *header], *counted])


def test_what_a_column_could_do_with_is_said_from_its_declaration_alone(home, tmp_path):
    nodes = '[columns.nodes]\nkind = "integer"\nlower = 0\nupper = 60\n\n'
    head, mark, rest = DICTIONARY.partition("[columns.")
    dictionary = head + nodes + mark + rest
    said = []
    for number, cells in enumerate([("0",), ("60", "0", "7")]):
        (home / str(number)).mkdir()
        folder = site(home / str(number), counts_of(*cells), dictionary)
        document = json.loads(penstock("site", "check", "--json", "-d", folder).out)
        assert not document["findings"]
        said.append(document["suggestions"])
        text = penstock("site", "check", "-d", folder).err
        assert 'nodes: consider scale = "log", spike = 0 (a count from 0 to 60)' in text
    assert said[0] == said[1]
    assert [(s["column"], s["keys"]) for s in said[0]] == [("nodes", {"scale": "log", "spike": 0})]


def test_the_same_rows_are_the_same_version_and_changed_rows_the_next(home):
    folder = site(home)
    penstock("site", "check", "-d", folder)
    first = ledger(folder)
    (folder / "dictionary.toml").write_text(f"# a comment\n{DICTIONARY}")
    assert "version 1 of main" in penstock("site", "check", "-d", folder).out
    assert ledger(folder).seq == first.seq
    (home / "a.csv").write_text(csv_of(rows(shift=1)))
    assert "version 2 of main" in penstock("site", "check", "-d", folder).out
    lineage, before = ledger(folder).lineages["main"], first.lineages["main"]
    assert [v.number for v in lineage.versions] == [1, 2]
    assert (lineage.epsilon, lineage.delta, lineage.order) == (
        before.epsilon,
        before.delta,
        before.order,
    )
    kept = {"main-1.recoding.toml", "main-2.recoding.toml"}  # of both versions, without a row
    present = {p.name for p in (folder / "snapshots").iterdir()}
    assert present == {"main-2.arrow", "dictionary.toml"} | kept


def test_a_check_that_is_interrupted_leaves_nothing_to_answer_with(home, monkeypatch):
    folder = site(home)
    penstock("site", "check", "-d", folder)
    (home / "a.csv").write_text(csv_of(rows(shift=1)))
    with monkeypatch.context() as patch:
        patch.setattr(certification.Ledger, "add_version", lambda *_, **__: 1 / 0)
        said = penstock("site", "check", "-d", folder, code=1)
    assert "ZeroDivisionError" in said.err
    assert not (folder / "snapshots" / "dictionary.toml").exists()  # the gate says "not ready"
    assert "version 2 of main" in penstock("site", "check", "-d", folder).out


def test_the_private_file_is_never_the_public_one(home):
    folder = site(home)
    path = folder / "site.toml"
    path.write_text(path.read_text() + 'public_data = "../a.csv"\n')
    said = penstock("site", "check", "-d", folder, code=2)
    assert "public_data: is the private file" in said.err
    assert nothing_was_certified(folder)


@pytest.mark.parametrize("command", ["check", "start", "gate"])
def test_a_running_gate_holds_the_site(home, command):
    folder = site(home)
    with hold_exclusively(SitePaths(folder).lock):
        said = spawn("site", command, "-d", folder, code=7)
    assert f"another process holds this site's lock (got pid {os.getpid()})" in said.err
    assert "stop that gate first (`penstock site stop`)" in said.err
    assert nothing_was_certified(folder)


def test_a_gate_key_that_others_can_read_is_not_used(home):
    folder = site(home)
    (folder / "keys" / "gate.key").chmod(0o644)
    said = penstock("site", "check", "-d", folder, code=5)
    assert "the gate's key can be read by others (got 0o644; 0600): chmod 600" in said.err


@pytest.mark.parametrize("command", ["requests", "status", "stop"])
def test_a_gate_that_does_not_run_is_said(home, command):
    said = penstock("site", command, "-d", site(home), code=8)
    assert "the gate does not run" in said.err
    assert "`penstock site start`" in said.err


def test_a_policy_with_a_typo_is_told_before_the_gate_starts(home):
    folder = site(home)
    replace(folder / "policy.toml", "by-hand", "by-hnd")  # in a comment, to begin with
    replace(folder / "policy.toml", 'approval = "by-hand"', 'approval = "by-hnd"')
    said = penstock("site", "start", "-d", folder, code=2)
    assert "approval: is unknown, got 'by-hnd'; one of automatic, by-hand" in said.err


def test_an_error_of_our_own_never_quotes_a_row(home, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ValueError("row 17 holds 142.5")

    monkeypatch.setattr("penstock_client.cli.setup.inspect_rows", fail)
    said = penstock("site", "check", "-d", site(home), code=1)
    assert "an error of Penstock's own (got ValueError at test_cli.py:" in said.err
    assert "142.5" not in said.err


# -- the steward: whom to trust ----------------------------------------------------------------


@pytest.fixture
def analyst(home: Path) -> Path:
    penstock("key", "new", home / "ann.key")
    return home / "ann.key"


def trust(folder: Path, key: Path, *more: str, code: int = 0) -> Said:
    given = {"--label": "ann", "--epsilon": "5", "--expires": "2099-12-31"}
    given.update(zip(more[::2], more[1::2], strict=True))
    options = [word for pair in given.items() for word in pair]
    return penstock("site", "trust", "add", key, *options, "-d", folder, code=code)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--epsilon", "nan", "epsilon: is out of range, got nan"),
        ("--epsilon", "-1", "epsilon: is out of range, got -1"),
        ("--label", "", "label: is blank"),
        ("--expires", "soon", "--expires: not a date, got soon; YYYY-MM-DD"),
        ("--expires", "2020-01-01", "--expires: that day is over, got 2020-01-01"),
    ],
)
def test_trust_that_makes_no_sense_is_refused(home, analyst, option, value, words):
    folder = site(home)
    assert words in trust(folder, analyst.with_suffix(".pub"), option, value, code=2).err
    assert not (folder / "trust.json").exists()


def test_a_private_key_sent_in_error_is_neither_pinned_nor_shown(home, analyst):
    folder = site(home)
    said = trust(folder, analyst, code=5)
    assert "this is a private key, which its owner must keep" in said.err
    secret = analyst.read_text().splitlines()[1]
    assert secret[:20] not in said.err + said.out
    assert not (folder / "trust.json").exists()


@pytest.mark.parametrize("data", [b"\xff\xfe", b"age,sbp\n61,142\n", b"", b"ab" * 31])
def test_a_file_that_is_no_key_is_refused_and_not_shown(home, data):
    (home / "x.pub").write_bytes(data)
    for said in (
        trust(site(home), home / "x.pub", code=5),
        penstock("key", "show", home / "x.pub", code=5),
    ):
        assert "not a public key" in said.err
        assert "142" not in said.err


def test_trust_is_listed_and_taken_back(home, analyst):
    folder = site(home)
    print_ = penstock("key", "show", analyst).out.strip()
    assert penstock("key", "show", analyst.with_suffix(".pub")).out.strip() == print_
    assert print_ in trust(folder, analyst.with_suffix(".pub")).out
    assert print_ in penstock("site", "trust", "list", "-d", folder).out
    (listed,) = json.loads(penstock("site", "trust", "list", "--json", "-d", folder).out)
    assert (listed["fingerprint"], listed["epsilon"]) == (print_, 5.0)
    assert "known: ann" in penstock("site", "trust", "revoke", "bob", "-d", folder, code=2).err
    penstock("site", "trust", "revoke", print_, "-d", folder)
    assert json.loads(penstock("site", "trust", "list", "--json", "-d", folder).out) == []


def test_a_key_is_never_overwritten(home, analyst):
    before = analyst.read_bytes()
    said = penstock("key", "new", analyst, code=1)
    assert "never overwritten" in said.err
    (home / "bob.pub").write_text("bob's own")
    penstock("key", "new", home / "bob.key", code=1)
    assert not (home / "bob.key").exists()
    assert (home / "bob.pub").read_text() == "bob's own"
    assert analyst.read_bytes() == before
    assert analyst.stat().st_mode & 0o777 == 0o600


def test_a_private_key_is_never_named_pub(home):
    said = penstock("key", "new", home / "ann.pub", code=1)
    assert "name it ann.key" in said.err
    assert list(home.iterdir()) == []


def test_the_ledger_is_shown_verified_and_exported_once(home):
    folder = site(home)
    assert "no data set yet" in penstock("site", "ledger", "show", "-d", folder).out
    penstock("site", "check", "-d", folder)
    said = penstock("site", "ledger", "show", "-d", folder)
    assert "main: 0 % of its life is used; ε ≤ 10 for life, at δ 1e-05" in said.out
    assert (
        "4 records, chain and signatures whole"
        in penstock("site", "ledger", "verify", "-d", folder).out
    )
    penstock("site", "ledger", "export", home / "l.json", "-d", folder)
    assert len(json.loads((home / "l.json").read_text())["records"]) == 4
    (home / "l.json").write_text("mine")
    said = penstock("site", "ledger", "export", home / "l.json", "-d", folder, code=1)
    assert "a file exists there already" in said.err
    assert (home / "l.json").read_text() == "mine"


# -- the analyst -------------------------------------------------------------------------------


ESTIMAND = """
[[estimands]]
name = "effect"
model = "ols"
outcome = "score"
term = "sbp"
per = 10
adjust = ["age", "sex"]
"""


@pytest.fixture
def study(home: Path) -> Path:
    """A study on one certified site of a coordinator at home/co."""
    penstock("site", "check", "-d", site(home))
    penstock("server", "init", "-d", home / "co")
    penstock("server", "enrol", home / "a" / "join.json", "-d", home / "co")
    path = home / "s.toml"
    join = home / "a" / "join.json"
    penstock("study", "new", join, "--name", "s1", "--site", "a", "--out", path)
    path.write_text(path.read_text() + ESTIMAND)
    return path


def test_an_invite_is_for_its_owners_eyes_only(home):
    penstock("site", "check", "-d", site(home))
    penstock("server", "init", "-d", home / "co")
    invite, elsewhere = home / "a" / "invite-a.json", home / "elsewhere"
    elsewhere.write_text("mine")

    def link() -> None:
        invite.unlink()
        invite.symlink_to(elsewhere)

    for before in (lambda: None, lambda: invite.chmod(0o644), link):
        before()
        umask = os.umask(0o022)
        try:
            penstock("server", "enrol", home / "a" / "join.json", "-d", home / "co")
        finally:
            os.umask(umask)
        assert stat.S_IMODE(invite.lstat().st_mode) == 0o600
        assert json.loads(invite.read_text())["site"] == "a"
    assert elsewhere.read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("epsilon = 1", "epsilon = nan", r"line \d+: privacy.epsilon: is out of range, got nan"),
        ("epsilon = 1", "epsilon = -1", r"line \d+: privacy.epsilon: is out of range, got -1"),
        (
            '"structured"',
            '"gan"',
            r"line \d+: mechanism.name: is unknown, got 'gan'; one of structured",
        ),
        ('"score"\n', '"scor"\n', r"estimands\[1\].outcome: is not a column .* mean 'score'\?"),
        ('"ols"\n', '"cox"\n', r"line \d+: estimands\[1\].outcome"),
        (
            "refits =",
            "refitts =",
            r"mechanism.refitts: is not a known key. Did you mean 'refits'\?",
        ),
        ("[study]", "[study", r"line \d+: is not valid TOML"),
        ("quorum = 1", "quorum = 2", r"study.quorum: is out of range, got 2"),
    ],
)
def test_a_mistake_in_a_study_is_named_with_its_line(study, old, new, words):
    replace(study, old, new)
    said = penstock("study", "check", study, code=2)
    assert re.search(words, said.err), said.err
    assert said.err.startswith(f"error: {study}: ")


def test_columns_are_held_to_a_sites_own(study):
    """As its gate holds them, where its join.json is given."""
    join = study.parent / "a" / "join.json"
    penstock("study", "check", study, "--join", join)
    replace(study, "upper = 100", "upper = 101")
    penstock("study", "check", study)
    said = penstock("study", "check", study, "--join", join, code=2)
    assert "a: columns.age.upper: lies outside the bounds of the site's dictionary" in said.err


def test_a_product_in_strata_of_a_subgroup_is_read_back(study):
    replace(study, 'term = "sbp"', 'term = "sbp:age"\nwhere = "age >= 50"')
    said = penstock("study", "check", study).out
    assert "effect: ols score ~ sbp:age + age + sex + sbp where age >= 50, per 10" in said


def test_a_sound_study_is_read_back(study):
    assert "effect: ols score ~ sbp + age + sex, per 10" in penstock("study", "check", study).out
    replace(study, "readers = []", 'readers = ["bob", "carol"]')
    said = penstock("study", "check", study).out
    assert "may be read by you, bob, carol and the coordinator's admins" in said
    document = json.loads(penstock("study", "check", "--json", study).out)
    assert document.pop("suggestions") == []
    assert document == json.loads(canonical(parse_study(study.read_text()).to_dict()))


@pytest.mark.parametrize(
    ("mechanism", "more", "words"),
    [
        ("maf", (), "synthetic tables"),
        ("sliced-wasserstein", (), "synthetic tables"),
        ("trajectory", ("--time", "age"), "particles at each of 10 time points of age"),
        ("gibbs", (), "coefficients with covariance, and no table"),
        ("scoring", (), "comes back: no table, but"),
    ],
)
def test_a_draft_of_another_mechanism_can_be_checked(study, mechanism, more, words):
    join, path = study.parent / "a" / "join.json", study.parent / f"{mechanism}.toml"
    names = ("--name", "s2", "--site", "a", "--out", path)
    penstock("study", "new", join, *names, "--mechanism", mechanism, *more)
    said = penstock("study", "check", "--no-estimands", path)
    assert f"{mechanism} costs each site ε = 1" in said.out
    assert words in said.out


def test_an_unknown_mechanism_is_refused(study):
    join, path = study.parent / "a" / "join.json", study.parent / "other.toml"
    names = ("--name", "s2", "--site", "a", "--out", path)
    said = penstock("study", "new", join, *names, "--mechanism", "gan", code=2)
    assert "one of structured, maf, sliced-wasserstein, trajectory, gibbs, scoring" in said.err
    assert not path.exists()


def test_a_draft_is_never_overwritten(study):
    before = study.read_text()
    join = study.parent / "a" / "join.json"
    said = penstock("study", "new", join, "--name", "s1", "--site", "a", "--out", study, code=1)
    assert "choose --out" in said.err
    assert study.read_text() == before


@pytest.mark.parametrize("name", ["a.csv", "ledger.json"])
def test_a_draft_from_the_wrong_file_names_it(study, name):
    (study.parent / "ledger.json").write_text("{}")
    source = study.parent / name
    out = study.parent / "new.toml"
    said = penstock("study", "new", source, "--name", "s", "--site", "a", "--out", out, code=2)
    assert said.err.startswith(f"error: {source}: 1 problem")
    assert not out.exists()


def submit(study: Path, key: Path, code: int = 0) -> Said:
    where = study.parent / "co"
    return penstock("study", "submit", study, "--key", key, "-c", where, "--json", code=code)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lower = 18", "lower = 10", "columns.age.lower: lies outside the bounds"),
        (
            "[columns.age]",
            "[columns.bmi]\nkind = 'binary'\n[columns.age]",
            "columns.bmi: is not in",
        ),
        ('["a"]', '["b"]', "sites that are not enrolled here (got b; enrolled: a)"),
        ('federation = "main"', 'federation = "other"', "a is in another federation"),
    ],
)
def test_a_study_that_no_site_could_answer_is_refused_at_once(study, analyst, old, new, words):
    replace(study, old, new)
    assert words in submit(study, analyst, code=9).err
    assert json.loads(penstock("study", "list", "--json", "-c", study.parent / "co").out) == []


def test_an_expired_study_is_refused(study, analyst):
    text = re.sub(r'not_before = ".*?"', 'not_before = "2019-01-01T00:00:00Z"', study.read_text())
    study.write_text(re.sub(r'expires = ".*?"', 'expires = "2020-01-01T00:00:00Z"', text))
    assert "the study has expired (got 2020-01-01T00:00:00Z)" in submit(study, analyst, code=9).err


def test_an_unsigned_study_is_refused(study):
    unsigned = canonical({"study": parse_study(study.read_text()).to_dict()})
    with pytest.raises(SignatureError, match="not signed"):
        Directory(str(study.parent / "co")).submit(unsigned)


def test_a_key_that_others_can_read_does_not_sign(study, analyst):
    analyst.chmod(0o640)
    said = submit(study, analyst, code=1)
    assert f"(got 0o640; 0600): chmod 600 {analyst}" in said.err


@pytest.mark.parametrize("name", ["ann.pub", "s.toml"])
def test_what_is_no_private_key_does_not_sign(study, analyst, name):
    assert "use the .key file" in submit(study, study.parent / name, code=5).err


def test_files_that_are_not_there_are_named(study, analyst):
    said = submit(study, study.parent / "no.key", code=2)
    assert "cannot be read: No such file or directory. Make a key by" in said.err
    said = penstock("study", "check", study.parent / "no.toml", code=2)
    assert str(study.parent / "no.toml") in said.err
    assert "cannot be read: No such file or directory. Draft one" in said.err
    said = penstock("study", "check", study, "--join", study.parent / "no.json", code=2)
    assert "cannot be read: No such file or directory. Give a site's join.json" in said.err


def test_no_such_coordinator(study, analyst):
    said = penstock("study", "submit", study, "-k", analyst, "-c", study.parent / "no", code=9)
    assert "no coordinator here" in said.err
    assert not (study.parent / "no").exists()


@pytest.mark.parametrize("command", [("study", "status"), ("pull", "--out", "out")])
def test_no_such_study(study, command):
    said = penstock(*command, "nope", "-c", study.parent / "co", code=9)
    assert "no such study (got nope)" in said.err
    assert not Path("out").exists()


def test_results_that_are_not_there_yet(study, analyst):
    name = json.loads(submit(study, analyst).out)["study"]
    out = study.parent / "out"
    where = ("-c", study.parent / "co")
    assert "no results (got open)" in penstock("pull", name, "-o", out, *where, code=9).err
    said = penstock("pull", name, "-o", out, "--copies", "two", *where, code=2)
    assert "--copies: unknown, got two; one or all" in said.err
    both = ("--refits", "--imputations")
    assert "Leave out one" in penstock("pull", name, "-o", out, *both, *where, code=2).err
    assert not out.exists()


def test_submitting_twice_changes_nothing(study, analyst):
    first = json.loads(submit(study, analyst).out)
    assert json.loads(submit(study, analyst).out) == first
    assert len(json.loads(penstock("study", "list", "--json", "-c", study.parent / "co").out)) == 1


def test_another_study_of_the_same_name_is_named(study, analyst):
    """Its name alone would say neither of them from then on."""
    first = submit(study, analyst)
    assert "!" not in first.err
    replace(study, "epsilon = 1", "epsilon = 2")
    said = submit(study, analyst)
    older = json.loads(first.out)["study"][:12]
    assert f"s1 is already the name of study {older} (open)" in said.err
    assert json.loads(said.out)["study"][:12] not in said.err


def test_a_cancelled_study_stays_so(study, analyst):
    where = ("-c", study.parent / "co")
    submit(study, analyst)
    assert "is cancelled" in penstock("study", "cancel", "s1", "-k", analyst, *where).out
    assert "was cancelled already" in penstock("study", "cancel", "s1", "-k", analyst, *where).out
    said = submit(study, analyst).err
    assert "(cancelled) was handed in before, and stays cancelled: raise `release`" in said
    replace(study, "release = 1", "release = 2")
    assert "stays cancelled" not in submit(study, analyst).err


def test_only_its_signer_cancels_a_study(study, analyst):
    submit(study, analyst)
    penstock("key", "new", study.parent / "eve.key")
    where = ("-c", study.parent / "co")
    said = penstock("study", "cancel", "s1", "-k", study.parent / "eve.key", *where, code=9)
    assert "only a study's own signer can cancel it" in said.err
    penstock("study", "cancel", "s1", "-k", analyst, *where)
    said = penstock("study", "status", "s1", "--json", *where)
    assert json.loads(said.out)["state"] == "cancelled"


# -- the words themselves ----------------------------------------------------------------------

GROUPS = ["", "study", "pull", "key", "site", "site trust", "site ledger", "server", "audit"]
GROUPS += ["simulate"]


@pytest.mark.parametrize("group", GROUPS)
def test_help_fits_a_terminal_and_is_about_the_command(group, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = penstock(*group.split(), "--help").out
    assert max(map(len, text.splitlines())) <= 80
    if group in ("study", "pull", "key", "site", "site trust", "site ledger"):
        assert "completion" not in text


def list_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from list_commands(one, f"{path} {name}")
    else:
        yield path, command


def test_help_explains_every_argument_and_option():
    """With click 8.5 the help of arguments was lost: this typer does not know it."""
    points = entry_points(group=GROUP)
    found = {p.name: typer.main.get_command(p.load()) for p in points}
    every = [one for name, top in found.items() for one in list_commands(top, name)]
    assert len(every) > 50
    shown = [(path, p) for path, c in every for p in c.params if not getattr(p, "hidden", False)]
    assert [(path, p.name) for path, p in shown if not getattr(p, "help", "")] == []
    assert "estimand" in penstock("analyse", "--help").out


def test_the_version():
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\S*\n", penstock("--version").out)


@pytest.mark.parametrize(
    ("env", "colour"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_degrade(tmp_path, env, colour):
    said = spawn("study", "check", tmp_path / "no.toml", env=env, code=2)
    assert ("\x1b[1;31m" in said.err or "\x1b[31m" in said.err) is colour
    assert "No such file" in said.err


def test_a_terminal_without_greek_is_no_reason_to_fail(study):
    said = spawn("study", "check", study, env={"PYTHONIOENCODING": "ascii"})
    assert "costs each site ? = 1 at ? = 1e-05 per person (formal)" in said.out


# -- all of it, as a reader of the README ------------------------------------------------------


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    paths = os.pathsep.join(p for p in sys.path if p)
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(extra or {})}


def spawn(
    *args: object, code: int = 0, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Said:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "penstock", *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, env=environment(env), cwd=cwd, timeout=120, check=False
    )
    said = Said(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert said.code == code, said
    assert "Traceback" not in said.err
    return said


ENVIRONMENT = {"PENSTOCK_COORDINATOR": "co", "PENSTOCK_SERVER": "co", "PENSTOCK_KEY": "ann.key"}


@dataclass
class Federation:
    """Two sites, their gates, and a coordinator: processes, and commands in one folder."""

    home: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self, *args: object, code: int = 0) -> Said:
        """A command in a process of its own."""
        return spawn(*args, code=code, env=ENVIRONMENT, cwd=self.home)

    def here(self, *args: object, code: int = 0) -> Said:
        """The same in this process, which spares the imports."""
        with contextlib.chdir(self.home):
            return penstock(*args, code=code, env=ENVIRONMENT)

    def json(self, *args: object) -> Any:
        return json.loads(self.here(*args, "--json").out)

    def start(self, *args: str) -> None:
        log = (self.home / f"{args[0]}-{args[-1]}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=self.home,
            )
        self.processes.append(process)

    def until(self, ask: Any, seconds: float = 90) -> Any:
        end = time.monotonic() + seconds
        while not (found := ask()):
            if time.monotonic() > end:
                logs = {p.name: p.read_text() for p in self.home.glob("*.log")}
                raise AssertionError(logs)
            time.sleep(0.1)
        return found

    def write_study(self, name: str, **changes: str) -> str:
        text = (self.home / "study.toml").read_text().replace('name = "s1"', f'name = "{name}"', 1)
        for key, value in changes.items():
            text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)
            assert count == 1
        (self.home / f"{name}.toml").write_text(text)
        return f"{name}.toml"

    def waiting(self, name: str, where: str) -> str:
        """The request id of a study that waits for a site's steward."""
        found = self.json("site", "requests", "-d", where)
        ids = [
            r["request"] for r in found if (r["study"], r["state"]) == (name, "awaiting-approval")
        ]
        return ids[0] if ids else ""


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    home = Path(tempfile.mkdtemp(prefix="pk-"))
    run = Federation(home)
    try:
        run("key", "new", "ann.key")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # At PENSTOCK_SERVER.
        run("server", "init", "--name", "localhost", "--bind", "127.0.0.1", "--port", port)
        for name, shift, call in (("a", 0, run), ("b", 3, run.here)):
            (home / f"{name}.csv").write_text(csv_of(rows(shift=shift)))
            call("site", "init", "--name", name, "-d", name, "--from", f"{name}.csv")
            call("site", "check", "-d", name, code=2)
            (home / name / "dictionary.toml").write_text(DICTIONARY)
            replace(home / name / "policy.toml", "total_epsilon = 10.0", "total_epsilon = 3.0")
            replace(home / name / "policy.toml", "slot_seconds = 60", "slot_seconds = 1")
            call("site", "check", "-d", name)
            given = ("--label", "ann", "--epsilon", "3", "--expires", "2099-12-31")
            call("site", "trust", "add", "ann.pub", *given, "-d", name)
            call("server", "enrol", f"{name}/join.json")
            said = call("site", "join", f"{name}/invite-{name}.json", "-d", name).out
            assert "CA fingerprint SHA256 " in said
            run.start("site", "start", "--dir", name)
        run.start("server", "start", "--dir", "co")
        run("study", "new", "a/join.json", "--name", "s1", "--site", "a", "--site", "b")
        path = home / "study.toml"
        path.write_text(path.read_text() + ESTIMAND)
        small = {"copies": "3", "refits": "2", "planted": "2"}
        titled = {"title": '"Pressure and score"', "readers": '["bob"]'}
        run.write_study("s1", epsilon="2", **titled, **small)
        shutil.move(home / "s1.toml", path)
        for name in ("a", "b"):
            run.until(lambda name=name: (home / name / "run" / "steward.sock").exists())
        yield run
    finally:
        for process in run.processes:
            process.terminate()
        for process in run.processes:
            process.wait(60)
        shutil.rmtree(home)


def test_from_a_question_to_a_report(federation):
    run = federation
    assert {s["site"]: s["persons"] for s in run.json("server", "sites")} == {
        "a": FRAME,
        "b": FRAME,
    }
    run("study", "check", "study.toml")
    study_id = run.json("study", "submit", "study.toml")["study"]
    requests = {name: run.until(lambda name=name: run.waiting("s1", name)) for name in ("a", "b")}
    assert study_id[:12] in run("study", "list").out
    assert "no results (got open)" in run.here("pull", "s1", "--out", "out", code=9).err

    shown = run("site", "requests", "-d", "a").out
    assert requests["a"][:12] in shown  # whole, to be copied
    # Who asks, and what, were missing from the list.
    assert re.search(r" ann +\d{4}-\d\d-\d\d +s1: Pressure", shown), shown
    # A site that waits for its steward was a state without a meaning, and nothing to do.
    waiting = re.sub(r"\s+", " ", run.here("study", "status", "s1").out)
    assert "decides by hand" in waiting
    assert "`penstock site requests`" in waiting
    assert re.search(r"sites have until \d{4}-\d\d-\d\d \d\d:\d\d UTC", waiting)
    preview = run("site", "preview", requests["a"][:12], "-d", "a").out
    assert re.search(r"ε asked +2\b", preview)
    assert re.search(r"ε of all releases with it +[0-9.]+\b", preview)
    assert "effect: ols score ~ sbp + age + sex" in preview
    assert re.search(r"read by +the account that hands it in, bob", preview)
    cost = run.json("site", "preview", requests["a"], "-d", "a")
    assert cost["epsilon_pld"] <= cost["epsilon_autodp"] <= 2
    assert "no such request" in run.here("site", "approve", "zzz", "-d", "a", code=4).err
    run("site", "approve", requests["a"][:12], "-d", "a")
    run.here("site", "approve", requests["b"][:12], "-d", "b")
    assert (
        "not waiting for approval"
        in run.here("site", "approve", requests["a"], "-d", "a", code=4).err
    )

    said = run("study", "status", "s1", "--wait", "--json")
    # Redirected, --wait wrote nothing until the end.
    assert re.search(r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ a delivered$", said.err), said.err
    assert re.search(r"(?m)^\S+Z study finished$", said.err)
    ended = json.loads(said.out)
    assert [s["state"] for s in ended["sites"]] == ["delivered", "delivered"]
    pulled = run("pull", "s1", "--out", "out").out
    # Noise decides: now and then tables of 240 persons hang on a few of them, and are no answer.
    answered = r"Mean difference in score per 10 mmHg"
    refused = (
        r"No answer from these \w+: mean difference for score per 10 mmHg of sbp. .+ By site: not"
    )
    assert re.search(rf"{answered}|{refused}", pulled), pulled
    assert {p.name for p in (run.home / "out").iterdir()} == {
        "report.html",
        "report.json",
        "study.json",
        "pooled.parquet",
        "pooled.csv",
        "dictionary.json",
        "methods.csv",
        "influence.csv",
        "cumulative.csv",
        "baseline.csv",
    }
    one = pd.read_parquet(run.home / "out" / "pooled.parquet")
    files = run.json("pull", "s1", "--out", "all", "--copies", "all")["files"]
    assert "all/report.json" in files
    every = pd.read_parquet(run.home / "all" / "pooled.parquet")
    assert 0 < len(one) <= 2 * FRAME  # as many as were counted, with noise
    assert len(every) == 3 * len(one)
    made = run.json("pull", "s1", "--out", "imputed", "--imputations")["files"]
    assert {"imputed/imputations.parquet", "imputed/imputations.csv"} <= {*made}

    (lineage,) = run.json("site", "ledger", "show", "-d", "a")
    assert [c["status"] for c in lineage["charges"]] == ["committed"]
    assert "committed" in run.here("site", "ledger", "show", "-d", "a").out
    run("site", "ledger", "verify", "-d", "a")
    run("site", "ledger", "export", "ledger.json", "-d", "a")
    # More than is left, although less than a study may cost.
    run.here("study", "submit", run.write_study("more", epsilon="2.9", release="2"))
    said = run.here("study", "status", "more", "--wait", code=10)
    assert said.out.count("refused") == 2
    assert re.search(r"\bbudget\b", said.out)
    assert "left" in said.out
    assert run.json("site", "ledger", "show", "-d", "a")[0]["charges"] == lineage["charges"]


@pytest.mark.parametrize("name", ["stranger", "greedy"])
def test_a_refusal_reaches_the_analyst_with_what_to_do(federation, name):
    run = federation.here
    if name == "stranger":
        run("key", "new", "eve.key")
        run("study", "submit", federation.write_study(name), "--key", "eve.key")
        code, remedy = "unknown-signer", "penstock site trust add"
    else:
        run("study", "submit", federation.write_study(name, epsilon="50"))
        code, remedy = "study-budget", "ask for less"
    said = run("study", "status", name, "--wait", code=10)
    assert "the study ended without results (got failed)" in said.err
    assert code in said.out
    assert remedy in re.sub(r"\s+", " ", said.out)


def test_a_stewards_no_costs_nothing(federation):
    run = federation
    before = run.json("site", "ledger", "show", "-d", "b")
    run.here("study", "submit", run.write_study("no", sites='["b"]', quorum="1", epsilon="0.5"))
    request = run.until(lambda: run.waiting("no", "b"))
    assert "is rejected" in run.here("site", "reject", request[:12], "-d", "b").out
    said = run.here("study", "status", "no", "--wait", code=10)
    assert "the steward said no" in said.out
    assert run.json("site", "ledger", "show", "-d", "b") == before


def test_a_gate_is_asked_about_itself_and_told_to_stop(federation):
    run = federation
    shown = run.json("site", "status", "-d", "b")
    assert (shown["site"], shown["persons"]) == ("b", FRAME)
    assert "SHA256:" in run.here("site", "status", "-d", "b").out
    assert (
        "another process holds this site's lock" in run.here("site", "check", "-d", "b", code=7).err
    )
    run("site", "stop", "-d", "b")
    assert "version 1 of main" in run.here("site", "check", "-d", "b").out  # the lock is free
    assert "the gate does not run" in run.here("site", "requests", "-d", "b", code=8).err
    run.start("site", "start", "--dir", "b")
    run.until(lambda: (run.home / "b" / "run" / "steward.sock").exists())
