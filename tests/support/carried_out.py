"""What tests ask of a mechanism without a study's life around it: a release, and its shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.mechanisms import MECHANISMS, Settings
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import Plan
from penstock.mechanisms.released import Shape
from penstock.study.study import Study


def release(settings: Settings, plan: Plan, *given: Any, **rest: Any) -> Iterator[Part]:
    """Carry a plan out that was made of these settings."""
    return MECHANISMS.of(settings).run(plan, *given, **rest)


def shape_of(study: Study, persons: int) -> Shape:
    """What a site of so many persons releases."""
    return MECHANISMS.of(study.mechanism).shape(study.asked, persons)
