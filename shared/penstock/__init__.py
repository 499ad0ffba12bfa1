"""Penstock: federated, differentially private synthetic data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.analyst.client import Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    # pandas and the network come with the first use: `import penstock` stays light.
    if name == "Client":
        from penstock.analyst.client import Client

        return Client
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
