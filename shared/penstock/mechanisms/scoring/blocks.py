"""What an answer holds, block by block: a study's regressions, then its descriptions.

Between blocks no covariance is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.mechanisms.scoring.descriptions import list_descriptions
from penstock.mechanisms.scoring.regressions import list_regressions
from penstock.questions.estimands import Estimand
from penstock.schema import Schema


class Block(Protocol):
    """Numbers with a covariance.

    Attributes:
        model, formula: of what they are; names: of each; asked: of each estimand of it, by name,
            its number's place.
    """

    @property
    def model(self) -> str: ...
    @property
    def formula(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def asked(self) -> Mapping[str, int]: ...


def list_blocks(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Block, ...]:
    """All of a study, in the order in which an answer has them."""
    return (*list_regressions(schema, estimands), *list_descriptions(schema, estimands))


def count_told(schema: Schema, estimands: Sequence[Estimand]) -> int:
    """Numbers of all blocks together."""
    return sum(len(block.names) for block in list_blocks(schema, estimands))


def find_places(schema: Schema, estimands: Sequence[Estimand]) -> dict[str, int]:
    """Of each estimand, by name, the place of what it asks for among all numbers."""
    found, first = dict[str, int](), 0
    for block in list_blocks(schema, estimands):
        found |= {name: first + at for name, at in block.asked.items()}
        first += len(block.names)
    return found
