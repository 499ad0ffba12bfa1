"""Schemas, coded tables, their Arrow form, and the comparison with a site's dictionary."""

from penstock.schema.columns import (
    KINDS,
    LARGEST,
    LEVEL_KINDS,
    LEVELS_PUBLIC,
    MAX_COLUMNS,
    MAX_LEVELS,
    MAX_ROWS_PER_PERSON,
    NUMBER_KINDS,
    PUBLIC,
    SCALES,
    Coded,
    Column,
    Floats,
    Schema,
    read_columns,
)
from penstock.schema.compare import compare
from penstock.schema.suggestions import (
    HOW_SUGGESTED,
    Suggestion,
    follow_suggestions,
    suggest_for,
    suggest_modelling,
)
from penstock.schema.tables import (
    END_WIDTH,
    check_coded,
    end_follow_up,
    from_arrow,
    to_arrow,
)

__all__ = [
    "END_WIDTH",
    "HOW_SUGGESTED",
    "KINDS",
    "LARGEST",
    "LEVELS_PUBLIC",
    "LEVEL_KINDS",
    "MAX_COLUMNS",
    "MAX_LEVELS",
    "MAX_ROWS_PER_PERSON",
    "NUMBER_KINDS",
    "PUBLIC",
    "SCALES",
    "Coded",
    "Column",
    "Floats",
    "Schema",
    "Suggestion",
    "check_coded",
    "compare",
    "end_follow_up",
    "follow_suggestions",
    "from_arrow",
    "read_columns",
    "suggest_for",
    "suggest_modelling",
    "to_arrow",
]
