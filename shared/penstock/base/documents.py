"""What a document is before anybody has checked it: one name for it, and one place for its ``Any``.

Whoever reads one checks it into an object where it comes in; whoever writes one says so by the
type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""An object of JSON, or a table of TOML: parsed and not checked yet, or about to be written."""

JsonView = Mapping[str, Any]
"""The same, for those who only read it."""
