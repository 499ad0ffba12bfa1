"""How long the path of a Unix socket may be."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.base.errors import PenstockError

MAX_BYTES = 107


def check_path(socket: Path, whose: str, error: type[PenstockError] = PenstockError) -> None:
    """Refuse a path that the kernel would cut.

    Args:
        whose: the directory that is to be moved, as a person knows it.

    Raises:
        PenstockError: or what ``error`` says; the path is longer than 107 bytes.
    """
    length = len(os.fsencode(socket.absolute()))
    if length > MAX_BYTES:
        raise error(
            f"{whose} has too long a path for a Unix socket",
            value=f"{length} bytes",
            bound=f"at most {MAX_BYTES}",
            remedy="move it to a shorter path",
        )
