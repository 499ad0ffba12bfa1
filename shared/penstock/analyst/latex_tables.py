r"""Tables of a report as LaTeX: beside each pulled CSV the same for a paper, as ``.tex``.

A ``table`` with a caption and a ``tabular`` of the package booktabs. Text is escaped, so that no
name or level is read as a command. Numbers have four significant digits, and stand at the right;
all digits are in the CSV.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.base.files import replace_file
from penstock.base.printable import make_printable
from penstock.base.text import FORMULA_START

DIGITS = 4
KINDS = ("categorical", "integer", "continuous")

_SPECIAL = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After the end of a row these would be read as its options, or before ? and ! as one mark.
    **{mark: f"{{{mark}}}" for mark in '[]*`"'},
    # Letters that a plain document has no font for.
    **{
        mark: rf"\ensuremath{{{command}}}"
        for mark, command in {
            "α": r"\alpha", "β": r"\beta", "δ": r"\delta", "ε": r"\varepsilon", "μ": r"\mu",
            "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau", "χ": r"\chi", "≤": r"\leq", "≥": r"\geq",
            "≠": r"\neq", "±": r"\pm", "×": r"\times", "·": r"\cdot", "−": "-", "∞": r"\infty",
            "²": "^2", "³": "^3", "µ": r"\mu", "°": r"^\circ",
        }.items()
    },
}  # fmt: skip
_DOUBLED = re.compile(r"([-',])(?=\1)")
"""Two of which would be a dash or a quotation mark."""


def escape_latex(text: str) -> str:
    """Text that LaTeX shows as it is; what is no character to print is a space."""
    escaped = "".join(_SPECIAL.get(c, c) for c in make_printable(text, " "))
    return _DOUBLED.sub(r"\1{}", escaped)


def write_latex(folder: Path, files: Sequence[Path]) -> list[Path]:
    """Write each of the report's tables among pulled files as LaTeX, too; returns the new files.

    Args:
        folder: with ``dictionary.json``, which says what they are, and ``report.json``.
        files: that were pulled into it.

    Raises:
        CoordinatorError: a table is not as the dictionary describes it.
    """
    described = _read(folder / "dictionary.json").get("tables", {})
    study = _read(folder / "report.json")["study"]
    found = []
    for path in files:
        if path.suffix == ".csv" and path.name in described:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
            text = _make_table(path.name, described[path.name], rows, study)
            target = path.with_suffix(".tex")
            with replace_file(target) as name:
                Path(name).write_text(text, encoding="utf-8")
            found.append(target)
    return found


def _read(path: Path) -> Json:
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def _make_table(name: str, described: Json, rows: Sequence[Sequence[str]], study: Json) -> str:
    head, *body = rows or [[]]
    kinds = [column["kind"] for column in described["columns"]]
    named = [column["name"] for column in described["columns"]] == head
    if not (named and set(kinds) <= {*KINDS} and {len(row) for row in body} <= {len(head)}):
        raise CoordinatorError(
            "a table is not as dictionary.json describes it",
            value=name,
            remedy="pull it again; if it stays so, the coordinator's version is another one",
        )
    caption = f"{study['title']} (study {study['name']}): {described['rows']}."
    aligned = "".join("l" if kind == "categorical" else "r" for kind in kinds)
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        _end_row([escape_latex(column) for column in head]),
        r"\midrule",
        *(
            _end_row(
                [_write_cell(value, kind, name) for value, kind in zip(row, kinds, strict=True)]
            )
            for row in body
        ),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _end_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _write_cell(value: str, kind: str, name: str) -> str:
    """A cell of the CSV; an empty one stays empty."""
    if not value:
        return ""
    if kind == "categorical":
        # In the CSV a quote keeps a spreadsheet from reading it as a formula.
        quoted = value.startswith("'") and value[1:].startswith(FORMULA_START)
        return escape_latex(value[1:] if quoted else value)
    try:
        return format_number(float(value))
    except ValueError:
        raise CoordinatorError("a table has text for a number", value=name) from None


def format_number(value: float) -> str:
    """Whole numbers as they are, others with :data:`DIGITS` significant digits.

    Examples:
        >>> [format_number(x) for x in (412.0, 0.123456, -12.3456, 4.56789e-7)]
        ['412', '0.1235', '$-$12.35', '$4.568\\\\times10^{-7}$']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    sign, size = "$-$" if value < 0 else "", abs(value)
    if size < 1e15 and size == round(size):
        return f"{'' if size == 0 else sign}{size:.0f}"
    mantissa, exponent = f"{size:.{DIGITS - 1}e}".split("e")
    if -5 < int(exponent) < 15:
        return f"{sign}{size:.{max(0, DIGITS - 1 - int(exponent))}f}"
    return rf"${'-' if sign else ''}{mantissa}\times10^{{{int(exponent)}}}$"
