"""What a site says of its part in sums of all sites: that it is charged, and nothing else.

Its numbers left in masked vectors, round by round (:mod:`penstock_server.sums`); at the end its
gate signs a manifest of no rows and no parts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache

from penstock.base.checks import shown
from penstock.base.errors import UploadRejected
from penstock.privacy.events import to_dict
from penstock.study.charges import plan_study
from penstock.study.study import Study
from penstock.wire.manifest import Manifest
from penstock.wire.messages import names_parts
from penstock_server.store.sites import Site

NOTHING = hashlib.sha256(b"").hexdigest()
"""Of its table, which is empty."""
CALIBRATED = 1e-6
"""How far two machines' noise multipliers for one ε may differ, relatively."""


def count_persons(study: Study, site: Site) -> int:
    """A site's public n: of one release of all sites that which the signed study says, by which
    sums were divided, whatever the site has enrolled since."""
    return dict(study.aggregation.persons).get(site.name, site.persons)


def check_summand(manifest: Manifest, study: Study) -> None:
    """A part in sums of all sites: no table, and the charge of the signed study's plan. What that
    costs if all other sites collude follows from the same events.

    Raises:
        UploadRejected: naming the first thing that is not so.
    """
    for name, got, wanted in (
        ("rows", manifest.rows, 0),
        ("parts", len(manifest.parts), 0),
        ("bytes", manifest.table_bytes, 0),
        ("SHA-256", manifest.table_sha256, NOTHING),
    ):
        if got != wanted:
            raise UploadRejected(
                f"the manifest's {name} are not those of a part in sums, which is no table",
                value=shown(got),
                bound=wanted,
            )
    if not names_parts(manifest.wire):
        raise UploadRejected("the manifest's wire version knows no sums", value=manifest.wire[:20])
    planned = _list_planned(study)
    alike = len(manifest.events) == len(planned) and all(map(_is_alike, manifest.events, planned))
    if not alike:
        raise UploadRejected(
            "the manifest's events are not those of the study's plan",
            value=f"{len(manifest.events)} events",
            bound="what every site of this release is charged",
        )


def _is_alike(got: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """The same event; its noise is calibrated by each machine, whose last digits may differ."""
    if got.keys() != wanted.keys():
        return False
    for name, value in wanted.items():
        said = got[name]
        if isinstance(value, float) and isinstance(said, float):
            if not math.isclose(said, value, rel_tol=CALIBRATED):
                return False
        elif said != value:
            return False
    return True


@lru_cache(maxsize=8)
def _list_planned(study: Study) -> tuple[dict[str, object], ...]:
    """What each site of one release is charged, as manifests say it."""
    return tuple(to_dict(event) for event in plan_study(study, 1).events)
