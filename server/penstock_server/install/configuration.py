"""``coordinator.json``: what a coordinator's keeper may set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import CoordinatorError
from penstock_server.store.folder import Folder

LOCAL_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Settings:
    """``coordinator.json``.

    Attributes:
        names: host names and addresses in the certificate; the first is what sites connect to.
        port: of the api, the only one that is open.
        bind: the address it listens on.
        store: SQL URL; empty for SQLite in the directory.
        own_certificate: the certificate came from elsewhere, and is not renewed here.
        open_studies, open_studies_each: how many studies may be open, in all and of one account.
        wrong_tokens: how many an address may try before it is told to wait, ever longer.
        round_patience: seconds that the others wait for a site in a round of a release of all.

    Raises:
        ValueError: a limit that is no whole number above 0.
    """

    names: tuple[str, ...] = LOCAL_NAMES
    port: int = 8443
    bind: str = "0.0.0.0"
    store: str = ""
    own_certificate: bool = False
    open_studies: int = 200
    open_studies_each: int = 20
    wrong_tokens: int = 20
    round_patience: int = 300

    def __post_init__(self) -> None:
        limits = (self.open_studies, self.open_studies_each, self.wrong_tokens, self.round_patience)
        for limit in limits:
            if isinstance(limit, bool) or not isinstance(limit, int) or not limit >= 1:
                raise ValueError("not a whole number above 0")

    @property
    def address(self) -> str:
        """host:port as sites and analysts write it."""
        host = self.names[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def read_settings(root: Path) -> Settings:
    """A coordinator's settings.

    Raises:
        CoordinatorError: none there, or of another version.
    """
    try:
        values = json.loads(Folder(root).settings.read_text())
        return Settings(**{**values, "names": tuple(values["names"])})
    except FileNotFoundError:
        raise CoordinatorError(
            "no coordinator here", value=root, remedy="run `penstock server init`"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise CoordinatorError(
            "coordinator.json cannot be read", value=root, remedy="restore it from a backup"
        ) from None
