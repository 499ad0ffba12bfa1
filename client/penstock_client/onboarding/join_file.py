"""``join.json``: the public facts that a coordinator enrols."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.study.toml import FRAME
from penstock.wire.messages import SERVED_MAJORS, WIRE_VERSION
from penstock.wire.signatures import fingerprint
from penstock_client.rows.validation import Checked
from penstock_client.site.network_paths import NetworkPaths, read_public_line
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings


def describe_site(paths: SitePaths, settings: SiteSettings, checked: Checked) -> Json:
    """The public facts a coordinator enrols: nothing in it comes from rows.

    Raises:
        InvalidInput: the rows were checked without a declared frame.
    """
    public = paths.gate_public()
    dictionary = checked.dictionary.to_dict()
    columns = [{**c, "missing": []} for c in dictionary["columns"]]
    return {
        "site": settings.name,
        "federation": settings.federation,
        "gate_key": public,
        "fingerprint": fingerprint(public),
        "persons": declared_frame(checked),
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "dictionary": {**dictionary, "columns": columns},
        "node_key": read_node_line(paths),
    }


def declared_frame(checked: Checked) -> int:
    """The declared frame: nothing else may stand for it, least of all the count of ids."""
    if checked.persons is None:
        raise InvalidInput("dictionary", [Problem("persons", "is missing", remedy=FRAME)])
    return checked.persons


def read_node_line(paths: SitePaths) -> str:
    """The public key line of the site's network side.

    Raises:
        SignatureError: what is kept of it is none; PenstockError: there is none.
    """
    if paths.node_public.exists():
        return read_public_line(paths.node_public.read_text("ascii"), what=str(paths.node_public))
    return NetworkPaths(paths.network).read_public()
