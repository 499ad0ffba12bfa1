"""One byte string per value, so that hashes and signatures mean something."""

from __future__ import annotations

import hashlib
import json

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem


def canonical(value: object) -> bytes:
    """UTF-8 JSON with sorted keys, no white space, no NaN or infinity.

    Raises:
        ValueError: the value holds NaN or infinity.
        TypeError: the value holds something JSON cannot carry.

    Example:
        >>> canonical({"b": 1, "a": [1.5, None]})
        b'{"a":[1.5,null],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: object) -> str:
    """SHA-256 of :func:`canonical`, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def read_json(data: bytes, *, what: str, limit: int) -> Json:
    """Parse an untrusted JSON object of at most ``limit`` bytes; duplicate keys are refused.

    Raises:
        InvalidInput: too large, not JSON, not an object, NaN or infinity, or a duplicate key.
    """

    def refuse_constant(name: str) -> float:
        raise ValueError(f"{name} is not a number")

    def unique(pairs: list[tuple[str, object]]) -> Json:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    if len(data) > limit:
        problem = Problem("", "too large", value=f"{len(data)} bytes", bound=f"at most {limit}")
        raise InvalidInput(what, [problem])
    try:
        value = json.loads(data.decode(), parse_constant=refuse_constant, object_pairs_hook=unique)
        canonical(value)  # 1e400 and lone surrogates parse, and have no canonical form
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            what, [Problem("", "not valid JSON", value=type(error).__name__)]
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(what, [Problem("", "not a JSON object")])
    return value
