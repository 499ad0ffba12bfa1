"""``site.toml``: the few settings of a site that are not policy."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from penstock.base.checks import NAME, NAME_BOUND, SITE, SITE_BOUND, Checks, unknown_keys
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.study.toml import read_file
from penstock.study.toml.reader import Lines
from penstock.study.toml.reader import read_toml as parse
from penstock_client.site.site_paths import SitePaths

SEEDED = (
    "insecure_seed is set: NOTHING this gate releases is private, and the first release ends the "
    "data set's budget. Remove it from site.toml unless all rows here are simulated"
)


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """``site.toml``.

    Attributes:
        data: the CSV or Parquet file, relative to the site's directory unless absolute.
        lineage: the steward's name for the data set; new rows stay in the same lineage.
        public_data: an optional public table for ``public-flow`` releases; never private rows.
        public_recoding: the file that says how that table is laid out; without one, it has the
            dictionary's own words.
        memory_gb: the worker's memory limit.
        device: ``cpu``, ``cuda``, or ``auto`` (a GPU if there is one).
        insecure_seed: simulation only; marks every release as not private.
    """

    name: str
    federation: str
    data: str
    lineage: str
    public_data: str = ""
    public_recoding: str = ""
    memory_gb: float = 8.0
    threads: int = 1
    device: str = "auto"
    insecure_seed: int | None = None


def read_toml(path: Path) -> tuple[Json, Lines]:
    """The values of a TOML file the steward wrote, and the line of each.

    Raises:
        InvalidInput: missing, too large, or not TOML.
    """
    try:
        return parse(read_file(path), str(path))
    except FileNotFoundError:
        problem = Problem("", "no such file", remedy="Run `penstock site init` first")
        raise InvalidInput(str(path), [problem]) from None


def read_settings(paths: SitePaths) -> SiteSettings:
    """Parse ``site.toml``; unknown keys are refused.

    Raises:
        InvalidInput: with all problems and their lines.
    """
    values, lines = read_toml(paths.settings)
    known = fields(SiteSettings)
    check = Checks(str(paths.settings))
    check.problems += unknown_keys(values, [f.name for f in known])
    given = {f.name: values.get(f.name, f.default) for f in known}
    absent = [n for n, v in given.items() if v is MISSING]
    for name in absent:
        check.add(name, "is missing")
    _check_settings(check, {n: v for n, v in given.items() if n not in absent})
    check.problems = lines.locate(check.problems)
    check.done()
    return SiteSettings(**given)


def _check_settings(check: Checks, given: Json) -> None:
    patterns = {
        "name": (SITE, SITE_BOUND),
        "federation": (NAME, NAME_BOUND),
        "lineage": (SITE, SITE_BOUND),  # it becomes part of file names
    }
    for name, value in given.items():
        if name in patterns:
            check.pattern(name, value, *patterns[name])
        elif name in ("data", "public_data", "public_recoding"):
            check.text(name, value, 4096, empty=name != "data")
        elif name == "memory_gb":
            check.number(name, value, "1 to 4096", least=1, most=4096)
        elif name == "threads":
            check.whole(name, value, 1, 1024)
        elif name == "device":
            check.choice(name, value, ("auto", "cpu", "cuda"))
        elif name == "insecure_seed" and value is not None:
            check.whole(name, value, 0, 2**63 - 1)
