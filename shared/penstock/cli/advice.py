"""Advice on a schema, for whoever writes one: nothing of it stops anybody."""

from __future__ import annotations

from penstock.cli.console import err
from penstock.schema import HOW_SUGGESTED, Schema, suggest_for


def show_suggestions(schema: Schema) -> None:
    """What columns could do with, by what is declared of them alone."""
    found = suggest_for(schema)
    for suggestion in found:
        err.print("  ·", str(suggestion), markup=False)
    if found:
        err.print(f"    {HOW_SUGGESTED}", markup=False)
