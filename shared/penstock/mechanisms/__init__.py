"""How a site makes its release: the settings of each mechanism, all public and fixed in advance.

====================  ==========================================  =========================
mechanism             what leaves a site                          mathematics
====================  ==========================================  =========================
`maf`                 synthetic tables                            `models.flow`
`sliced-wasserstein`  synthetic tables                            `models.sliced_wasserstein`
`trajectory`          particles, paths, and tables of snapshots   `models.trajectory`
`gibbs`               one question's coefficients                 `models.gibbs`
====================  ==========================================  =========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.base.checks import Checks, record, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.mechanisms.maf.settings import Maf
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.trajectory.settings import Trajectory

__all__ = ["MECHANISMS", "Gibbs", "Maf", "Mechanism", "SlicedWasserstein", "Trajectory", "read"]

Mechanism = Maf | SlicedWasserstein | Trajectory | Gibbs

_TYPES: dict[str, type[Mechanism]] = {
    kind.name: kind for kind in (Maf, SlicedWasserstein, Trajectory, Gibbs)
}
MECHANISMS = tuple(_TYPES)


def read(data: object) -> Mechanism:
    """A mechanism from its JSON form, ``{"name": …, setting: value, …}``.

    Raises:
        InvalidInput: with every problem; of another name, that one only.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput("mechanism", [Problem("", "must be a table", value=shown(data))])
    check = Checks("mechanism")
    name = data.get("name", Maf.name)
    check.choice("name", name, MECHANISMS)
    check.done()
    rest = {key: value for key, value in data.items() if key != "name"}
    return record(_TYPES[name], rest, "mechanism")


def settings(mechanism: Mechanism) -> dict[str, Any]:
    """The canonical JSON form: the name and every field, tuples as lists."""
    values = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    return {
        "name": mechanism.name,
        **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()},
    }
