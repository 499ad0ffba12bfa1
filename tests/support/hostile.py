"""Bytes of strangers that are no message."""

from penstock.wire.signatures import generate_key

HOSTILE = [
    b"",
    b"[]",
    b"1",
    b"null",
    b"\xff",
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":1e400}',
    b'{"a":"\\ud800"}',
    b'{"a":' * 100_000,
    b'{"a":"' + b"x" * 2000 + b'"}',
]


KEY = generate_key()
