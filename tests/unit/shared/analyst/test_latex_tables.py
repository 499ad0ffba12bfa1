"""Tables as LaTeX: no text is read as a command, and numbers are those of the CSV."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.analyst import client as module
from penstock.analyst.latex_tables import escape_latex, format_number, write_latex
from penstock.base.errors import CoordinatorError
from penstock.cli import study as cli

COLUMNS = [
    {"name": "site_name", "kind": "categorical", "label": "site"},
    {"name": "n", "kind": "integer", "label": "rows"},
    {"name": "mean", "kind": "continuous", "label": "of a number"},
]
TITLE = r"Pressure & death: 50% of $x_1$ in #2 \input{/etc/passwd}"


def pulled(folder: Path, lines: str, **changes: Any) -> list[Path]:
    """A folder as `pull` leaves it, with one table."""
    tables = {"sites.csv": {"rows": "a row for each site", "columns": COLUMNS, **changes}}
    content = {
        "report.json": json.dumps({"study": {"title": TITLE, "name": "cvd"}}),
        "dictionary.json": json.dumps({"tables": tables}),
        "sites.csv": f'"site_name","n","mean"\n{lines}',
        "pooled.csv": "_site\na\n",
    }
    for name, text in content.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in content]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("&", r"\&"),
        ("%", r"\%"),
        ("$", r"\$"),
        ("#", r"\#"),
        ("_", r"\_"),
        ("{", r"\{"),
        ("}", r"\}"),
        ("~", r"\textasciitilde{}"),
        ("^", r"\textasciicircum{}"),
        ("\\", r"\textbackslash{}"),
        ("a<b", r"a\textless{}b"),
        ("[1,2) *", "{[}1,2) {*}"),
        ("a--b ''c''", "a-{}-b '{}'c'{}'"),
        ("log-odds of ward's 3 µg", r"log-odds of ward's 3 \ensuremath{\mu}g"),
        ("≥ 65 ± 2²", r"\ensuremath{\geq} 65 \ensuremath{\pm} 2\ensuremath{^2}"),
        ("two\nlines\x1b", "two lines "),
        ("Zürich", "Zürich"),
        (r"\textbf{x}", r"\textbackslash{}textbf\{x\}"),
        (r"\\ \end{tabular}", r"\textbackslash{}\textbackslash{} \textbackslash{}end\{tabular\}"),
    ],
)
def test_what_latex_reads_as_a_command_stays_text(text: str, shown: str) -> None:
    assert escape_latex(text) == shown


def test_of_any_text_nothing_special_is_left() -> None:
    every = "".join(map(chr, range(0x2300))) * 2
    left = re.sub(
        r"\\(text[a-z]+\{\}|ensuremath\{[^}]*\}|[&%$#_{}])|\{[\[\]*`\"]\}|\{\}",
        "",
        escape_latex(every),
    )
    assert not set(left) & set('&%$#_{}~^\\[]*`"<>|\n\r\t\x00')


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (12345.0, "12345"),
        (1234.567, "1235"),
        (0.000123456, "0.0001235"),
        (-2.5, "$-$2.500"),
        (-1e-9, r"$-1.000\times10^{-9}$"),
        (9.9999e-6, r"$1.000\times10^{-5}$"),
        (float("inf"), r"$\infty$"),
        (float("nan"), ""),
    ],
)
def test_a_number_has_four_digits(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_a_table_has_its_caption_its_rules_and_its_rows(tmp_path: Path) -> None:
    lines = '"a & b",300,0.123456\n"\'-1",12,-3.5\n"[x]",,\n'
    (path,) = write_latex(tmp_path, pulled(tmp_path, lines))
    assert path == tmp_path / "sites.tex"
    assert path.read_text(encoding="utf-8").splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Pressure \& death: 50\% of \$x\_1\$ in \#2 \textbackslash{}input\{/etc/passwd\} "
        r"(study cvd): a row for each site.}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"site\_name & n & mean \\",
        r"\midrule",
        r"a \& b & 300 & 0.1235 \\",
        r"-1 & 12 & $-$3.500 \\",
        r"{[}x{]} &  &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("lines", "changes", "match"),
    [
        ("a,1\n", {}, "not as dictionary"),
        ("a,1,2,3\n", {}, "not as dictionary"),
        ("a,1,many\n", {}, "text for a number"),
        ("a,1,2\n", {"columns": COLUMNS[:2]}, "not as dictionary"),
        ("a,1,2\n", {"columns": [{**c, "kind": "p{3cm}"} for c in COLUMNS]}, "not as dictionary"),
    ],
)
def test_a_table_of_another_form_is_refused(
    tmp_path: Path, lines: str, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(CoordinatorError, match=match):
        write_latex(tmp_path, pulled(tmp_path, lines, **changes))
    assert not list(tmp_path.glob("*.tex"))


class Directory:
    """A coordinator on this machine, with one table."""

    def pull(self, study: str, out: Path, *, copies: str) -> list[Path]:
        out.mkdir(exist_ok=True)
        return pulled(out, '"a",1,2\n')


def test_the_client_and_the_command_write_it_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for where in (module, cli):
        monkeypatch.setattr(where, "connect", lambda where: Directory())
    assert tmp_path / "sites.tex" not in penstock.Client().pull("s", tmp_path)
    assert not (tmp_path / "sites.tex").exists()
    assert tmp_path / "sites.tex" in penstock.Client().pull("s", tmp_path, latex=True)
    out = tmp_path / "out"
    asked = ["s", "--out", str(out), "--json"]
    said = CliRunner().invoke(cli.pull_app, asked)
    assert "sites.tex" not in said.stdout
    said = CliRunner().invoke(cli.pull_app, [*asked, "--latex"])
    assert str(out / "sites.tex") in json.loads(said.stdout)["files"]
