"""What tests of dictionaries in TOML share."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidInput, Problem


def problems(parse: object, text: str) -> list[Problem]:
    assert callable(parse)
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    return list(caught.value.problems)


def filled(draft: str, persons: int = 500) -> str:
    """A draft whose steward looked at every line, and filled in the frame."""
    return draft.replace("draft = true", "draft = false").replace(
        'persons = ""', f"persons = {persons}"
    )
