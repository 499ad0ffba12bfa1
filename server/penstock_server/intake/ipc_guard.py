"""Looking at an Arrow stream before it is parsed: an upload is hostile until proven.

An uncompressed stream cannot decode to more than it weighs. So compressed batches, which could
unfold to any size, are refused by reading only the flatbuffer headers, and so are dictionary
batches and whatever is no schema or record batch.

Format: Apache Arrow columnar format 1.x, "Encapsulated message format" and ``Message.fbs``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.base.errors import UploadRejected

_CONTINUATION = 0xFFFFFFFF
_LENGTH = 0  # field of RecordBatch
_SCHEMA, _RECORD_BATCH = 1, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_COMPRESSION = 3  # field of RecordBatch
_MAX_METADATA = 10_000_000


class _Bytes(Protocol):
    """An open file, or a part of one in memory."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...


def check_stream(path: Path) -> None:
    """Walk the messages of an Arrow IPC stream without decoding any.

    Raises:
        UploadRejected: compressed, dictionary-encoded, truncated, or not a stream at all.
    """
    with open(path, "rb") as file:
        _walk(file, path.stat().st_size)


def check_part(part: pa.Buffer, rows: int) -> None:
    """The same for one part of a file: a stream that ends where the part does, of so many rows.

    Raises:
        UploadRejected: as of a stream, without an end, or other rows than its manifest's.
    """
    found, ended = _walk(pa.BufferReader(part), part.size)
    if not ended:
        raise UploadRejected("the part's stream has no end")
    if found != rows:
        raise UploadRejected("the part has not the manifest's rows", value=found, bound=rows)


def _walk(file: _Bytes, size: int) -> tuple[int, bool]:
    """Rows that the stream's batches say they have, and whether it says where it ends."""
    rows = 0
    try:
        while True:
            prefix = file.read(8)
            if prefix == b"":
                return rows, False
            marker, length = struct.unpack("<Ii", prefix)
            if marker != _CONTINUATION or not 0 <= length <= _MAX_METADATA:
                raise UploadRejected("the table is not an Arrow stream")
            if length == 0:
                if file.read(1):
                    raise UploadRejected("the table's stream goes on after its end")
                return rows, True
            body, more = _check_message(file.read(length))
            if not 0 <= body <= size - file.tell():
                raise UploadRejected("the table's stream is truncated")
            rows += more
            file.seek(body, 1)
    except (struct.error, IndexError):
        raise UploadRejected("the table is not an Arrow stream") from None


def _check_message(data: bytes) -> tuple[int, int]:
    """Refuse what must not be decoded; the length of the body that follows, and its rows."""
    message = struct.unpack_from("<I", data, 0)[0]
    kind = _field(data, message, _HEADER_TYPE)
    kind_value, rows = data[kind] if kind else 0, 0
    if kind_value not in (_SCHEMA, _RECORD_BATCH):
        raise UploadRejected("the table holds dictionary or unknown batches")
    if kind_value == _RECORD_BATCH:
        header = _field(data, message, _HEADER)
        if not header:
            raise IndexError
        batch = header + struct.unpack_from("<I", data, header)[0]
        if _field(data, batch, _COMPRESSION):
            raise UploadRejected("the table is compressed; its size cannot be bounded")
        rows = _read_whole(data, _field(data, batch, _LENGTH))
        if rows < 0:
            raise UploadRejected("the table has a batch of less than no rows", value=rows)
    return _read_whole(data, _field(data, message, _BODY_LENGTH)), rows


def _read_whole(data: bytes, at: int) -> int:
    """A whole number of 8 bytes, which is 0 where it is absent."""
    return int(struct.unpack_from("<q", data, at)[0]) if at else 0


def _field(data: bytes, table: int, index: int) -> int:
    """Position of a flatbuffer table's field, or 0 where it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if not 0 <= vtable < len(data):
        raise IndexError
    slot = 4 + 2 * index
    if slot + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0
